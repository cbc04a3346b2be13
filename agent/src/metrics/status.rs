//! Exports the core's status as metrics, at each scrape.

use std::time::Duration;

use agent_core::agent::{LeftReason, LockState, ShutdownStatus, Status, Tries, WouldHave};
use agent_core::protocol::action::Purpose;
use agent_core::shutdown::Mode;
use agent_core::termination::hanging::Hang;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGaugeVec, Opts};
use tokio::sync::watch;
use tokio::time::Instant;

/// Reads a value from the status; `None` hides the metric.
type Read = fn(&Status) -> Option<f64>;

/// Name, help, value. Times after the notice appear once they are known: a value of an earlier
/// shutdown must not stand for them.
const GAUGES: [(&str, &str, Read); 19] = [
    ("lock_held", "Whether the delay lock is held.", |s| flag(s.lock == LockState::Held)),
    ("delay_granted_seconds", "The delay that logind grants.", |s| {
        s.granted.map(|granted| granted.as_secs_f64())
    }),
    ("delay_wanted_seconds", "The delay that the priority groups and the reports need.", |s| {
        Some(s.wanted.as_secs_f64())
    }),
    ("logind_connected", "Whether logind is connected.", |s| flag(s.logind)),
    ("unbounded", "Whether no admission policy bounds the agent, so that it does not act.", |s| {
        flag(s.unbounded.is_some())
    }),
    ("pods_listed", "Whether the node's pods are known.", |s| flag(s.pods_listed)),
    ("pods", "The node's pods.", |s| number(s.pods)),
    ("journal_open", "Whether the journal has records of a shutdown.", |s| flag(s.journal_open)),
    ("boot_recovery_pending", "Pods of an earlier boot that are still to be checked.", |s| {
        number(s.boot_recovery_pending)
    }),
    (
        "mark_removals_pending",
        "Conditions of a cancelled shutdown that are still to be reverted.",
        |s| number(s.mark_removals_pending),
    ),
    ("shutdown_candidate_pods", "Pods that the last shutdown terminates or waits for.", |s| {
        shutdown(s, |shutdown| number(shutdown.candidates))
    }),
    ("shutdown_marked_pods", "Pods of the last shutdown whose condition is acknowledged.", |s| {
        shutdown(s, |shutdown| number(shutdown.marked))
    }),
    (
        "shutdown_awaited_pods",
        "Pods of the last shutdown that are not terminal in the API yet.",
        |s| shutdown(s, |shutdown| number(shutdown.unreported)),
    ),
    (
        "shutdown_unacknowledged_writes",
        "Conditions and phases that await the API's response.",
        |s| shutdown(s, |shutdown| number(shutdown.unacknowledged)),
    ),
    (
        "shutdown_marked_seconds",
        "From the notice until DisruptionTarget was settled for all pods.",
        |s| shutdown(s, |shutdown| seconds(shutdown.marked_after)),
    ),
    (
        "shutdown_reported_seconds",
        "From the notice until all pods were terminal in the API.",
        |s| shutdown(s, |shutdown| seconds(shutdown.reported_after)),
    ),
    ("shutdown_released_seconds", "From the notice until the lock was released.", |s| {
        shutdown(s, |shutdown| seconds(shutdown.released_after))
    }),
    (
        "shutdown_unreported_pods",
        "Pods that were not terminal in the API when the lock was released.",
        |s| shutdown(s, |shutdown| shutdown.unreported_at_release.and_then(number)),
    ),
    ("shutdown_notice_timestamp_seconds", "The last notice, by the API's clock.", |s| {
        #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are small")]
        shutdown(s, |shutdown| Some(shutdown.since.as_second() as f64))
    }),
];

/// Reads the status at each scrape.
#[derive(Debug)]
pub struct StatusCollector {
    status: watch::Receiver<Status>,
    /// When the lock was first seen held; `None` while it is not.
    held_since: Mutex<Option<Instant>>,
    held_for: Gauge,
    gauges: Vec<Gauge>,
    mode: IntGaugeVec,
    patches: IntCounterVec,
    deletions: IntCounterVec,
    reverted: IntCounterVec,
    stuck: IntGaugeVec,
    unstuck: IntCounter,
    left: IntGaugeVec,
    would_have: IntCounterVec,
}

impl StatusCollector {
    /// A collector of this status.
    pub fn new(status: watch::Receiver<Status>) -> prometheus::Result<Self> {
        let options = |name: &str, help: &str| Opts::new(format!("epilogue_agent_{name}"), help);
        let gauges = GAUGES.iter().map(|(name, help, _)| Gauge::with_opts(options(name, help)));
        Ok(Self {
            status,
            held_since: Mutex::default(),
            held_for: Gauge::with_opts(options(
                "lock_held_seconds",
                "How long the delay lock has been held.",
            ))?,
            gauges: gauges.collect::<Result<_, _>>()?,
            mode: IntGaugeVec::new(
                options("mode", "1 for what the agent does, or would do, in a shutdown."),
                &["mode"],
            )?,
            patches: IntCounterVec::new(
                options("status_patches_total", "Patches of pods' status, by purpose and result."),
                &["purpose", "result"],
            )?,
            deletions: IntCounterVec::new(
                options("deletions_total", "Deletions of pods, by result."),
                &["result"],
            )?,
            reverted: IntCounterVec::new(
                options(
                    "reverted_writes_total",
                    "Acknowledged writes that the API later showed undone, by purpose: a phase \
                     that went back (fail), a cleared DisruptionTarget that came back (clear).",
                ),
                &["purpose"],
            )?,
            stuck: IntGaugeVec::new(
                options(
                    "stuck_pods",
                    "Deleted pods that do not terminate, by what is seen of them.",
                ),
                &["reason"],
            )?,
            unstuck: IntCounter::with_opts(options(
                "stuck_pods_failed_total",
                "Deleted pods that the agent failed because no kubelet reported them.",
            ))?,
            left: IntGaugeVec::new(
                options(
                    "shutdown_left_pods",
                    "Pods without a terminal phase that the last shutdown did not wait for, by the \
                     reason.",
                ),
                &["reason"],
            )?,
            would_have: IntCounterVec::new(
                options(
                    "would_have_total",
                    "Pods that the agent, where it only observes, would have acted on, by action.",
                ),
                &["action"],
            )?,
        })
    }

    fn vecs(&self) -> [&dyn Collector; 9] {
        [
            &self.held_for,
            &self.mode,
            &self.patches,
            &self.deletions,
            &self.reverted,
            &self.stuck,
            &self.unstuck,
            &self.left,
            &self.would_have,
        ]
    }

    fn held_for(&self, held: bool) -> Duration {
        let mut since = self.held_since.lock();
        *since = held.then(|| since.unwrap_or_else(Instant::now));
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Collector for StatusCollector {
    fn desc(&self) -> Vec<&Desc> {
        let vecs = self.vecs();
        let gauges = self.gauges.iter().flat_map(Collector::desc);
        vecs.into_iter().flat_map(Collector::desc).chain(gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let status = self.status.borrow().clone();
        let mut families = Vec::new();
        for ((_, _, read), gauge) in GAUGES.iter().zip(&self.gauges) {
            if let Some(value) = read(&status) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        self.held_for.set(self.held_for(status.lock == LockState::Held).as_secs_f64());
        for mode in Mode::ALL {
            self.mode.with_label_values(&[mode.name()]).set((status.mode == Some(mode)).into());
        }
        for (of, tries) in &status.patches {
            raise(&self.patches, &[purpose(*of)], *tries);
        }
        raise(&self.deletions, &[], status.deletions);
        for (of, total) in &status.reverted {
            raise_to(&self.reverted.with_label_values(&[purpose(*of)]), *total);
        }
        for hang in Hang::ALL {
            let pods = status.stuck.pods.get(&hang).copied().unwrap_or_default();
            let pods = i64::try_from(pods).unwrap_or(i64::MAX);
            self.stuck.with_label_values(&[hang.name()]).set(pods);
        }
        raise_to(&self.unstuck, status.stuck.failed);
        for what in WouldHave::ALL {
            let total = status.would_have.get(&what).copied().unwrap_or_default();
            raise_to(&self.would_have.with_label_values(&[what.name()]), total);
        }
        if let Some(shutdown) = &status.shutdown {
            for why in LeftReason::ALL {
                let pods = shutdown.left_at_release.get(&why).copied().unwrap_or_default();
                let pods = i64::try_from(pods).unwrap_or(i64::MAX);
                self.left.with_label_values(&[why.name()]).set(pods);
            }
        }
        let vecs = self.vecs();
        families.extend(vecs.into_iter().flat_map(Collector::collect));
        families
    }
}

/// The purpose's name in metrics.
pub(super) fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Mark => "mark",
        Purpose::Fail => "fail",
        Purpose::Clear => "clear",
        Purpose::Cause => "cause",
    }
}

fn shutdown(status: &Status, read: impl Fn(&ShutdownStatus) -> Option<f64>) -> Option<f64> {
    status.shutdown.as_ref().and_then(read)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of all values")]
fn flag(set: bool) -> Option<f64> {
    Some(f64::from(u8::from(set)))
}

fn number(count: usize) -> Option<f64> {
    u32::try_from(count).ok().map(f64::from)
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

fn raise(counters: &IntCounterVec, labels: &[&str], tries: Tries) {
    for (result, total) in [("acknowledged", tries.done), ("failed", tries.failed)] {
        let labels: Vec<_> = labels.iter().copied().chain([result]).collect();
        raise_to(&counters.with_label_values(&labels), total);
    }
}

fn raise_to(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{Registry, TextEncoder};

    fn shutdown_that_left(why: LeftReason, pods: usize) -> ShutdownStatus {
        ShutdownStatus {
            t0: Duration::ZERO,
            since: jiff::Timestamp::UNIX_EPOCH,
            kind: None,
            granted: Duration::from_secs(30),
            mode: Mode::Replace,
            step: agent_core::shutdown::budget::Step::Release,
            cancelled: false,
            candidates: 0,
            marked: 0,
            terminal: 0,
            unreported: 0,
            unacknowledged: 0,
            marked_after: None,
            reported_after: None,
            released_after: None,
            unreported_at_release: Some(0),
            left_at_release: [(why, pods)].into(),
        }
    }

    #[test]
    fn the_status_is_read_at_each_scrape() {
        let sender = watch::Sender::new(Status::default());
        let registry = Registry::new();
        let collector = StatusCollector::new(sender.subscribe()).expect("must be valid");
        registry.register(Box::new(collector)).expect("must register");
        let page = || TextEncoder::new().encode_to_string(&registry.gather()).expect("must encode");
        assert!(page().contains("epilogue_agent_lock_held 0\n"));
        assert!(!page().contains("shutdown_marked_seconds"));
        sender.send_modify(|status| {
            status.lock = LockState::Held;
            status.mode = Some(Mode::Replace);
            status.granted = Some(Duration::from_secs(30));
            status.deletions = Tries { done: 3, failed: 1 };
            status.patches.insert(Purpose::Mark, Tries { done: 7, failed: 0 });
            status.reverted.insert(Purpose::Fail, 2);
            status.stuck.pods.insert(Hang::NoContainer, 5);
            status.stuck.failed = 4;
            status.shutdown = Some(shutdown_that_left(LeftReason::NoController, 2));
        });
        for _ in 0..2 {
            let page = page();
            for line in [
                "epilogue_agent_lock_held 1",
                "epilogue_agent_delay_granted_seconds 30",
                r#"epilogue_agent_mode{mode="replace"} 1"#,
                r#"epilogue_agent_mode{mode="assist"} 0"#,
                r#"epilogue_agent_deletions_total{result="acknowledged"} 3"#,
                r#"epilogue_agent_deletions_total{result="failed"} 1"#,
                r#"epilogue_agent_reverted_writes_total{purpose="fail"} 2"#,
                r#"epilogue_agent_stuck_pods{reason="no-container"} 5"#,
                r#"epilogue_agent_stuck_pods{reason="runs"} 0"#,
                "epilogue_agent_stuck_pods_failed_total 4",
                r#"epilogue_agent_shutdown_left_pods{reason="NoController"} 2"#,
                r#"epilogue_agent_shutdown_left_pods{reason="NotTerminated"} 0"#,
                r#"epilogue_agent_status_patches_total{purpose="mark",result="acknowledged"} 7"#,
            ] {
                assert!(page.contains(&format!("{line}\n")), "{line} not in\n{page}");
            }
        }
    }
}
