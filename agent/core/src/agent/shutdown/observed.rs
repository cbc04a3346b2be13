//! Reports, where the agent only observes, what it would do with each pod in a shutdown.

use super::super::facts::Facts;
use super::super::mode::{Allowed, Detected, detect};
use super::super::notices::{BEGUN, WOULD_DISRUPT};
use super::super::out::Out;
use super::super::status::WouldHave;
use super::run::scope;
use crate::pod::PodView;
use crate::protocol::action::PodRef;
use crate::shutdown::Mode;
use crate::shutdown::candidates::{self, Scope};

/// Counts and reports each pod, once for each shutdown. Nothing delays the machine for it, so
/// events may come too late to be sent.
pub(super) fn report(facts: &Facts, out: &mut Out) {
    let allowed = Allowed { enforce: true, ..facts.allowed() };
    let found = detect(facts.kubelet.judged(), None, allowed);
    let scope = scope(found, facts);
    let mut pods_disrupted = 0;
    for pod in facts.pods.iter() {
        let would = would_have(pod, &scope);
        if would.is_empty() {
            continue;
        }
        pods_disrupted += 1;
        for what in &would {
            *out.status.would_have.entry(*what).or_default() += 1;
        }
        let steps: Vec<&str> = would.iter().map(|what| what.words(scope.mode)).collect();
        let text = format!(
            "The node shuts down. Set to enforce, the agent would {}.",
            steps.join(", and ")
        );
        out.emit_pod_event(PodRef::of(pod), WOULD_DISRUPT, &text);
    }
    out.announce(false, BEGUN, observed(found, pods_disrupted, facts.pods.is_listed()));
}

fn observed(found: Detected, pods: usize, listed: bool) -> String {
    if !listed {
        return "The agent only observes, and does not know the node's pods yet.".to_owned();
    }
    format!(
        "The agent only observes. Set to enforce, it would handle {pods} pods (mode {}: {}).",
        found.mode.name(),
        found.why
    )
}

/// What an agent that enforces would do with a pod; empty if it leaves the pod alone.
fn would_have(pod: &PodView, scope: &Scope) -> Vec<WouldHave> {
    let mut would = Vec::new();
    if candidates::mark_reason(pod, scope).is_some() {
        would.push(WouldHave::SetDisruptionTarget);
    }
    if candidates::excluded(pod, scope).is_some() {
        return would;
    }
    match scope.mode {
        Mode::Replace if candidates::is_ended_by_us(pod, scope) => would.push(WouldHave::Terminate),
        Mode::Substitute => would.push(WouldHave::Terminate),
        Mode::Assist => would.push(WouldHave::Report),
        Mode::Replace | Mode::Observe => {}
    }
    would
}
