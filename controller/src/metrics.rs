//! Exports the metrics of upstream's Job controller, with its names, labels and buckets.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use controller_core::disruption_times::Observations;
use controller_core::job::{Action, Cause, MetricEvent};
use controller_core::view::{CompletionMode, Job};
use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY, job_reason};
use epilogue_common::pod_end::Counted;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    CounterVec, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGaugeVec, Opts, Registry, exponential_buckets,
};

use crate::planner::Stopwatch;
use crate::workqueue::Figures;

/// Values of `managedBy` that get a series of their own.
const KNOWN_MANAGERS: [&str; 3] = [MANAGED_BY, RESERVED_MANAGED_BY, "kueue.x-k8s.io/multikueue"];
/// Reasons of finished Jobs that get a series of their own. A condition that already stands may
/// have another reason.
const KNOWN_REASONS: [&str; 7] = [
    "BackoffLimitExceeded",
    "CompletionsReached",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
    "SuccessPolicy",
];
/// The label value for all other values.
const OTHER: &str = "other";
/// A plan that takes longer is logged, with its key.
const LONG_PLAN: Duration = Duration::from_millis(50);
/// Labels of the two sync metrics. ([M1], [M2])
const BY_SYNC: [&str; 3] = ["completion_mode", "result", "action"];

/// The Job metrics.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// Further values of `managedBy` that get a series of their own.
    external_controllers: Arc<[String]>,
    sync_duration: HistogramVec,
    syncs: IntCounterVec,
    jobs_finished: IntCounterVec,
    pods_finished: IntCounterVec,
    failures_handled: IntCounterVec,
    pod_ends: IntCounterVec,
    disruptions: HistogramVec,
    lost_work: CounterVec,
    gaps: HistogramVec,
    external: IntCounterVec,
    tracked_terminal: IntCounterVec,
    finished_indexes: IntCounterVec,
    pods_created: IntCounterVec,
    scheduling_syncs: IntCounterVec,
    stale_skips: IntCounterVec,
    /// Work on keys that panicked.
    pub(crate) panics: IntCounter,
    plans: HistogramVec,
    template_reads: IntCounter,
    /// Events that were dropped.
    pub(crate) events_dropped: IntCounter,
}

impl Metrics {
    /// Registers all metrics.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(named(name, help), labels)?)
        };
        let one = |name: &str, help: &str| registered(registry, IntCounter::new(name, help)?);
        Ok(Self {
            external_controllers: Arc::default(),
            sync_duration: sync_duration(registry)?,
            // Counts syncs by mode, result and action. ([M2])
            syncs: counter("job_syncs_total", "The number of job syncs", &BY_SYNC)?,
            // Counts each Job once, at the write that finishes it. ([M3])
            jobs_finished: counter(
                "jobs_finished_total",
                "The number of finished jobs",
                &["completion_mode", "result", "reason"],
            )?,
            // Counts the pods that a status write adds to the counters. ([M4])
            pods_finished: counter(
                "job_pods_finished_total",
                "The number of finished Pods that are fully tracked",
                &["completion_mode", "result"],
            )?,
            // Counts failed pods that match a rule of the pod failure policy. ([M5])
            failures_handled: counter(
                "pod_failures_handled_by_failure_policy_total",
                "The number of failed Pods handled by failure policy with respect to the action",
                &["action"],
            )?,
            pod_ends: pod_ends(registry)?,
            disruptions: disruptions(registry)?,
            lost_work: lost_work(registry)?,
            gaps: gaps(registry)?,
            // Counts Jobs of other controllers when the watch adds them. ([M6])
            external: counter(
                "jobs_by_external_controller_total",
                "The number of Jobs managed by an external controller",
                &["controller_name"],
            )?,
            // Counts pods that begin or cease to be terminal with the finalizer. ([M7])
            tracked_terminal: counter(
                "terminated_pods_tracking_finalizer_total",
                "The number of terminated pods (phase=Failed|Succeeded) that have the finalizer \
                 batch.kubernetes.io/job-tracking, by addition and deletion",
                &["event"],
            )?,
            // Counts succeeded and failed indexes. ([M8])
            finished_indexes: counter(
                "job_finished_indexes_total",
                "The number of finished indexes",
                &["status", "backoffLimit"],
            )?,
            // Counts pod creations by reason and outcome. ([M9])
            pods_created: counter(
                "job_pods_creation_total",
                "The number of Pods created by the Job controller, by reason and outcome",
                &["reason", "status"],
            )?,
            scheduling_syncs: scheduling_syncs(registry)?,
            stale_skips: stale_skips(registry)?,
            panics: one("epilogue_sync_panics_total", "Syncs and checks that panicked")?,
            plans: plans(registry)?,
            template_reads: one(
                "epilogue_job_template_reads_total",
                "Syncs that read the Job from the API, because its template was not kept",
            )?,
            events_dropped: one("epilogue_events_dropped_total", "Events that were not written")?,
        })
    }

    /// Counts a sync and its duration. ([M1], [M2])
    pub(crate) fn synced(&self, job: &Job, ok: bool, action: Action, took: Duration) {
        let result = if ok { "success" } else { "error" };
        let labels = [completion_mode(job), result, action.as_str()];
        self.sync_duration.with_label_values(&labels).observe(took.as_secs_f64());
        self.syncs.with_label_values(&labels).inc();
    }

    /// With a series for each of these values of `managedBy`.
    #[must_use]
    pub(crate) fn with_external_controllers(self, names: &[String]) -> Self {
        Self { external_controllers: names.into(), ..self }
    }

    /// Counts a Job that another controller manages. ([M6])
    pub(crate) fn external(&self, controller: &str) {
        let is_listed = self.external_controllers.iter().any(|listed| listed == controller);
        let name = if is_listed { controller } else { known(&KNOWN_MANAGERS, controller) };
        self.external.with_label_values(&[name]).inc();
    }

    /// Counts a pod that becomes terminal with the finalizer, or leaves this state. ([M7])
    pub(crate) fn tracked_terminal(&self, event: &str) {
        self.tracked_terminal.with_label_values(&[event]).inc();
    }

    /// Counts a sync that was skipped because a watch was behind. ([M10])
    pub(crate) fn stale(&self, group: &str, resource: &str) {
        self.stale_skips.with_label_values(&[group, resource]).inc();
    }

    /// Observes how long the decisions about a key took, and logs a long one.
    pub(crate) fn planned(&self, work: &str, key: &impl Debug, plans: &Stopwatch) {
        self.plans.with_label_values(&[work]).observe(plans.total.as_secs_f64());
        if plans.longest > LONG_PLAN {
            let plan_ms = u64::try_from(plans.longest.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(work, ?key, plan_ms, "a long plan");
        }
    }

    /// Counts a sync that reads its Job.
    pub(crate) fn template_read(&self) {
        self.template_reads.inc();
    }

    /// Counts what a sync did to pods and to the Job. ([M3], [M4], [M5], [M8], [M9])
    pub(crate) fn count(&self, job: &Job, event: &MetricEvent) {
        let mode = completion_mode(job);
        match event {
            MetricEvent::PodsCreated { reason, succeeded, failed } => {
                let by = |status| self.pods_created.with_label_values(&[*reason, status]);
                by("succeeded").inc_by(u64::from(*succeeded));
                by("failed").inc_by(u64::from(*failed));
            }
            MetricEvent::PodsFinished { succeeded, failed, failed_indexes } => {
                let by = |result| self.pods_finished.with_label_values(&[mode, result]);
                by("succeeded").inc_by(u64::from(*succeeded));
                by("failed").inc_by(u64::from(*failed));
                self.indexes_finished(job, *succeeded, *failed_indexes);
            }
            MetricEvent::FailureHandled { action, pods } => {
                self.failures_handled.with_label_values(&[action]).inc_by(u64::from(*pods));
            }
            MetricEvent::SchedulingObjectsSynced { ok } => {
                let result = if *ok { "success" } else { "error" };
                self.scheduling_syncs.with_label_values(&[result]).inc();
            }
            MetricEvent::PodEnded { cause, counted } => self.pod_ended(*cause, *counted),
            MetricEvent::JobFinished { succeeded, reason } => {
                let result = if *succeeded { "succeeded" } else { "failed" };
                let reason = known(&KNOWN_REASONS, job_reason::without_rule(reason));
                self.jobs_finished.with_label_values(&[mode, result, reason]).inc();
            }
        }
    }

    /// Counts a pod that failed or was disrupted.
    pub(crate) fn pod_ended(&self, cause: Cause, counted: Counted) {
        self.pod_ends.with_label_values(&[cause.label(), counted.label()]).inc();
    }

    /// Observes how far disruptions have come.
    pub(crate) fn disrupted(&self, seen: &Observations) {
        for it in &seen.phases {
            let labels = [it.source.label(), it.phase.label()];
            self.disruptions.with_label_values(&labels).observe(it.after.as_secs_f64());
        }
        for (source, work) in &seen.lost_work {
            self.lost_work.with_label_values(&[source.label()]).inc_by(work.as_secs_f64());
        }
        for (source, gap) in &seen.gaps {
            self.gaps.with_label_values(&[source.label()]).observe(gap.as_secs_f64());
        }
    }

    fn indexes_finished(&self, job: &Job, succeeded: u32, failed: Option<u32>) {
        if !job.is_indexed() {
            return;
        }
        let per_index = job.spec.backoff_limit_per_index.is_some();
        let limit = if per_index { "perIndex" } else { "global" };
        let by = |status| self.finished_indexes.with_label_values(&[status, limit]);
        by("succeeded").inc_by(u64::from(succeeded));
        if let Some(failed) = failed.filter(|failed| *failed > 0) {
            by("failed").inc_by(u64::from(failed));
        }
    }
}

fn named(name: &str, help: &str) -> Opts {
    Opts::new(format!("job_controller_{name}"), help)
}

/// The duration of syncs, with upstream's buckets. ([M1])
fn sync_duration(registry: &Registry) -> prometheus::Result<HistogramVec> {
    let options =
        HistogramOpts::from(named("job_sync_duration_seconds", "The time it took to sync a job"))
            .buckets(exponential_buckets(0.004, 2.0, 15)?);
    registered(registry, HistogramVec::new(options, &BY_SYNC)?)
}

/// The syncs that make or follow Workloads and PodGroups.
fn scheduling_syncs(registry: &Registry) -> prometheus::Result<IntCounterVec> {
    let help = "The number of syncs of the Workload and PodGroup of a Job, by result";
    let options = named("job_scheduling_object_syncs_total", help);
    registered(registry, IntCounterVec::new(options, &["result"])?)
}

/// The syncs that were skipped because a watch was behind. ([M10])
fn stale_skips(registry: &Registry) -> prometheus::Result<IntCounterVec> {
    let counter = |name: &str, help: &str, labels: &[&str]| {
        registered(registry, IntCounterVec::new(named(name, help), labels)?)
    };
    counter(
        "stale_sync_skips_total",
        "The number of syncs skipped because a watch was behind our own writes",
        &["group", "resource"],
    )
}

/// The ends of pods, by what the events of their Jobs say.
fn pod_ends(registry: &Registry) -> prometheus::Result<IntCounterVec> {
    let counter = |name: &str, help: &str, labels: &[&str]| {
        registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
    };
    counter(
        "epilogue_pod_ends_total",
        "Pods of Jobs that failed or were disrupted, by cause and by how that counted",
        &["cause", "counted"],
    )
}

/// From the time of a write to that of a slow start.
fn disruption_buckets() -> Vec<f64> {
    vec![
        0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
        3600.0,
    ]
}

/// The phases of disruptions.
fn disruptions(registry: &Registry) -> prometheus::Result<HistogramVec> {
    let histogram = |name: &str, help: &str, labels: &[&str]| {
        let options = HistogramOpts::new(name, help).buckets(disruption_buckets());
        registered(registry, HistogramVec::new(options, labels)?)
    };
    histogram(
        "epilogue_disruption_seconds",
        "How long after the first sign of a pod's disruption a phase was reached",
        &["source", "phase"],
    )
}

/// The times in which no pod ran in a place; those without any are of the first bucket.
fn gaps(registry: &Registry) -> prometheus::Result<HistogramVec> {
    let histogram = |name: &str, help: &str, labels: &[&str]| {
        let options = HistogramOpts::new(name, help).buckets(disruption_buckets());
        registered(registry, HistogramVec::new(options, labels)?)
    };
    histogram(
        "epilogue_disruption_gap_seconds",
        "How long after the end of a disrupted pod's containers the pod in its place ran",
        &["source"],
    )
}

/// The run time of containers that disruptions ended.
fn lost_work(registry: &Registry) -> prometheus::Result<CounterVec> {
    let counter = |name: &str, help: &str, labels: &[&str]| {
        registered(registry, CounterVec::new(Opts::new(name, help), labels)?)
    };
    counter(
        "epilogue_disruption_lost_work_seconds_total",
        "Seconds for which the containers of disrupted pods had run",
        &["source"],
    )
}

/// The duration of plans: microseconds as a rule, and the thread's other work waits for each.
fn plans(registry: &Registry) -> prometheus::Result<HistogramVec> {
    let histogram = |name: &str, help: &str, labels: &[&str]| {
        let buckets = vec![0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];
        let options = HistogramOpts::new(name, help).buckets(buckets);
        registered(registry, HistogramVec::new(options, labels)?)
    };
    histogram(
        "epilogue_plan_seconds",
        "How long the decisions of one sync or check take, without the calls between them",
        &["work"],
    )
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Returns a known word, or `other`.
/// DIVERGES(upstream): values that tenants choose never become labels, because each new value
/// would add a series. `--external-job-controllers` lists those that an operator wants to see.
fn known(words: &[&'static str], word: &str) -> &'static str {
    words.iter().find(|known| **known == word).copied().unwrap_or(OTHER)
}

fn completion_mode(job: &Job) -> &str {
    match &job.spec.completion_mode {
        CompletionMode::NonIndexed => "NonIndexed",
        CompletionMode::Indexed => "Indexed",
        CompletionMode::Unknown(_) => OTHER,
    }
}

/// The two histograms of the work queues; each queue has its own label value.
#[derive(Clone, Debug)]
pub(crate) struct QueueHistograms {
    waited: HistogramVec,
    worked: HistogramVec,
}

impl QueueHistograms {
    /// Registers both histograms.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str| {
            let options = HistogramOpts::new(format!("workqueue_{name}"), help)
                .buckets(exponential_buckets(1e-8, 10.0, 10)?);
            let histogram = HistogramVec::new(options, &["name"])?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        Ok(Self {
            waited: histogram(
                "queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
            )?,
            worked: histogram(
                "work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
            )?,
        })
    }

    /// Histograms of one queue: how long keys wait, and how long work on them takes.
    pub(crate) fn of(&self, queue: &str) -> (Histogram, Histogram) {
        (self.waited.with_label_values(&[queue]), self.worked.with_label_values(&[queue]))
    }
}

/// Reads the figures of one queue.
pub(crate) type ReadFigures = Box<dyn Fn() -> Figures + Send + Sync>;

/// Reads the queues at each scrape.
pub(crate) struct QueueCollector {
    queues: Vec<(&'static str, ReadFigures)>,
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    reading: parking_lot::Mutex<()>,
}

impl QueueCollector {
    /// Creates a collector for these queues.
    pub(crate) fn new(queues: Vec<(&'static str, ReadFigures)>) -> prometheus::Result<Self> {
        let name = ["name"];
        let options = |name: &str, help: &str| Opts::new(format!("workqueue_{name}"), help);
        Ok(Self {
            queues,
            depth: IntGaugeVec::new(options("depth", "Current depth of workqueue."), &name)?,
            adds: IntCounterVec::new(
                options("adds_total", "Total number of adds handled by workqueue."),
                &name,
            )?,
            retries: IntCounterVec::new(
                options("retries_total", "Total number of retries handled by workqueue."),
                &name,
            )?,
            unfinished: GaugeVec::new(
                options(
                    "unfinished_work_seconds",
                    "How many seconds of work has been done that is in progress and hasn't been \
                     observed by work_duration.",
                ),
                &name,
            )?,
            longest: GaugeVec::new(
                options(
                    "longest_running_processor_seconds",
                    "How many seconds has the longest running processor for workqueue been \
                     running.",
                ),
                &name,
            )?,
            reading: parking_lot::Mutex::new(()),
        })
    }

    fn vecs(&self) -> [&dyn Collector; 5] {
        [&self.depth, &self.adds, &self.retries, &self.unfinished, &self.longest]
    }
}

impl Collector for QueueCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.vecs().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Concurrent scrapes must not count the same adds twice.
        let _reading = self.reading.lock();
        for (name, read) in &self.queues {
            let figures = read();
            let label = [*name];
            let depth = i64::try_from(figures.depth).unwrap_or(i64::MAX);
            self.depth.with_label_values(&label).set(depth);
            raise(&self.adds.with_label_values(&label), figures.tally.adds);
            raise(&self.retries.with_label_values(&label), figures.tally.retries);
            let seconds = figures.unfinished.as_secs_f64();
            self.unfinished.with_label_values(&label).set(seconds);
            self.longest.with_label_values(&label).set(figures.longest.as_secs_f64());
        }
        self.vecs().into_iter().flat_map(Collector::collect).collect()
    }
}

fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller_core::disruption_times::{Observation, Phase, Source};
    use controller_core::view::WireJob;
    use controller_core::workqueue::QueueTally;
    use prometheus::TextEncoder;
    use serde_json::json;

    fn page(registry: &Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).expect("must encode")
    }

    fn job() -> Job {
        let job = json!({"metadata": {"name": "a", "namespace": "default"},
            "spec": {"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1}});
        WireJob::parse(job).and_then(WireJob::view).expect("must be a Job")
    }

    #[test]
    fn names_and_labels_are_those_of_upstream() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).expect("must register");
        metrics.synced(&job(), true, Action::PodsCreated, Duration::from_millis(5));
        metrics.external("example.com/other");
        metrics.tracked_terminal("add");
        metrics.stale("batch", "jobs");
        let events = [
            MetricEvent::PodsCreated { reason: "new", succeeded: 2, failed: 1 },
            MetricEvent::PodsFinished { succeeded: 0, failed: 2, failed_indexes: Some(1) },
            MetricEvent::FailureHandled { action: "Ignore", pods: 3 },
            MetricEvent::JobFinished { succeeded: false, reason: "FailedIndexes".to_owned() },
        ];
        for event in events {
            metrics.count(&job(), &event);
        }
        let page = page(&registry);
        let sync = r#"action="pods_created",completion_mode="Indexed",result="success""#;
        let bucket = format!(r#"{sync},le="65.536""#);
        let finished = r#"completion_mode="Indexed",reason="FailedIndexes",result="failed""#;
        for (name, labels, value) in [
            ("job_syncs_total", sync, 1),
            ("job_sync_duration_seconds_bucket", &bucket, 1),
            ("jobs_finished_total", finished, 1),
            ("job_pods_finished_total", r#"completion_mode="Indexed",result="failed""#, 2),
            ("pod_failures_handled_by_failure_policy_total", r#"action="Ignore""#, 3),
            ("jobs_by_external_controller_total", r#"controller_name="other""#, 1),
            ("terminated_pods_tracking_finalizer_total", r#"event="add""#, 1),
            ("job_finished_indexes_total", r#"backoffLimit="perIndex",status="succeeded""#, 0),
            ("job_finished_indexes_total", r#"backoffLimit="perIndex",status="failed""#, 1),
            ("job_pods_creation_total", r#"reason="new",status="failed""#, 1),
            ("stale_sync_skips_total", r#"group="batch",resource="jobs""#, 1),
        ] {
            let line = format!("job_controller_{name}{{{labels}}} {value}\n");
            assert!(page.contains(&line), "{line}not in\n{page}");
        }
    }

    #[test]
    fn phases_of_disruptions_are_observed_with_parts_of_a_second() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).expect("must register");
        let (source, after) = (Source::LostNode, Duration::from_millis(1_250));
        let phases = vec![Observation { source, phase: Phase::Running, after }];
        let lost_work = vec![(source, Duration::from_millis(500)), (source, after)];
        metrics.disrupted(&Observations::default());
        let gaps = vec![(source, Duration::ZERO), (source, after)];
        metrics.disrupted(&Observations { phases, lost_work, gaps });
        let page = page(&registry);
        for line in [
            r#"disruption_seconds_sum{phase="running",source="lost-node"} 1.25"#,
            r#"disruption_seconds_bucket{phase="running",source="lost-node",le="1"} 0"#,
            r#"disruption_seconds_bucket{phase="running",source="lost-node",le="120"} 1"#,
            r#"disruption_lost_work_seconds_total{source="lost-node"} 1.75"#,
            r#"disruption_gap_seconds_bucket{source="lost-node",le="0.05"} 1"#,
            r#"disruption_gap_seconds_sum{source="lost-node"} 1.25"#,
        ] {
            assert!(page.contains(&format!("epilogue_{line}\n")), "{line} is not in {page}");
        }
    }

    #[test]
    fn text_of_tenants_makes_no_series() {
        let registry = Registry::new();
        let listed = ["listed.example/jobs".to_owned()];
        let metrics = Metrics::new(&registry).expect("must register");
        let metrics = metrics.with_external_controllers(&listed);
        metrics.external("kueue.x-k8s.io/multikueue");
        metrics.external(&listed[0]);
        let mut odd = job();
        odd.spec.completion_mode = CompletionMode::Unknown("mode-1".to_owned());
        for number in 0..3 {
            metrics.external(&format!("example.com/{number}"));
            let reason = format!("reason-{number}");
            metrics.count(&odd, &MetricEvent::JobFinished { succeeded: false, reason });
            let reason = format!("PodFailurePolicy_Name{number}");
            metrics.count(&odd, &MetricEvent::JobFinished { succeeded: false, reason });
        }
        let page = page(&registry);
        for (series, value) in [
            (r#"by_external_controller_total{controller_name="kueue.x-k8s.io/multikueue"}"#, 1),
            (r#"by_external_controller_total{controller_name="listed.example/jobs"}"#, 1),
            (r#"by_external_controller_total{controller_name="other"}"#, 3),
            (r#"finished_total{completion_mode="other",reason="other",result="failed"}"#, 3),
            (
                r#"finished_total{completion_mode="other",reason="PodFailurePolicy",result="failed"}"#,
                3,
            ),
        ] {
            assert!(page.contains(&format!("{series} {value}\n")), "{series} {page}");
        }
        assert!(!["example.com", "mode-1", "Name1"].iter().any(|it| page.contains(it)), "{page}");
    }

    #[test]
    fn the_queues_are_read_at_each_scrape() {
        let registry = Registry::new();
        let tally = QueueTally { adds: 7, retries: 2 };
        let figures = Figures { depth: 3, tally, ..Figures::default() };
        let collector = QueueCollector::new(vec![("job", Box::new(move || figures))]);
        registry.register(Box::new(collector.expect("must be valid"))).expect("must register");
        for _ in 0..2 {
            let page = page(&registry);
            assert!(page.contains(r#"workqueue_depth{name="job"} 3"#), "{page}");
            assert!(page.contains(r#"workqueue_adds_total{name="job"} 7"#), "{page}");
            assert!(page.contains(r#"workqueue_retries_total{name="job"} 2"#), "{page}");
        }
    }
}
