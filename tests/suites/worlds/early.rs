//! Jobs that have their pods replaced early: which ask for it, and what may follow from that.

use std::collections::BTreeMap;

use epilogue_common::names::job_option::REPLACE_EARLY;
use epilogue_common::names::node::SHUTTING_DOWN_TAINT;
use jiff::{SignedDuration, Timestamp};
use model_api::{Access, Kind, Verb};
use serde_json::Value;
use simulation::controller::Random;

use super::ledger::{CONTROLLER, has_written};
use super::plots::{Plot, condition, is_terminal};

/// A controller may act on what was taken back for so long.
const LAG: SignedDuration = SignedDuration::from_secs(5);

/// Lets some of the Jobs ask whose spec allows two pods of one place.
pub(super) fn ask(random: &mut Random, plots: &mut [Plot]) {
    for plot in plots {
        let forbids = ["podFailurePolicy", "podReplacementPolicy", "backoffLimitPerIndex"];
        let may = forbids.iter().all(|field| plot.job["spec"][field].is_null());
        if may && random.percent(70) {
            plot.job["metadata"]["annotations"][REPLACE_EARLY] = "true".into();
        }
    }
}

/// What stands, or stood until a time.
#[derive(Debug, Default)]
struct Sign {
    stands: bool,
    until: Option<Timestamp>,
}

impl Sign {
    fn set(&mut self, stands: bool, now: Timestamp) {
        if self.stands && !stands {
            self.until = Some(now);
        }
        self.stands = stands;
    }

    fn may_be_seen(&self, now: Timestamp) -> bool {
        self.stands || self.until.is_some_and(|until| now < until + LAG)
    }
}

#[derive(Debug, Default)]
struct JobSeen {
    name: String,
    parallelism: usize,
    asks: bool,
}

#[derive(Debug, Default)]
struct PodSeen {
    job: String,
    node: String,
    is_active: bool,
    mark: Sign,
}

/// What the log shows up to now.
#[derive(Debug, Default)]
struct Ledger {
    jobs: BTreeMap<String, JobSeen>,
    pods: BTreeMap<String, PodSeen>,
    taints: BTreeMap<String, Sign>,
    verdict: Verdict,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) violations: Vec<String>,
    /// Successors that came to be while their predecessors had no mark.
    pub(super) at_notice: usize,
    /// Those that came to be before their predecessors had ended.
    pub(super) early: usize,
}

/// Judges a run without faults: no Job has more active pods than it asks for and, if it has them
/// replaced early, as many again whose nodes are tainted or which have the mark.
pub(super) fn judge(log: &[Access]) -> Verdict {
    let mut ledger = Ledger::default();
    log.iter().filter(|access| has_written(access)).for_each(|access| ledger.read(access));
    ledger.verdict
}

impl Ledger {
    fn read(&mut self, access: &Access) {
        let (object, at) = (&*access.answer, access.at);
        match access.kind {
            Kind::Job => {
                let job = self.jobs.entry(text(&object["metadata"]["uid"])).or_default();
                job.name = text(&object["metadata"]["name"]);
                job.parallelism = object["spec"]["parallelism"].as_u64().unwrap_or(0) as usize;
                job.asks = object["metadata"]["annotations"][REPLACE_EARLY] == "true";
            }
            Kind::Node => {
                let mut taints = object["spec"]["taints"].as_array().into_iter().flatten();
                let is_tainted = taints.any(|taint| taint["key"] == SHUTTING_DOWN_TAINT);
                self.taints.entry(access.name.clone()).or_default().set(is_tainted, at);
            }
            Kind::Pod if object["kind"] != "Status" => self.pod(access, object),
            _ => {}
        }
    }

    fn pod(&mut self, access: &Access, object: &Value) {
        let (metadata, at) = (&object["metadata"], access.at);
        let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let owner = owners.find(|owner| owner["controller"] == true);
        let is_deleted = metadata.get("deletionTimestamp").is_some();
        let pod = self.pods.entry(text(&metadata["uid"])).or_default();
        pod.job = owner.map(|owner| text(&owner["uid"])).unwrap_or_default();
        pod.node = text(&object["spec"]["nodeName"]);
        pod.is_active = !is_deleted && !is_terminal(object) && access.verb != Verb::Delete;
        pod.mark.set(condition(object, "DisruptionTarget").is_some(), at);
        let job = pod.job.clone();
        if access.verb == Verb::Create && access.agent.starts_with(CONTROLLER) {
            self.check(&job, at);
        }
    }

    fn check(&mut self, job: &str, at: Timestamp) {
        let Some(JobSeen { name, parallelism, asks }) = self.jobs.get(job) else { return };
        let active: Vec<_> =
            self.pods.values().filter(|pod| pod.job == *job && pod.is_active).collect();
        let leaves = |pod: &&&PodSeen| {
            let taint = self.taints.get(&pod.node);
            pod.mark.may_be_seen(at) || taint.is_some_and(|taint| taint.may_be_seen(at))
        };
        let leaving = if *asks { active.iter().filter(leaves).count() } else { 0 };
        if active.len() > parallelism + leaving.min(*parallelism) {
            let (count, max) = (active.len(), parallelism);
            self.verdict.violations.push(format!(
                "{at} {name} has {count} active pods, {max} asked for and {leaving} leaving"
            ));
        }
        if active.len() > *parallelism {
            self.verdict.early += 1;
            self.verdict.at_notice += usize::from(active.iter().all(|pod| !pod.mark.stands));
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
