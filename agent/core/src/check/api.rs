//! Checks whether the API would accept the reports of a shutdown now.

use std::time::Duration;

use super::{Check, Verdict};

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

/// Judges the API's answers.
pub(super) fn api(facts: &ApiFacts) -> Check {
    const NAME: &str = "api";
    let answers = match facts {
        ApiFacts::Silent { server, error } => {
            return Check::new(NAME, Verdict::Fail, format!("{server} gives no answer: {error}"))
                .remedy(
                    "no report would get through: see the route, the name and the credentials",
                );
        }
        ApiFacts::Answers(answers) => answers,
    };
    let ApiAnswers { server, node, denied, trial, latency, .. } = &**answers;
    let took = format!("{server} answers in {} ms", latency.as_millis());
    let fail = |found: String| Check::new(NAME, Verdict::Fail, format!("{took}; {found}"));
    if !denied.is_empty() {
        return fail(format!("not permitted: {}", denied.join(", ")))
            .remedy("kubectl apply -k deploy/kustomize/base, and give the agent its own account");
    }
    if !answers.node_exists {
        return fail(format!("there is no node {node}"))
            .remedy("give the name that `kubectl get nodes` shows by --node-name");
    }
    let found = match trial {
        MarkTrial::Refused { pod, error } => {
            return fail(format!("a mark on {pod} would be refused: {error}")).remedy(
                "agents may write to the pods of the node that their token names, and only what \
                 deploy/policy/agent/policy.yaml lets them",
            );
        }
        MarkTrial::Taken { pod } => format!("{took}; a mark on {pod} would be taken"),
        MarkTrial::NoPod => format!("{took}; there is no pod to try a mark on"),
    };
    if *latency >= CALL_MAX {
        return Check::new(NAME, Verdict::Fail, found)
            .remedy("in a shutdown a call is given up after 1 s: see the way to the API server");
    }
    if *latency >= SLOW {
        return Check::new(NAME, Verdict::Warn, found).remedy(
            "reports go out 32 at once: give the priority groups less or logind more time",
        );
    }
    Check::new(NAME, Verdict::Ok, found)
}
