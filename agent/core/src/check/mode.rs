//! Reports the mode that the agent would detect if the node shut down now. ([AP16])

use epilogue_common::finding_code::FindingCode as Code;

use super::facts::Facts;
use super::runtime::RuntimeFacts;
use super::{Check, Verdict};
use crate::agent::{self, Allowed, Detected, Silence, detect};
use crate::finding::Finding;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::time_span::TimeSpan;

/// Detects the mode and judges it.
pub(super) fn mode(kubelet: &KubeletFacts, facts: &Facts) -> (Mode, Check) {
    const NAME: &str = "mode";
    let allowed = Allowed {
        enforce: true,
        // What it would do if it acted: then it would have a runtime.
        runtime: facts.observes || matches!(facts.runtime, RuntimeFacts::Answers(_)),
        ends_pods: facts.priority_groups.is_some(),
    };
    let judged = agent::kubelet(kubelet, &Silence::default());
    let Detected { mode, marks_only, why } = detect(Some((kubelet, judged)), None, allowed);
    let name = match mode {
        Mode::Assist => "Assist: the kubelet stops the pods, and the agent completes its reports",
        Mode::Replace => "Replace: the agent deletes the pods through the API",
        Mode::Substitute => "Substitute: the agent stops the pods through the container runtime",
        Mode::Observe => "Observe: the agent acts on no pod",
    };
    let period = kubelet.shutdown_period().map(TimeSpan::from);
    let period = period.map_or_else(String::new, |sum| format!("; its configuration wants {sum}"));
    let found = format!("{name}, because {why}{period}");
    let configured = kubelet.shutdown_period().is_some_and(|period| !period.is_zero());
    let check = if mode == Mode::Substitute || marks_only && allowed.ends_pods {
        Check::of(NAME, Verdict::Fail, Finding::NoTerminator(why), found)
    } else if mode == Mode::Replace && configured {
        // Graceful shutdown is configured, but the kubelet holds no lock. ([W1])
        Check::warn(NAME, Code::KubeletShutdownNotArmed, found).remedy(
            "the kubelet turned its graceful shutdown off when it started, because logind granted \
             too little: restart it once logind grants enough, or set its shutdownGracePeriod to 0",
        )
    } else {
        Check::ok(NAME, found)
    };
    (mode, check)
}
