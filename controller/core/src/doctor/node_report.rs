//! Reports on one node from the API: whether its agent would see a shutdown through, and what only
//! the node itself can show.

use std::collections::BTreeSet;

use epilogue_common::announcement::Announcement;
use epilogue_common::names::node::READINESS;
use epilogue_common::readiness::Readiness;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::nodes::NodeSeen;
use super::pods::subject;
use super::scene::{AgentPod, Kind, Scene};
use super::{findings, seconds};
use crate::podgc::{PodView, Tristate};

/// The component that reports events of the node.
const AGENT_REPORTER: &str = "epilogue.dev/agent";
/// The label, with its value, of nodes whose agent is a service of the host.
const HOST_LABEL: (&str, &str) = ("epilogue.dev/agent", "host");
/// Reasons of agents' events, each with the worst that it means. (`agent/README.md`)
const TOLD: [(&str, NodeVerdict); 7] = [
    ("NodeShutdownStarted", NodeVerdict::Ok),
    ("NodeShutdownCancelled", NodeVerdict::Ok),
    ("NodeShutdownComplete", NodeVerdict::Ok),
    ("NodeShutdownIncomplete", NodeVerdict::Warn),
    ("NodeShutdownDelayTooShort", NodeVerdict::Warn),
    ("AgentForbidden", NodeVerdict::Fail),
    ("BootRecovery", NodeVerdict::Ok),
];

/// The meaning of a fact, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeVerdict {
    /// All is well.
    Ok,
    /// An operator should know.
    Warn,
    /// A shutdown would not go as it should.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCheck {
    /// The subject of the check.
    pub name: &'static str,
    /// The verdict.
    pub verdict: NodeVerdict,
    /// The observation.
    pub found: String,
    /// The remedy.
    pub remedy: Option<String>,
}

/// All that the API shows of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub node: String,
    /// The worst verdict of all checks.
    pub verdict: NodeVerdict,
    /// The checks.
    pub checks: Vec<NodeCheck>,
    /// Findings about the node.
    pub findings: Vec<Finding>,
    /// The command that shows the rest: it must run on the node.
    pub on_node: String,
}

/// An event of the node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeEvent {
    reason: Option<String>,
    message: Option<String>,
    involved_object: Involved,
    reporting_component: Option<String>,
    event_time: Option<Timestamp>,
    last_timestamp: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Involved {
    kind: Option<String>,
    name: Option<String>,
}

impl NodeVerdict {
    /// The form in which it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl NodeCheck {
    fn new(name: &'static str, verdict: NodeVerdict, found: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), remedy: None }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// The report on the node of this name, or `None` if there is no such node.
pub fn node_report(scene: &Scene, name: &str, now: Timestamp) -> Option<NodeReport> {
    let node = scene.nodes.get(name)?;
    let agent = scene.agent_of(name);
    let mut checks = vec![ready(node), kubelet(scene, name, now), boot(node)];
    checks.push(self::agent(scene, name, node, agent.as_ref()));
    let spoken = agent.is_some() || node.readiness.is_some();
    checks.extend(spoken.then(|| lock_and_delay(node.readiness.as_ref())));
    checks.push(announced(node, now));
    checks.push(marks(node));
    checks.push(reported(scene, name));
    checks.push(pods(scene, name));
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(NodeVerdict::Ok);
    let mut findings = findings(scene, None, now);
    let mut subjects: BTreeSet<String> = pods_of(scene, name).map(subject).collect();
    subjects.insert(format!("node/{name}"));
    findings.retain(|finding| subjects.contains(&finding.subject));
    Some(NodeReport {
        node: name.to_owned(),
        verdict,
        checks,
        findings,
        on_node: on_node(name, agent.as_ref()),
    })
}

fn on_node(name: &str, agent: Option<&AgentPod>) -> String {
    match agent {
        Some(AgentPod { namespace, name }) => {
            format!(
                "kubectl exec --namespace {namespace} {name} -- /epilogue-agent check --root=/host"
            )
        }
        None => format!("as root on {name}: epilogue-agent check"),
    }
}

fn ready(node: &NodeSeen) -> NodeCheck {
    const NAME: &str = "ready";
    let Some(condition) = node.conditions.iter().find(|each| each.kind == "Ready") else {
        return NodeCheck::new(NAME, NodeVerdict::Fail, "its kubelet has never spoken")
            .remedy("see that the kubelet runs and may join the cluster");
    };
    let since = condition.last_transition_time.map(|at| format!(" since {}", seconds(at)));
    let found = format!("Ready={}{}", condition.status, since.unwrap_or_default());
    if condition.status == "True" {
        let bad: Vec<&str> = node
            .conditions
            .iter()
            .filter(|each| each.kind != "Ready" && each.status == "True")
            .map(|each| each.kind.as_str())
            .collect();
        if bad.is_empty() {
            return NodeCheck::new(NAME, NodeVerdict::Ok, found);
        }
        return NodeCheck::new(NAME, NodeVerdict::Warn, format!("{found}; {}", bad.join(", ")))
            .remedy("under pressure the kubelet evicts pods by itself");
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let why = [text(&condition.reason), text(&condition.message)].join(": ");
    NodeCheck::new(NAME, NodeVerdict::Fail, format!("{found} ({why})")).remedy(
        "see the machine's console, and journalctl --unit=kubelet; pods on it end only with a \
         proof that nothing runs",
    )
}

fn kubelet(scene: &Scene, name: &str, now: Timestamp) -> NodeCheck {
    const NAME: &str = "kubelet";
    if !scene.has_read(Kind::Lease) {
        return NodeCheck::new(NAME, NodeVerdict::Warn, "its lease was not read")
            .remedy("read leases in kube-node-lease");
    }
    let lease = scene.lease("kube-node-lease", name);
    let renewed = lease.and_then(|lease| lease.renew_time);
    let Some((lease, renewed)) = lease.zip(renewed) else {
        return NodeCheck::new(NAME, NodeVerdict::Fail, "it has no lease in kube-node-lease")
            .remedy("see that the kubelet runs");
    };
    let age = now.duration_since(renewed).max(SignedDuration::ZERO).as_secs();
    let found = format!("its lease was renewed {age} s ago");
    if lease.is_alive(now) {
        return NodeCheck::new(NAME, NodeVerdict::Ok, found);
    }
    NodeCheck::new(NAME, NodeVerdict::Fail, found)
        .remedy("on the node: systemctl status kubelet; a kubelet that hangs ends no pod")
}

fn boot(node: &NodeSeen) -> NodeCheck {
    const NAME: &str = "boot";
    match &node.view.boot_id {
        Some(id) => NodeCheck::new(NAME, NodeVerdict::Ok, &**id),
        None => NodeCheck::new(NAME, NodeVerdict::Warn, "its boot id is not known")
            .remedy("without it a boot proves nothing of the pods before it"),
    }
}

fn agent(scene: &Scene, name: &str, node: &NodeSeen, agent: Option<&AgentPod>) -> NodeCheck {
    const NAME: &str = "agent";
    let on_host = node.labels.get(HOST_LABEL.0).is_some_and(|value| value == HOST_LABEL.1);
    let Some(agent) = agent else {
        let (verdict, found) = if on_host {
            (
                NodeVerdict::Warn,
                "it is a service of the host, of whose health the API knows nothing",
            )
        } else if !scene.has_read(Kind::Pod) {
            (NodeVerdict::Warn, "pods were not read")
        } else {
            (NodeVerdict::Fail, "there is none: a shutdown of this node is told by nobody")
        };
        let remedy = if on_host {
            format!("on {name}: systemctl status epilogue-agent")
        } else {
            "kubectl apply -k deploy/kustomize/base, or deploy/systemd on the host".to_owned()
        };
        return NodeCheck::new(NAME, verdict, found).remedy(remedy);
    };
    let path = format!("{}/{}", agent.namespace, agent.name);
    // The agent's readiness answers this very question. (agent/src/run.rs)
    if ready_pods(scene, name).any(|pod| *pod.name == *agent.name) {
        let found = format!(
            "{path} is ready: it hears logind, holds the delay lock, knows the node's pods, and \
             reaches the API"
        );
        return NodeCheck::new(NAME, NodeVerdict::Ok, found);
    }
    NodeCheck::new(NAME, NodeVerdict::Fail, format!("{path} is not ready")).remedy(format!(
        "kubectl logs --namespace {} {}: logind, lock, pods or api is not as it should be",
        agent.namespace, agent.name
    ))
}

fn ready_pods<'a>(scene: &'a Scene, node: &str) -> impl Iterator<Item = &'a PodView> {
    pods_of(scene, node).filter(|pod| pod.ready == Some(Tristate::True))
}

fn pods_of<'a>(scene: &'a Scene, node: &str) -> impl Iterator<Item = &'a PodView> {
    let node = node.to_owned();
    let pods = scene.pods.iter().filter_map(|pod| scene.view(pod));
    pods.filter(move |pod| pod.node.as_deref() == Some(node.as_str()))
}

/// What the agent states about a future shutdown.
fn lock_and_delay(readiness: Option<&Readiness>) -> NodeCheck {
    const NAME: &str = "shutdown";
    let Some(readiness) = readiness else {
        let found = format!("the agent has not written {READINESS}: it observes, or is too old");
        return NodeCheck::new(NAME, NodeVerdict::Warn, found)
            .remedy("the command below tells lock, delay and runtime");
    };
    let Readiness { mode, lock_held, granted_seconds, wanted_seconds } = readiness;
    let granted = granted_seconds.map_or_else(|| "?".to_owned(), |seconds| format!("{seconds}s"));
    let found = format!("mode {mode}; delay granted {granted}, wanted {wanted_seconds}s");
    if !lock_held {
        return NodeCheck::new(NAME, NodeVerdict::Fail, format!("no lock is held; {found}"))
            .remedy("the command below says why");
    }
    let found = format!("the lock is held; {found}");
    if granted_seconds.is_some_and(|granted| granted < *wanted_seconds) {
        return NodeCheck::new(NAME, NodeVerdict::Fail, found)
            .remedy("the command below says which file of logind to change");
    }
    NodeCheck::new(NAME, NodeVerdict::Ok, found)
}

fn announced(node: &NodeSeen, now: Timestamp) -> NodeCheck {
    const NAME: &str = "announced";
    if let Some((problem, _)) = node.stale_marks(now).into_iter().next() {
        return NodeCheck::new(NAME, NodeVerdict::Fail, problem)
            .remedy("the agent takes back what is stale; see that it runs");
    }
    match &node.view.announcement {
        None => NodeCheck::new(NAME, NodeVerdict::Warn, "no agent has ever spoken of this node")
            .remedy("an agent writes epilogue.dev/state as soon as it runs"),
        Some(Announcement::Idle) => NodeCheck::new(NAME, NodeVerdict::Ok, "no shutdown"),
        Some(Announcement::ShuttingDown { since, .. }) => {
            let found = format!("it shuts down since {}", seconds(*since));
            NodeCheck::new(NAME, NodeVerdict::Warn, found).remedy("wait for its end")
        }
        Some(Announcement::Drained { at, .. }) => {
            let found = format!("nothing ran any more at {}, when it went down", seconds(*at));
            NodeCheck::new(NAME, NodeVerdict::Warn, found).remedy("it comes back with its machine")
        }
    }
}

fn marks(node: &NodeSeen) -> NodeCheck {
    const NAME: &str = "taints";
    let mut marks: Vec<String> =
        node.taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    if node.unschedulable {
        marks.insert(0, "cordoned".to_owned());
    }
    if marks.is_empty() {
        return NodeCheck::new(NAME, NodeVerdict::Ok, "none");
    }
    if node.view.out_of_service && node.view.is_ready() {
        return NodeCheck::new(NAME, NodeVerdict::Fail, marks.join(", ")).remedy(format!(
            "it is ready and said to be off: kubectl taint node {} {}-",
            node.view.name,
            crate::podgc::OUT_OF_SERVICE_TAINT
        ));
    }
    NodeCheck::new(NAME, NodeVerdict::Ok, marks.join(", "))
}

/// The last event that its agent reported about the node.
fn reported(scene: &Scene, name: &str) -> NodeCheck {
    const NAME: &str = "last word";
    let of_node = |event: &&NodeEvent| {
        event.reporting_component.as_deref() == Some(AGENT_REPORTER)
            && event.involved_object.kind.as_deref() == Some("Node")
            && event.involved_object.name.as_deref() == Some(name)
    };
    let events = scene.events.iter().filter(of_node);
    let last = events.max_by_key(|event| event.last_timestamp.max(event.event_time));
    let Some(event) = last else {
        let found = if scene.has_read(Kind::Event) {
            "no event of its agent is kept (the API keeps them for an hour)"
        } else {
            "events were not read"
        };
        return NodeCheck::new(NAME, NodeVerdict::Ok, found);
    };
    let reason = event.reason.as_deref().unwrap_or_default();
    let verdict = TOLD.iter().find(|(known, _)| *known == reason);
    let verdict = verdict.map_or(NodeVerdict::Ok, |(_, verdict)| *verdict);
    let at = event.last_timestamp.max(event.event_time).map(seconds).unwrap_or_default();
    let message = event.message.as_deref().unwrap_or_default();
    let check = NodeCheck::new(NAME, verdict, format!("{at} {reason}: {message}"));
    match verdict {
        NodeVerdict::Ok => check,
        NodeVerdict::Warn | NodeVerdict::Fail => check.remedy("agent/README.md has each reason"),
    }
}

/// The node's pods, and those whose end no agent would report.
fn pods(scene: &Scene, name: &str) -> NodeCheck {
    const NAME: &str = "pods";
    if !scene.has_read(Kind::Pod) {
        return NodeCheck::new(NAME, NodeVerdict::Warn, "they were not read").remedy("read pods");
    }
    let living: Vec<&PodView> = pods_of(scene, name).filter(|pod| !pod.is_terminal()).collect();
    let count = |test: fn(&PodView) -> bool| living.iter().filter(|pod| test(pod)).count();
    let fixed = count(|pod| pod.is_static);
    let daemons = count(PodView::is_of_daemon_set);
    let bare: Vec<String> = living
        .iter()
        .filter(|pod| pod.owner.is_none() && !pod.is_static)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    let reported = living.len().saturating_sub(fixed + daemons + bare.len());
    let found = format!(
        "the ends of {reported} would be reported; {daemons} of DaemonSets and {fixed} static ones \
         come back with the node"
    );
    if bare.is_empty() {
        return NodeCheck::new(NAME, NodeVerdict::Ok, found);
    }
    let found = format!("{found}; without a controller: {}", bare.join(", "));
    NodeCheck::new(NAME, NodeVerdict::Warn, found).remedy(
        "where the kubelet's own graceful shutdown is off, the agent leaves these; --bare-pods of \
         the agent changes that",
    )
}
