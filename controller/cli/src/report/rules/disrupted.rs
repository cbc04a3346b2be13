//! Judges one pod of the API: whether it was disrupted, what became of it, and what Epilogue has to
//! do with it.

use epilogue_common::finding_code::FindingCode as Code;
use jiff::{SignedDuration, Timestamp};

use super::answer::{Basis, Cause, DisruptedPod, Help};
use super::cluster::{Cluster, Hit, seconds};
use super::event_log::{Meaning, is_shortage};
use super::pod::PodSeen;
use crate::doctor::rules::Finding;
use controller_core::view::{Deletion, Phase};

/// A pod that ends within this time of a shutdown, or of an event about it, ended by it. A
/// shutdown lasts no longer. ([ST9])
const SHUTDOWN_MAX: SignedDuration = SignedDuration::from_mins(15);
/// The clocks of nodes and of the API server differ by no more.
pub(super) const CLOCKS_DIFFER_MAX: SignedDuration = SignedDuration::from_mins(1);

/// Evidence that a pod was disrupted.
#[derive(Debug)]
struct Evidence {
    cause: Cause,
    basis: Basis,
    how: String,
}

/// What Epilogue has to do with a pod.
struct Part {
    help: Help,
    basis: Basis,
    how: String,
}

/// What became of a pod.
#[derive(Debug)]
pub(super) enum Judgement {
    /// It was not disrupted, or before the time range.
    Fine,
    /// It was evicted; nothing says whether for its own limit.
    Unclear,
    /// It was disrupted.
    Disrupted(Box<DisruptedPod>),
}

pub(super) fn judge(pod: &PodSeen, cluster: &Cluster) -> Judgement {
    if pod.view.gc.is_static || pod.view.is_of_daemon_set() {
        return Judgement::Fine;
    }
    match pod.view.phase {
        Phase::Succeeded => Judgement::Fine,
        Phase::Failed => failed(pod, cluster),
        _ => missing(pod, cluster).map_or(Judgement::Fine, Judgement::Disrupted),
    }
}

/// A pod with the phase Failed.
fn failed(pod: &PodSeen, cluster: &Cluster) -> Judgement {
    let view = &pod.view;
    let at = view.gc.finished().or_else(|| view.gc.target()?.since).or(view.created);
    if at.is_none_or(|at| at < cluster.from) {
        return Judgement::Fine;
    }
    let hits = cluster.hits_of(pod);
    let acted = hits.iter().find_map(|hit| match hit.meaning {
        Meaning::Acted(cause) => Some((cause, hit.words())),
        _ => None,
    });
    let ended = || pod.ended_by_us.then(|| (Cause::Stuck, "condition epilogue.dev/Ended".into()));
    if let Some((cause, how)) = acted.or_else(ended) {
        let part = Part { help: Help::Acted, basis: Basis::Seen, how: how.clone() };
        let evidence = Evidence { cause, basis: Basis::Seen, how };
        return disrupted(Code::DisruptionReported, (pod, cluster.now), evidence, at, part);
    }
    if let Some(target) = view.gc.target().filter(|target| target.stands) {
        let cause = cause_of_target(&target.reason, view.gc.reason());
        let how = format!("condition DisruptionTarget, reason {}", target.reason);
        let evidence = Evidence { cause, basis: Basis::Seen, how };
        let how = "Kubernetes reported the disruption itself".to_owned();
        let part = Part { help: Help::NotNeeded, basis: Basis::Seen, how };
        return disrupted(Code::DisruptionReported, (pod, cluster.now), evidence, at, part);
    }
    let found = by_status(pod)
        .or_else(|| by_events(&hits, at))
        .or_else(|| by_exit(pod, cluster, at))
        .or_else(|| by_shutdown(pod, cluster, at));
    match found {
        Some(evidence) => {
            let part = part_in_failure(&evidence, &hits);
            disrupted(Code::FailureWithoutDisruptionTarget, (pod, cluster.now), evidence, at, part)
        }
        None if view.gc.reason() == Some("Evicted") && pod.message.is_empty() => Judgement::Unclear,
        None => Judgement::Fine,
    }
}

fn disrupted(
    code: Code,
    (pod, now): (&PodSeen, Timestamp),
    Evidence { cause, basis, how }: Evidence,
    at: Option<Timestamp>,
    part: Part,
) -> Judgement {
    let view = &pod.view;
    Judgement::Disrupted(Box::new(DisruptedPod {
        code,
        namespace: view.namespace.to_string(),
        name: view.name.to_string(),
        node: view.node.as_deref().map(str::to_owned),
        job: pod.job().map(str::to_owned),
        cause,
        basis,
        how,
        at,
        work_seconds: pod.lost_work(at, now),
        waited_seconds: None,
        epilogue: part.help,
        epilogue_basis: part.basis,
        epilogue_how: part.how,
    }))
}

fn cause_of_target(reason: &str, pod_reason: Option<&str>) -> Cause {
    match (reason, pod_reason) {
        ("PreemptionByScheduler", _) | (_, Some("Preempting")) => Cause::Preemption,
        ("EvictionByEvictionAPI", _) => Cause::Drain,
        ("DeletionByTaintManager", _) => Cause::Taint,
        ("DeletionByPodGC", _) => Cause::NodeGone,
        (_, Some("Evicted")) => Cause::NodePressure,
        _ => Cause::NodeShutdown,
    }
}

/// What `status.reason` says. ([SD8])
fn by_status(pod: &PodSeen) -> Option<Evidence> {
    let reason = pod.view.gc.reason()?;
    let cause = match reason {
        "Terminated" | "NodeShutdown" | "Shutdown" => Cause::NodeShutdown,
        "NodeLost" => Cause::NodeSilent,
        "Preempting" => Cause::Preemption,
        "Evicted" if is_shortage(&pod.message) => Cause::NodePressure,
        _ => return None,
    };
    Some(Evidence { cause, basis: Basis::Seen, how: format!("status.reason is {reason}") })
}

/// What an event about the pod says, shortly before its end.
fn by_events(hits: &[&Hit], end: Option<Timestamp>) -> Option<Evidence> {
    let end = end?;
    let found = hits.iter().find_map(|hit| {
        let (Meaning::Hit(cause) | Meaning::Would(cause)) = hit.meaning else { return None };
        // A pod that a user deleted and that hangs is not disrupted.
        if cause == Cause::Stuck {
            return None;
        }
        let limit = hit.at.checked_add(SHUTDOWN_MAX).ok()?;
        let begin = hit.at.checked_sub(CLOCKS_DIFFER_MAX).ok()?;
        (begin..=limit).contains(&end).then_some((cause, hit))
    });
    let (cause, hit) = found?;
    Some(Evidence { cause, basis: Basis::Seen, how: hit.words() })
}

/// What the end of its containers says: the runtime lost them.
fn by_exit(pod: &PodSeen, cluster: &Cluster, end: Option<Timestamp>) -> Option<Evidence> {
    let exit = pod.lost_exit()?;
    let exit = format!("a container ended with {} and {}", exit.code, exit.reason);
    let node = pod.view.node.as_deref();
    let boot = node.and_then(|node| cluster.boot_after(node, pod.started.or(pod.view.created)?));
    let shutdown = || cluster.shutdown_in(node?, around(end?)).map(Hit::words);
    let seen = boot.map(|(_, how)| how).or_else(shutdown);
    let cause = Cause::NodeRebooted;
    Some(if let Some(how) = seen {
        Evidence { cause, basis: Basis::Seen, how: format!("{exit}; {how}") }
    } else {
        let how = format!("{exit}: its node, or the container runtime, has restarted");
        Evidence { cause, basis: Basis::Estimated, how }
    })
}

/// A signal terminated it while its node shut down.
fn by_shutdown(pod: &PodSeen, cluster: &Cluster, end: Option<Timestamp>) -> Option<Evidence> {
    let exit = pod.signalled_exit()?;
    let hit = cluster.shutdown_in(pod.view.node.as_deref()?, around(end?))?;
    let how = format!("a container ended with {} after {}", exit.code, hit.words());
    Some(Evidence { cause: Cause::NodeShutdown, basis: Basis::Estimated, how })
}

/// The time in which an event must be to explain an end.
fn around(end: Timestamp) -> (Timestamp, Timestamp) {
    let from = end.checked_sub(SHUTDOWN_MAX).unwrap_or(end);
    (from, end.checked_add(CLOCKS_DIFFER_MAX).unwrap_or(end))
}

/// What Epilogue would have done about a failure without a cause.
fn part_in_failure(evidence: &Evidence, hits: &[&Hit]) -> Part {
    if let Some(hit) = hits.iter().find(|hit| matches!(hit.meaning, Meaning::Would(_))) {
        return Part { help: Help::WouldHaveActed, basis: Basis::Seen, how: hit.words() };
    }
    let (help, how) = match evidence.cause {
        Cause::NodeShutdown => (
            Help::WouldHaveActed,
            "the agent sets DisruptionTarget before it lets a shutdown proceed",
        ),
        Cause::NodeRebooted => (
            Help::WouldHaveActed,
            "after a boot the agent sets DisruptionTarget before the kubelet reports the pod",
        ),
        Cause::NodePressure => (
            Help::WouldHaveActed,
            "with --pressure=enforce the agent evicts before the kubelet, with DisruptionTarget",
        ),
        _ => (Help::Nothing, "Epilogue has no part in such a disruption"),
    };
    Part { help, basis: Basis::Estimated, how: how.to_owned() }
}

/// A pod without a terminal phase that should have one.
fn missing(pod: &PodSeen, cluster: &Cluster) -> Option<Box<DisruptedPod>> {
    let view = &pod.view;
    let node = view.node.as_deref();
    let finding = cluster.stuck(pod);
    // A shutdown in progress is not over, and doctor says how far it is.
    if finding.is_some_and(|finding| finding.code == Code::PodOnNodeShuttingDown) {
        return None;
    }
    let deleted = view.deletion.map(Deletion::requested_at);
    let boot =
        node.zip(view.gc.last_start()).and_then(|(name, start)| cluster.boot_after(name, start));
    let silent = node.and_then(|name| cluster.silent_since(name));
    let (code, evidence, since) = if node.is_some_and(|name| cluster.is_node_gone(name)) {
        let name = node.unwrap_or_default();
        let all = (Timestamp::MIN, cluster.now);
        let gone = cluster.node_hit(name, Cause::NodeGone, all).map(|hit| hit.at);
        let how = format!("node {name} does not exist");
        let evidence = Evidence { cause: Cause::NodeGone, basis: Basis::Seen, how };
        (Code::StatusMissingNodeGone, evidence, gone.or(deleted))
    } else if let Some((at, how)) = boot {
        let evidence = Evidence { cause: Cause::NodeRebooted, basis: Basis::Seen, how };
        (Code::StatusMissingNodeRebooted, evidence, Some(at))
    } else if let Some(since) = silent {
        let name = node.unwrap_or_default();
        // The pod may still run there.
        let basis = if finding.is_some() { Basis::Seen } else { Basis::Estimated };
        let how = format!("node {name} does not report since {}", seconds(since));
        let evidence = Evidence { cause: Cause::NodeSilent, basis, how };
        (Code::StatusMissingNodeSilent, evidence, Some(since))
    } else {
        let problem = finding?.problem.clone();
        let evidence = Evidence { cause: Cause::Stuck, basis: Basis::Seen, how: problem };
        (Code::StatusMissingTerminating, evidence, view.deletion.map(|deletion| deletion.at))
    };
    let part = part_in_wait(pod, finding, &evidence, cluster);
    let Judgement::Disrupted(mut found) =
        disrupted(code, (pod, cluster.now), evidence, since, part)
    else {
        return None;
    };
    found.waited_seconds = since.and_then(|since| waited(since, cluster.now));
    Some(found)
}

fn waited(since: Timestamp, now: Timestamp) -> Option<u64> {
    u64::try_from(now.duration_since(since).as_secs()).ok()
}

/// What Epilogue would have done about a terminal phase that does not come.
fn part_in_wait(
    pod: &PodSeen,
    finding: Option<&Finding>,
    evidence: &Evidence,
    cluster: &Cluster,
) -> Part {
    let hits = cluster.hits_of(pod);
    let of = |meaning: fn(&Meaning) -> bool| hits.iter().find(|hit| meaning(&hit.meaning));
    if let Some(hit) = of(|it| matches!(it, Meaning::Would(_))) {
        return Part { help: Help::WouldHaveActed, basis: Basis::Seen, how: hit.words() };
    }
    if let Some(hit) = of(|it| matches!(it, Meaning::Acted(_))) {
        let how = format!("{}, and the pod is not terminal yet", hit.words());
        return Part { help: Help::Acted, basis: Basis::Seen, how };
    }
    if let Some(finding) = finding.filter(|finding| finding.code == Code::PodGcOverdue) {
        let how = format!("pod GC fails it by this evidence: {}", finding.problem);
        return Part { help: Help::WouldHaveActed, basis: Basis::Seen, how };
    }
    let estimated = |help, how: &str| Part { help, basis: Basis::Estimated, how: how.to_owned() };
    let before = |at: Timestamp| (at.checked_sub(SHUTDOWN_MAX).unwrap_or(at), at);
    match evidence.cause {
        Cause::NodeRebooted => estimated(
            Help::WouldHaveActed,
            "after a boot the agent sets DisruptionTarget, and the kubelet reports the pod",
        ),
        Cause::NodeSilent => {
            let node = pod.view.node.as_deref();
            let since = node.and_then(|name| Some((name, cluster.silent_since(name)?)));
            let announced = since.and_then(|(name, at)| cluster.shutdown_in(name, before(at)));
            match announced {
                Some(_) => estimated(
                    Help::WouldHaveActed,
                    "the agent holds a shutdown until the API has the pod's terminal phase",
                ),
                None => estimated(
                    Help::Nothing,
                    "no shutdown was announced, and nothing proves that the pod does not run",
                ),
            }
        }
        _ => estimated(Help::Nothing, "nothing proves yet that the pod does not run"),
    }
}
