//! Samples the node at a suitable rate, and processes each sample.

use std::time::Duration;

use super::super::calls::Task;
use super::super::facts::Facts;
use super::super::out::Out;
use super::super::settings::Enforcement;
use super::super::status::SignalStatus;
use super::Evictions;
use crate::pressure::signal::Signal;
use crate::pressure::thresholds::Threshold;
use crate::pressure::watch::{Hold, Measurements};
use crate::protocol::action::Action;
use crate::protocol::pressure::{Measured, Sample};
use crate::termination::attempt::{Attempt, Pace};

/// The interval while nothing is near a threshold.
const CALM: Duration = Duration::from_secs(1);
/// The interval while memory or tasks run short: they can run out within less than a second.
const URGENT: Duration = Duration::from_millis(100);
/// The interval without any threshold or PSI to compare with.
const BLIND: Duration = Duration::from_mins(1);
/// How long a rise counts, because a stall may come in waves.
const ROSE_LASTS: Duration = Duration::from_secs(2);
/// A sample that takes longer is a load of its own.
const SLOW: Duration = Duration::from_secs(1);
const BACK_OFF: Pace = Pace { wait_max: Duration::from_secs(5), latest: None, salt: 3 };

/// The samples of the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampling {
    attempt: Attempt,
    began_at: Option<Duration>,
    /// Whether the kernel's trigger has fired since the last sample began.
    asked: bool,
    rose_at: Option<Duration>,
    urgent: bool,
    blind: bool,
    failing: bool,
}

impl Sampling {
    fn interval(&self, now: Duration) -> Duration {
        let rose = self.rose_at.is_some_and(|at| now < at + ROSE_LASTS);
        match (rose || self.urgent, self.blind) {
            (true, _) => URGENT,
            (_, true) => BLIND,
            _ => CALM,
        }
    }
}

impl Evictions {
    /// Notes that the kernel's trigger has fired.
    pub(in super::super) fn pressure_rose(&mut self, now: Duration) {
        self.sampling.asked = true;
        self.sampling.rose_at = Some(now);
    }

    /// Starts a sample when it is due, one at a time.
    pub(super) fn advance_sampling(&mut self, facts: &Facts, out: &mut Out) {
        if facts.settings.features.pressure == Enforcement::Off {
            return;
        }
        let now = facts.clock.monotonic();
        let sampling = &mut self.sampling;
        if sampling.attempt.is_in_flight() {
            return;
        }
        let interval = sampling.interval(now);
        let due = sampling.began_at.is_none_or(|at| facts.clock.reached(at + interval));
        let rested = !sampling.attempt.is_open() || sampling.attempt.is_due(&facts.clock);
        if !rested || !(due || sampling.asked) {
            return;
        }
        sampling.attempt.want_again();
        sampling.attempt.sent();
        sampling.asked = false;
        sampling.began_at = Some(now);
        out.calls.send(Task::Measure, Action::Measure);
    }

    pub(in super::super) fn measured(
        &mut self,
        measured: Measured,
        holds: &[Hold],
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let sampling = &mut self.sampling;
        let took = now.saturating_sub(sampling.began_at.unwrap_or(now));
        match measured {
            Ok(sample) => {
                let slow = took > SLOW;
                if slow {
                    sampling.attempt.failed(now, BACK_OFF, None);
                    out.status.pressure.samples.failed += 1;
                } else {
                    sampling.attempt = Attempt::default();
                    out.status.pressure.samples.done += 1;
                }
                if slow && !sampling.failing {
                    let text = format!("a sample of the node takes {} ms", took.as_millis());
                    out.calls.log(true, None, text);
                }
                sampling.failing = slow;
                if !facts.situation.owns_pods {
                    self.take_sample(&sample, holds, facts, out);
                }
            }
            Err(failure) => {
                sampling.attempt.failed(now, BACK_OFF, Some(&failure));
                out.status.pressure.samples.failed += 1;
                if !std::mem::replace(&mut sampling.failing, true) {
                    let text = format!("the node's pressure cannot be sampled: {failure}");
                    out.calls.log(true, None, text);
                }
            }
        }
    }

    fn take_sample(&mut self, sample: &Sample, holds: &[Hold], facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        self.layout = sample.layout.or(self.layout);
        self.crossed = self.watch.check(&sample.signals, holds, now);
        self.signals.clone_from(&sample.signals);
        self.judge_stalls(sample, holds, facts, out);
        let thresholds = &self.watch.config().thresholds;
        let psi = sample.stall.is_some() || sample.io.is_some();
        self.sampling.blind = thresholds.is_empty() && !psi;
        let fast = |threshold: &&Threshold| is_fast(threshold.signal);
        let crossed = self.watch.crossed_now().any(|threshold| is_fast(threshold.signal));
        let near = thresholds.iter().filter(fast).any(|it| is_near(it, &sample.signals));
        self.sampling.urgent = crossed || near || self.stalls.is_suspicious();
        self.check_overlaps(facts, out);
        self.show_sample(sample, facts, out);
    }

    fn show_sample(&self, sample: &Sample, facts: &Facts, out: &mut Out) {
        let mut signals = std::collections::BTreeMap::<Signal, SignalStatus>::new();
        for (signal, measured) in &sample.signals {
            let shown = signals.entry(*signal).or_default();
            shown.found = Some(measured.observation);
            shown.at = Some(measured.at);
            shown.overlaps = self.overlaps.has(*signal);
        }
        for threshold in &self.watch.config().thresholds {
            let shown = signals.entry(threshold.signal).or_default();
            let units = shown.found.map(|found| threshold.limit.units(found.capacity));
            let limit = if threshold.grace.is_none() { &mut shown.hard } else { &mut shown.soft };
            *limit = units;
        }
        for threshold in self.watch.crossed_now() {
            let shown = signals.entry(threshold.signal).or_default();
            shown.hard_crossed |= threshold.grace.is_none();
            shown.soft_crossed |= threshold.grace.is_some();
        }
        let pressure = &mut out.status.pressure;
        pressure.signals = signals;
        pressure.sampled_at = Some(facts.clock.monotonic());
        pressure.swap = sample.swap;
        pressure.unreadable.clone_from(&sample.unreadable);
    }
}

/// Whether the resource runs out fast; disks fill so slowly that one sample per second is enough.
fn is_fast(signal: Signal) -> bool {
    matches!(signal.resource(), "memory" | "pids")
}

/// Whether less than twice the threshold is left.
fn is_near(threshold: &Threshold, signals: &Measurements) -> bool {
    signals.get(&threshold.signal).is_some_and(|measured| {
        let found = measured.observation;
        found.available < threshold.limit.units(found.capacity).saturating_mul(2)
    })
}
