//! Finds pods that do not terminate, that are terminal and stay, or that are wrongly marked as
//! disrupted.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::TRACKING_FINALIZER;
use epilogue_common::names::disruption_reason::TERMINATION_BY_KUBELET;
use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use jiff::Timestamp;

use super::finding::{Finding, Rule};
use super::scene::{PodSeen, Scene};
use super::times::{is_overdue, seconds};
use crate::kind::Kind;
use controller_core::podgc::{Cause, Evidence, OUT_OF_SERVICE_TAINT, Stale, Verdict};
use controller_core::view::{Deletion, Pod, Tristate};

pub(super) fn findings(scene: &Scene, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    for seen in &scene.pods {
        let Some(pod) = scene.view(seen).filter(|pod| !pod.gc.is_static) else { continue };
        let leftover = leftover_finalizer(seen, pod, scene, now);
        let unreleased = || unreleased(seen, pod, scene, now);
        let held = leftover.or_else(unreleased);
        let held = held.or_else(|| held_by_finalizers(seen, pod, scene, now));
        found.extend(held.or_else(|| unended(pod, scene, now)));
    }
    found
}

/// A tracking finalizer that no Job controller will remove. ([O1], [O3])
fn leftover_finalizer(seen: &PodSeen, pod: &Pod, scene: &Scene, now: Timestamp) -> Option<Finding> {
    let index = seen.finalizers.iter().position(|each| each == TRACKING_FINALIZER)?;
    if !scene.has_read(Kind::Job) {
        return None;
    }
    let (code, why, since) = match (&pod.owner, scene.job_of(pod)) {
        (Some(owner), None) if pod.is_of_job() => {
            let why = format!("its Job {} is gone", owner.name);
            (Code::FinalizerJobGone, why, last_news(pod))
        }
        (_, Some(job)) if job.is_finished() => {
            let ends = job.status.conditions.iter().flatten();
            let ends = ends.filter(|each| each.status == "True");
            let ended = ends.filter_map(|each| Some(each.last_transition_time.as_ref()?.0)).max();
            let why = format!("its Job {} has finished", job.key.name);
            (Code::FinalizerJobFinished, why, ended.max(last_news(pod)))
        }
        (_, Some(_)) => return None,
        _ => (Code::FinalizerNoJob, "no Job owns it".to_owned(), last_news(pod)),
    };
    let since = since?;
    if !is_overdue(since, now) {
        return None;
    }
    let path = format!("/metadata/finalizers/{index}");
    let problem = format!("{TRACKING_FINALIZER} keeps the pod, but {why}");
    Some(
        Finding::new((Rule::LeftoverFinalizer, code), subject(pod), problem)
            .since(Some(since))
            .remedy("start the Job's controller: it removes the finalizer")
            .remedy(format!(
                "if it runs, admission may refuse that: kubectl events --namespace {} --for \
                 pod/{} shows FailedRelease with the reason",
                pod.namespace, pod.name
            ))
            .remedy(format!(
                "kubectl patch pod {} --type=json -p '[{{\"op\":\"test\",\"path\":\"{path}\",\
                 \"value\":\"{TRACKING_FINALIZER}\"}},{{\"op\":\"remove\",\"path\":\"{path}\"}}]'",
                address(pod)
            )),
    )
}

/// A pod in `uncountedTerminatedPods` of its Job, whose finalizer stays.
fn unreleased(seen: &PodSeen, pod: &Pod, scene: &Scene, now: Timestamp) -> Option<Finding> {
    let job = scene.job_of(pod).filter(|_| pod.is_terminal())?;
    let lists = job.status.uncounted_terminated_pods.as_ref()?;
    let mut uids = lists.succeeded.iter().chain(&lists.failed).flatten();
    let since = last_news(pod)?;
    if !seen.finalizers.iter().any(|each| each == TRACKING_FINALIZER)
        || !uids.any(|uid| uid == pod.uid.as_str())
        || !is_overdue(since, now)
    {
        return None;
    }
    let (namespace, name) = (&job.key.namespace, &job.key.name);
    let by = job.spec.managed_by.as_deref().unwrap_or("none: kube-controller-manager");
    let problem = format!(
        "its Job {name} is about to count it, and {TRACKING_FINALIZER} is not removed: the Job \
         does not finish"
    );
    let rule = (Rule::LeftoverFinalizer, Code::FinalizerNotRemoved);
    Some(
        Finding::new(rule, subject(pod), problem)
            .since(Some(since))
            .remedy(format!(
                "kubectl epilogue explain job/{name} -n {namespace}: FailedRelease shows which \
                 webhook or policy refuses the patch of the pod; exempt metadata.finalizers"
            ))
            .remedy(format!("see that the controller of the Job runs (managedBy {by})")),
    )
}

/// A terminal pod that was deleted and that finalizers of others keep.
fn held_by_finalizers(seen: &PodSeen, pod: &Pod, scene: &Scene, now: Timestamp) -> Option<Finding> {
    let since = pod.deletion.filter(|_| pod.is_terminal())?.at;
    if seen.finalizers.is_empty() || !is_overdue(since, now) {
        return None;
    }
    let holders = seen.finalizers.join(", ");
    let problem = format!("terminal and deleted; kept by {holders}");
    let found = |code| {
        let rule = (Rule::LeftoverFinalizer, code);
        Finding::new(rule, subject(pod), problem).since(Some(since))
    };
    let tracked = seen.finalizers.iter().any(|each| each == TRACKING_FINALIZER);
    Some(match scene.job_of(pod).filter(|_| tracked) {
        Some(job) => {
            let by = job.spec.managed_by.as_deref().unwrap_or("none: kube-controller-manager");
            let (namespace, name) = (&job.key.namespace, &job.key.name);
            found(Code::PodNotCounted)
                .remedy(format!(
                    "the Job has not counted it: see that the controller of Job {name} runs \
                     (managedBy {by})"
                ))
                .remedy(format!(
                    "kubectl epilogue explain job/{name} -n {namespace} shows its warnings, such \
                     as StatusAltered"
                ))
        }
        None => found(Code::PodHeldByFinalizers).remedy(
            "start the program that set them; only if it is gone for good: remove them by \
             kubectl edit pod",
        ),
    })
}

/// A pod that pod GC or disruption would write to, or that a kubelet should have terminated.
fn unended(pod: &Pod, scene: &Scene, now: Timestamp) -> Option<Finding> {
    let verdict = scene.verdict(pod, now);
    let Some(deletion) = pod.deletion else {
        // A terminal pod that was not deleted only takes room.
        let Verdict::Do(write) = verdict else { return None };
        if pod.is_terminal() {
            return None;
        }
        return match write.cause {
            Cause::Ended(evidence) => Some(ended(pod, &evidence, None)),
            Cause::Cleared(stale) => Some(stale_target(pod, stale)),
            Cause::Excess(_) | Cause::Marked(_) => None,
        };
    };
    if !is_overdue(deletion.at, now) {
        return None;
    }
    Some(match verdict {
        Verdict::Do(write) => match write.cause {
            Cause::Ended(evidence) => ended(pod, &evidence, Some(deletion)),
            _ => return None,
        },
        _ if pod.is_terminal() => remains(pod, deletion),
        Verdict::CheckAgain(_) => without_proof(pod, deletion, scene),
        Verdict::Leave | Verdict::Ask(_) | Verdict::Untaint(_) => {
            kubelets(pod, deletion, scene, now)
        }
    })
}

/// Pod GC may fail or delete the pod and has not done so.
fn ended(pod: &Pod, evidence: &Evidence, deletion: Option<Deletion>) -> Finding {
    let state = if deletion.is_some() { "Terminating" } else { "cannot run" };
    let who = match evidence {
        Evidence::NeverScheduled | Evidence::NodeGone | Evidence::OutOfService => {
            "pod GC (of kube-controller-manager, or of epilogue-controller)"
        }
        _ => "pod GC of epilogue-controller",
    };
    let since = deletion.map(|deletion| deletion.at);
    let rule = (Rule::StuckPod, Code::PodGcOverdue);
    Finding::new(rule, subject(pod), format!("{state}: {evidence}"))
        .since(since)
        .remedy(format!("{who} fails or deletes it within a minute; see that it runs"))
        .remedy(format!("kubectl delete pod {} --grace-period=0 --force", address(pod)))
}

/// The pod is terminal, and its kubelet does not remove it.
fn remains(pod: &Pod, deletion: Deletion) -> Finding {
    let name = pod.node.as_deref().unwrap_or_default();
    let problem = format!("terminal and deleted; the kubelet of {name} does not remove it");
    Finding::new((Rule::StuckPod, Code::PodKeptByKubelet), subject(pod), problem)
        .since(Some(deletion.at))
        .remedy(format!("kubectl epilogue doctor {name}"))
        .remedy(format!(
            "it is terminal, so this loses nothing: kubectl delete pod {} --grace-period=0 --force",
            address(pod)
        ))
}

/// The node is silent: lists what would prove that the pod does not run.
fn without_proof(pod: &Pod, deletion: Deletion, scene: &Scene) -> Finding {
    let name = pod.node.as_deref().unwrap_or_default();
    let node = scene.nodes.get(name).map(|node| &node.view);
    let since = node.and_then(|node| node.ready_since);
    let silent = since.map_or_else(String::new, |at| format!(" since {}", seconds(at)));
    let problem = format!(
        "Terminating: node {name} is silent{silent}, and nothing proves that the pod does not run \
         there"
    );
    let found = Finding::new((Rule::StuckPod, Code::NodeSilentNoProof), subject(pod), problem)
        .since(Some(deletion.at))
        .remedy("bring the node back: then its kubelet terminates the pod, or its boot is evidence")
        .remedy(format!(
            "only if the machine is off for certain: kubectl taint node {name} \
             {OUT_OF_SERVICE_TAINT}=nodeshutdown:NoExecute"
        ))
        .remedy(format!("only if it never comes back: kubectl delete node {name}"));
    match pod.owner.as_ref().filter(|_| pod.is_of_job()) {
        Some(owner) => found.remedy(format!(
            "only if its work may run twice: kubectl annotate job --namespace {} {} \
             {FORCE_FAIL_AFTER}=10m",
            pod.namespace, owner.name
        )),
        None => found,
    }
}

/// The kubelet is alive, or its state is unknown.
fn kubelets(pod: &Pod, deletion: Deletion, scene: &Scene, now: Timestamp) -> Finding {
    let name = pod.node.as_deref().unwrap_or_default();
    let stuck = |code: Code, problem: String| {
        Finding::new((Rule::StuckPod, code), subject(pod), problem).since(Some(deletion.at))
    };
    let Some(node) = scene.nodes.get(name) else {
        let problem = format!("Terminating beyond its grace period; node {name} was not read");
        return stuck(Code::PodNodeNotRead, problem)
            .remedy(format!("kubectl epilogue doctor {name}"));
    };
    let lease = scene.lease("kube-node-lease", name);
    if let Some(renewed) = lease.filter(|lease| !lease.is_alive(now)).map(|it| it.renew_time) {
        let last = renewed.map_or_else(|| "never".to_owned(), seconds);
        let problem =
            format!("Terminating: the kubelet of {name} does not renew its lease (last: {last})");
        return stuck(Code::KubeletSilent, problem).remedy(format!(
            "on {name}: systemctl restart kubelet; if the machine is gone, Ready becomes Unknown \
             within a minute: run doctor again then"
        ));
    }
    if let Some(since) = node.view.shuts_down_since() {
        let problem = format!("Terminating: node {name} shuts down since {}", seconds(since));
        return stuck(Code::PodOnNodeShuttingDown, problem)
            .remedy(format!("kubectl epilogue doctor {name}"));
    }
    let state = if node.view.ready == Some(Tristate::True) { "ready" } else { "not ready" };
    let problem =
        format!("Terminating: the kubelet of {name} runs ({state}), and has not finished it");
    stuck(Code::PodSlowUnderLiveKubelet, problem)
        .remedy(format!(
            "kubectl describe pod {}: FailedKillPod, FailedPreStopHook and volumes say what it \
             waits for",
            address(pod)
        ))
        .remedy(format!(
            "on {name}: journalctl --unit=kubelet; a process in state D ends only with the \
             machine: reboot {name}"
        ))
}

fn stale_target(pod: &Pod, stale: Stale) -> Finding {
    let target = pod.gc.target();
    let reason = target.map(|target| &*target.reason).unwrap_or_default();
    let who = if reason == TERMINATION_BY_KUBELET {
        "epilogue-controller resets it (--stale-disruption-reset=epilogue, its default)"
    } else {
        "kube-controller-manager resets it, or epilogue-controller with \
         --stale-disruption-reset=all"
    };
    let problem = format!("DisruptionTarget ({reason}) is True, but {stale}");
    let rule = (Rule::StaleDisruptionTarget, Code::StaleDisruptionTarget);
    Finding::new(rule, subject(pod), problem)
        .since(target.and_then(|target| target.since))
        .remedy(format!("{who}; see that it runs"))
        .remedy(format!(
            "kubectl patch pod {} --subresource=status -p '{{\"status\":{{\"conditions\":[{{\
             \"type\":\"DisruptionTarget\",\"status\":\"False\"}}]}}}}'",
            address(pod)
        ))
}

/// The time of the last known event in the pod's life.
fn last_news(pod: &Pod) -> Option<Timestamp> {
    let deleted = pod.deletion.map(Deletion::requested_at);
    deleted.max(pod.gc.finished()).max(pod.created)
}

pub(super) fn subject(pod: &Pod) -> String {
    format!("pod/{}/{}", pod.namespace, pod.name)
}

/// The pod as arguments of kubectl.
fn address(pod: &Pod) -> String {
    format!("--namespace {} {}", pod.namespace, pod.name)
}
