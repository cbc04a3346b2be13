//! Checks the container runtime. The agent stops pods through it if the kubelet is dead when the
//! node shuts down. ([AP16])

use std::time::Duration;

use epilogue_common::finding_code::FindingCode as Code;
use jiff::Timestamp;

use super::Check;
use crate::time_span::TimeSpan;

/// How far the runtime's times may be ahead of this clock before the clock counts as wrong.
pub const AHEAD_MAX: Duration = Duration::from_secs(2);

/// Result of querying the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeFacts {
    /// The check found no runtime to query; the fields state the findings and the remedy.
    Absent {
        /// Facts that the check found.
        found: String,
        /// Advice for the operator.
        remedy: String,
    },
    /// The runtime gives no valid answer.
    Mute {
        /// Path of the socket; empty if it is unknown.
        socket: String,
        /// Error message.
        error: String,
    },
    /// The runtime answered.
    Answers(Box<RuntimeAnswers>),
}

/// Answers of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeAnswers {
    /// Path of the runtime's socket.
    pub socket: String,
    /// Name and version of the runtime.
    pub version: String,
    /// Conditions that are not true, with the runtime's reasons.
    pub failing: Vec<String>,
    /// Whether `RuntimeReady` is one of `failing`.
    pub not_ready: bool,
    /// Number of pods with a sandbox in the runtime.
    pub pods: usize,
    /// Latest start or end time that the runtime reports.
    pub latest: Option<Timestamp>,
}

/// Judges the runtime's answers. An agent that observes needs none.
pub(super) fn runtime(facts: &RuntimeFacts, observes: bool, now: Timestamp) -> Check {
    const NAME: &str = "runtime";
    match facts {
        RuntimeFacts::Absent { .. } | RuntimeFacts::Mute { .. } if observes => {
            Check::ok(NAME, "not asked: the agent only observes, and needs no runtime")
        }
        RuntimeFacts::Absent { found, remedy } => {
            Check::warn(NAME, Code::RuntimeNotFound, found).remedy(remedy)
        }
        RuntimeFacts::Mute { socket, error } => {
            Check::fail(NAME, Code::RuntimeNoAnswer, format!("{error} (at {socket})")).remedy(
                "without it neither the kubelet nor the agent can stop a pod; see `systemctl \
                 status containerd crio`, and run the agent as uid 0",
            )
        }
        RuntimeFacts::Answers(answers) => answering(NAME, answers, now),
    }
}

fn answering(name: &'static str, answers: &RuntimeAnswers, now: Timestamp) -> Check {
    let RuntimeAnswers { socket, version, failing, not_ready, pods, latest } = answers;
    let found = format!("{version} at {socket} knows {pods} pods");
    if !failing.is_empty() {
        let check = if *not_ready { Check::fail } else { Check::warn };
        let found = format!("{found}; not ready: {}", failing.join(", "));
        return check(name, Code::RuntimeNotReady, found)
            .remedy("see `crictl info`, and the runtime's own log");
    }
    let ahead = latest.map_or(Duration::ZERO, |latest| {
        Duration::try_from(latest.duration_since(now)).unwrap_or_default()
    });
    if ahead > AHEAD_MAX {
        let ahead = TimeSpan::from_secs(ahead.as_secs());
        let found = format!("{found}; its times are {ahead} ahead of the clock");
        return Check::warn(name, Code::ClockBehindRuntime, found).remedy(
            "the node's clock was set back, or is wrong now: see `timedatectl`; containers are \
             reported with these times",
        );
    }
    if *pods == 0 {
        return Check::warn(name, Code::RuntimeWithoutPods, found).remedy(
            "if the node has pods, this is not the kubelet's runtime: name its \
             containerRuntimeEndpoint by --runtime-endpoint",
        );
    }
    Check::ok(name, found)
}
