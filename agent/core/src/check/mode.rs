//! Reports the mode that the agent would detect if the node shut down now. ([AP16])

use super::facts::Facts;
use super::runtime::RuntimeFacts;
use super::{Check, Verdict};
use crate::agent::{Allowed, Detected, detect};
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::time_span::TimeSpan;

/// Detects the mode and judges it.
pub(super) fn mode(kubelet: &KubeletFacts, facts: &Facts) -> (Mode, Check) {
    const NAME: &str = "mode";
    let allowed = Allowed {
        enforce: true,
        runtime: matches!(facts.runtime, RuntimeFacts::Answers(_)),
        ends_pods: facts.priority_groups.is_some(),
    };
    let Detected { mode, marks_only, why } = detect(Some(kubelet), None, allowed);
    let name = match mode {
        Mode::Assist => "Assist: the kubelet ends the pods, and the agent waits for its reports",
        Mode::Replace => "Replace: the agent ends the pods through the API",
        Mode::Substitute => "Substitute: the agent ends the pods through the container runtime",
        Mode::Observe => "Observe: nobody ends the pods",
    };
    let period = kubelet.shutdown_period.map(TimeSpan::from);
    let period = period.map_or_else(String::new, |sum| format!("; its configuration wants {sum}"));
    let found = format!("{name}, because {why}{period}");
    let configured = kubelet.shutdown_period.is_some_and(|period| !period.is_zero());
    let check = if mode == Mode::Substitute || marks_only && allowed.ends_pods {
        Check::new(NAME, Verdict::Fail, found)
            .remedy("run the kubelet: see `systemctl status kubelet` and its log")
    } else if mode == Mode::Replace && configured {
        // Graceful shutdown is configured, but the kubelet holds no lock. ([W1])
        Check::new(NAME, Verdict::Warn, found).remedy(
            "the kubelet gave its own shutdown up when it started, for want of delay: restart it \
             once logind grants what it wants, or set its shutdownGracePeriod to 0",
        )
    } else {
        Check::new(NAME, Verdict::Ok, found)
    };
    (mode, check)
}
