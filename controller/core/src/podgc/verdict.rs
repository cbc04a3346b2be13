//! Decides what to do with one pod, by all rules in order.

use std::sync::Arc;

use super::case::{Case, Cause, PodWrite, Verdict, pod_write};
use super::disruption;
use super::evidence::{Evidence, Proof, proof};
use super::finished;
use super::missing_node::NodeState;
use super::patches::{TargetRule, failed};
use super::settings::Mode;

/// The verdict on a pod.
pub(crate) fn verdict(case: &Case<'_>) -> Verdict {
    if case.pod.only_finalizers_hold_it() {
        return Verdict::Leave;
    }
    if case.settings.mode != Mode::Off {
        let ending = ending(case);
        if ending != Verdict::Leave {
            return ending;
        }
    }
    if case.pod.is_terminal() {
        return finished(case);
    }
    disruption::verdict(case)
}

/// The rules by which pod GC fails or deletes a pod. ([GC1])
fn ending(case: &Case<'_>) -> Verdict {
    let pod = case.pod;
    if pod.node.is_none() {
        // A deleted pod without a node: nothing of it can run. ([GC10])
        return match pod.deletion {
            Some(_) => end(case, Evidence::NeverScheduled, unscheduled_rule(case)),
            None => Verdict::Leave,
        };
    }
    let Some(node) = case.node else { return orphan(case) };
    if pod.deletion.is_none() {
        return Verdict::Leave;
    }
    // The node is out of service and not ready: nothing of the pod runs. ([GC11])
    if node.view.out_of_service && !node.view.is_ready() {
        return end(case, Evidence::OutOfService, out_of_service_rule(case));
    }
    match proof(pod, case.deleted_in, node, case.policy, case.now) {
        Proof::Found(evidence) => end(case, evidence, TargetRule::Keep),
        Proof::NotYet(at) => Verdict::CheckAgain(at),
        Proof::NotNeeded => Verdict::Leave,
    }
}

/// The node is gone: after the quarantine a live GET has to confirm it. ([GC7], [GC8])
///
/// DIVERGES(upstream): the quarantine of a node begins with the event that shows it gone. Its pods
/// are failed when it is over. Upstream checks every 20 s, so it takes 40 s to 80 s. ([GC9])
fn orphan(case: &Case<'_>) -> Verdict {
    let (Some(missing_node), Some(name)) = (case.missing_node, &case.pod.node) else {
        return Verdict::Leave;
    };
    match missing_node.node_state(case.settings.quarantine, case.now) {
        NodeState::Confirmed => end(case, Evidence::NodeGone, TargetRule::Set),
        NodeState::Ask => Verdict::Ask(Arc::clone(name)),
        // The check of the node is scheduled separately.
        NodeState::Quarantine(_) => Verdict::Leave,
    }
}

/// DIVERGES(upstream): the failure of a node is a disruption. So its pods become disruption targets
/// also where the out-of-service taint fails them. An existing condition is kept: the taint
/// manager's says more. ([GC11])
fn out_of_service_rule(case: &Case<'_>) -> TargetRule {
    if case.settings.out_of_service_target { TargetRule::Keep } else { TargetRule::Leave }
}

/// DIVERGES(upstream): on request (`--unscheduled-disruption-target`) also pods that never had a
/// node become disruption targets. The default is not to: the deletion has a known reason, and a
/// Job that ignores disruptions would repeat the pod for ever. ([GC10])
fn unscheduled_rule(case: &Case<'_>) -> TargetRule {
    if case.settings.unscheduled_target { TargetRule::Keep } else { TargetRule::Leave }
}

/// A terminal pod is never patched. ([GC2])
fn end(case: &Case<'_>, evidence: Evidence, rule: TargetRule) -> Verdict {
    let pod = case.pod;
    let patch = (!pod.is_terminal()).then(|| failed(pod, &evidence, rule, case.now));
    Verdict::Do(PodWrite { delete: true, ..pod_write(pod, patch, Cause::Ended(evidence)) })
}

fn finished(case: &Case<'_>) -> Verdict {
    let removal = |excess| {
        let write = pod_write(case.pod, None, Cause::Excess(excess));
        Verdict::Do(PodWrite { delete: true, ..write })
    };
    if let Some(excess) = case.excess {
        return removal(excess.clone());
    }
    match finished::kept_until(case.pod, &case.settings.kept_for) {
        Some((until, excess)) if until <= case.now => removal(excess),
        Some((until, _)) => Verdict::CheckAgain(until),
        None => Verdict::Leave,
    }
}
