//! Holds the figures of one run, and their medians over several runs. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::requests::Writes;

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub pods: u32,
    /// From the first Job's creation to the last Complete.
    #[serde(serialize_with = "seconds")]
    pub wall: Duration,
    pub writes: Writes,
    /// GET requests for one pod or Job.
    pub reads: u64,
    /// Failed requests of the load, for example conflicts.
    pub failed: u64,
    #[serde(serialize_with = "seconds")]
    pub controller_cpu: Duration,
    #[serde(serialize_with = "seconds")]
    pub api_server_cpu: Duration,
    /// CPU of the nodes and the bench itself, which are one process.
    #[serde(serialize_with = "seconds")]
    pub nodes_cpu: Duration,
    pub rss_before_kib: u64,
    pub rss_peak_kib: u64,
    pub rss_after_kib: u64,
    /// Part of the machine's CPU time that other processes used: the noise.
    pub foreign_cpu_share: f64,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Name with its unit.
    pub(super) name: &'static str,
    pub(super) decimals: usize,
    /// Whether it is drawn: what users pay for, not what explains it.
    pub(super) is_cost: bool,
    pub(super) of: fn(&Figures) -> f64,
}

/// All lines of the table, in order.
pub(super) const MEASURES: [Measure; 16] = [
    cost("wall_s", 2, |run| run.wall.as_secs_f64()),
    cost("writes_per_pod", 2, |run| run.per_pod(number(run.writes.total()))),
    measure("pod_creates_per_pod", 3, |run| run.per_pod(number(run.writes.pod_creates))),
    measure("pod_patches_per_pod", 3, |run| run.per_pod(number(run.writes.pod_patches))),
    measure("pod_deletes_per_pod", 3, |run| run.per_pod(number(run.writes.pod_deletes))),
    measure("job_statuses_per_pod", 3, |run| run.per_pod(number(run.writes.job_statuses))),
    measure("events_per_pod", 3, |run| run.per_pod(number(run.writes.events))),
    measure("reads_per_pod", 3, |run| run.per_pod(number(run.reads))),
    measure("failed_requests", 0, |run| number(run.failed)),
    cost("controller_cpu_ms_per_pod", 2, |run| run.ms_per_pod(run.controller_cpu)),
    cost("apiserver_cpu_ms_per_pod", 2, |run| run.ms_per_pod(run.api_server_cpu)),
    measure("nodes_cpu_ms_per_pod", 2, |run| run.ms_per_pod(run.nodes_cpu)),
    measure("rss_before_mib", 1, |run| mib(run.rss_before_kib)),
    cost("rss_peak_mib", 1, |run| mib(run.rss_peak_kib)),
    measure("rss_after_mib", 1, |run| mib(run.rss_after_kib)),
    measure("foreign_cpu_share", 2, |run| run.foreign_cpu_share),
];

const fn measure(name: &'static str, decimals: usize, of: fn(&Figures) -> f64) -> Measure {
    Measure { name, decimals, is_cost: false, of }
}

const fn cost(name: &'static str, decimals: usize, of: fn(&Figures) -> f64) -> Measure {
    Measure { name, decimals, is_cost: true, of }
}

/// The medians of some runs, by the names of [`MEASURES`].
pub(super) fn medians(runs: &[Figures]) -> BTreeMap<&'static str, f64> {
    let of = |measure: &Measure| Some((measure.name, median(runs.iter().map(measure.of))?));
    MEASURES.iter().filter_map(of).collect()
}

/// The middle value, or the mean of the two in the middle.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower =
        if values.len().is_multiple_of(2) { values.get(values.len() / 2 - 1)? } else { upper };
    Some(f64::midpoint(*lower, *upper))
}

impl Figures {
    fn per_pod(&self, count: f64) -> f64 {
        count / f64::from(self.pods)
    }

    fn ms_per_pod(&self, time: Duration) -> f64 {
        self.per_pod(time.as_secs_f64() * 1000.0)
    }
}

fn mib(kib: u64) -> f64 {
    number(kib) / 1024.0
}

#[expect(clippy::cast_precision_loss, reason = "a run has far fewer than 2^52 of anything")]
fn number(count: u64) -> f64 {
    count as f64
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench) fn figures(wall_ms: u64) -> Figures {
        Figures {
            pods: 20,
            wall: Duration::from_millis(wall_ms),
            writes: Writes { pod_creates: 20, pod_patches: 20, events: 2, ..Writes::default() },
            reads: 0,
            failed: 0,
            controller_cpu: Duration::from_millis(30),
            api_server_cpu: Duration::from_millis(60),
            nodes_cpu: Duration::from_millis(10),
            rss_before_kib: 1024,
            rss_peak_kib: 3072,
            rss_after_kib: 2048,
            foreign_cpu_share: 0.25,
        }
    }

    #[test]
    fn the_median_is_the_middle_of_what_was_measured() {
        assert_eq!(median([3.0, 1.0, 9.0].into_iter()), Some(3.0));
        assert_eq!(median([3.0, 1.0, 9.0, 5.0].into_iter()), Some(4.0));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn medians_are_taken_per_measure() {
        let medians = medians(&[figures(900), figures(1100), figures(1000)]);
        assert_eq!(medians.len(), MEASURES.len());
        assert!((medians["wall_s"] - 1.0).abs() < 1e-9);
        assert!((medians["writes_per_pod"] - 2.1).abs() < 1e-9);
        assert!((medians["controller_cpu_ms_per_pod"] - 1.5).abs() < 1e-9);
        assert!((medians["rss_peak_mib"] - 3.0).abs() < 1e-9);
    }
}
