//! Reports on one node from the API: whether its agent would see a shutdown through, and what only
//! the node itself can show.

use std::collections::BTreeSet;

use epilogue_common::announcement::Announcement;
use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::node::STATE;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::finding::{Finding, Rule};
use super::findings::findings;
use super::node_check::{NodeCheck, NodeVerdict, lock_and_delay};
use super::node_seen::NodeSeen;
use super::pods::subject;
use super::scene::{AgentPod, Scene};
use super::times::seconds;
use crate::kind::Kind;
use controller_core::view::Pod;

/// The label, with its value, of nodes whose agent is a service of the host.
const HOST_LABEL: (&str, &str) = ("epilogue.dev/agent", "host");
/// Reasons of agents' events about a node, each with the worst that it means.
const EVENT_VERDICTS: [(&str, NodeVerdict); 9] = [
    ("NodeEndAnnounced", NodeVerdict::Ok),
    ("NodeEndWithdrawn", NodeVerdict::Ok),
    ("NodeShutdownStarted", NodeVerdict::Ok),
    ("NodeShutdownCancelled", NodeVerdict::Ok),
    ("NodeShutdownComplete", NodeVerdict::Ok),
    ("NodeShutdownIncomplete", NodeVerdict::Warn),
    ("NodeShutdownDelayTooShort", NodeVerdict::Warn),
    ("AgentForbidden", NodeVerdict::Fail),
    ("BootRecovery", NodeVerdict::Ok),
];

/// All that the API shows of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeReport {
    /// Its name.
    pub(crate) node: String,
    /// The worst verdict of all checks.
    pub(crate) verdict: NodeVerdict,
    /// The checks.
    pub(crate) checks: Vec<NodeCheck>,
    /// Findings about the node.
    pub(crate) findings: Vec<Finding>,
    /// The command that shows the rest: it must run on the node.
    pub(crate) on_node: String,
}

/// The report on the node of this name, or `None` if there is no such node.
pub(crate) fn node_report(scene: &Scene, name: &str, now: Timestamp) -> Option<NodeReport> {
    let node = scene.nodes.get(name)?;
    let agent = scene.agent_of(name);
    let mut checks = vec![ready(node), kubelet(scene, name, now), boot(node)];
    checks.push(self::agent(scene, name, node, agent.as_ref()));
    let has_agent = agent.is_some() || node.readiness.is_some();
    checks.extend(has_agent.then(|| lock_and_delay(node.readiness.as_ref())));
    checks.push(announced(node, now));
    checks.push(taints(node));
    checks.push(last_event(scene, name));
    checks.push(pods(scene, name));
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(NodeVerdict::Ok);
    let mut findings = findings(scene, None, now);
    let mut subjects: BTreeSet<String> = pods_of(scene, name).map(subject).collect();
    subjects.insert(format!("node/{name}"));
    // The check of the shutdown says the same.
    findings.retain(|it| it.rule != Rule::NodeUnprepared && subjects.contains(&it.subject));
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
        let found = "its kubelet has never reported a status";
        return NodeCheck::fail(NAME, Code::KubeletNeverReported, found)
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
            return NodeCheck::ok(NAME, found);
        }
        let found = format!("{found}; also True: {}", bad.join(", "));
        return NodeCheck::warn(NAME, Code::NodeConditionTrue, found)
            .remedy("under pressure the kubelet evicts pods by itself");
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let why = [text(&condition.reason), text(&condition.message)].join(": ");
    NodeCheck::fail(NAME, Code::NodeNotReady, format!("{found} ({why})")).remedy(
        "see the machine's console, and journalctl --unit=kubelet; its pods become terminal only \
         with evidence that nothing runs",
    )
}

fn kubelet(scene: &Scene, name: &str, now: Timestamp) -> NodeCheck {
    const NAME: &str = "kubelet";
    if !scene.has_read(Kind::Lease) {
        return NodeCheck::warn(NAME, Code::KubeletLeaseNotRead, "its lease was not read")
            .remedy("use an account that may read leases in kube-node-lease");
    }
    let lease = scene.lease("kube-node-lease", name);
    let renewed = lease.and_then(|lease| lease.renew_time);
    let Some((lease, renewed)) = lease.zip(renewed) else {
        let found = "it has no lease in kube-node-lease";
        return NodeCheck::fail(NAME, Code::KubeletLeaseMissing, found)
            .remedy("see that the kubelet runs");
    };
    let age = now.duration_since(renewed).max(SignedDuration::ZERO).as_secs();
    let found = format!("its lease was renewed {age} s ago");
    if lease.is_alive(now) {
        return NodeCheck::ok(NAME, found);
    }
    NodeCheck::fail(NAME, Code::KubeletLeaseStale, found)
        .remedy("on the node: systemctl status kubelet; a kubelet that hangs terminates no pod")
}

fn boot(node: &NodeSeen) -> NodeCheck {
    const NAME: &str = "boot";
    match &node.view.boot_id {
        Some(id) => NodeCheck::ok(NAME, &**id),
        None => NodeCheck::warn(NAME, Code::BootIdUnknown, "status.nodeInfo.bootID is empty")
            .remedy("see that the kubelet reports its status; without it a boot proves nothing"),
    }
}

fn agent(scene: &Scene, name: &str, node: &NodeSeen, agent: Option<&AgentPod>) -> NodeCheck {
    const NAME: &str = "agent";
    let on_host = node.labels.get(HOST_LABEL.0).is_some_and(|value| value == HOST_LABEL.1);
    let Some(agent) = agent else {
        return if on_host {
            let found = "it is a service of the host; the API does not show its health";
            NodeCheck::warn(NAME, Code::AgentOnHost, found)
                .remedy(format!("on {name}: systemctl status epilogue-agent"))
        } else if !scene.has_read(Kind::Pod) {
            NodeCheck::warn(NAME, Code::AgentNotRead, "pods were not read")
                .remedy("use an account that may list pods")
        } else {
            let found = "missing: no component reports the pods that a shutdown of this node ends";
            NodeCheck::fail(NAME, Code::AgentMissing, found)
                .remedy("kubectl apply -k deploy/kustomize/base, or deploy/systemd on the host")
        };
    };
    let path = format!("{}/{}", agent.namespace, agent.name);
    if ready_pods(scene, name).any(|pod| *pod.name == *agent.name) {
        return NodeCheck::ok(NAME, format!("{path} is ready"));
    }
    NodeCheck::fail(NAME, Code::AgentNotReady, format!("{path} is not ready")).remedy(format!(
        "kubectl logs --namespace {} {}: see which of logind, lock, pods, api or policies fails",
        agent.namespace, agent.name
    ))
}

fn ready_pods<'a>(scene: &'a Scene, node: &str) -> impl Iterator<Item = &'a Pod> {
    pods_of(scene, node).filter(|pod| pod.is_ready())
}

fn pods_of<'a>(scene: &'a Scene, node: &str) -> impl Iterator<Item = &'a Pod> {
    let node = node.to_owned();
    let pods = scene.pods.iter().filter_map(|pod| scene.view(pod));
    pods.filter(move |pod| pod.node.as_deref() == Some(node.as_str()))
}

fn announced(node: &NodeSeen, now: Timestamp) -> NodeCheck {
    const NAME: &str = "announced";
    if let Some(leftover) = node.leftovers(now).into_iter().next() {
        return NodeCheck::fail(NAME, leftover.code, leftover.problem)
            .remedy("an agent that runs resets it; see that it does");
    }
    match &node.view.announcement {
        None => NodeCheck::warn(NAME, Code::StateMissing, format!("no agent has written {STATE}"))
            .remedy("start an agent that may act; one that observes writes none"),
        Some(Announcement::Idle) => NodeCheck::ok(NAME, "no shutdown"),
        Some(Announcement::ShuttingDown { since, .. }) => {
            let found = format!("shutting down since {}", seconds(*since));
            NodeCheck::warn(NAME, Code::NodeShuttingDown, found).remedy("wait for its end")
        }
        Some(Announcement::Drained { at, .. }) => {
            let found = format!("shut down at {}; no container ran then", seconds(*at));
            NodeCheck::warn(NAME, Code::NodeDrained, found).remedy("it comes back with its machine")
        }
    }
}

fn taints(node: &NodeSeen) -> NodeCheck {
    const NAME: &str = "taints";
    let mut taints: Vec<String> =
        node.taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    if node.unschedulable {
        taints.insert(0, "cordoned".to_owned());
    }
    if taints.is_empty() {
        return NodeCheck::ok(NAME, "none");
    }
    let found = taints.join(", ");
    if node.view.out_of_service && node.view.is_ready() {
        return NodeCheck::fail(NAME, Code::OutOfServiceOnReadyNode, found).remedy(format!(
            "the node is ready, so the taint is wrong: kubectl taint node {} {}-",
            node.view.name,
            controller_core::podgc::OUT_OF_SERVICE_TAINT
        ));
    }
    NodeCheck::ok(NAME, found)
}

/// The last event that its agent reported about the node.
fn last_event(scene: &Scene, name: &str) -> NodeCheck {
    const NAME: &str = "event";
    let events = scene.events.iter().filter(|event| event.is_of_agent_of(name));
    let last = events.max_by_key(|event| event.at());
    let Some(event) = last else {
        let found = if scene.has_read(Kind::Event) {
            "none of its agent (the API keeps events for an hour)"
        } else {
            "events were not read"
        };
        return NodeCheck::ok(NAME, found);
    };
    let reason = event.reason.as_deref().unwrap_or_default();
    let known = EVENT_VERDICTS.iter().find(|(known, _)| *known == reason);
    let verdict = known.map_or(NodeVerdict::Ok, |(_, verdict)| *verdict);
    let at = event.at().map(seconds).unwrap_or_default();
    let message = event.message.as_deref().unwrap_or_default();
    let found = format!("{at} {reason}: {message}");
    let remedy = "the section of the event's reason in the troubleshooting page says what to do";
    match verdict {
        NodeVerdict::Ok => NodeCheck::ok(NAME, found),
        NodeVerdict::Warn => NodeCheck::warn(NAME, Code::AgentEventWarning, found).remedy(remedy),
        NodeVerdict::Fail => NodeCheck::fail(NAME, Code::AgentEventWarning, found).remedy(remedy),
    }
}

/// The node's pods, and those whose end no agent would report.
fn pods(scene: &Scene, name: &str) -> NodeCheck {
    const NAME: &str = "pods";
    if !scene.has_read(Kind::Pod) {
        return NodeCheck::warn(NAME, Code::NodePodsNotRead, "they were not read")
            .remedy("use an account that may list pods");
    }
    let living: Vec<&Pod> = pods_of(scene, name).filter(|pod| !pod.is_terminal()).collect();
    let count = |test: fn(&Pod) -> bool| living.iter().filter(|pod| test(pod)).count();
    let fixed = count(|pod| pod.gc.is_static);
    let daemons = count(Pod::is_of_daemon_set);
    let bare: Vec<String> = living
        .iter()
        .filter(|pod| pod.owner.is_none() && !pod.gc.is_static)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    let reported = living.len().saturating_sub(fixed + daemons + bare.len());
    let found = format!(
        "{reported} would be reported in a shutdown; {daemons} of DaemonSets and {fixed} static \
         pods come back with the node"
    );
    if bare.is_empty() {
        return NodeCheck::ok(NAME, found);
    }
    let found = format!("{found}; without a controller: {}", bare.join(", "));
    NodeCheck::warn(NAME, Code::BarePods, found).remedy(
        "where the kubelet's own graceful shutdown is off, the agent leaves these to the machine; \
         its --bare-pods changes that",
    )
}
