//! Records what the API showed of the pods, and when, as an administrator sees it next to the
//! agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::task::JoinHandle;

use crate::eventually;

/// The conditions that describe an end.
const ENDS: [&str; 2] = ["DisruptionTarget", "epilogue.dev/OOMKilled"];

/// How far a watch may lag on a busy machine.
const BEHIND_MAX: Duration = Duration::from_secs(30);

/// The recorded states of each pod.
#[derive(Debug)]
pub struct Record {
    api: Api<Pod>,
    pods: Arc<Mutex<BTreeMap<String, Seen>>>,
    watching: JoinHandle<()>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    marked: Option<Instant>,
    ended: Option<Instant>,
    phase: String,
    /// Whether the condition was there when the end was first seen.
    marked_first: bool,
    stands: bool,
    reason: String,
    deleted: bool,
    states: Vec<State>,
    /// `metadata.resourceVersion`.
    version: u64,
}

/// The fields of a pod that describe its end, at one version of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The phase.
    pub phase: String,
    /// The phase's reason.
    pub reason: Option<String>,
    /// The reasons of the True conditions that describe an end.
    pub conditions: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// Totals over all pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ends {
    /// All of them.
    pub pods: usize,
    /// Those that are Running.
    pub running: usize,
    /// Those with `DisruptionTarget=True` now.
    pub disrupted: usize,
    /// Those that have ended.
    pub ended: usize,
    /// Those that ended before they had the condition.
    pub ended_unmarked: usize,
    /// Pods that are, or were, being deleted.
    pub deleted: usize,
    /// The reasons of the conditions, each once.
    pub reasons: Vec<String>,
    /// When the last condition first appeared.
    pub marked_at: Option<Instant>,
    /// When the last pod ended.
    pub ended_at: Option<Instant>,
}

impl Record {
    /// Starts to watch.
    pub fn of(pods: Api<Pod>) -> Self {
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let (into, api) = (Arc::clone(&seen), pods.clone());
        let watching = tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()));
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(pod) | Event::InitApply(pod) | Event::Delete(pod)) = event {
                    note(&mut into.lock().unwrap_or_else(PoisonError::into_inner), &pod);
                }
            }
        });
        Self { api, pods: seen, watching }
    }

    /// The distinct states of a pod, up to the API's current one: a caller that read it elsewhere
    /// must not be ahead of this watch.
    pub async fn states(&self, name: &str) -> Vec<State> {
        let now = self.api.get_opt(name).await.expect("the pod must be readable");
        let now = now.as_ref().map_or(0, version);
        let seen = async || {
            let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
            pods.get(name).cloned().unwrap_or_default()
        };
        let what = format!("the watch has come to version {now} of {name}");
        eventually(&what, BEHIND_MAX, seen, |seen| seen.version >= now).await.states
    }

    /// The totals so far.
    pub fn ends(&self) -> Ends {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |holds: fn(&Seen) -> bool| pods.values().filter(|seen| holds(seen)).count();
        let mut reasons: Vec<String> =
            pods.values().map(|seen| seen.reason.clone()).filter(|it| !it.is_empty()).collect();
        reasons.sort();
        reasons.dedup();
        Ends {
            pods: pods.len(),
            running: count(|seen| seen.phase == "Running"),
            disrupted: count(|seen| seen.stands),
            ended: count(|seen| seen.ended.is_some()),
            ended_unmarked: count(|seen| seen.ended.is_some() && !seen.marked_first),
            deleted: count(|seen| seen.deleted),
            reasons,
            marked_at: pods.values().filter_map(|seen| seen.marked).max(),
            ended_at: pods.values().filter_map(|seen| seen.ended).max(),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn note(pods: &mut BTreeMap<String, Seen>, pod: &Pod) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let seen = pods.entry(name).or_default();
    seen.version = version(pod);
    let state = State::of(pod);
    if seen.states.last() != Some(&state) {
        seen.states.push(state);
    }
    let conditions = status.conditions.unwrap_or_default().into_iter();
    let disruption = { conditions }.find(|it| it.type_ == "DisruptionTarget");
    seen.stands = disruption.as_ref().is_some_and(|it| it.status == "True");
    seen.reason = disruption.and_then(|it| it.reason).unwrap_or_default();
    seen.phase = status.phase.unwrap_or_default();
    seen.deleted |= pod.metadata.deletion_timestamp.is_some();
    if seen.stands && seen.marked.is_none() {
        seen.marked = Some(Instant::now());
    }
    if matches!(seen.phase.as_str(), "Failed" | "Succeeded") && seen.ended.is_none() {
        seen.ended = Some(Instant::now());
        seen.marked_first = seen.stands;
    }
}

fn version(pod: &Pod) -> u64 {
    let version = pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
    version.expect("the API gives every pod a version, which is a number")
}

impl State {
    fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        Self {
            phase: status.phase.unwrap_or_default(),
            reason: status.reason,
            conditions: conditions
                .filter(|it| ENDS.contains(&it.type_.as_str()) && it.status == "True")
                .map(|it| (it.type_, it.reason.unwrap_or_default()))
                .collect(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
        }
    }
}
