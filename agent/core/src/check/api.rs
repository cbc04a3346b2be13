//! Checks whether the API would accept the reports of a shutdown now.

use std::time::Duration;

use epilogue_common::finding_code::FindingCode as Code;

use super::{Check, Verdict};
use crate::finding::Finding;

/// Timeout of a call in a shutdown; the agent then repeats the call.
pub const CALL_MAX: Duration = Duration::from_secs(1);
/// From this latency on, the reports of a full node need a noticeable part of the time.
const SLOW: Duration = Duration::from_millis(300);

/// Result of querying the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiFacts {
    /// The API did not answer.
    Silent {
        /// Address of the API server.
        server: String,
        /// Error message.
        error: String,
    },
    /// The API answered.
    Answers(Box<ApiAnswers>),
}

/// Answers of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAnswers {
    /// Address of the API server.
    pub server: String,
    /// Name of the requested node.
    pub node: String,
    /// Whether the node exists.
    pub node_exists: bool,
    /// Permissions that an agent needs and this process lacks, such as `patch pods/status`.
    pub denied: Vec<String>,
    /// Result of setting DisruptionTarget on one of the node's pods, as a dry run.
    pub trial: MarkTrial,
    /// Static pods of the node in the host's network, as `NAMESPACE/NAME`, if the API's address is
    /// on the loopback: one of them may carry the way to it.
    pub on_the_way: Vec<String>,
    /// Latency of a call on a warm connection.
    pub latency: Duration,
}

/// Result of a dry run that sets DisruptionTarget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkTrial {
    /// The node has no suitable pod.
    NoPod,
    /// The API would accept the patch.
    Taken {
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
    },
    /// The API would refuse the patch.
    Refused {
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// Error message.
        error: String,
    },
}

/// Judges the API's answers. An agent that observes writes events only, and lacks all other rights.
pub(super) fn api(facts: &ApiFacts, observes: bool) -> Check {
    const NAME: &str = "api";
    let answers = match facts {
        ApiFacts::Silent { server, error } => {
            let finding = Finding::ApiNoAnswer(server);
            return Check::of(NAME, Verdict::Fail, finding, format!("{finding}: {error}"));
        }
        ApiFacts::Answers(answers) => answers,
    };
    let ApiAnswers { server, node, denied, trial, on_the_way, latency, .. } = &**answers;
    let took = format!("{server} answers in {} ms", latency.as_millis());
    let fail = |code, found: String| Check::fail(NAME, code, format!("{took}; {found}"));
    let denied = denied.join(", ");
    let finding = Finding::Forbidden(&denied);
    if observes && !denied.is_empty() {
        let found = format!("{took}; the agent only observes, without: {denied}");
        return Check::of(NAME, Verdict::Warn, finding, found).remedy(
            "to let it act: the overlay deploy/kustomize/overlays/enforce, or mode=enforce",
        );
    }
    if !denied.is_empty() {
        return Check::of(NAME, Verdict::Fail, finding, format!("{took}; {finding}"));
    }
    if !answers.node_exists {
        return fail(Code::NodeNameWrong, format!("node {node} not found"))
            .remedy("give the name that `kubectl get nodes` shows by --node-name");
    }
    let found = match trial {
        MarkTrial::Refused { pod, error } => {
            let found = format!("DisruptionTarget on {pod} would be refused: {error}");
            return fail(Code::DisruptionTargetRefused, found).remedy(
                "agents may write to the pods of the node that their token names, and only what \
                 deploy/policy/agent/policy.yaml allows",
            );
        }
        MarkTrial::Taken { pod } => format!("{took}; DisruptionTarget on {pod} would be accepted"),
        MarkTrial::NoPod => format!("{took}; no pod here to try DisruptionTarget on"),
    };
    if *latency >= CALL_MAX {
        return Check::fail(NAME, Code::ApiSlow, found)
            .remedy("in a shutdown a call ends after 1 s: check the way to the API server");
    }
    if !on_the_way.is_empty() {
        let found = format!("{found}; static pods here may carry it: {}", on_the_way.join(", "));
        return Check::warn(NAME, Code::ApiOnThisNode, found).remedy(
            "give an address that outlasts this node's pods, or the static pod's manifest a \
             `priority` of 2000001000: the kubelet's own shutdown terminates it by that number",
        );
    }
    if *latency >= SLOW {
        return Check::warn(NAME, Code::ApiSlow, found).remedy(
            "at most 32 reports are in flight: give the priority groups less time or logind more",
        );
    }
    Check::ok(NAME, found)
}
