//! Plays a pod that takes too much, from its start to the final state of the API, its Job and the
//! neighbouring pods; and a whole row of such runs on one machine.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::batch::v1::JobStatus;
use kube::api::ListParams;
use serde::{Deserialize, Serialize};

use super::kind::Setting;
use super::pods;
use super::samples;
use super::stage::Stage;
use super::stuck::{self, Hung, Stuck};
use crate::stopwatch::Stopwatch;
use crate::vm::{Kit, Seen};
use crate::{observe_costly_until, observe_until};

/// On an emulated machine: the start of a pod, its taking, three checks of the kubelet, its end.
const ENDS_WITHIN: Duration = Duration::from_secs(100);
/// Time for the Job's controller, and for all other writes.
const COUNTED_WITHIN: Duration = Duration::from_secs(20);

/// Outcome of one run. Times are in milliseconds after the pod began to take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// From 1.
    pub number: u32,
    /// When less than the first threshold was left.
    pub below: Option<i64>,
    /// When tasks of the node waited for memory for a tenth of their time.
    pub stalled: Option<i64>,
    /// When DisruptionTarget was in the API.
    pub marked: Option<i64>,
    /// When the container was gone.
    pub stopped: Option<i64>,
    /// When the condition that names the cause was in the API.
    pub cause: Option<i64>,
    /// When a terminal phase was in the API.
    pub reported: Option<i64>,
    /// The least amount that was left, in bytes or processes.
    pub least_left: Option<i64>,
    /// Processes that the OOM killer killed.
    pub kernel_kills: i64,
    /// The other pods that it hurt, and how.
    pub wrong: Vec<String>,
    /// The pod's final state in the API.
    pub end: PodEnd,
    /// The result of its Job.
    pub job: JobEnd,
}

/// A pod's last state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodEnd {
    /// Phase and reason.
    pub phase: String,
    /// Reason of DisruptionTarget where it is True.
    pub disruption: Option<String>,
    /// Reason of the condition that names the cause.
    pub cause: Option<String>,
    /// Its message.
    pub cause_message: String,
    /// The pod's message.
    pub message: String,
    /// The container's state.
    pub container: String,
    /// Whether the object is gone.
    pub gone: bool,
}

/// The result of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// `status.failed`.
    pub failed: i32,
    /// Type and reason of the condition that ended the Job.
    pub condition: String,
    /// Whether it has another pod.
    pub replaced: bool,
}

impl Run {
    /// A run after which the machine no longer answered.
    fn of_lost_machine(number: u32) -> Self {
        let end = PodEnd { phase: "the machine stood still".to_owned(), ..PodEnd::default() };
        Self { number, end, ..Self::default() }
    }

    /// Whether the cause was in the API before the pod's end was.
    pub fn cause_was_first(&self) -> bool {
        self.cause.is_some_and(|cause| self.reported.is_none_or(|reported| cause < reported))
    }
}

/// Plays all runs of a setting on one machine. Passes each result to `seen` at once.
pub async fn play(
    kit: &Kit,
    setting: &Setting,
    mut seen: impl FnMut(&Run),
) -> anyhow::Result<(Vec<Run>, String)> {
    let mut stage = set(kit, setting).await?;
    let (mut runs, mut losses) = (Vec::new(), Vec::new());
    for number in 1..=setting.runs {
        let run = match once(&mut stage, setting, number).await {
            Ok(run) => run,
            Err(error) => {
                eprintln!("run {number}: {error:#}");
                losses.push("all: it had to be made anew".to_owned());
                stage.strike().await?;
                stage = set(kit, setting).await?;
                Run::of_lost_machine(number)
            }
        };
        seen(&run);
        runs.push(run);
    }
    losses.push(stage.losses().await?);
    stage.strike().await?;
    Ok((runs, losses.join("; ")))
}

/// A machine on which runs are played one after the other, each by itself.
pub struct Pressure {
    stage: Stage,
    runs: u32,
}

impl fmt::Debug for Pressure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pressure").field("runs", &self.runs).finish_non_exhaustive()
    }
}

impl Pressure {
    /// Starts the machine; kubelet and agent have the thresholds of `setting`, and the agent the
    /// flags of `stuck`.
    pub async fn set(kit: &Kit, setting: &Setting, stuck: Option<Stuck>) -> anyhow::Result<Self> {
        let mut flags = setting.agent_flags();
        flags.extend(stuck.iter().flat_map(Stuck::agent_flags));
        let agent = setting.agent.map(|agent| (agent, flags));
        let stage = Stage::set(kit, &setting.kubelet_config(), agent, setting.guard).await?;
        Ok(Self { stage, runs: 0 })
    }

    /// Plays one run; its time goes to `took`.
    pub async fn play(&mut self, setting: &Setting) -> anyhow::Result<(Run, Stopwatch)> {
        self.runs += 1;
        let run = once(&mut self.stage, setting, self.runs).await;
        let took = std::mem::take(&mut self.stage.scene.took);
        Ok((run.with_context(|| setting.to_string())?, took))
    }

    /// Plays pods that are deleted before they ran.
    pub async fn play_stuck(&mut self, stuck: Stuck) -> anyhow::Result<(Vec<Hung>, Stopwatch)> {
        let hung = stuck::play_on(&self.stage, stuck).await?;
        self.stage.scene.took.lap("deleted");
        Ok((hung, std::mem::take(&mut self.stage.scene.took)))
    }

    /// The directory of the logs of control plane and node.
    pub fn dir(&self) -> &Path {
        self.stage.scene.control_plane.dir()
    }

    /// Stops everything.
    pub async fn strike(self) -> anyhow::Result<()> {
        self.stage.strike().await
    }
}

async fn set(kit: &Kit, setting: &Setting) -> anyhow::Result<Stage> {
    let agent = setting.agent.map(|agent| (agent, setting.agent_flags()));
    Stage::set(kit, &setting.kubelet_config(), agent, setting.guard).await
}

async fn once(stage: &mut Stage, setting: &Setting, number: u32) -> anyhow::Result<Run> {
    stage.calm(setting.kind).await.context("before the run")?;
    stage.scene.took.lap("calm");
    let ahead = stage.clock_ahead().await?;
    stage.begin_record().await?;
    let job = format!("culprit-{number}");
    let object = pods::culprit(&job, setting);
    stage.create_job(object).await?;
    let (pod, uid) = stage.pod_of(&job).await?;
    stage.bind(&pod).await?;
    let observe = async || stage.scene.watcher.history(&pod).pop();
    let ended =
        |seen: &Option<Seen>| seen.as_ref().is_some_and(|seen| seen.is_terminal() || seen.gone);
    // The table shows it if the run never ends.
    let _ = observe_until(ENDS_WITHIN, observe, ended).await;
    stage.scene.took.lap("end");
    let observe = async || job_end(stage, &job, &pod).await;
    let counted = |end: &anyhow::Result<JobEnd>| {
        end.as_ref().is_ok_and(|end| end.replaced || !end.condition.is_empty())
    };
    let job_end = observe_costly_until(COUNTED_WITHIN, observe, counted).await;
    let job_end = job_end.unwrap_or_else(|last| last)?;
    stage.scene.took.lap("its Job");
    let samples = stage.record().await?;
    let course = samples::course(&samples, setting.kind, &uid, setting.first_threshold());
    stage.remove_job(&job).await?;
    // Damage that comes late counts, too.
    stage.no_shortage().await?;
    stage.scene.took.lap("clear");
    stage.check_controller()?;
    let wrong = stage.hurt().iter().map(|(role, seen)| format!("{role}: {}", how(seen))).collect();
    let history = stage.scene.watcher.history(&pod);
    let begin = course.onset.or(course.stopped).unwrap_or_default();
    let after = |at: Option<i64>| at.map(|at| at - begin);
    let in_api = |holds: &dyn Fn(&Seen) -> bool| {
        let state = history.iter().find(|seen| holds(seen))?;
        Some(state.at.as_millisecond() + ahead - begin)
    };
    Ok(Run {
        number,
        below: after(course.below),
        stalled: after(course.stalled),
        marked: in_api(&Seen::is_disrupted),
        stopped: after(course.stopped),
        cause: in_api(&|seen| seen.cause.is_some()),
        reported: in_api(&Seen::is_terminal),
        least_left: course.least,
        kernel_kills: course.kernel_kills,
        wrong,
        end: pod_end(&history),
        job: job_end,
    })
}

fn how(seen: &Seen) -> String {
    let disrupted = if seen.is_disrupted() { " DT" } else { "" };
    format!("{} {}{disrupted} ({})", seen.phase, seen.reason, seen.container)
}

/// The last state that describes the pod itself: we remove it afterwards. A live kubelet reverts a
/// foreign reason and restores it after it has torn the pod down; no test here waits for that.
/// ([API16])
fn pod_end(history: &[Seen]) -> PodEnd {
    let reports = |seen: &&Seen| !seen.deleting && !seen.gone && seen.is_terminal();
    let reported = history.iter().rfind(|seen| reports(seen) && !seen.reason.is_empty());
    let reported = reported.or_else(|| history.iter().rfind(reports));
    let Some(last) = reported.or(history.last()) else { return PodEnd::default() };
    let slash = if last.reason.is_empty() { "" } else { "/" };
    PodEnd {
        phase: format!("{}{slash}{}", last.phase, last.reason),
        disruption: last
            .disruption
            .as_ref()
            .filter(|_| last.is_disrupted())
            .map(|(_, reason)| reason.clone()),
        cause: last.cause.as_ref().map(|(reason, _)| reason.clone()),
        cause_message: last.cause.as_ref().map(|(_, said)| said.clone()).unwrap_or_default(),
        message: last.message.clone(),
        container: last.container.clone(),
        gone: reported.is_none() && last.gone,
    }
}

pub(super) async fn job_end(stage: &Stage, job: &str, pod: &str) -> anyhow::Result<JobEnd> {
    let status = stage.jobs().get_status(job).await.context("read a Job")?.status;
    let status: JobStatus = status.unwrap_or_default();
    let over = |kind: &str| matches!(kind, "Complete" | "Failed");
    let condition = status
        .conditions
        .iter()
        .flatten()
        .filter(|condition| condition.status == "True" && over(&condition.type_))
        .map(|condition| {
            format!("{}/{}", condition.type_, condition.reason.as_deref().unwrap_or_default())
        })
        .next_back();
    let selector = ListParams::default().labels(&format!("job-name={job}"));
    let pods = stage.pods().list(&selector).await.context("list a Job's pods")?;
    Ok(JobEnd {
        failed: status.failed.unwrap_or(0),
        condition: condition.unwrap_or_default(),
        replaced: pods.iter().any(|other| other.metadata.name.as_deref() != Some(pod)),
    })
}
