//! Plays pods whose image never comes and that are deleted before they ran. The kubelet is dead, or
//! lives and waits for the image too. Records when the API says Failed, if ever, and whether it
//! stays.

use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde::Serialize;
use serde_json::json;

use super::pods;
use super::run::{JobEnd, job_end};
use super::stage::Stage;
use crate::vm::agent::Install;
use crate::vm::{Kit, KubeletConfig, Seen};
use crate::{observe_costly_until, observe_until};

const PULLS_WITHIN: Duration = Duration::from_mins(2);
/// By default, the agent first waits a minute for the kubelet.
const FAILED_WITHIN: Duration = Duration::from_mins(4);
/// Two passes of the kubelet over its statuses.
const STAYS_FOR: Duration = Duration::from_secs(25);

/// The played case.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// How the agent is installed, if it is.
    pub agent: Option<Install>,
    /// How many pods, all at once.
    pub pods: u32,
    /// Whether the kubelet stops; otherwise it lives and the agent is set to fail hanging pods.
    pub kubelet_stops: bool,
    /// The agent's `--stuck-after`, if set.
    pub after_seconds: Option<u32>,
}

impl Stuck {
    pub(super) fn agent_flags(&self) -> Vec<String> {
        let after = self.after_seconds.map(|seconds| format!("--stuck-after={seconds}s"));
        let hanging = (!self.kubelet_stops).then(|| "--hanging-starts=fail".to_owned());
        after.into_iter().chain(hanging).collect()
    }
}

/// Outcome for one pod. Times are in milliseconds after its deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hung {
    /// The pod.
    pub pod: String,
    /// The first terminal phase in the API.
    pub failed: Option<i64>,
    /// Whether it was still there at the end: the kubelet was back, or had time to revert it.
    pub stays: bool,
    /// Phase, reason and message of it.
    pub reported: String,
    /// Reason of DisruptionTarget, where it is True.
    pub disruption: Option<String>,
    /// The state of its container in the API.
    pub container: String,
    /// The result of its Job.
    pub job: JobEnd,
}

/// Plays it once.
pub async fn play(kit: &Kit, stuck: Stuck) -> anyhow::Result<Vec<Hung>> {
    // The default is one pull at a time; then the second would not even begin.
    let kubelet = KubeletConfig::default().set("serializeImagePulls", json!(false));
    let agent = stuck.agent.map(|agent| (agent, stuck.agent_flags()));
    let stage = Stage::set(kit, &kubelet, agent, false).await?;
    let all = play_on(&stage, stuck).await?;
    stage.strike().await?;
    Ok(all)
}

/// The same on an existing machine, whose agent has the flags.
pub(super) async fn play_on(stage: &Stage, stuck: Stuck) -> anyhow::Result<Vec<Hung>> {
    let jobs: Vec<String> = (1..=stuck.pods).map(|number| format!("hangs-{number}")).collect();
    let pods = begin_pulls(stage, &jobs).await?;
    if stuck.kubelet_stops {
        stage.scene.node.run("systemctl stop kubelet").await?;
    }
    let mut deleted = Vec::new();
    for pod in &pods {
        deleted.push(Timestamp::now());
        stage.pods().delete(pod, &DeleteParams::default()).await.context("delete a pod")?;
    }
    let observe = async || pods.iter().all(|name| first_terminal(stage, name).is_some());
    // The table shows it if some never are.
    let _ = observe_until(FAILED_WITHIN, observe, |all| *all).await;
    if stuck.kubelet_stops {
        stage.scene.node.run("touch /run/open && systemctl start kubelet").await?;
    }
    tokio::time::sleep(STAYS_FOR).await;
    let mut all = Vec::new();
    for ((job, pod), at) in jobs.iter().zip(&pods).zip(deleted) {
        all.push(hung(stage, pod, at, job_end(stage, job, pod).await?));
    }
    Ok(all)
}

/// Creates a Job for each, and waits until each one's image is requested. Returns the pods.
async fn begin_pulls(stage: &Stage, jobs: &[String]) -> anyhow::Result<Vec<String>> {
    let registry = "systemd-run --quiet --unit=registry /opt/tools/container registry \
                    127.0.0.1:5000 /run/open";
    stage.scene.node.run(registry).await?;
    let mut names = Vec::new();
    for name in jobs {
        let job = pods::waiting(name, &format!("127.0.0.1:5000/{name}:1"));
        stage.create_job(job).await?;
        let (pod, _) = stage.pod_of(name).await?;
        stage.bind(&pod).await?;
        names.push(pod);
    }
    let asked =
        async || stage.scene.node.run("journalctl -u registry -o cat").await.unwrap_or_default();
    let all = |said: &String| jobs.iter().all(|name| said.contains(&format!("/{name}/")));
    match observe_costly_until(PULLS_WITHIN, asked, all).await {
        Ok(_) => Ok(names),
        Err(said) => bail!("not all images are being pulled: {said}"),
    }
}

fn first_terminal(stage: &Stage, pod: &str) -> Option<Seen> {
    stage.scene.watcher.history(pod).into_iter().find(Seen::is_terminal)
}

fn hung(stage: &Stage, pod: &str, deleted: Timestamp, job: JobEnd) -> Hung {
    let first = first_terminal(stage, pod);
    let last = stage.scene.watcher.history(pod).pop();
    let reported = first.clone().or_else(|| last.clone());
    Hung {
        pod: pod.to_owned(),
        failed: first.map(|seen| seen.at.as_millisecond() - deleted.as_millisecond()),
        stays: last.is_some_and(|seen| seen.is_terminal()),
        reported: reported
            .as_ref()
            .map(|seen| format!("{}/{} {}", seen.phase, seen.reason, seen.message))
            .unwrap_or_default(),
        disruption: reported
            .as_ref()
            .filter(|seen| seen.is_disrupted())
            .and_then(|seen| Some(seen.disruption.clone()?.1)),
        container: reported.map(|seen| seen.container).unwrap_or_default(),
        job,
    }
}
