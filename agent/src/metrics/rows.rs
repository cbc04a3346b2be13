//! Lists the metrics of the core's status.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::agent::{
    Enforcement, LeftReason, LockState, OomTally, ShutdownStatus, Status, Tries, WouldHave,
};
use agent_core::protocol::action::Purpose;
use agent_core::protocol::pressure::OomConstraint;
use agent_core::shutdown::Mode;
use agent_core::termination::hanging::Hang;
use epilogue_common::names::node_condition;

use super::values::{Figure, Values};

/// Reads a metric's values from the status.
pub(super) type Read = fn(&Status, &Values);

/// Name, help, labels, values.
pub(super) type Row = (&'static str, &'static str, &'static [&'static str], Read);

const MODES: [(Enforcement, &str); 3] = [
    (Enforcement::Off, "off"),
    (Enforcement::Observe, "observe"),
    (Enforcement::Enforce, "enforce"),
];

/// The metrics: name, help, labels, values. What ends in `_total` is a counter.
macro_rules! rows {
    (one $name:literal, $help:literal, |$s:ident| $value:expr) => {
        ($name, $help, &[], |$s, v| v.set($value))
    };
    (one $name:literal, $help:literal, $labels:expr, $read:expr) => {
        ($name, $help, &$labels, $read)
    };
    ($(($($row:tt)*))*) => {
        &[$(rows!(one $($row)*)),*]
    };
}

pub(super) const OF_SHUTDOWNS: &[Row] = rows! {
    ("lock_held", "Whether the delay lock is held.", |s| s.lock == LockState::Held)
    ("delay_granted_seconds", "The delay that logind grants.", |s| s.granted)
    ("delay_wanted_seconds", "The delay that the priority groups and the reports need.",
        |s| s.wanted)
    ("logind_connected", "Whether logind is connected.", |s| s.logind)
    ("unbounded", "Whether no admission policy bounds the agent, so that it does not act.",
        |s| s.unbounded.is_some())
    ("pods_listed", "Whether the node's pods are known.", |s| s.pods_listed)
    ("pods", "The node's pods.", |s| s.pods)
    ("journal_open", "Whether the journal has records of a shutdown.", |s| s.journal_open)
    ("boot_recovery_pending", "Pods of an earlier boot that are still to be checked.",
        |s| s.boot_recovery_pending)
    ("mark_removals_pending", "Conditions of a cancelled shutdown that are still to be reverted.",
        |s| s.mark_removals_pending)
    ("shutdown_candidate_pods", "Pods that the last shutdown terminates or waits for.",
        |s| shutdown(s, |it| it.candidates))
    ("shutdown_marked_pods", "Pods of the last shutdown whose condition is acknowledged.",
        |s| shutdown(s, |it| it.marked))
    ("shutdown_awaited_pods", "Pods of the last shutdown that are not terminal in the API yet.",
        |s| shutdown(s, |it| it.unreported))
    ("shutdown_unacknowledged_writes", "Conditions and phases that await the API's response.",
        |s| shutdown(s, |it| it.unacknowledged))
    ("shutdown_marked_seconds",
        "From the notice until DisruptionTarget was settled for all pods.",
        |s| shutdown(s, |it| it.marked_after))
    ("shutdown_reported_seconds", "From the notice until all pods were terminal in the API.",
        |s| shutdown(s, |it| it.reported_after))
    ("shutdown_released_seconds", "From the notice until the lock was released.",
        |s| shutdown(s, |it| it.released_after))
    ("shutdown_unreported_pods",
        "Pods that were not terminal in the API when the lock was released.",
        |s| shutdown(s, |it| it.unreported_at_release))
    ("shutdown_notice_timestamp_seconds", "The last notice, by the API's clock.",
        |s| shutdown(s, |it| u64::try_from(it.since.as_second()).ok()))
    ("mode", "1 for what the agent does, or would do, in a shutdown.", ["mode"], |s, v| {
        for mode in Mode::ALL {
            v.of([mode.name()], s.mode == Some(mode));
        }
    })
    ("shutdown_left_pods",
        "Pods without a terminal phase that the last shutdown did not wait for, by the reason.",
        ["reason"], |s, v| {
            for why in LeftReason::ALL {
                v.of([why.name()], shutdown(s, |it| count(&it.left_at_release, &why)));
            }
        })
    ("status_patches_total", "Patches of pods' status, by purpose and result.",
        ["purpose", "result"], |s, v| {
            for (of, tries) in &s.patches {
                for (result, total) in each_result(*tries) {
                    v.of([purpose(*of), result], total);
                }
            }
        })
    ("deletions_total", "Deletions of pods, by result.", ["result"], |s, v| {
        for (result, total) in each_result(s.deletions) {
            v.of([result], total);
        }
    })
};

pub(super) const OF_PODS: &[Row] = rows! {
    ("reverted_writes_total",
        "Acknowledged writes that the API later showed undone, by purpose: a phase that went back \
         (fail), a cleared DisruptionTarget that came back (clear).",
        ["purpose"], |s, v| {
            for (of, total) in &s.reverted {
                v.of([purpose(*of)], *total);
            }
        })
    ("stuck_pods", "Deleted pods that do not terminate, by what is seen of them.",
        ["reason"], |s, v| {
            for hang in Hang::ALL {
                v.of([hang.name()], count(&s.stuck.pods, &hang));
            }
        })
    ("stuck_pods_failed_total",
        "Deleted pods that the agent failed because no kubelet reported them.",
        |s| s.stuck.failed)
    ("end_signals_total",
        "Signals to pods ahead of their end, as epilogue.dev/end-signal asks, by result.",
        ["result"], |s, v| {
            v.of(["sent"], s.end_signals.sent);
            v.of(["failed"], s.end_signals.failed);
        })
    ("would_have_total",
        "Pods that the agent, where it only observes, would have acted on, by action.",
        ["action"], |s, v| {
            for what in WouldHave::ALL {
                v.of([what.name()], count(&s.would_have, &what));
            }
        })
    ("oom_kills_total",
        "OOM kills of processes of pods, by what was short and what became of the container \
         (ended, lived-on, unknown).",
        ["constraint", "outcome"], |s, v| {
            for (of, OomTally { ended, lived_on, unknown }) in &s.oom.oom_kills {
                let of = constraint(*of);
                v.of([of, "ended"], *ended);
                v.of([of, "lived-on"], *lived_on);
                v.of([of, "unknown"], *unknown);
            }
        })
    ("oom_conditions_total",
        "epilogue.dev/OOMKilled on pods that never restart, by whether the API had it before the \
         pod's terminal phase (won) or after it (lost).",
        ["race"], |s, v| {
            v.of(["won"], s.oom.oom_conditions_won);
            v.of(["lost"], s.oom.oom_conditions_lost);
        })
    ("oom_conditions_pending",
        "Conditions epilogue.dev/OOMKilled that the API has not acknowledged yet.",
        |s| s.oom.oom_conditions_pending)
    ("oomd_kills_total", "Cgroups of pods that systemd-oomd killed.", |s| s.oom.oomd_kills)
};

pub(super) const OF_PRESSURE: &[Row] = rows! {
    ("pressure_mode",
        "1 for the mode that is in effect for the node's pressure (off, observe, enforce).",
        ["mode"], |s, v| {
            for (mode, name) in MODES {
                v.of([name], s.pressure.mode == mode);
            }
        })
    ("pressure_available",
        "What the node has left, in bytes, inodes or tasks, by the kubelet's signals.",
        ["signal"], |s, v| {
            for (signal, shown) in &s.pressure.signals {
                v.of([signal.name()], shown.found.map(|found| found.available));
            }
        })
    ("pressure_capacity", "What the node has in total.", ["signal"], |s, v| {
        for (signal, shown) in &s.pressure.signals {
            v.of([signal.name()], shown.found.map(|found| found.capacity));
        }
    })
    ("pressure_threshold", "Pods are evicted below this threshold, by its kind (hard, soft).",
        ["signal", "kind"], |s, v| {
            for (signal, shown) in &s.pressure.signals {
                v.of([signal.name(), "hard"], shown.hard);
                v.of([signal.name(), "soft"], shown.soft);
            }
        })
    ("pressure_threshold_crossed",
        "Whether a threshold is crossed, or was and is not over yet.",
        ["signal", "kind"], |s, v| {
            for (signal, shown) in &s.pressure.signals {
                v.of([signal.name(), "hard"], shown.hard.map(|_| shown.hard_crossed));
                v.of([signal.name(), "soft"], shown.soft.map(|_| shown.soft_crossed));
            }
        })
    ("pressure_threshold_overlaps",
        "Whether the kubelet's own threshold comes first, so that ours is only observed.",
        ["signal"], |s, v| {
            for (signal, shown) in &s.pressure.signals {
                v.of([signal.name()], shown.overlaps);
            }
        })
    ("pressure_samples_total", "Samples of the node, by result.", ["result"], |s, v| {
        v.of(["done"], s.pressure.samples.done);
        v.of(["failed"], s.pressure.samples.failed);
    })
    ("pressure_unreadable", "Files and figures that could not be read at the last sample.",
        |s| s.pressure.unreadable.len())
    ("pressure_swap_free_bytes", "Swap that is free.", |s| s.pressure.swap.map(|it| it.available))
    ("pressure_stall_full_ratio",
        "Share of time in which all waited: tasks of pods for memory, the node for disks.",
        ["resource"], |s, v| {
            let stalls = &s.pressure.stalls;
            v.of(["memory"], stalls.memory_full_ms_per_second.map(Duration::from_millis));
            v.of(["io"], stalls.io_full_ms_per_second.map(Duration::from_millis));
        })
    ("node_condition", "Whether a condition of our own is to be True on the node.",
        ["type"], |s, v| {
            v.of([node_condition::MEMORY_STALL], s.pressure.stalls.memory);
            v.of([node_condition::IO_STALL], s.pressure.stalls.io);
        })
    ("evictions_total",
        "Pods evicted for a shortage or their own limit, by signal and result (done; failed: it \
         did not terminate; observed: it would have been evicted).",
        ["signal", "result"], |s, v| {
            for (signal, count) in &s.pressure.evictions {
                v.of([signal, "done"], count.done);
                v.of([signal, "failed"], count.given_up);
                v.of([signal, "observed"], count.would);
            }
        })
    ("eviction_seconds",
        "From the choice of the last victim until it was terminal in the API.",
        ["signal"], |s, v| {
            for (signal, count) in &s.pressure.evictions {
                v.of([signal], count.took);
            }
        })
    ("evictions_in_progress", "Pods that are being evicted.", |s| s.pressure.victims.len())
};

/// The purpose's name in metrics.
fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Mark => "mark",
        Purpose::Fail => "fail",
        Purpose::Clear => "clear",
        Purpose::Cause => "cause",
    }
}

fn constraint(constraint: OomConstraint) -> &'static str {
    match constraint {
        OomConstraint::ContainerLimit => "container-limit",
        OomConstraint::PodLimit => "pod-limit",
        OomConstraint::Node => "node",
        OomConstraint::Unknown => "unknown",
    }
}

fn shutdown<T: Figure>(status: &Status, read: impl Fn(&ShutdownStatus) -> T) -> Option<T> {
    status.shutdown.as_ref().map(read)
}

/// How many of a kind; 0 if none is counted.
fn count<K: Ord, N: Copy + Default>(all: &BTreeMap<K, N>, kind: &K) -> N {
    all.get(kind).copied().unwrap_or_default()
}

fn each_result(tries: Tries) -> [(&'static str, u64); 2] {
    [("acknowledged", tries.done), ("failed", tries.failed)]
}
