//! Reads the counters of Epilogue from a program's `/metrics`, and the times of disruptions.

use std::collections::BTreeMap;

use serde::Serialize;

use super::disruption_times::{DisruptionTime, Histograms};

/// The counters: the program, the name, what it says.
const COUNTERS: [(&str, &str); 8] = [
    ("epilogue-agent", "epilogue_agent_would_have_total"),
    ("epilogue-agent", "epilogue_agent_evictions_total"),
    ("epilogue-agent", "epilogue_agent_stuck_pods_failed_total"),
    ("epilogue-controller", "epilogue_pod_gc_would_have_total"),
    ("epilogue-controller", "epilogue_pod_gc_collector_force_delete_pods_total"),
    ("epilogue-controller", "epilogue_disruption_target_writes_total"),
    ("epilogue-controller", "epilogue_pod_ends_total"),
    ("epilogue-controller", "epilogue_disruption_lost_work_seconds_total"),
];

/// The sum of one counter over the processes that were read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MetricSum {
    /// `epilogue-agent` or `epilogue-controller`.
    pub(crate) program: &'static str,
    /// The name of the metric.
    pub(crate) metric: &'static str,
    /// Its labels, as they were served.
    pub(crate) labels: String,
    /// The sum.
    pub(crate) value: f64,
    /// The number of processes.
    pub(crate) processes: usize,
}

/// The counters of all processes that were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    sums: BTreeMap<(&'static str, &'static str, String), (f64, usize)>,
    times: Histograms,
    processes: usize,
    not_included: Vec<String>,
}

impl Metrics {
    /// No metrics were read; why.
    pub(crate) fn none(why: impl Into<String>) -> Self {
        Self { not_included: vec![why.into()], ..Self::default() }
    }

    /// Takes what a process serves in the text format of Prometheus.
    pub(crate) fn add(&mut self, text: &str) {
        self.processes += 1;
        for (series, value) in text.lines().filter_map(sample) {
            self.times.add(series, value);
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let Some(&(program, metric)) = COUNTERS.iter().find(|row| row.1 == name) else {
                continue;
            };
            let labels = labels.trim_end_matches('}').to_owned();
            let sum = self.sums.entry((program, metric, labels)).or_default();
            sum.0 += value;
            sum.1 += 1;
        }
    }

    /// Some processes were not read; why.
    pub(crate) fn leave_out(&mut self, why: impl Into<String>) {
        self.not_included.push(why.into());
    }

    /// The sums above zero.
    pub(super) fn sums(&self) -> Vec<MetricSum> {
        let above = self.sums.iter().filter(|(_, (value, _))| *value > 0.0);
        let sum =
            |(key, (value, processes)): (&(&'static str, &'static str, String), &(f64, usize))| {
                let (program, metric, labels) = key.clone();
                MetricSum { program, metric, labels, value: *value, processes: *processes }
            };
        above.map(sum).collect()
    }

    /// How long disruptions took.
    pub(super) fn times(&self) -> Vec<DisruptionTime> {
        self.times.times()
    }

    /// Whether those of a process were read.
    pub(super) fn is_read(&self) -> bool {
        self.processes > 0
    }

    /// Why metrics are missing.
    pub(super) fn not_included(&self) -> &[String] {
        &self.not_included
    }
}

/// A line of a sample: the series and its value. Label values of these counters have no blanks.
fn sample(line: &str) -> Option<(&str, f64)> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let mut words = line.split_whitespace();
    let (series, value) = (words.next()?, words.next()?);
    let value: f64 = value.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((series, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_added_up_over_processes() {
        let mut metrics = Metrics::default();
        metrics.add(
            "# HELP epilogue_agent_would_have_total Pods.\n\
             # TYPE epilogue_agent_would_have_total counter\n\
             epilogue_agent_would_have_total{action=\"evict\"} 2\n\
             epilogue_agent_would_have_total{action=\"report\"} 0\n\
             epilogue_agent_pods 7\nepilogue_agent_stuck_pods_failed_total 1 1700000000000\n",
        );
        metrics.add("epilogue_agent_would_have_total{action=\"evict\"} 3\nx\n# EOF\n");
        metrics.add("epilogue_agent_would_have_total{action=\"evict\"} NaN\n");
        let sums: Vec<_> =
            metrics.sums().into_iter().map(|it| (it.metric, it.labels, it.value)).collect();
        let expected = [
            ("epilogue_agent_stuck_pods_failed_total", String::new(), 1.0),
            ("epilogue_agent_would_have_total", "action=\"evict\"".to_owned(), 5.0),
        ];
        assert_eq!(sums, expected);
    }
}
