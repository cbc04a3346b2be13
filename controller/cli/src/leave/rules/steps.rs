//! Says what to do next, in order.

use epilogue_common::finding_code::FindingCode as Code;

use super::{Facts, Left};

/// Steps for Jobs that name the controller.
const JOBS: [(Code, &str); 3] = [
    (
        Code::CronJobLeft,
        "suspend the CronJobs, or write their jobTemplate without spec.managedBy: they make new \
         Jobs",
    ),
    (
        Code::JobLeftActive,
        "kubectl epilogue leave --drain waits until the Jobs in progress finish; --suspend stops \
         their pods, and the Jobs stay; kubectl delete job --namespace NAMESPACE NAME gives a Job \
         up",
    ),
    (
        Code::JobLeftSuspended,
        "a suspended Job waits for the controller, because spec.managedBy is immutable: resume it \
         (kubectl patch job --namespace NAMESPACE NAME --patch '{\"spec\":{\"suspend\":false}}'), \
         or delete it",
    ),
];

/// Steps for what else is left.
const OTHERS: [(Code, &str); 4] = [
    (
        Code::FinalizerLeft,
        "kubectl epilogue leave --release-finalizers removes the finalizer of pods that no \
         controller will count",
    ),
    (
        Code::FinalizerKept,
        "let the controller run until it has counted the pods: without it their ends are lost",
    ),
    (
        Code::AnnotationLeft,
        "kube-controller-manager ignores these annotations; kubectl annotate KIND NAME \
         ANNOTATION- removes one",
    ),
    (
        Code::InstallationLeft,
        "helm uninstall epilogue --namespace kube-system, or kubectl delete -k \
         deploy/kustomize/overlays/enforce after `epilogue-agent leave` on each node",
    ),
];

/// The commands and choices that lead to a cluster without this project. `holder` is the replica
/// of the controller that works.
pub(super) fn steps(
    left: &[Left],
    stays: &[Left],
    facts: Facts,
    holder: Option<&str>,
) -> Vec<String> {
    let has = |code: Code| left.iter().chain(stays).any(|each| each.code == code);
    let of = |table: &[(Code, &str)]| -> Vec<String> {
        let wanted = table.iter().filter(|(code, _)| has(*code));
        wanted.map(|(_, text)| (*text).to_owned()).collect()
    };
    let mut steps = of(&JOBS);
    if facts.manage_all_jobs {
        steps.extend(handover(has(Code::JobHandedOver), holder));
    }
    steps.extend(of(&OTHERS));
    if has(Code::NodeStateLeft) && !has(Code::InstallationLeft) {
        let text = "run `epilogue-agent leave` on these nodes; only it sees logind's drop-in and \
                    the journal";
        steps.push(text.to_owned());
    }
    steps
}

/// First this controller stops, then the other one starts: two at once create too many pods.
fn handover(has_jobs: bool, holder: Option<&str>) -> Vec<String> {
    if !has_jobs && holder.is_none() {
        return Vec::new();
    }
    let running = holder.map_or_else(String::new, |it| format!(" ({it} holds its lease)"));
    let first = format!(
        "stop the controller{running}: kubectl --namespace epilogue-system scale deployment \
         epilogue-controller --replicas=0; wait until its pods are gone"
    );
    let next = "only then start kube-controller-manager with its Job controller, without \
                --controllers=*,-job-controller: it continues each Job from its status";
    [first].into_iter().chain(has_jobs.then(|| next.to_owned())).collect()
}
