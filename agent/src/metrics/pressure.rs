//! Exports the node's pressure and OOM kills from the core's status, at each scrape.

use agent_core::agent::{Enforcement, OomTally, Status};
use agent_core::protocol::pressure::OomConstraint;
use epilogue_common::names::node_condition;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use tokio::sync::watch;

const MODES: [(Enforcement, &str); 3] = [
    (Enforcement::Off, "off"),
    (Enforcement::Observe, "observe"),
    (Enforcement::Enforce, "enforce"),
];

/// Reads the status at each scrape.
#[derive(Debug)]
pub struct PressureCollector {
    status: watch::Receiver<Status>,
    mode: IntGaugeVec,
    available: GaugeVec,
    capacity: GaugeVec,
    threshold: GaugeVec,
    crossed: IntGaugeVec,
    overlaps: IntGaugeVec,
    samples: IntCounterVec,
    unreadable: IntGauge,
    swap: GaugeVec,
    stalls: GaugeVec,
    conditions: IntGaugeVec,
    evictions: IntCounterVec,
    took: GaugeVec,
    victims: IntGauge,
    kills: Kills,
}

/// Counters of OOM kills.
#[derive(Debug)]
struct Kills {
    oom: IntCounterVec,
    conditions: IntCounterVec,
    pending: IntGauge,
    oomd: IntCounter,
}

fn options(name: &str, help: &str) -> Opts {
    Opts::new(format!("epilogue_agent_{name}"), help)
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
    GaugeVec::new(options(name, help), labels)
}

fn flags(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    IntGaugeVec::new(options(name, help), labels)
}

fn counters(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    IntCounterVec::new(options(name, help), labels)
}

impl Kills {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            oom: counters(
                "oom_kills_total",
                "OOM kills of processes of pods, by what was short and what became of the \
                 container (ended, lived-on, unknown).",
                &["constraint", "outcome"],
            )?,
            conditions: counters(
                "oom_conditions_total",
                "epilogue.dev/OOMKilled on pods that never restart, by whether the API had it \
                 before the pod's terminal phase (won) or after it (lost).",
                &["race"],
            )?,
            pending: IntGauge::with_opts(options(
                "oom_conditions_pending",
                "Conditions epilogue.dev/OOMKilled that the API has not acknowledged yet.",
            ))?,
            oomd: IntCounter::with_opts(options(
                "oomd_kills_total",
                "Cgroups of pods that systemd-oomd killed.",
            ))?,
        })
    }
}

impl PressureCollector {
    /// A collector of this status.
    pub fn new(status: watch::Receiver<Status>) -> prometheus::Result<Self> {
        let signal = &["signal"];
        let kind = &["signal", "kind"];
        Ok(Self {
            status,
            mode: flags(
                "pressure_mode",
                "1 for the mode that is in effect for the node's pressure (off, observe, enforce).",
                &["mode"],
            )?,
            available: gauges(
                "pressure_available",
                "What the node has left, in bytes, inodes or tasks, by the kubelet's signals.",
                signal,
            )?,
            capacity: gauges("pressure_capacity", "What the node has in total.", signal)?,
            threshold: gauges(
                "pressure_threshold",
                "Pods are evicted below this threshold, by its kind (hard, soft).",
                kind,
            )?,
            crossed: flags(
                "pressure_threshold_crossed",
                "Whether a threshold is crossed, or was and is not over yet.",
                kind,
            )?,
            overlaps: flags(
                "pressure_threshold_overlaps",
                "Whether the kubelet's own threshold comes first, so that ours is only observed.",
                signal,
            )?,
            samples: counters(
                "pressure_samples_total",
                "Samples of the node, by result.",
                &["result"],
            )?,
            unreadable: IntGauge::with_opts(options(
                "pressure_unreadable",
                "Files and figures that could not be read at the last sample.",
            ))?,
            swap: gauges("pressure_swap_free_bytes", "Swap that is free.", &[])?,
            stalls: gauges(
                "pressure_stall_full_ratio",
                "Share of time in which all waited: tasks of pods for memory, the node for disks.",
                &["resource"],
            )?,
            conditions: flags(
                "node_condition",
                "Whether a condition of our own is to be True on the node.",
                &["type"],
            )?,
            evictions: counters(
                "evictions_total",
                "Pods evicted for a shortage or their own limit, by signal and result (done; \
                 failed: it did not terminate; observed: it would have been evicted).",
                &["signal", "result"],
            )?,
            took: gauges(
                "eviction_seconds",
                "From the choice of the last victim until it was terminal in the API.",
                signal,
            )?,
            victims: IntGauge::with_opts(options(
                "evictions_in_progress",
                "Pods that are being evicted.",
            ))?,
            kills: Kills::new()?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 18] {
        [
            &self.mode,
            &self.available,
            &self.capacity,
            &self.threshold,
            &self.crossed,
            &self.overlaps,
            &self.samples,
            &self.unreadable,
            &self.swap,
            &self.stalls,
            &self.conditions,
            &self.evictions,
            &self.took,
            &self.victims,
            &self.kills.oom,
            &self.kills.conditions,
            &self.kills.pending,
            &self.kills.oomd,
        ]
    }

    /// Drops values that could not be measured: the last value must not stand for them.
    fn forget(&self) {
        let found = [&self.available, &self.capacity, &self.threshold, &self.swap, &self.stalls];
        for gauges in found {
            gauges.reset();
        }
        self.crossed.reset();
        self.overlaps.reset();
    }

    fn take_signals(&self, status: &Status) {
        for (signal, found) in &status.pressure.signals {
            let signal = signal.name();
            if let Some(found) = found.found {
                self.available.with_label_values(&[signal]).set(figure(found.available));
                self.capacity.with_label_values(&[signal]).set(figure(found.capacity));
            }
            let kinds = [
                ("hard", found.hard, found.hard_crossed),
                ("soft", found.soft, found.soft_crossed),
            ];
            for (kind, threshold, crossed) in kinds {
                let Some(threshold) = threshold else { continue };
                self.threshold.with_label_values(&[signal, kind]).set(figure(threshold));
                self.crossed.with_label_values(&[signal, kind]).set(crossed.into());
            }
            self.overlaps.with_label_values(&[signal]).set(found.overlaps.into());
        }
    }

    fn take_pressure(&self, status: &Status) {
        let pressure = &status.pressure;
        for (mode, name) in MODES {
            self.mode.with_label_values(&[name]).set((pressure.mode == mode).into());
        }
        for (result, total) in
            [("done", pressure.samples.done), ("failed", pressure.samples.failed)]
        {
            raise(&self.samples.with_label_values(&[result]), total);
        }
        self.unreadable.set(count(pressure.unreadable.len()));
        if let Some(swap) = pressure.swap {
            self.swap.with_label_values::<&str>(&[]).set(figure(swap.available));
        }

        let stalls = &pressure.stalls;
        let found =
            [("memory", stalls.memory_full_ms_per_second), ("io", stalls.io_full_ms_per_second)];
        for (resource, found) in found {
            if let Some(found) = found {
                self.stalls.with_label_values(&[resource]).set(figure(found) / 1_000.0);
            }
        }
        let conditions =
            [(node_condition::MEMORY_STALL, stalls.memory), (node_condition::IO_STALL, stalls.io)];
        for (kind, stands) in conditions {
            self.conditions.with_label_values(&[kind]).set(stands.into());
        }
        for (signal, evictions) in &pressure.evictions {
            let results = [
                ("done", evictions.done),
                ("failed", evictions.given_up),
                ("observed", evictions.would),
            ];
            for (result, total) in results {
                raise(&self.evictions.with_label_values(&[signal, result]), total);
            }
            if let Some(took) = evictions.took {
                self.took.with_label_values(&[signal]).set(took.as_secs_f64());
            }
        }
        self.victims.set(count(pressure.victims.len()));
    }

    fn take_oom(&self, status: &Status) {
        let oom = &status.oom;
        for (constraint, tally) in &oom.oom_kills {
            let OomTally { ended, lived_on, unknown } = *tally;
            for (outcome, total) in [("ended", ended), ("lived-on", lived_on), ("unknown", unknown)]
            {
                let labels = [constraint_name(*constraint), outcome];
                raise(&self.kills.oom.with_label_values(&labels), total);
            }
        }
        for (race, total) in [("won", oom.oom_conditions_won), ("lost", oom.oom_conditions_lost)] {
            raise(&self.kills.conditions.with_label_values(&[race]), total);
        }
        self.kills.pending.set(count(oom.oom_conditions_pending));
        raise(&self.kills.oomd, oom.oomd_kills);
    }
}

impl Collector for PressureCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let status = self.status.borrow().clone();
        self.forget();
        self.take_signals(&status);
        self.take_pressure(&status);
        self.take_oom(&status);
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

fn constraint_name(constraint: OomConstraint) -> &'static str {
    match constraint {
        OomConstraint::ContainerLimit => "container-limit",
        OomConstraint::PodLimit => "pod-limit",
        OomConstraint::Node => "node",
        OomConstraint::Unknown => "unknown",
    }
}

#[expect(clippy::cast_precision_loss, reason = "the bytes of a disk need no more precision")]
fn figure(units: u64) -> f64 {
    units as f64
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Raises a counter to the core's total.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use agent_core::agent::{EvictionCount, SignalStatus};
    use agent_core::pressure::observe::Observation;
    use agent_core::pressure::signal::Signal;
    use prometheus::{Registry, TextEncoder};

    fn page(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("must encode")
    }

    fn served(status: &watch::Sender<Status>) -> Registry {
        let registry = Registry::new();
        let collector = PressureCollector::new(status.subscribe()).expect("must be valid");
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
