//! The API, as `check` finds it: would the reports of a shutdown get through now?

use std::time::Duration;

use super::{Check, Verdict};

/// A call that takes longer is given up in a shutdown, and tried again.
pub const CALL_MAX: Duration = Duration::from_secs(1);
/// From here on the reports of a full node need a part of the time that is worth a thought.
const SLOW: Duration = Duration::from_millis(300);

/// What became of asking the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiFacts {
    /// There was no answer.
    Silent {
        /// Who was asked.
        server: String,
        /// What was said.
        error: String,
    },
    /// It answers.
    Answers(Box<ApiAnswers>),
}

/// The API's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAnswers {
    /// Its address.
    pub server: String,
    /// The node that was asked for.
    pub node: String,
    /// Whether there is such a node.
    pub node_exists: bool,
    /// What an agent needs, and we may not, such as `patch pods/status`.
    pub denied: Vec<String>,
    /// A mark on one of the node's pods, as a dry run.
    pub trial: MarkTrial,
    /// How long a call took on a warm connection.
    pub latency: Duration,
}

/// How a mark went that nothing was changed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkTrial {
    /// No pod of the node could be taken for it.
    NoPod,
    /// The API would have taken it.
    Taken {
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
    },
    /// It would not.
    Refused {
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// Why.
        error: String,
    },
}

/// The verdict.
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
