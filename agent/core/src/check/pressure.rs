//! Checks what the agent can measure of the node's pressure, and whether it would act before the
//! kubelet. ([EV29])

use std::collections::BTreeSet;

use epilogue_common::finding_code::FindingCode as Code;

use super::{Check, Verdict};
use crate::agent::Enforcement;
use crate::finding::Finding;
use crate::pressure::overlap::overlaps;
use crate::pressure::signal::Signal;
use crate::pressure::thresholds::Threshold;
use crate::protocol::node::KubeletEviction;
use crate::protocol::pressure::{Sample, Stalling};

const MI: u64 = 1 << 20;

/// Facts of the node's pressure.
#[derive(Clone, Debug, PartialEq)]
pub struct PressureFacts {
    /// Enforcement that the command line requests.
    pub wanted: Enforcement,
    /// Thresholds of the command line.
    pub thresholds: Vec<Threshold>,
    /// One sample of the node.
    pub sample: Sample,
    /// Whether the kernel accepts a trigger for stalls of memory, and of disks; the error states
    /// why not.
    pub triggers: [(Stalling, Result<(), String>); 2],
    /// Whether the kernel's log is readable; the error states why not.
    pub kernel_log: Result<(), String>,
    /// Whether the command line requests the causes of OOM kills.
    pub oom_causes: bool,
}

/// Judges the facts of the node's pressure.
pub(super) fn pressure(facts: &PressureFacts, kubelet: Option<&KubeletEviction>) -> Vec<Check> {
    let mut checks = Vec::new();
    if facts.wanted == Enforcement::Off {
        checks.push(Check::ok("pressure", "not measured (--pressure=off)"));
    } else {
        checks.extend([signals(facts), stalls(facts), thresholds(facts, kubelet)]);
    }
    if facts.oom_causes {
        checks.push(kills(facts));
    }
    checks
}

/// Checks which signals with a threshold can be measured.
fn signals(facts: &PressureFacts) -> Check {
    const NAME: &str = "pressure";
    let wanted: BTreeSet<Signal> = facts.thresholds.iter().map(|it| it.signal).collect();
    let found = |signal: &Signal| facts.sample.signals.get(signal).map(|it| it.observation);
    let reported: Vec<String> = Signal::ALL
        .into_iter()
        .filter_map(|signal| {
            let left = found(&signal)?;
            let quantity = |units| signal.quantity(in_short(signal, units));
            Some(format!("{signal} {} of {}", quantity(left.available), quantity(left.capacity)))
        })
        .collect();
    // The cgroup of all pods may have no limit. ([EV2])
    let can_be_absent = |signal: &Signal| *signal == Signal::AllocatableMemoryAvailable;
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|signal| found(signal).is_none() && !can_be_absent(signal))
        .map(|signal| signal.name())
        .collect();
    let reported = if reported.is_empty() { "nothing".to_owned() } else { reported.join(", ") };
    if missing.is_empty() {
        return Check::ok(NAME, reported);
    }
    let reasons = match facts.sample.unreadable.as_slice() {
        [] => String::new(),
        some => format!(" ({})", some.join("; ")),
    };
    let found = format!("{reported}; cannot measure {}{reasons}", missing.join(", "));
    Check::warn(NAME, Code::SignalNotMeasured, found).remedy(
        "in a pod, mount the host's /proc, /sys/fs/cgroup, /var/lib/kubelet and the runtime's \
         directory below --root, as deploy/ does; thresholds that cannot be measured are left to \
         the kubelet",
    )
}

/// Rounds bytes down to whole Mi, for people.
fn in_short(signal: Signal, units: u64) -> u64 {
    match signal.resource() {
        "memory" | "ephemeral-storage" if units >= MI => units - units % MI,
        _ => units,
    }
}

/// Checks whether stalls of the pods and of the disks can be measured.
fn stalls(facts: &PressureFacts) -> Check {
    const NAME: &str = "stalls";
    let of = |found: bool, what: &'static str| found.then_some(what);
    let has = [
        of(facts.sample.stall.is_some(), "pods for memory"),
        of(facts.sample.io.is_some(), "the node for disks"),
    ];
    let missing: Vec<&str> = [(has[0], "pods for memory"), (has[1], "the node for disks")]
        .into_iter()
        .filter_map(|(found, what)| found.is_none().then_some(what))
        .collect();
    if !missing.is_empty() {
        let found = format!("the kernel does not show how long {} wait", missing.join(" and "));
        return Check::warn(NAME, Code::StallsNotSeen, found).remedy(
            "boot with psi=1 and cgroup v2; without it a shortage shows when a threshold is \
             crossed, not when pods begin to wait",
        );
    }
    let how = facts.triggers.iter().map(|(what, trigger)| {
        let whose = match what {
            Stalling::Memory => "pods for memory",
            Stalling::Io => "the node for disks",
        };
        match trigger {
            Ok(()) => format!("{whose}: the kernel signals them as they begin"),
            Err(why) => {
                format!("{whose}: the counter is polled, because no trigger can be set: {why}")
            }
        }
    });
    let how = how.collect::<Vec<_>>().join("; ");
    Check::ok(NAME, format!("stalls are measured; {how}"))
}

/// Checks whether our thresholds apply before the kubelet's.
fn thresholds(facts: &PressureFacts, kubelet: Option<&KubeletEviction>) -> Check {
    const NAME: &str = "thresholds";
    let enforced = facts.wanted == Enforcement::Enforce;
    let ours: Vec<String> = facts.thresholds.iter().map(ToString::to_string).collect();
    if ours.is_empty() {
        return Check::ok(NAME, "none: the agent evicts pods only for limits of their own");
    }
    let capacity = |signal: Signal| {
        facts.sample.signals.get(&signal).map(|measured| measured.observation.capacity)
    };
    let overlapping: Vec<&str> = Signal::ALL
        .into_iter()
        .filter(|signal| {
            let capacity = capacity(*signal);
            capacity.is_some_and(|all| overlaps(*signal, &facts.thresholds, kubelet, all))
        })
        .map(Signal::name)
        .collect();
    let ours = ours.join(", ");
    if !overlapping.is_empty() {
        let overlapping = overlapping.join(", ");
        let finding = Finding::ThresholdsOverlap(&overlapping);
        return Check::of(NAME, Verdict::Warn, finding, format!("{ours}; {finding}"));
    }
    match kubelet {
        Some(_) => Check::ok(NAME, format!("{ours}; each comes before the kubelet's own")),
        None if enforced => {
            let found = format!("{ours}; the kubelet does not show its own, so its defaults count");
            Check::warn(NAME, Code::KubeletThresholdsUnknown, found).remedy(
                "let the kubelet serve /configz (enableDebuggingHandlers), and check with \
                 --kubeconfig and --kubelet-address",
            )
        }
        None => {
            let found = format!("{ours}; before the kubelet's defaults, its own are not known");
            Check::ok(NAME, found)
        }
    }
}

/// Reports which source OOM kills come from.
fn kills(facts: &PressureFacts) -> Check {
    const NAME: &str = "kernel-log";
    match &facts.kernel_log {
        Ok(()) => Check::ok(NAME, "shows which process each OOM kill hit, and why"),
        Err(why) => {
            let found = format!(
                "cannot be read ({why}): OOM kills are known by the cgroups' counters, without \
                 the process"
            );
            // The pods of deploy/ cannot read the kernel's log.
            Check { code: Some(Code::KernelLogUnreadable), ..Check::ok(NAME, found) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pressure::observe::{Observation, psi};
    use crate::pressure::stall::StallSample;
    use crate::pressure::thresholds::ThresholdFlags;
    use crate::pressure::watch::Measured;

    const GI: u64 = 1 << 30;

    fn facts(hard: &str) -> PressureFacts {
        let flags = ThresholdFlags { hard: Some(hard.to_owned()), ..ThresholdFlags::default() };
        let memory = Observation { available: GI + 4_711, capacity: 4 * GI };
        let at = Duration::from_secs(1);
        let mut sample = Sample::default();
        for (signal, observation) in [
            (Signal::MemoryAvailable, memory),
            (Signal::PidAvailable, Observation { available: 900, capacity: 1_001 }),
        ] {
            sample.signals.insert(signal, Measured { observation, at });
        }
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        let all_pods = psi(text).expect("must be a pressure file");
        sample.stall = Some(StallSample { at, all_pods, available: memory, pods: Vec::new() });
        sample.io = Some(all_pods);
        PressureFacts {
            wanted: Enforcement::Enforce,
            thresholds: flags.thresholds().expect("must be thresholds"),
            sample,
            triggers: [(Stalling::Memory, Ok(())), (Stalling::Io, Ok(()))],
            kernel_log: Ok(()),
            oom_causes: true,
        }
    }

    fn kubelet(hard: &[(&str, &str)]) -> KubeletEviction {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        KubeletEviction { hard: hard.iter().map(owned).collect(), ..KubeletEviction::default() }
    }

    #[track_caller]
    fn assert_found(
        facts: &PressureFacts,
        kubelet: Option<&KubeletEviction>,
        name: &str,
        verdict: Verdict,
        words: &[&str],
    ) {
        let checks = pressure(facts, kubelet);
        let check = checks.iter().find(|check| check.name == name).expect("must be checked");
        assert_eq!(check.verdict, verdict, "{check:?}");
        assert_eq!(check.remedy.is_none(), verdict == Verdict::Ok, "{check:?}");
        let text = format!("{} {}", check.found, check.remedy.clone().unwrap_or_default());
        for word in words {
            assert!(text.contains(word), "{word:?} must be in {text:?}");
        }
    }

    #[test]
    fn a_node_that_can_be_measured_and_comes_first_is_ok_throughout() {
        let facts = facts("memory.available<150Mi,pid.available<5%");
        let kubelet = kubelet(&[("memory.available", "100Mi")]);
        let checks = pressure(&facts, Some(&kubelet));
        let names: Vec<_> = checks.iter().map(|check| check.name).collect();
        assert_eq!(names, ["pressure", "stalls", "thresholds", "kernel-log"]);
        assert!(checks.iter().all(|check| check.verdict == Verdict::Ok), "{checks:?}");
        let words = ["memory.available 1Gi of 4Gi", "pid.available 900 of 1001"];
        assert_found(&facts, Some(&kubelet), "pressure", Verdict::Ok, &words);
    }

    #[test]
    fn a_threshold_that_cannot_be_measured_is_reported_with_its_reason() {
        let mut facts = facts("memory.available<150Mi,nodefs.available<12%");
        facts.sample.unreadable = vec!["nodefs: /host/var/lib/kubelet: No such file".to_owned()];
        let words = ["cannot measure nodefs.available", "No such file", "mount the host's /proc"];
        assert_found(&facts, None, "pressure", Verdict::Warn, &words);
        // The limit of all pods may be absent.
        let facts = self::facts("allocatableMemory.available<150Mi");
        assert_found(&facts, None, "pressure", Verdict::Ok, &[]);
    }

    #[test]
    fn what_waits_is_seen_by_trigger_or_by_reading_or_not_at_all() {
        let mut facts = facts("memory.available<150Mi");
        let words = ["pods for memory: the kernel signals", "node for disks: the kernel signals"];
        assert_found(&facts, None, "stalls", Verdict::Ok, &words);
        // As in a pod, where the host's /proc is read-only.
        facts.triggers[1].1 = Err("Read-only file system".to_owned());
        let words = [
            "pods for memory: the kernel signals",
            "disks: the counter is polled, because no trigger can be set: Read-only file system",
        ];
        assert_found(&facts, None, "stalls", Verdict::Ok, &words);
        facts.triggers[0].1 = Err("Permission denied".to_owned());
        let words = ["memory: the counter is polled, because no trigger can be set: Permission"];
        assert_found(&facts, None, "stalls", Verdict::Ok, &words);
        facts.sample.stall = None;
        assert_found(&facts, None, "stalls", Verdict::Warn, &["pods for memory wait", "psi=1"]);
    }

    #[test]
    fn the_kubelets_thresholds_are_weighed() {
        let ours = "memory.available<150Mi";
        let equal = kubelet(&[("memory.available", "150Mi")]);
        let words = ["comes first for memory.available", "raise --eviction-hard"];
        assert_found(&facts(ours), Some(&equal), "thresholds", Verdict::Warn, &words);
        let silent = ["does not show its own", "/configz"];
        assert_found(&facts(ours), None, "thresholds", Verdict::Warn, &silent);
        let mut observing = facts(ours);
        observing.wanted = Enforcement::Observe;
        assert_found(&observing, None, "thresholds", Verdict::Ok, &["not known"]);
        assert_found(&facts(""), None, "thresholds", Verdict::Ok, &["none"]);
    }

    #[test]
    fn what_is_off_is_not_checked() {
        let mut facts = facts("memory.available<150Mi");
        facts.wanted = Enforcement::Off;
        facts.kernel_log = Err("Operation not permitted".to_owned());
        let names: Vec<_> = pressure(&facts, None).iter().map(|check| check.name).collect();
        assert_eq!(names, ["pressure", "kernel-log"]);
        let words = ["Operation not permitted", "without the process"];
        assert_found(&facts, None, "kernel-log", Verdict::Ok, &words);
        facts.oom_causes = false;
        assert_eq!(pressure(&facts, None).len(), 1);
    }
}
