//! Counts a node's pods whose end is in the API when a graceful shutdown is over: the kubelet
//! releases its lock without waiting for the API. A measurement, not a test.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};

use super::case::JobController;
use super::stage::Stage;
use crate::observe_until;
use crate::vm::agent::Install;
use crate::vm::{Kit, KubeletConfig, TestPod};

/// An emulated machine takes some seconds to start one.
const RUN_WITHIN_EACH: Duration = Duration::from_secs(30);
const OFF_WITHIN: Duration = Duration::from_mins(5);

/// The period of both kubelet and agent.
const PERIOD_SECONDS: u32 = 60;
const CRITICAL_SECONDS: u32 = 10;

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// How many pods there were.
    pub pods: usize,
    /// How many of them had a terminal phase and DisruptionTarget.
    pub reported: usize,
    /// Name and phase of the others.
    pub others: Vec<String>,
}

/// Powers off a node with this many running pods, all of which exit at once on SIGTERM.
pub async fn lost(kit: &Kit, agent: Option<Install>, pods: u32) -> anyhow::Result<Lost> {
    let kubelet = KubeletConfig::default().graceful_shutdown(PERIOD_SECONDS, CRITICAL_SECONDS);
    let flags = [
        format!("--shutdown-grace-period={PERIOD_SECONDS}s"),
        format!("--shutdown-grace-period-critical-pods={CRITICAL_SECONDS}s"),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let install = agent.map(|agent| (agent, &flags[..]));
    // None of these pods has a Job.
    let mut stage = Stage::set(kit, &kubelet, install, Vec::new(), JobController::Upstream).await?;
    for number in 1..=pods {
        let pod = TestPod::new(
            &format!("p-{number}"),
            stage.scene.node.name(),
            &["obedient", "143", "0"],
        );
        let pod = pod.host_network().build();
        stage.pods().create(&PostParams::default(), &pod).await.context("create a pod")?;
    }
    let running = async || {
        let list = stage.pods().list(&ListParams::default()).await;
        list.map_or(0, |list| list.items.iter().filter(|pod| phase(pod) == "Running").count())
    };
    let all = |running: &usize| *running == pods as usize;
    let seen = observe_until(RUN_WITHIN_EACH * pods.max(1), running, all).await;
    seen.map_err(|running| anyhow::anyhow!("only {running} of {pods} pods run"))?;
    stage.scene.node.machine().begin_poweroff().await?;
    stage.scene.node.machine_mut().off(OFF_WITHIN).await?;
    let left = stage.pods().list(&ListParams::default()).await.context("list the pods")?.items;
    stage.strike().await?;
    let (reported, others): (Vec<_>, Vec<_>) = left.iter().partition(|pod| is_reported(pod));
    let others = others
        .into_iter()
        .map(|pod| format!("{} {}", pod.metadata.name.as_deref().unwrap_or_default(), phase(pod)));
    Ok(Lost { pods: left.len(), reported: reported.len(), others: others.collect() })
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_reported(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut marks = conditions.filter(|condition| condition.type_ == "DisruptionTarget");
    ["Failed", "Succeeded"].contains(&phase(pod)) && marks.any(|mark| mark.status == "True")
}
