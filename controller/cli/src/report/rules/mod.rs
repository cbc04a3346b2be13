//! Reports what disruptions cost for `kubectl epilogue report`: terminal phases that never came,
//! failures without their cause, Jobs that failed by it, and what Epilogue did or would have done.
//!
//! Each number is seen in the API or estimated, and says how. doctor decides which pods are stuck.

mod answer;
mod attribution;
mod cluster;
mod disrupted;
mod disruption_times;
mod ends;
mod event_log;
mod failed_message;
mod gone;
mod job_events;
mod jobs;
mod lost_work;
mod metrics;
mod pod;
mod since;
#[cfg(test)]
mod tests;

mod totals;

pub(crate) use answer::{
    AffectedJob, Basis, CauseEnds, DisruptedPod, Ends, Figure, Help, Report, Unit,
};
use answer::{ControllerRuns, Installed, VERSION};
pub(crate) use disruption_times::DisruptionTime;
pub(crate) use event_log::{EventLog, is_read, time_of};
pub(crate) use lost_work::JobLostWork;
pub(crate) use metrics::Metrics;
pub(crate) use since::Since;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use self::attribution::Attribution;
use self::cluster::{Cluster, key};
use self::disrupted::Judgement;
use self::event_log::Meaning;
use self::jobs::PodsOfJobs;
use self::pod::PodSeen;
use crate::doctor::rules::{Scene, SceneError, findings};
use crate::kind::Kind;
use crate::lease::Controller;
use controller_core::view::Interner;

/// What a report is made of.
#[derive(Debug)]
pub(crate) struct Input {
    /// The kinds that were read.
    pub(crate) read: Vec<Kind>,
    /// Pods, Jobs, nodes, namespaces and leases.
    pub(crate) objects: Vec<Value>,
    /// The events.
    pub(crate) events: EventLog,
    /// The metrics.
    pub(crate) metrics: Metrics,
    /// What its lease says of the controller.
    pub(crate) controller: Controller,
    /// The namespace; `None` for all.
    pub(crate) namespace: Option<String>,
    /// How far back it goes.
    pub(crate) since: Since,
    /// Its end.
    pub(crate) now: Timestamp,
}

impl Input {
    /// The beginning of the time range.
    fn from(&self) -> Timestamp {
        self.now.checked_sub(self.since.0).unwrap_or(Timestamp::MIN)
    }
}

/// The report.
pub(crate) fn report(input: &Input) -> Result<Report, SceneError> {
    let objects = &input.objects;
    let scene = Scene::new(input.read.iter().copied(), objects.clone(), input.now)?;
    let stuck = findings(&scene, None, input.now);
    drop(scene);
    let of_kind = |kind: Kind| objects.iter().filter(move |it| it["kind"] == kind.name());
    let nodes = input.read.contains(&Kind::Node).then(|| of_kind(Kind::Node).collect());
    let range = (input.from(), input.now);
    let cluster = Cluster::new(range, nodes, &input.events, stuck);
    let mut interner = Interner::default();
    let read = of_kind(Kind::Pod).map(|object| PodSeen::read(object, &mut interner));
    // The scene has read each of them, so none is left out.
    let seen: Vec<PodSeen> = read.filter_map(Result::ok).collect();
    let mut said = Attribution::new(&input.events, range);
    let (pods, unclear) = disrupted_pods(&seen, &cluster, input, &said);
    said.absorb(&pods);
    let installed = input.namespace.is_none().then(|| installed(&seen));
    let affected =
        jobs::affected(objects, &PodsOfJobs::new((&seen, range.1), &pods, &said), range.0);
    Ok(Report {
        version: VERSION,
        from: range.0,
        to: range.1,
        namespace: input.namespace.clone(),
        oldest_event: input.events.oldest,
        installed,
        controller: controller(input),
        figures: totals::figures(&pods, &affected, said.unnamed()),
        ends: ends::count(&said, &pods, &seen, input.now),
        lost_work: lost_work::by_job(&pods),
        pods,
        jobs: affected,
        nodes: cluster.node_disruptions(),
        events: totals::events(input),
        disruption_times: input.metrics.times(),
        metrics: input.metrics.sums(),
        not_known: totals::not_known(input, unclear, said.before(), installed),
    })
}

/// How the controller runs, or ran last.
fn controller(input: &Input) -> Option<ControllerRuns> {
    let setup = input.controller.setup()?;
    Some(ControllerRuns {
        version: setup.version.clone(),
        manage_all_jobs: setup.manage_all_jobs,
        namespaces: setup.namespaces.clone(),
        mode: setup.mode.clone(),
        idle: input.controller.idle(input.now),
    })
}

/// The disrupted pods, latest first, and the number of those that are unclear.
fn disrupted_pods(
    seen: &[PodSeen],
    cluster: &Cluster,
    input: &Input,
    said: &Attribution<'_>,
) -> (Vec<DisruptedPod>, u64) {
    let (mut pods, mut unclear) = (Vec::new(), 0);
    for pod in seen {
        match disrupted::judge(pod, cluster) {
            Judgement::Disrupted(found) => pods.push(*found),
            Judgement::Unclear => unclear += 1,
            Judgement::Fine => {}
        }
    }
    let keys = |pod: &PodSeen| {
        let (namespace, name) = (&pod.view.namespace, &pod.view.name);
        [key(namespace, name, pod.view.uid.as_str()), key(namespace, name, "")]
    };
    let mut known: BTreeSet<String> = seen.iter().flat_map(keys).collect();
    // Without the pods, no pod is known to be gone.
    if input.read.contains(&Kind::Pod) {
        let names = gone::names(&input.events);
        let mut found_gone = Vec::new();
        for (key, hits) in cluster.hits_of_others(|key| known.contains(key)) {
            let found = names.get(key).and_then(|name| gone::judge(name, hits));
            let is_unclear = hits.iter().any(|hit| hit.meaning == Meaning::Unclear);
            unclear += u64::from(found.is_none() && is_unclear);
            found_gone.extend(found);
        }
        for mut pod in found_gone {
            if let Some((event, end)) = said.end(&pod.namespace, &pod.name) {
                gone::complete(&mut pod, event, end);
            }
            known.insert(key(&pod.namespace, &pod.name, ""));
            pods.push(pod);
        }
    }
    // A Job counts a pod when it has ended, so these need not be gone.
    for (event, end) in said.ends().filter(|(event, _)| event.is_disruption) {
        if !known.contains(&key(&event.job.namespace, &end.pod, "")) {
            pods.push(gone::described(event, end));
        }
    }
    pods.sort_by(|a, b| (b.at, &a.namespace, &a.name).cmp(&(a.at, &b.namespace, &b.name)));
    (pods, unclear)
}

/// The pods of Epilogue that run.
fn installed(pods: &[PodSeen]) -> Installed {
    let count = |name: &str| {
        let of = pods.iter().filter(|pod| pod.app.as_deref() == Some(name));
        of.filter(|pod| !pod.view.is_terminal()).count()
    };
    Installed { agents: count("epilogue-agent"), controllers: count("epilogue-controller") }
}
