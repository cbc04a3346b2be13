//! Judges stalls. A stall of the node that is seen twice is a cause for eviction. A stall of a pod
//! at its own limit is only reported.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::facts::Facts;
use super::super::notices::AT_MEMORY_LIMIT;
use super::super::out::Out;
use super::Evictions;
use super::conditions::Kind;
use crate::pod::PodUid;
use crate::pressure::signal::Signal;
use crate::pressure::stall::{
    IO_FULL_MS_PER_SECOND, Stall, StallSample, io_rate, judge, rate, with_swap,
};
use crate::pressure::watch::{self, Hold};
use crate::protocol::action::PodRef;
use crate::protocol::pressure::Sample;

/// The shortest time between two compared samples: in less, one stall of one task weighs too much.
const APART: Duration = Duration::from_millis(100);
/// Number of samples in a row that confirm a stall of the node.
const CONFIRMED_BY: u32 = 2;
/// The pause after a victim's end: pods still wait for a moment for pages to return from disk.
const SETTLES: Duration = Duration::from_secs(1);
/// The interval between reports of the same pod at its limit.
const REPORTED_LASTS: Duration = Duration::from_mins(10);

/// The observed stalls.
#[derive(Clone, Debug, Default)]
pub(super) struct Stalls {
    before: Option<StallSample>,
    /// Number of samples in a row in which the node stalled.
    streak: u32,
    /// Until when stalls are ignored, because a victim has just ended.
    settles_until: Duration,
    reported: BTreeMap<PodUid, Duration>,
}

impl Stalls {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.reported.remove(uid);
    }

    /// Drops the stalls from before a victim's end.
    pub(super) fn begin_anew(&mut self, now: Duration) {
        self.before = None;
        self.streak = 0;
        self.settles_until = now + SETTLES;
    }

    /// Whether the next sample is needed soon.
    pub(super) fn is_suspicious(&self) -> bool {
        self.streak > 0
    }
}

impl Evictions {
    pub(super) fn judge_stalls(
        &mut self,
        sample: &Sample,
        holds: &[Hold],
        facts: &Facts,
        out: &mut Out,
    ) {
        let shown = &mut out.status.pressure.stalls;
        let io = sample.io.as_ref().map(io_rate);
        shown.io_full_ms_per_second = io;
        let io = io.unwrap_or(0);
        let text = format!("All tasks waited for disks {io} of each 1000 ms, over 10 s.");
        self.note_stall(Kind::Io, (io >= IO_FULL_MS_PER_SECOND).then_some(text), facts);
        if let Some(stall) = &sample.stall {
            let after = with_swap(stall.clone(), sample.swap);
            self.judge_memory(sample, after, holds, facts, out);
            return;
        }
        self.stalls.before = None;
        self.stalls.streak = 0;
        self.stalled = None;
        out.status.pressure.stalls.memory_full_ms_per_second = None;
        self.note_stall(Kind::Memory, None, facts);
    }

    /// DIVERGES(upstream): upstream does not detect stalls on cgroup v2, and samples every 10 s;
    /// the kernel's OOM killer is faster. ([EV28])
    fn judge_memory(
        &mut self,
        sample: &Sample,
        after: StallSample,
        holds: &[Hold],
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let stalls = &mut self.stalls;
        if now < stalls.settles_until {
            return;
        }
        let Some(before) = &stalls.before else {
            stalls.before = Some(after);
            return;
        };
        if after.at < before.at + APART {
            return;
        }
        let found = judge(before, &after, facts.settings.features.stalls);
        out.status.pressure.stalls.memory_full_ms_per_second = Some(rate(before, &after));
        let unswapped = sample
            .stall
            .as_ref()
            .map(|stall| watch::Measured { observation: stall.available, at: stall.at });
        stalls.before = Some(after);
        let Stall::Node { full_ms_per_second, available } = found else {
            stalls.streak = 0;
            self.stalled = None;
            self.note_stall(Kind::Memory, None, facts);
            if let Stall::OwnLimits(pods) = found {
                self.report_own_limits(pods, facts, out);
            }
            return;
        };
        stalls.streak = stalls.streak.saturating_add(1);
        let confirmed = stalls.streak >= CONFIRMED_BY;
        let left = Signal::MemoryAvailable.quantity(available);
        let text = format!(
            "All tasks of pods waited for memory {full_ms_per_second} of each 1000 ms, with {left} \
             left."
        );
        self.note_stall(Kind::Memory, confirmed.then_some(text), facts);
        let memory = sample.signals.get(&Signal::MemoryAvailable).copied().or(unswapped);
        let cause = |memory| self.watch.stalled(full_ms_per_second, &memory, holds, now);
        self.stalled = memory.filter(|_| confirmed).and_then(cause);
    }

    /// Reports pods that stall at their own limits. The agent does not evict them: the kernel
    /// enforces that limit.
    fn report_own_limits(&mut self, pods: Vec<PodUid>, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        for uid in pods {
            let reported = &mut self.stalls.reported;
            if reported.get(&uid).is_some_and(|at| now < *at + REPORTED_LASTS) {
                continue;
            }
            let Some(pod) = facts.pods.get(&uid) else { continue };
            let pod = PodRef::of(pod);
            reported.insert(uid, now);
            let text = "It waits for memory at its own limit; the node has enough. Raise its \
                        limit of memory, or let it use less.";
            out.emit_pod_event(pod, AT_MEMORY_LIMIT, text);
        }
    }
}
