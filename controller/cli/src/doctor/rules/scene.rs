//! Holds a cluster at one moment, made from the API's objects, for the rules to read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use epilogue_common::names::opt_in;
use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::node_event::NodeEvent;
use super::node_seen::NodeSeen;
use crate::gang::{Wish, wish};
use crate::kind::Kind;
use crate::lease::{LeaseName, LeaseSeen, Setup};
use crate::waits::{FAILED_CREATE, Obstacle, of_pod};
use controller_core::batching::Batching;
use controller_core::podgc::{NamespaceView, NodeView, Settings, StaleReset, Verdict, WireNode};
use controller_core::state::{ClusterState, Event, Now};
use controller_core::view::{Job, Pod, Uid, WireJob, WirePod};
use controller_core::workqueue::Moment;

/// The label of the agents' pods, with its value.
const AGENT_LABEL: (&str, &str) = ("app.kubernetes.io/name", "epilogue-agent");

/// An object does not have the form that the API gives it.
#[derive(Debug, Error)]
#[error("{kind} {name} is not as the API would give it")]
pub(crate) struct SceneError {
    kind: &'static str,
    name: String,
    #[source]
    source: serde_json::Error,
}

/// A cluster at one moment.
#[derive(Debug)]
pub(crate) struct Scene {
    state: ClusterState,
    pub(super) pods: Vec<PodSeen>,
    pub(super) jobs: HashMap<Uid, Arc<Job>>,
    /// The Jobs that ask for a gang.
    pub(super) gangs: HashMap<Uid, Wish>,
    pub(super) nodes: BTreeMap<String, NodeSeen>,
    pub(super) events: Vec<NodeEvent>,
    /// The events of pods that could not be created.
    pub(super) refusals: Vec<Value>,
    /// The labels by which namespaces opt in: namespace, label, value.
    pub(super) opt_ins: Vec<(String, &'static str, String)>,
    policy_bindings: BTreeSet<String>,
    leases: BTreeMap<LeaseName, LeaseSeen>,
    read: BTreeSet<Kind>,
}

/// A pod.
#[derive(Debug)]
pub(super) struct PodSeen {
    pub(super) uid: Uid,
    pub(super) finalizers: Vec<String>,
    pub(super) is_agent: bool,
    /// What keeps it from starting.
    pub(super) obstacle: Option<Obstacle>,
}

/// The pod of a node's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentPod {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireMeta {
    name: String,
    namespace: String,
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
}

impl Scene {
    /// The cluster that these objects show. `read` names the kinds that were read; the others are
    /// unknown. Objects of other kinds are left out.
    pub(crate) fn new(
        read: impl IntoIterator<Item = Kind>,
        objects: Vec<Value>,
        now: Timestamp,
    ) -> Result<Self, SceneError> {
        let mut scene = Self {
            // With these settings a verdict shows what the controller would do once its waits are
            // over.
            state: ClusterState::new(
                Batching::default(),
                Some(Settings {
                    quarantine: SignedDuration::ZERO,
                    stale_reset: StaleReset::All,
                    marks: false,
                    ..Settings::default()
                }),
            ),
            pods: Vec::new(),
            jobs: HashMap::new(),
            gangs: HashMap::new(),
            nodes: BTreeMap::new(),
            events: Vec::new(),
            refusals: Vec::new(),
            opt_ins: Vec::new(),
            policy_bindings: BTreeSet::new(),
            leases: BTreeMap::new(),
            read: read.into_iter().collect(),
        };
        let mut of_kind: BTreeMap<Kind, Vec<Value>> = BTreeMap::new();
        for object in objects {
            if let Some(kind) = Kind::ALL.into_iter().find(|kind| object["kind"] == kind.name()) {
                of_kind.entry(kind).or_default().push(object);
            }
        }
        let mut take = |kind| of_kind.remove(&kind).unwrap_or_default();
        scene.namespaces(take(Kind::Namespace), now)?;
        // Nodes come before pods, so that no pod counts as deleted in another boot.
        let (nodes, pods, events) = (take(Kind::Node), take(Kind::Pod), take(Kind::Event));
        scene.nodes_and_pods(nodes, pods, &events, now)?;
        for object in take(Kind::Job) {
            let job = checked(Kind::Job, &object, |object| WireJob::parse(object)?.view())?;
            let job = Arc::new(job);
            scene.shows(Event::Job(WatchEvent::Shown(Arc::clone(&job))), now);
            scene.gangs.extend(wish(&object).map(|wish| (job.uid.clone(), wish)));
            scene.jobs.insert(job.uid.clone(), job);
        }
        scene.leases(take(Kind::Lease))?;
        for object in events {
            if object["reason"] == FAILED_CREATE {
                scene.refusals.push(object.clone());
            }
            scene.events.push(checked(Kind::Event, &object, serde_json::from_value)?);
        }
        for object in take(Kind::PolicyBinding) {
            scene.policy_bindings.insert(metadata(Kind::PolicyBinding, &object)?.name);
        }
        Ok(scene)
    }

    /// Whether objects of this kind were read.
    pub(crate) fn has_read(&self, kind: Kind) -> bool {
        self.read.contains(&kind)
    }

    /// The agent of a node, if it is a pod.
    pub(crate) fn agent_of(&self, node: &str) -> Option<AgentPod> {
        let mut pods = self.pods.iter().filter(|pod| pod.is_agent);
        pods.find_map(|pod| {
            let view = self.view(pod).filter(|view| view.node.as_deref() == Some(node))?;
            Some(AgentPod { namespace: view.namespace.to_string(), name: view.name.to_string() })
        })
    }

    /// The verdict of pod GC and disruption on a pod.
    pub(super) fn verdict(&self, pod: &Pod, now: Timestamp) -> Verdict {
        self.state.verdict(&pod.uid, now)
    }

    pub(super) fn view(&self, pod: &PodSeen) -> Option<&Pod> {
        self.state.pod(&pod.uid).map(|pod| &**pod)
    }

    pub(super) fn job_of(&self, pod: &Pod) -> Option<&Job> {
        let owner = pod.owner.as_ref().filter(|_| pod.is_of_job())?;
        self.jobs.get(&owner.uid).map(|job| &**job)
    }

    pub(super) fn lease(&self, namespace: &str, name: &str) -> Option<&LeaseSeen> {
        let key = LeaseName { namespace: namespace.to_owned(), name: name.to_owned() };
        self.leases.get(&key)
    }

    /// How the controller with this lease runs; nothing is known without the lease.
    pub(super) fn setup(&self, lease: Option<&LeaseName>) -> Setup {
        let lease = lease.and_then(|name| self.leases.get(name));
        lease.map(|lease| lease.setup.clone()).unwrap_or_default()
    }

    /// Whether a mutating admission policy is bound by a binding of this name.
    pub(super) fn has_policy_binding(&self, name: &str) -> bool {
        self.policy_bindings.contains(name)
    }

    /// The cluster as one read shows it: as if a watch had shown each object.
    fn shows(&mut self, event: Event, time: Timestamp) {
        self.state.handle(event, &read_at(time));
    }

    fn namespaces(&mut self, objects: Vec<Value>, now: Timestamp) -> Result<(), SceneError> {
        for object in objects {
            let meta: WireMeta = metadata(Kind::Namespace, &object)?;
            let annotations = meta.annotations.unwrap_or_default();
            let namespace = NamespaceView::new(meta.name.as_str(), &annotations);
            self.shows(Event::Namespace(WatchEvent::Shown(namespace)), now);
            let mut labels = meta.labels.unwrap_or_default();
            for label in [opt_in::JOBS, opt_in::POD_REPLACEMENT_POLICY] {
                let value = labels.remove(label);
                self.opt_ins.extend(value.map(|value| (meta.name.clone(), label, value)));
            }
        }
        Ok(())
    }

    fn nodes_and_pods(
        &mut self,
        nodes: Vec<Value>,
        pods: Vec<Value>,
        events: &[Value],
        now: Timestamp,
    ) -> Result<(), SceneError> {
        let nodes_read = self.has_read(Kind::Node);
        if nodes_read {
            self.shows(Event::Node(WatchEvent::ListBegins), now);
        }
        for object in nodes {
            let wire: WireNode = checked(Kind::Node, &object, serde_json::from_value)?;
            // A single read shows no changes, so only the node's own times count.
            let view = NodeView::read(&wire);
            self.shows(Event::Node(WatchEvent::Shown(view)), Timestamp::UNIX_EPOCH);
            let seen: NodeSeen =
                checked(Kind::Node, &object, |object| NodeSeen::read(object, &wire))?;
            self.nodes.insert(wire.name().to_owned(), seen);
        }
        for object in pods {
            let wire: WirePod = checked(Kind::Pod, &object, serde_json::from_value)?;
            let meta = wire.metadata.clone();
            self.state.handle_pod(WatchEvent::Shown(wire), &read_at(now));
            let uid: Uid = meta.uid.unwrap_or_default().into();
            let view = self.state.pod(&uid);
            let obstacle = view.and_then(|pod| of_pod(pod, &object, events, now));
            let label = meta.labels.as_ref().and_then(|labels| labels.get(AGENT_LABEL.0));
            self.pods.push(PodSeen {
                uid,
                obstacle,
                is_agent: label.is_some_and(|label| label == AGENT_LABEL.1),
                finalizers: meta.finalizers.unwrap_or_default(),
            });
        }
        if nodes_read {
            self.shows(Event::Node(WatchEvent::ListEnds(String::new())), now);
            self.confirm_absences(now);
        }
        Ok(())
    }

    /// These objects were read just now, which is as good as a live read of each missing node.
    fn confirm_absences(&mut self, now: Timestamp) {
        let named = self.pods.iter().filter_map(|pod| self.state.pod(&pod.uid)?.node.clone());
        let absent: BTreeSet<Arc<str>> =
            named.filter(|name| !self.nodes.contains_key(&**name)).collect();
        for name in absent {
            self.state.node_answered(&name, false, now);
        }
    }

    fn leases(&mut self, objects: Vec<Value>) -> Result<(), SceneError> {
        for object in objects {
            let meta: WireMeta = metadata(Kind::Lease, &object)?;
            let spec = checked(Kind::Lease, &object, |object| LeaseSeen::read(&object))?;
            let name = LeaseName { namespace: meta.namespace, name: meta.name };
            self.leases.insert(name, spec);
        }
        Ok(())
    }
}

fn read_at(time: Timestamp) -> Now {
    Now { time, elapsed: Moment::ZERO, has_backlog: false, is_limited: false }
}

fn metadata(kind: Kind, object: &Value) -> Result<WireMeta, SceneError> {
    checked(kind, object, |mut object| serde_json::from_value(object["metadata"].take()))
}

/// Reads an object; the error names it.
fn checked<T>(
    kind: Kind,
    object: &Value,
    read: impl FnOnce(Value) -> Result<T, serde_json::Error>,
) -> Result<T, SceneError> {
    read(object.clone()).map_err(|source| {
        let name = object["metadata"]["name"].as_str().unwrap_or("without a name").to_owned();
        SceneError { kind: kind.name(), name, source }
    })
}
