//! Records what the API shows of each pod, in the order of the watch: so a condition is seen even
//! if the pod goes soon.

use std::sync::{Arc, Mutex};

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use lab::eventually;
use tokio_util::task::AbortOnDropHandle;

use super::stage::LATER;

/// One pod from its first event to its last.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) job: String,
    uid: String,
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    /// The number of the event that showed it first.
    pub(crate) begun: usize,
    /// The number of the event that first showed a terminal phase.
    pub(crate) ended: Option<usize>,
    /// The reason of its condition DisruptionTarget.
    pub(crate) disruption: Option<String>,
}

/// What the watch has shown so far.
pub(crate) struct PodLog {
    lives: Arc<Mutex<Vec<Life>>>,
    _watch: AbortOnDropHandle<()>,
}

impl PodLog {
    /// Begins to record.
    pub(crate) fn of_all(pods: Api<Pod>) -> Self {
        let lives = Arc::<Mutex<Vec<Life>>>::default();
        let watch = AbortOnDropHandle::new(tokio::spawn(record(pods, Arc::clone(&lives))));
        Self { lives, _watch: watch }
    }

    /// The pods of a Job, in the order in which they came.
    pub(crate) fn of(&self, job: &str) -> Vec<Life> {
        let lives = self.lives.lock().expect("no holder panics");
        lives.iter().filter(|life| life.job == job).cloned().collect()
    }

    /// The pods that have DisruptionTarget.
    pub(crate) fn disrupted(&self) -> Vec<Life> {
        let lives = self.lives.lock().expect("no holder panics");
        lives.iter().filter(|life| life.disruption.is_some()).cloned().collect()
    }

    /// Waits for a state of the Job's pods, which has at least one.
    pub(crate) async fn until(&self, job: &str, holds: impl Fn(&[Life]) -> bool) {
        let pods = async || self.of(job);
        let what = format!("the pods of {job} as awaited");
        eventually(&what, LATER, pods, |pods| !pods.is_empty() && holds(pods)).await;
    }

    /// The second pod of the Job came after the first one had a terminal phase.
    pub(crate) fn was_replaced_after_its_end(&self, job: &str) {
        let pods = self.of(job);
        let ended = pods[0].ended.expect("the first one ends");
        assert!(ended < pods[1].begun, "{job}: {pods:?}");
    }
}

async fn record(pods: Api<Pod>, lives: Arc<Mutex<Vec<Life>>>) {
    let events = watcher(pods, watcher::Config::default()).default_backoff().touched_objects();
    pin_mut!(events);
    let mut number = 0;
    while let Some(event) = events.next().await {
        let Ok(pod) = event else { continue };
        number += 1;
        take_in(&mut lives.lock().expect("no holder panics"), pod, number);
    }
}

fn take_in(lives: &mut Vec<Life>, pod: Pod, number: usize) {
    let labels = pod.metadata.labels.unwrap_or_default();
    let Some(job) = labels.get("job-name") else { return };
    let uid = pod.metadata.uid.unwrap_or_default();
    let known = lives.iter().position(|life| life.uid == uid);
    let index = known.unwrap_or_else(|| {
        let name = pod.metadata.name.unwrap_or_default();
        let (job, node, begun) = (job.clone(), None, number);
        lives.push(Life { job, uid, name, node, begun, ended: None, disruption: None });
        lives.len() - 1
    });
    let (life, status) = (&mut lives[index], pod.status.unwrap_or_default());
    life.node = pod.spec.and_then(|spec| spec.node_name);
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        life.ended.get_or_insert(number);
    }
    let conditions = status.conditions.unwrap_or_default();
    let target = conditions.into_iter().find(|it| it.type_ == "DisruptionTarget");
    let target = target.filter(|it| it.status == "True");
    life.disruption = target.map(|it| it.reason.unwrap_or_default()).or(life.disruption.take());
}
