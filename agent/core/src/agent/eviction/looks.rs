//! When the node is looked at, and what a look tells.

use std::time::Duration;

use super::super::outbox::Task;
use super::super::{Agent, Enforcement, SignalStatus};
use crate::ending::attempt::{Attempt, Pace};
use crate::pressure::signal::Signal;
use crate::pressure::thresholds::Threshold;
use crate::pressure::watch::Measurements;
use crate::protocol::action::Action;
use crate::protocol::pressure::{Measured, Sample, Stalling};

/// Between two looks while nothing is near.
const CALM: Duration = Duration::from_secs(1);
/// Between two looks while memory or tasks run short: they go within less than a second.
const URGENT: Duration = Duration::from_millis(100);
/// Between two looks where there is nothing to hold them against: no threshold, no PSI.
const BLIND: Duration = Duration::from_mins(1);
/// A stall may come in waves.
const ROSE_LASTS: Duration = Duration::from_secs(2);
/// A look that takes longer is a load of its own.
const SLOW: Duration = Duration::from_secs(1);
const BACK_OFF: Pace = Pace { wait_max: Duration::from_secs(5), latest: None, salt: 3 };

/// The looks at the node.
#[derive(Debug, Default)]
pub(super) struct Looks {
    attempt: Attempt,
    began_at: Option<Duration>,
    /// The kernel's trigger fired since the last one began.
    asked: bool,
    rose_at: Option<Duration>,
    urgent: bool,
    blind: bool,
    failing: bool,
}

impl Looks {
    fn interval(&self, now: Duration) -> Duration {
        let rose = self.rose_at.is_some_and(|at| now < at + ROSE_LASTS);
        match (rose || self.urgent, self.blind) {
            (true, _) => URGENT,
            (_, true) => BLIND,
            _ => CALM,
        }
    }
}

impl Agent {
    pub(in super::super) fn pressure_rose(&mut self, _what: Stalling) {
        let looks = &mut self.evictions.looks;
        looks.asked = true;
        looks.rose_at = Some(self.clock.monotonic());
    }

    /// Looks when it is time to, one look at a time.
    pub(super) fn look_on(&mut self) {
        if self.settings.features.pressure == Enforcement::Off {
            return;
        }
        let now = self.clock.monotonic();
        let looks = &mut self.evictions.looks;
        if looks.attempt.is_in_flight() {
            return;
        }
        let interval = looks.interval(now);
        let due = looks.began_at.is_none_or(|at| self.clock.reached(at + interval));
        let rested = !looks.attempt.is_open() || looks.attempt.is_due(&self.clock);
        if !rested || !(due || looks.asked) {
            return;
        }
        looks.attempt.want_again();
        looks.attempt.sent();
        looks.asked = false;
        looks.began_at = Some(now);
        self.outbox.send(Task::Measure, Action::Measure);
    }

    pub(in super::super) fn measured(&mut self, measured: Measured) {
        let now = self.clock.monotonic();
        let looks = &mut self.evictions.looks;
        let took = now.saturating_sub(looks.began_at.unwrap_or(now));
        match measured {
            Ok(sample) => {
                let slow = took > SLOW;
                if slow {
                    looks.attempt.failed(now, BACK_OFF, None);
                    self.status.pressure.looks.failed += 1;
                } else {
                    looks.attempt = Attempt::default();
                    self.status.pressure.looks.done += 1;
                }
                if slow && !looks.failing {
                    let text = format!("a look at the node takes {} ms", took.as_millis());
                    self.outbox.say(true, None, text);
                }
                looks.failing = slow;
                if !self.stands_still() {
                    self.take_sample(&sample);
                }
            }
            Err(failure) => {
                looks.attempt.failed(now, BACK_OFF, Some(&failure));
                self.status.pressure.looks.failed += 1;
                if !std::mem::replace(&mut looks.failing, true) {
                    let text = format!("the node's pressure cannot be looked at: {failure}");
                    self.outbox.say(true, None, text);
                }
            }
        }
    }

    fn take_sample(&mut self, sample: &Sample) {
        let now = self.clock.monotonic();
        let evictions = &mut self.evictions;
        evictions.layout = sample.layout.or(evictions.layout);
        evictions.crossed = evictions.watch.look(&sample.signals, now).causes;
        evictions.signals.clone_from(&sample.signals);
        self.judge_stalls(sample);
        let evictions = &mut self.evictions;
        let thresholds = &evictions.watch.wishes().thresholds;
        let psi = sample.stall.is_some() || sample.io.is_some();
        evictions.looks.blind = thresholds.is_empty() && !psi;
        let fast = |threshold: &&Threshold| is_fast(threshold.signal);
        let crossed = evictions.watch.crossed_now().any(|threshold| is_fast(threshold.signal));
        let near = thresholds.iter().filter(fast).any(|it| is_near(it, &sample.signals));
        evictions.looks.urgent = crossed || near || evictions.stalls.is_suspicious();
        self.look_for_overlaps();
        self.show_sample(sample);
    }

    fn show_sample(&mut self, sample: &Sample) {
        let mut signals = std::collections::BTreeMap::<Signal, SignalStatus>::new();
        for (signal, measured) in &sample.signals {
            let shown = signals.entry(*signal).or_default();
            shown.found = Some(measured.observation);
            shown.at = Some(measured.at);
            shown.overlaps = self.evictions.overlaps.has(*signal);
        }
        for threshold in &self.evictions.watch.wishes().thresholds {
            let shown = signals.entry(threshold.signal).or_default();
            let units = shown.found.map(|found| threshold.limit.units(found.capacity));
            let limit = if threshold.grace.is_none() { &mut shown.hard } else { &mut shown.soft };
            *limit = units;
        }
        for threshold in self.evictions.watch.crossed_now() {
            let shown = signals.entry(threshold.signal).or_default();
            shown.hard_crossed |= threshold.grace.is_none();
            shown.soft_crossed |= threshold.grace.is_some();
        }
        let pressure = &mut self.status.pressure;
        pressure.signals = signals;
        pressure.sampled_at = Some(self.clock.monotonic());
        pressure.swap = sample.swap;
        pressure.unreadable.clone_from(&sample.unreadable);
    }
}

/// Disks fill more slowly than a look a second could miss.
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
