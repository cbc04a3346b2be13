//! Views a Job: spec as the controller reads it, status as the API types it, and what its writes
//! repeat as it came.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use epilogue_common::names::{RESERVED_MANAGED_BY, job_condition};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, SuccessPolicy};

use super::{FailurePolicy, JobScheduling, Selector, Source, Uid, Version};
use crate::workqueue::Key;

/// Namespace and name of a Job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// The view of one Job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Namespace and name.
    pub key: JobKey,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The entries of `metadata.annotations` that are options of the Job.
    pub annotations: BTreeMap<String, String>,
    /// `spec`.
    pub spec: JobSpec,
    /// `status`.
    pub status: JobStatus,
    /// What it says about its scheduling group; most Jobs say nothing.
    pub scheduling: Option<Box<JobScheduling>>,
    /// What a status write and new pods repeat.
    pub source: Source,
}

/// The parts of a Job's spec that decisions read.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// `parallelism`, defaulted.
    pub parallelism: i32,
    /// `completions`; `None` for a work queue.
    pub completions: Option<i32>,
    /// `completionMode`.
    pub completion_mode: CompletionMode,
    /// `backoffLimit`, defaulted.
    pub backoff_limit: i32,
    /// `backoffLimitPerIndex`.
    pub backoff_limit_per_index: Option<i32>,
    /// `maxFailedIndexes`.
    pub max_failed_indexes: Option<i32>,
    /// `activeDeadlineSeconds`.
    pub active_deadline_seconds: Option<i64>,
    /// `suspend`.
    pub suspend: bool,
    /// `managedBy`.
    pub managed_by: Option<String>,
    /// Whether `podReplacementPolicy` is `Failed`.
    pub replaces_failed_only: bool,
    /// `podFailurePolicy`.
    pub pod_failure_policy: Option<FailurePolicy>,
    /// `successPolicy`.
    pub success_policy: Option<SuccessPolicy>,
    /// `selector`.
    pub selector: Selector,
    /// `template.spec.restartPolicy`.
    pub restart_policy: RestartPolicy,
}

/// `spec.completionMode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionMode {
    /// `NonIndexed`, also when unset.
    NonIndexed,
    /// `Indexed`.
    Indexed,
    /// A mode of a later API; such Jobs are left alone. ([S6])
    Unknown(String),
}

/// `spec.template.spec.restartPolicy`, as far as a Job distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// `OnFailure`.
    OnFailure,
    /// `Never`, and any other value that the API may have let through.
    Never,
}

impl Job {
    /// The first condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&JobCondition> {
        self.status.conditions.iter().flatten().find(|each| each.type_ == kind)
    }

    /// The first True condition of this type.
    ///
    /// DIVERGES(upstream): a `False` one before it does not hide it; upstream checks only the first
    /// entry of the type. ([C8])
    pub fn true_condition(&self, kind: &str) -> Option<&JobCondition> {
        self.status
            .conditions
            .iter()
            .flatten()
            .find(|each| each.type_ == kind && each.status == "True")
    }

    /// Complete or Failed, with status True.
    pub fn is_finished(&self) -> bool {
        self.true_condition(job_condition::COMPLETE).is_some()
            || self.true_condition(job_condition::FAILED).is_some()
    }

    /// `completionMode: Indexed`.
    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode == CompletionMode::Indexed
    }

    /// Whether only pods that reached a terminal phase are replaced. `podReplacementPolicy: Failed`
    /// asks for it, and any podFailurePolicy implies it. ([R1])
    pub fn replaces_failed_only(&self) -> bool {
        self.spec.replaces_failed_only || self.spec.pod_failure_policy.is_some()
    }

    /// The number of indexes of an Indexed Job, as a bound for indexes.
    pub fn index_bound(&self) -> u32 {
        self.spec.completions.unwrap_or(0).max(0).cast_unsigned()
    }

    /// Whether an index lies within the completions.
    pub fn has_index(&self, index: u32) -> bool {
        index < self.index_bound()
    }

    /// Whether `managedBy` is absent or has the reserved value. ([S3])
    pub fn is_managed_by_upstream(&self) -> bool {
        self.spec.managed_by.as_deref().is_none_or(|by| by == RESERVED_MANAGED_BY)
    }

    /// `status.startTime`.
    pub fn start_time(&self) -> Option<Timestamp> {
        self.status.start_time.as_ref().map(|time| time.0)
    }
}

impl Key for JobKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl JobKey {
    /// A key from its two parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}
