//! Exports the core's status as metrics, at each scrape. A value that is not known is not shown: an
//! older one must not stand for it.

use std::time::Duration;

use agent_core::agent::{LockState, Status};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::sync::watch;
use tokio::time::Instant;

use super::rows::{OF_PODS, OF_PRESSURE, OF_SHUTDOWNS, Read};
use super::values::Values;

/// The core has no clock of its own for it.
const HELD_FOR: (&str, &str) = ("lock_held_seconds", "How long the delay lock has been held.");

/// Reads the status at each scrape.
#[derive(Debug)]
pub struct StatusCollector {
    status: watch::Receiver<Status>,
    rows: Vec<(Values, Read)>,
    held_for: Values,
    /// When the lock was first seen held; `None` while it is not. One scrape at a time.
    held_since: Mutex<Option<Instant>>,
}

impl StatusCollector {
    /// A collector of this status.
    pub fn new(status: watch::Receiver<Status>) -> prometheus::Result<Self> {
        let rows = OF_SHUTDOWNS.iter().chain(OF_PODS).chain(OF_PRESSURE);
        let rows =
            rows.map(|(name, help, labels, read)| Ok((Values::new(name, help, labels)?, *read)));
        let rows = rows.collect::<prometheus::Result<_>>()?;
        let held_for = Values::new(HELD_FOR.0, HELD_FOR.1, &[])?;
        Ok(Self { status, rows, held_for, held_since: Mutex::default() })
    }

    fn all(&self) -> impl Iterator<Item = &Values> {
        self.rows.iter().map(|(values, _)| values).chain([&self.held_for])
    }
}

impl Collector for StatusCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all().flat_map(|values| values.collector().desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let status = self.status.borrow().clone();
        let mut since = self.held_since.lock();
        let is_held = status.lock == LockState::Held;
        *since = is_held.then(|| since.unwrap_or_else(Instant::now));
        self.held_for.set(since.map_or(Duration::ZERO, |since| since.elapsed()));
        for (values, read) in &self.rows {
            read(&status, values);
        }
        // Between scrapes it holds no value.
        self.all().flat_map(Values::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::agent::{
        EndSignalTally, Enforcement, EvictionCount, LeftReason, OomTally, ShutdownStatus,
        SignalStatus, Tries,
    };
    use agent_core::pressure::observe::Observation;
    use agent_core::pressure::signal::Signal;
    use agent_core::protocol::action::Purpose;
    use agent_core::protocol::pressure::OomConstraint;
    use agent_core::shutdown::Mode;
    use agent_core::termination::hanging::Hang;
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
            status.end_signals = EndSignalTally { sent: 6, failed: 1 };
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
                r#"epilogue_agent_end_signals_total{result="sent"} 6"#,
                r#"epilogue_agent_end_signals_total{result="failed"} 1"#,
                r#"epilogue_agent_shutdown_left_pods{reason="NoController"} 2"#,
                r#"epilogue_agent_shutdown_left_pods{reason="NotTerminated"} 0"#,
                r#"epilogue_agent_status_patches_total{purpose="mark",result="acknowledged"} 7"#,
            ] {
                assert!(page.contains(&format!("{line}\n")), "{line} not in\n{page}");
            }
        }
    }

    fn page(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("must encode")
    }

    fn served(status: &watch::Sender<Status>) -> Registry {
        let registry = Registry::new();
        let collector = StatusCollector::new(status.subscribe()).expect("must be valid");
        registry.register(Box::new(collector)).expect("must register");
        registry
    }

    fn measured(available: u64) -> SignalStatus {
        SignalStatus {
            found: Some(Observation { available, capacity: 1_000 }),
            hard: Some(150),
            hard_crossed: available < 150,
            ..SignalStatus::default()
        }
    }

    #[test]
    fn signals_evictions_and_kills_are_read_at_each_scrape() {
        let sender = watch::Sender::new(Status::default());
        let registry = served(&sender);
        sender.send_modify(|status| {
            let pressure = &mut status.pressure;
            pressure.mode = Enforcement::Enforce;
            pressure.signals.insert(Signal::MemoryAvailable, measured(100));
            pressure.stalls.memory_full_ms_per_second = Some(250);
            pressure.stalls.memory = true;
            let evictions = EvictionCount {
                done: 2,
                would: 1,
                given_up: 3,
                took: Some(Duration::from_millis(1_500)),
            };
            pressure.evictions.insert("memory.available", evictions);
            let tally = OomTally { ended: 1, lived_on: 2, unknown: 0 };
            status.oom.oom_kills.insert(OomConstraint::ContainerLimit, tally);
            status.oom.oom_conditions_won = 5;
            status.oom.oomd_kills = 6;
        });
        for _ in 0..2 {
            let page = page(&registry);
            for line in [
                r#"epilogue_agent_pressure_mode{mode="enforce"} 1"#,
                r#"epilogue_agent_pressure_available{signal="memory.available"} 100"#,
                r#"epilogue_agent_pressure_capacity{signal="memory.available"} 1000"#,
                r#"epilogue_agent_pressure_threshold{kind="hard",signal="memory.available"} 150"#,
                r#"epilogue_agent_pressure_threshold_crossed{kind="hard",signal="memory.available"} 1"#,
                r#"epilogue_agent_pressure_stall_full_ratio{resource="memory"} 0.25"#,
                r#"epilogue_agent_node_condition{type="epilogue.dev/MemoryStall"} 1"#,
                r#"epilogue_agent_node_condition{type="epilogue.dev/IOStall"} 0"#,
                r#"epilogue_agent_evictions_total{result="done",signal="memory.available"} 2"#,
                r#"epilogue_agent_evictions_total{result="failed",signal="memory.available"} 3"#,
                r#"epilogue_agent_eviction_seconds{signal="memory.available"} 1.5"#,
                r#"epilogue_agent_evictions_total{result="observed",signal="memory.available"} 1"#,
                r#"epilogue_agent_oom_kills_total{constraint="container-limit",outcome="ended"} 1"#,
                r#"epilogue_agent_oom_kills_total{constraint="container-limit",outcome="lived-on"} 2"#,
                r#"epilogue_agent_oom_conditions_total{race="won"} 5"#,
                "epilogue_agent_oomd_kills_total 6",
            ] {
                assert!(page.contains(&format!("{line}\n")), "{line} not in\n{page}");
            }
            assert!(!page.contains(r#"kind="soft""#), "{page}");
        }
    }

    #[test]
    fn what_cannot_be_measured_any_more_is_not_shown() {
        let sender = watch::Sender::new(Status::default());
        let registry = served(&sender);
        sender.send_modify(|status| {
            status.pressure.signals.insert(Signal::PidAvailable, measured(500));
            status.pressure.stalls.io_full_ms_per_second = Some(1);
        });
        assert!(page(&registry).contains(r#"available{signal="pid.available"} 500"#));
        sender.send_modify(|status| {
            status.pressure.signals.insert(Signal::PidAvailable, SignalStatus::default());
            status.pressure.stalls.io_full_ms_per_second = None;
        });
        let page = page(&registry);
        assert!(!page.contains("pressure_available{") && !page.contains("stall_full"), "{page}");
    }
}
