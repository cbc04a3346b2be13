//! Counts the writes of pod GC and of disruption. Where upstream has the metric, its name follows
//! our prefix. ([GC5])

use controller_core::podgc::{Cause, PodWrite};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

/// The counters of pod GC and of disruption.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    deleted: IntCounterVec,
    errors: IntCounterVec,
    targets: IntCounterVec,
    taints: IntCounter,
    would: IntCounterVec,
}

impl Metrics {
    /// Registers all counters.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let taints = IntCounter::new(
            "epilogue_stale_taints_removed_total",
            "Number of taints of agents that were gone, removed from nodes that were back",
        )?;
        registry.register(Box::new(taints.clone()))?;
        let by = ["namespace", "reason"];
        Ok(Self {
            deleted: counter(
                "epilogue_pod_gc_collector_force_delete_pods_total",
                "Number of pods that were deleted without grace",
                &by,
            )?,
            errors: counter(
                "epilogue_pod_gc_collector_force_delete_pod_errors_total",
                "Number of times that failing or deleting a pod failed",
                &by,
            )?,
            targets: counter(
                "epilogue_disruption_target_writes_total",
                "Number of DisruptionTarget conditions that were set or reset on pods that live",
                &["action", "result"],
            )?,
            taints,
            would: counter(
                "epilogue_pod_gc_would_have_total",
                "Number of writes to pods that pod GC would have made, where it only observes",
                &["action"],
            )?,
        })
    }

    /// Counts the removal of a stale taint.
    pub(super) fn untainted(&self) {
        self.taints.inc();
    }

    /// Counts a write that was reported in place of being carried out.
    pub(super) fn would_have(&self, write: &PodWrite) {
        self.would.with_label_values(&[write.cause.label()]).inc();
    }

    /// Counts a write that succeeded or failed.
    pub(super) fn count(&self, write: &PodWrite, ok: bool) {
        match &write.cause {
            Cause::Ended(_) | Cause::Excess(_) => {
                let counter = if ok { &self.deleted } else { &self.errors };
                counter.with_label_values(&[&*write.namespace, write.cause.label()]).inc();
            }
            Cause::Marked(_) | Cause::Cleared(_) => {
                let result = if ok { "success" } else { "error" };
                self.targets.with_label_values(&[write.cause.label(), result]).inc();
            }
        }
    }
}
