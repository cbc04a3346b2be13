//! Tracks signs of life of watches, for metrics and readiness.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

use super::stall::PATIENCE;

/// The reason of a failure because the watch does not move.
const STALLED: &str = "stalled";
/// Maximum age for readiness. The server sends a bookmark each minute, and a connection that has
/// shown nothing for 90 s is replaced.
const AGE_MAX: Duration = Duration::from_mins(3);

/// The metrics of all watches of a program. Clones share them.
#[derive(Clone, Debug)]
pub struct Watches {
    failures: IntCounterVec,
    ages: Ages,
}

/// The signs of life of one watch. Clones share them.
#[derive(Clone)]
pub struct Signs {
    resource: &'static str,
    last: Arc<Mutex<Instant>>,
    stalled: Arc<Mutex<Option<Stalled>>>,
    failures: Option<IntCounterVec>,
}

/// Since when the watch is known not to move, and the version that it has to come to; 0 if any list
/// that is complete will do.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    since: Instant,
    goal: u64,
}

/// Reads the ages at each scrape.
#[derive(Clone, Debug)]
struct Ages {
    gauge: GaugeVec,
    signs: Arc<Mutex<Vec<Signs>>>,
}

impl Watches {
    /// Registers `epilogue_watch_last_event_age_seconds` and `epilogue_watch_failures_total`.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let failures = IntCounterVec::new(
            Opts::new(
                "epilogue_watch_failures_total",
                "How often a watch of this resource broke off, or an object could not be read",
            ),
            &["resource", "reason"],
        )?;
        registry.register(Box::new(failures.clone()))?;
        let gauge = GaugeVec::new(
            Opts::new(
                "epilogue_watch_last_event_age_seconds",
                "Seconds since the watch of this resource showed a sign of life",
            ),
            &["resource"],
        )?;
        let ages = Ages { gauge, signs: Arc::default() };
        registry.register(Box::new(ages.clone()))?;
        Ok(Self { failures, ages })
    }

    /// The signs of life of the watch of a resource, such as `jobs`.
    pub fn of(&self, resource: &'static str) -> Signs {
        let signs = Signs { failures: Some(self.failures.clone()), ..Signs::unread(resource) };
        self.ages.signs.lock().push(signs.clone());
        signs
    }
}

impl Watches {
    /// This resource is watched no longer, and has no age.
    pub fn forget(&self, resource: &str) {
        self.ages.signs.lock().retain(|signs| signs.resource != resource);
        // It fails where no scrape has read the age.
        let _ = self.ages.gauge.remove_label_values(&[resource]);
    }
}

impl Signs {
    /// Signs of life that no metric reads.
    pub fn unread(resource: &'static str) -> Self {
        let last = Arc::new(Mutex::new(Instant::now()));
        Self { resource, last, stalled: Arc::default(), failures: None }
    }

    /// The resource that is watched.
    pub fn resource(&self) -> &'static str {
        self.resource
    }

    /// Records a sign of life.
    pub(super) fn alive(&self) {
        *self.last.lock() = Instant::now();
    }

    /// The watch lives and does not move: it has not come to this version, if any.
    pub(super) fn stalled(&self, goal: Option<u64>) {
        self.failed(STALLED);
        let goal = goal.unwrap_or(0);
        let mut stalled = self.stalled.lock();
        let since = stalled.map_or_else(Instant::now, |stalled| stalled.since);
        *stalled = Some(Stalled { since, goal });
    }

    /// The watch has come to this version.
    pub(super) fn moved(&self, version: u64) {
        let mut stalled = self.stalled.lock();
        if stalled.is_some_and(|stalled| version >= stalled.goal) {
            *stalled = None;
        }
    }

    /// Counts a failure; `reason` is one of a few words.
    pub(super) fn failed(&self, reason: &str) {
        if let Some(failures) = &self.failures {
            failures.with_label_values(&[self.resource, reason]).inc();
        }
    }

    fn age(&self) -> Duration {
        self.last.lock().elapsed()
    }

    /// Check for readiness: passes while the watch lives and moves.
    pub fn check(&self) -> Result<(), String> {
        let (resource, age, max) = (self.resource, self.age(), AGE_MAX.as_secs());
        if age > AGE_MAX {
            let age = age.as_secs();
            return Err(format!(
                "the watch of {resource} has shown nothing for {age} s, {max} s at most"
            ));
        }
        let Some(Stalled { since, goal }) = *self.stalled.lock() else { return Ok(()) };
        let age = (since.elapsed() + PATIENCE).as_secs();
        Err(format!(
            "the watch of {resource} lives and does not move: it has not come to version {goal} \
             for {age} s, {} s at most",
            PATIENCE.as_secs()
        ))
    }
}

impl Collector for Ages {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for signs in self.signs.lock().iter() {
            self.gauge.with_label_values(&[signs.resource]).set(signs.age().as_secs_f64());
        }
        self.gauge.collect()
    }
}

impl fmt::Debug for Signs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Signs").field("resource", &self.resource).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readiness_falls_with_an_old_watch_and_comes_back_by_itself() {
        let registry = Registry::new();
        let watches = Watches::new(&registry).expect("must register");
        let signs = watches.of("jobs");
        tokio::time::advance(AGE_MAX).await;
        assert_eq!(signs.check(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        let why = signs.check().expect_err("must be too old");
        assert_eq!(why, "the watch of jobs has shown nothing for 181 s, 180 s at most");
        let gathered = registry.gather();
        let age = gathered.iter().find(|family| family.name().ends_with("age_seconds"));
        let age = age.expect("must be there").get_metric()[0].get_gauge().get_value();
        assert!((age - 181.0).abs() < 0.01, "{age}");
        signs.alive();
        assert_eq!(signs.check(), Ok(()));
    }
}
