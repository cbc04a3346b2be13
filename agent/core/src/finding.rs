//! Names each fault of a node or of the agent's installation, with its code, its sentence and its
//! remedy. `epilogue-agent check`, `/readyz` and the agent's events report the same fault by it.

use std::fmt;
use std::time::Duration;

use epilogue_common::finding_code::FindingCode as Code;

use crate::agent::{LockState, Status};
use crate::time_span::TimeSpan;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding<'a> {
    /// The agent has no connection to logind.
    LogindNotConnected,
    /// The agent holds no delay lock.
    LockNotHeld,
    /// The agent does not know the node's pods.
    PodsNotListed,
    /// The API would let the agent write what this admission policy must refuse.
    PolicyMissing(&'a str),
    /// logind grants less than a shutdown needs.
    DelayTooShort {
        /// The delay that logind grants.
        granted: Duration,
        /// The delay that the pods and their reports need.
        wanted: Duration,
    },
    /// No component would terminate pods, for this reason.
    NoTerminator(&'a str),
    /// The API gives no answer, at this address.
    ApiNoAnswer(&'a str),
    /// The API forbids these calls, which the agent needs.
    Forbidden(&'a str),
    /// For these signals the kubelet's threshold comes before the agent's.
    ThresholdsOverlap(&'a str),
}

impl Finding<'_> {
    /// The code, which `docs/troubleshooting.md` explains.
    pub fn code(self) -> Code {
        match self {
            Self::LogindNotConnected | Self::PodsNotListed | Self::PolicyMissing(_) => {
                Code::AgentNotReady
            }
            Self::LockNotHeld => Code::LockNotHeld,
            Self::DelayTooShort { .. } => Code::DelayTooShort,
            Self::NoTerminator(_) => Code::KubeletDown,
            Self::ApiNoAnswer(_) => Code::ApiNoAnswer,
            Self::Forbidden(_) => Code::ApiForbidden,
            Self::ThresholdsOverlap(_) => Code::ThresholdsOverlap,
        }
    }

    /// What to do about it, wherever nothing more exact is known.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::LogindNotConnected | Self::LockNotHeld => "see `epilogue-agent check`",
            Self::PodsNotListed => "see whether the API answers",
            Self::PolicyMissing(_) => "apply deploy/policy (Kubernetes 1.30 or newer)",
            Self::DelayTooShort { .. } => {
                "see `epilogue-agent check`; until then pods get less time to terminate"
            }
            Self::NoTerminator(_) => "run the kubelet: see `systemctl status kubelet` and its log",
            Self::ApiNoAnswer(_) => {
                "no report would arrive: check the route, the name and the credentials"
            }
            Self::Forbidden(_) => {
                "kubectl apply -k deploy/kustomize/overlays/enforce, and give the agent its own \
                 account, epilogue-agents/epilogue-agent"
            }
            Self::ThresholdsOverlap(_) => {
                "raise --eviction-hard or --eviction-soft above the kubelet's evictionHard and \
                 evictionSoft; until then the agent only observes there"
            }
        }
    }

    /// The sentence and the remedy.
    pub fn text(self) -> String {
        format!("{self}: {}", self.remedy())
    }
}

impl fmt::Display for Finding<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogindNotConnected => formatter.write_str("logind is not connected"),
            Self::LockNotHeld => {
                formatter.write_str("no delay lock is held, so that nothing waits for pods")
            }
            Self::PodsNotListed => formatter.write_str("the node's pods are not listed yet"),
            Self::PolicyMissing(policy) => write!(
                formatter,
                "no admission policy bounds the agent: the API would let it write what {policy} \
                 must refuse, so it does not act"
            ),
            Self::DelayTooShort { granted, wanted } => {
                let [granted, wanted] = [*granted, *wanted].map(TimeSpan::from);
                write!(formatter, "logind grants {granted}, and a shutdown needs {wanted}")
            }
            Self::NoTerminator(why) => {
                write!(formatter, "no component would terminate pods: {why}")
            }
            Self::ApiNoAnswer(server) => write!(formatter, "{server} gives no answer"),
            Self::Forbidden(calls) => write!(formatter, "the API forbids {calls}"),
            Self::ThresholdsOverlap(signals) => {
                write!(formatter, "the kubelet's own threshold comes first for {signals}")
            }
        }
    }
}

/// Finds a fault in the agent's state.
pub type Find = fn(&Status) -> Option<Finding<'_>>;

/// The checks of `/readyz` and of the condition `epilogue.dev/AgentReady`, by name. An agent that
/// only observes delays nothing, and on a node without logind it sees no shutdown.
pub fn readiness(enforce: bool, logind: bool) -> impl Iterator<Item = (&'static str, Find)> {
    let is_wanted = move |name| match name {
        "logind" => logind,
        "lock" => enforce && logind,
        _ => true,
    };
    READINESS.into_iter().filter(move |(name, _)| is_wanted(*name))
}

/// The agent would see a shutdown now, delay it, and know the pods that it concerns.
const READINESS: [(&str, Find); 4] = [
    ("logind", |status| (!status.logind).then_some(Finding::LogindNotConnected)),
    ("pods", |status| (!status.pods_listed).then_some(Finding::PodsNotListed)),
    ("policies", |status| status.unbounded.as_deref().map(Finding::PolicyMissing)),
    ("lock", |status| {
        // During a shutdown the agent releases it when it should.
        let is_missing = status.lock != LockState::Held && !status.preparing;
        is_missing.then_some(Finding::LockNotHeld)
    }),
];
