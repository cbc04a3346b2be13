//! Tests upstream's own cases and the proofs in a small cluster: time passes, checks run when due,
//! and each write is recorded.

mod ending;
mod finished;
mod golden;
mod hanging;
mod kept;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Answer, Call, Check, End, Item, NamespaceView, Next, NodeView, Settings};
use crate::batching::Batching;
use crate::state::{ClusterState, Entry, Event, Now};
use crate::view::{Job, Version, WireJob, WirePod};
use crate::workqueue::Moment;

/// A cluster with one live node of each name.
pub(crate) struct Fixture {
    state: ClusterState,
    now: Timestamp,
    alarms: BTreeMap<(Timestamp, usize), Item>,
    alarm_count: usize,
    /// Nodes that the API has, whatever the watch shows.
    pub(super) live: BTreeMap<String, Value>,
    /// The Job that the API has, whatever the watch shows.
    pub(super) live_job: Option<Arc<Job>>,
    names: HashMap<String, Value>,
    version: u64,
    writes: Vec<String>,
}

/// The first moment of the test.
pub(crate) fn start() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("must be a time")
}

/// A time in the API's form, this many seconds after the first moment.
pub(crate) fn at(seconds: i64) -> String {
    (start() + SignedDuration::from_secs(seconds)).to_string()
}

/// A running pod of a Job on the node `n`, which cannot start again.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "default", "generation": 1,
            "creationTimestamp": at(-3600),
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j",
                                 "controller": true}],
        },
        "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"},
                           {"type": "ContainersReady", "status": "True"}],
            "containerStatuses": [{"name": "main",
                                   "state": {"running": {"startedAt": at(-3590)}}}],
        },
    })
}

/// The node of this name, ready, in its first boot.
pub(crate) fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(-7200)}],
            "nodeInfo": {"bootID": "boot-1"},
        },
    })
}

/// The same object with some fields set; null removes one.
pub(crate) fn with(mut object: Value, fields: &[(&str, Value)]) -> Value {
    for (path, value) in fields {
        *object.pointer_mut(path).unwrap_or_else(|| panic!("{path} must be there")) = value.clone();
    }
    object
}

/// Deleted at this second with a grace of 30 s.
pub(crate) fn deleted(mut pod: Value, second: i64) -> Value {
    pod["metadata"]["deletionTimestamp"] = at(second + 30).into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    pod
}

/// With this phase.
pub(crate) fn phase(mut pod: Value, phase: &str) -> Value {
    pod["status"]["phase"] = phase.into();
    pod
}

/// With a `DisruptionTarget` of this reason, set at this second.
pub(crate) fn target(mut pod: Value, status: &str, reason: &str, second: i64) -> Value {
    let condition = json!({"type": "DisruptionTarget", "status": status, "reason": reason,
                           "lastTransitionTime": at(second)});
    pod["status"]["conditions"].as_array_mut().expect("must be there").push(condition);
    pod
}

/// With this Ready condition since this second.
pub(crate) fn ready(mut node: Value, status: &str, message: &str, second: i64) -> Value {
    node["status"]["conditions"][0] = json!({"type": "Ready", "status": status,
        "message": message, "lastTransitionTime": at(second)});
    node
}

/// With its kubelet last heard from at this second.
pub(crate) fn heard(mut node: Value, second: i64) -> Value {
    node["status"]["conditions"][0]["lastHeartbeatTime"] = at(second).into();
    node
}

/// In another boot.
pub(crate) fn boot(mut node: Value, id: &str) -> Value {
    node["status"]["nodeInfo"]["bootID"] = id.into();
    node
}

/// With this announcement.
pub(crate) fn announces(mut node: Value, text: &str) -> Value {
    node["metadata"]["annotations"]["epilogue.dev/state"] = text.into();
    node
}

/// With the out-of-service taint.
pub(crate) fn out_of_service(mut node: Value) -> Value {
    node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service"}]);
    node
}

impl Fixture {
    /// With these settings, and with nodes of these names.
    pub(crate) fn new(settings: Settings, nodes: &[&str]) -> Self {
        let mut fixture = Self {
            state: ClusterState::new(Batching::default(), Some(settings)),
            now: start(),
            alarms: BTreeMap::new(),
            alarm_count: 0,
            live: BTreeMap::new(),
            live_job: None,
            names: HashMap::new(),
            version: 10,
            writes: Vec::new(),
        };
        fixture.shows(Event::Pod(WatchEvent::ListBegins));
        fixture.shows(Event::Pod(WatchEvent::ListEnds("1".to_owned())));
        fixture.nodes_begin();
        for name in nodes {
            fixture.node(&node(name));
        }
        fixture.nodes_end();
        fixture
    }

    /// The watches show an event.
    fn shows(&mut self, event: Event) {
        let entries = self.state.handle(event, &self.moment()).entries;
        self.alarm(entries);
    }

    fn moment(&self) -> Now {
        Now { time: self.now, elapsed: Moment::ZERO, has_backlog: false, is_limited: false }
    }

    fn nodes_begin(&mut self) {
        self.shows(Event::Node(WatchEvent::ListBegins));
    }

    fn nodes_end(&mut self) {
        self.shows(Event::Node(WatchEvent::ListEnds("1".to_owned())));
    }

    /// Shows the Job of all pods, with this `force-fail-after`.
    fn job_says(&mut self, text: Option<&str>) {
        let job = self.job(text);
        self.shows(Event::Job(WatchEvent::Shown(job)));
    }

    /// The next version of this Job.
    fn job(&mut self, text: Option<&str>) -> Arc<Job> {
        self.version += 1;
        let job = json!({"metadata": {
            "name": "j", "namespace": "default", "uid": "j",
            "resourceVersion": self.version.to_string(),
            "annotations": text.map(|text| json!({"epilogue.dev/force-fail-after": text})),
        }});
        Arc::new(WireJob::parse(job).and_then(WireJob::view).expect("must be a Job"))
    }

    /// Shows the pods' namespace, with this `force-fail-after`.
    fn namespace_says(&mut self, text: &str) {
        let options = [("epilogue.dev/force-fail-after".to_owned(), text.to_owned())].into();
        let namespace = NamespaceView::new("default", &options);
        self.shows(Event::Namespace(WatchEvent::Shown(namespace)));
    }

    /// With one node, `n`.
    pub(crate) fn of_one_node() -> Self {
        Self::new(Settings::default(), &["n"])
    }

    pub(crate) fn pod(&mut self, pod: &Value) {
        self.version += 1;
        let mut pod = pod.clone();
        let name = pod["metadata"]["name"].as_str().expect("must be there").to_owned();
        pod["metadata"]["uid"] = name.clone().into();
        pod["metadata"]["resourceVersion"] = self.version.to_string().into();
        let wire: WirePod = serde_json::from_value(pod.clone()).expect("must be a pod");
        self.names.insert(name, pod);
        let entries = self.state.handle_pod(WatchEvent::Shown(wire), &self.moment()).entries;
        self.alarm(entries);
    }

    pub(crate) fn pods(&mut self, pods: &[Value]) {
        for pod in pods {
            self.pod(pod);
        }
    }

    /// Shows a node. Its kubelet wrote the status a moment ago, unless the status gives a time.
    pub(crate) fn node(&mut self, node: &Value) {
        let mut node = node.clone();
        if let Some(ready) = node.pointer_mut("/status/conditions/0")
            && ready["lastHeartbeatTime"].is_null()
        {
            ready["lastHeartbeatTime"] = self.now.to_string().into();
        }
        let wire = serde_json::from_value(node.clone()).expect("must be a node");
        let view = NodeView::read(&wire);
        self.live.insert((*view.name).to_owned(), node);
        self.shows(Event::Node(WatchEvent::Shown(view)));
    }

    /// Removes a node from the watch, not from the API.
    pub(crate) fn node_unseen(&mut self, name: &str) {
        let wire = serde_json::from_value(node(name)).expect("must be a node");
        self.shows(Event::Node(WatchEvent::Gone(NodeView::read(&wire))));
    }

    pub(crate) fn node_gone(&mut self, name: &str) {
        self.live.remove(name);
        self.node_unseen(name);
    }

    /// Lets time pass, and returns the writes made meanwhile.
    pub(crate) fn pass(&mut self, seconds: i64) -> Vec<String> {
        let end = self.now + SignedDuration::from_secs(seconds);
        while let Some(((time, number), item)) = self.alarms.pop_first() {
            if time > end {
                self.alarms.insert((time, number), item);
                break;
            }
            self.now = time.max(self.now);
            self.check(&item);
        }
        self.now = end;
        std::mem::take(&mut self.writes)
    }

    /// Acts as a standby, which remembers what was shown and checks nothing.
    pub(crate) fn forgets_alarms_after(&mut self, shown: impl FnOnce(&mut Self)) {
        shown(self);
        self.alarms.clear();
    }

    pub(crate) fn check_everything(&mut self) {
        let entries = self.state.everything(&self.moment());
        self.alarm(entries);
    }

    fn alarm(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let Entry::Check(wake) = entry else { continue };
            let after = SignedDuration::try_from(wake.after).expect("must be short");
            self.alarm_at(self.now + after, wake.item);
        }
    }

    fn alarm_at(&mut self, time: Timestamp, item: Item) {
        self.alarm_count += 1;
        self.alarms.insert((time, self.alarm_count), item);
    }

    /// Checks an item as the program does.
    fn check(&mut self, item: &Item) {
        let mut check = Check::new(item.clone());
        loop {
            let call = match check.next(&mut self.state, self.now) {
                Next::Call(call) => call,
                Next::End(end) => return self.end(item, end),
            };
            let outcome = self.answer(&call);
            let entries = check.done(&mut self.state, call, outcome, self.now);
            self.alarm(entries);
        }
    }

    fn answer(&mut self, call: &Call) -> Outcome<Answer> {
        match call {
            Call::FindNode(name) if self.live.contains_key(&**name) => Ok(Answer::Done),
            Call::FindNode(name) => Err(Failure::new(FailureKind::NotFound, &**name)),
            Call::GetNode(name) => match self.live.get(&**name) {
                Some(node) => Ok(Answer::Node(node.clone())),
                None => Err(Failure::new(FailureKind::NotFound, &**name)),
            },
            Call::GetJob(_) => match &self.live_job {
                Some(job) => Ok(Answer::Job(Arc::clone(job))),
                None => Err(Failure::new(FailureKind::NotFound, "no Job")),
            },
            Call::PatchPod(write) => {
                let patch = write.patch.as_ref().expect("must be there");
                assert_eq!(patch["metadata"]["uid"], write.uid.as_str());
                assert!(patch["metadata"]["resourceVersion"].is_string(), "{patch}");
                self.version += 1;
                Ok(Answer::Patched(Version(self.version)))
            }
            Call::DeletePod(write) if is_kept(write) => {
                Err(Failure::new(FailureKind::Forbidden, "a webhook keeps it"))
            }
            Call::PatchNode(..) | Call::DeletePod(_) => Ok(Answer::Done),
        }
    }

    fn end(&mut self, item: &Item, end: End) {
        match end {
            End::Nothing => {}
            End::CheckAgain(time) => {
                assert!(time > self.now, "{item:?} is checked again at once");
                self.alarm_at(time, item.clone());
            }
            End::Enqueue(entries) => self.alarm(entries),
            End::Untainted(name) => self.writes.push(format!("{name}: untainted")),
            End::Observed(write) | End::Written(write) => self.writes.push(policies(&write)),
            End::NotWritten(write, _) if is_kept(&write) => {}
            End::NotWritten(_, failure) | End::Failed(failure) => panic!("{item:?}: {failure}"),
        }
    }
}

/// Whether a webhook refuses to delete this pod.
fn is_kept(write: &super::PodWrite) -> bool {
    write.name.starts_with("kept")
}

/// A write in one line.
fn policies(write: &super::PodWrite) -> String {
    let mut text = format!("{}:", write.name);
    if let Some(patch) = &write.patch {
        let status = &patch["status"];
        text.extend(status["phase"].as_str().map(|phase| format!(" {phase}")));
        for condition in status["conditions"].as_array().into_iter().flatten() {
            let policy = |field: &str| condition[field].as_str().unwrap_or("-").to_owned();
            text.extend([" ", &policy("type"), "=", &policy("status"), "/", &policy("reason")]);
        }
    }
    if write.delete {
        text += " deleted";
    }
    format!("{text} ({})", write.cause)
}
