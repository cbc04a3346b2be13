//! Defines the input of a plan: the Job, its pods, what the process remembers of it, the time and
//! the settings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;

use super::ends::Ends;
use super::group::JobGroups;
use crate::job_pods::JobPods;
use crate::view::{Job, Pod, Uid, Version};

/// So long the memory has refused claims: longer than they rest.
const REFUSALS_KEPT: SignedDuration = SignedDuration::from_hours(1);

/// Everything that one sync of a Job may depend on.
#[derive(Clone, Copy, Debug)]
pub struct SyncInput<'a> {
    /// The Job.
    pub job: &'a Arc<Job>,
    /// The pods that name the Job as their controller, and those of its namespace without a
    /// controller.
    pub pods: &'a JobPods,
    /// The process's memory of this Job.
    pub memory: &'a Memory,
    /// Its scheduling objects; `None` where the API serves none.
    pub groups: Option<&'a JobGroups>,
    /// How far the watches have come.
    pub seen: Versions,
    /// The current time.
    pub now: Timestamp,
    /// The process's settings.
    pub settings: &'a Settings,
    /// How long the status may lack new pods; zero to write them at once.
    pub counts_max: SignedDuration,
}

/// Versions of the kinds whose watches a sync awaits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The version of Jobs.
    pub jobs: Version,
    /// The version of pods.
    pub pods: Version,
    /// The version of Workloads.
    pub workloads: Version,
    /// The version of PodGroups.
    pub pod_groups: Version,
}

/// The controller's settings, named like the flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--manage-all-jobs`: also Jobs that kube-controller-manager would run.
    pub manage_all_jobs: bool,
    /// `--default-job-pod-failure-backoff`.
    pub default_job_pod_failure_backoff: SignedDuration,
    /// `--max-job-pod-failure-backoff`.
    pub max_job_pod_failure_backoff: SignedDuration,
    /// `--min-job-pod-failure-backoff`: the shortest wait that a Job may ask for.
    pub min_job_pod_failure_backoff: SignedDuration,
    /// `--max-uncounted-pods`: pods accounted per sync.
    pub max_uncounted_pods: usize,
    /// `--max-pod-create-delete-per-sync`.
    pub max_pod_create_delete_per_sync: usize,
    /// `--expectations-timeout`.
    pub expectations_timeout: SignedDuration,
    /// `--rejected-pods-disruption-target`.
    pub rejected_disruption_target: bool,
    /// `--lost-pods-disruption-target`.
    pub lost_disruption_target: bool,
    /// Pods in the first batch of a slow start.
    pub slow_start_initial_batch: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            manage_all_jobs: false,
            default_job_pod_failure_backoff: SignedDuration::from_secs(10),
            max_job_pod_failure_backoff: SignedDuration::from_secs(600),
            min_job_pod_failure_backoff: SignedDuration::from_secs(1),
            max_uncounted_pods: 500,
            max_pod_create_delete_per_sync: 500,
            expectations_timeout: SignedDuration::from_mins(5),
            rejected_disruption_target: true,
            lost_disruption_target: true,
            slow_start_initial_batch: 1,
        }
    }
}

impl Settings {
    /// The longest wait after a failure.
    pub(super) fn max_delay(&self) -> SignedDuration {
        self.max_job_pod_failure_backoff.max(self.default_job_pod_failure_backoff)
    }
}

impl Versions {
    /// The newer version of each kind.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            jobs: self.jobs.max(other.jobs),
            pods: self.pods.max(other.pods),
            workloads: self.workloads.max(other.workloads),
            pod_groups: self.pod_groups.max(other.pod_groups),
        }
    }

    /// Whether each kind has come this far.
    pub fn covers(&self, awaited: &Self) -> bool {
        self.each().into_iter().zip(awaited.each()).all(|(seen, awaited)| awaited <= seen)
    }

    /// The version of each kind.
    pub(crate) fn each(&self) -> [Version; 4] {
        [self.jobs, self.pods, self.workloads, self.pod_groups]
    }
}

// Holds what the process remembers of a Job, and updates it by syncs and by watch events.

/// What the process remembers of one Job (by UID) between syncs. Losing it costs time, not
/// correctness.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Pods that we deleted, while their watch event is pending.
    pub expectations: Expectations,
    /// Whether a creation may have been carried out without a reply. ([`super::Step::ConfirmPods`])
    pub creation_in_doubt: bool,
    /// Pods whose finalizer we removed, while their watch event is pending. ([E2])
    pub removed_finalizers: HashSet<Uid>,
    /// Since when DisruptionTarget is tried to be set on pods that failed by a fault of their node,
    /// or their node is awaited to show a boot; the earliest time where the API refuses it for
    /// good.
    pub marking_since: HashMap<Uid, Timestamp>,
    /// The boots of the nodes of failed pods that are to be counted; none where they are not known.
    pub boots: HashMap<Uid, NodeBoots>,
    /// Pods that are about to end with their nodes, by the notice that was given; none unless the
    /// Job has pods replaced early.
    pub noticed: HashSet<Uid>,
    /// Pods whose adoption or disowning the API refused, and when.
    pub refused_claims: HashMap<Uid, Timestamp>,
    /// Pods that a watch showed alive without the finalizer, so that no count has them. They keep
    /// their place once they end, until they have the finalizer again or are deleted.
    pub uncounted_pods: HashSet<Uid>,
    /// Succeeded pods whose index our status write completes. They keep their place, whatever
    /// becomes of their phase, until they lose the finalizer.
    pub completed_pods: HashSet<Uid>,
    /// Whether the write that finished the Job succeeded. ([E3])
    pub finished: bool,
    /// Since when the status lacks pods that we created, because their count waits.
    pub counts_wait_since: Option<Timestamp>,
    /// Failures since the last success. ([E4])
    pub backoff: Option<BackoffRecord>,
    /// How pods failed that are counted; none without failures.
    pub ends: Option<Arc<Ends>>,
    /// Whether a status that lists new failures may be stored, though its write had no reply. Then
    /// they are no longer new, and the record lacks them.
    pub backoff_in_doubt: bool,
    /// Whether admission takes a status only with the spec.
    pub status_needs_spec: bool,
    /// Annotation problems that an event has reported.
    pub reported: Vec<String>,
    /// The newest versions that the API returned for our own writes. ([Z1])
    pub written: Versions,
    /// The newest version of the Job in which pods were counted, as the watch showed it, and when.
    pub counted: Option<(Version, Timestamp)>,
}

/// The boots of a pod's node since the pod was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBoots {
    /// The node has booted.
    Booted {
        /// When that was shown.
        shown: Timestamp,
        /// The boot before.
        from: Arc<str>,
        /// The current boot.
        to: Arc<str>,
    },
    /// The node shows the boot of that time.
    Same,
}

/// Pods that a watch has yet to show as we left them. ([E1])
///
/// These are deleted ones only: the reply to a deletion need not have a version, and a creation is
/// awaited by the version in its reply.
///
/// DIVERGES(upstream): kept by UID, not as two counters. So neither a repeated event nor an event
/// of a foreign pod can satisfy an expectation. ([E1], [H11])
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectations {
    /// Pods that we deleted and no watch has shown as terminating.
    pub deleted: HashSet<Uid>,
    /// When the last one was added.
    pub since: Option<Timestamp>,
}

/// Failures of a Job's pods since the last success, and when the last one was. ([E4])
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackoffRecord {
    /// How many pods failed since the last success.
    pub failures: u32,
    /// When the last of them finished.
    pub last_failure: Option<Timestamp>,
    /// Disruptions that cost no time, though their pods had lived shortly.
    pub free_taken: u32,
    /// When the first of them was; after an hour the count starts again.
    pub free_since: Option<Timestamp>,
}

/// A change of the [`super::Memory`] of a Job.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryUpdate {
    /// We created a pod, and the API returned this version.
    Created(Version),
    /// A creation may have been carried out without a reply.
    CreationInDoubt,
    /// A live list of the Job's pods had this newest version.
    PodsConfirmed(Version),
    /// We are about to delete these pods.
    Deleting(Vec<Uid>),
    /// These pods were not deleted after all.
    NotDeleted(Vec<Uid>),
    /// We are about to store that these succeeded pods complete their indexes.
    Completing(Vec<Uid>),
    /// We are about to remove the finalizer of these pods.
    RemovingFinalizer(Vec<Uid>),
    /// These pods keep their finalizer.
    FinalizerKept(Vec<Uid>),
    /// We are about to set DisruptionTarget on these pods.
    Marking(Vec<Uid>),
    /// The API refuses for good to set DisruptionTarget on this pod.
    MarkRefused(Uid),
    /// The API refuses to let the Job adopt or disown this pod.
    ClaimRefused(Uid),
    /// The API returned this version for our own write of a pod.
    PodWritten(Version),
    /// The API returned this version for our own write of the Job.
    JobWritten(Version),
    /// The API returned this version of the Job's Workload.
    WorkloadWritten(Version),
    /// The API returned this version of the Job's PodGroup.
    PodGroupWritten(Version),
    /// The status lacks pods that we created, until a later write.
    CountsWait,
    /// Admission refused a status, and took it with the spec.
    StatusNeedsSpec,
    /// The failures that backoff waits for from now on.
    Backoff(BackoffRecord),
    /// How the pods failed that are counted from now on.
    Ends(Arc<Ends>),
    /// A status that lists new failures may have been stored without a reply.
    BackoffInDoubt,
    /// The Job is finished in the API.
    Finished,
    /// An event has reported these problems of the Job's annotations.
    Reported(Vec<String>),
}

/// A pod as a write returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPod {
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.resourceVersion`.
    pub version: Version,
}

impl Memory {
    /// Applies what a sync did.
    pub fn apply(&mut self, change: MemoryUpdate, now: Timestamp) {
        match change {
            MemoryUpdate::Deleting(pods) => {
                self.expectations.deleted.extend(pods);
                self.expectations.since = Some(now);
            }
            MemoryUpdate::NotDeleted(pods) => {
                for pod in &pods {
                    self.expectations.deleted.remove(pod);
                }
            }
            MemoryUpdate::Completing(pods) => self.completed_pods.extend(pods),
            MemoryUpdate::RemovingFinalizer(pods) => self.removed_finalizers.extend(pods),
            MemoryUpdate::FinalizerKept(pods) => {
                for pod in &pods {
                    self.removed_finalizers.remove(pod);
                }
            }
            MemoryUpdate::Created(version) | MemoryUpdate::PodWritten(version) => {
                self.written.pods = self.written.pods.max(version);
            }
            MemoryUpdate::Marking(pods) => {
                for pod in pods {
                    self.marking_since.entry(pod).or_insert(now);
                }
            }
            MemoryUpdate::MarkRefused(pod) => {
                self.marking_since.insert(pod, Timestamp::MIN);
            }
            MemoryUpdate::ClaimRefused(pod) => {
                // Others of so long ago may be gone: no event of a foreign pod comes here.
                self.refused_claims.retain(|_, at| now.duration_since(*at) <= REFUSALS_KEPT);
                self.refused_claims.insert(pod, now);
            }
            MemoryUpdate::CreationInDoubt => self.creation_in_doubt = true,
            MemoryUpdate::PodsConfirmed(version) => {
                self.creation_in_doubt = false;
                self.written.pods = self.written.pods.max(version);
            }
            MemoryUpdate::JobWritten(version) => {
                self.written.jobs = self.written.jobs.max(version);
                self.counts_wait_since = None;
            }
            MemoryUpdate::WorkloadWritten(version) => {
                self.written.workloads = self.written.workloads.max(version);
            }
            MemoryUpdate::PodGroupWritten(version) => {
                self.written.pod_groups = self.written.pod_groups.max(version);
            }
            MemoryUpdate::CountsWait => {
                self.counts_wait_since.get_or_insert(now);
            }
            MemoryUpdate::Backoff(record) => {
                (self.backoff, self.backoff_in_doubt) = (Some(record), false);
            }
            MemoryUpdate::Ends(ends) => self.ends = Some(ends),
            MemoryUpdate::BackoffInDoubt => self.backoff_in_doubt = true,
            MemoryUpdate::StatusNeedsSpec => self.status_needs_spec = true,
            MemoryUpdate::Finished => self.finished = true,
            MemoryUpdate::Reported(problems) => self.reported = problems,
        }
    }

    /// Records that a watch showed this pod of the Job.
    pub fn saw_pod(&mut self, pod: &Pod) {
        if pod.deletion.is_some() {
            self.expectations.deleted.remove(&pod.uid);
        }
        if !pod.tracked {
            self.removed_finalizers.remove(&pod.uid);
            self.marking_since.remove(&pod.uid);
            self.completed_pods.remove(&pod.uid);
        }
        if pod.tracked || pod.deletion.is_some() {
            self.uncounted_pods.remove(&pod.uid);
        } else if !pod.is_terminal() {
            self.uncounted_pods.insert(pod.uid.clone());
        }
    }

    /// Records that a list showed this pod of the Job. What happened between the watch and the list
    /// is unknown: another process may have tracked, counted and released the pod.
    pub fn saw_listed_pod(&mut self, pod: &Pod) {
        if pod.is_terminal() {
            self.uncounted_pods.remove(&pod.uid);
        }
        self.saw_pod(pod);
    }

    /// Records that this pod of the Job is gone from the watch.
    pub fn saw_pod_gone(&mut self, pod: &Uid) {
        self.expectations.deleted.remove(pod);
        self.removed_finalizers.remove(pod);
        self.marking_since.remove(pod);
        self.uncounted_pods.remove(pod);
        self.completed_pods.remove(pod);
    }

    /// Records that a watch showed the Job.
    ///
    /// DIVERGES(upstream): counters that moved in another writer's status come from another process
    /// that leads, or led a moment ago. Until the watch of pods has come as far, it may show the
    /// finalizers of pods that are already counted. A sync would count those twice; upstream takes
    /// that risk. ([Z2])
    pub fn saw_job(&mut self, old: Option<&Job>, new: &Job, now: Timestamp) {
        let counted = |job: &Job| {
            let JobStatus { succeeded, failed, completed_indexes, .. } = &job.status;
            let listed = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
            (*succeeded, *failed, completed_indexes.clone(), listed)
        };
        if old.map_or_else(Default::default, counted) != counted(new) {
            self.counted = Some((new.version, now));
        }
    }

    /// What the watches must show before the Job is synced: all that we wrote ourselves, and the
    /// pods as another process counted them. ([Z2])
    pub fn awaited(&self) -> Versions {
        let elsewhere = self.counted.filter(|(version, _)| *version > self.written.jobs);
        let counted = elsewhere.map_or(Version::default(), |(version, _)| version);
        Versions { pods: self.written.pods.max(counted), ..self.written }
    }

    /// Whether the watches have shown it. Versions of Jobs and of pods need not be comparable, so
    /// the wait for another process's write has a timeout.
    pub(super) fn is_caught_up(
        &self,
        seen: Versions,
        now: Timestamp,
        timeout: SignedDuration,
    ) -> bool {
        let long_ago = self.counted.is_none_or(|(_, at)| now.duration_since(at) > timeout);
        let awaited = if long_ago { self.written } else { self.awaited() };
        seen.covers(&awaited)
    }
}

impl BackoffRecord {
    /// What delays more of each.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            failures: self.failures.max(other.failures),
            last_failure: self.last_failure.max(other.last_failure),
            free_taken: self.free_taken.max(other.free_taken),
            free_since: self.free_since.max(other.free_since),
        }
    }
}

impl Expectations {
    /// Whether no pod is awaited, or one has been awaited for too long.
    pub fn satisfied(&self, now: Timestamp, timeout: SignedDuration) -> bool {
        self.left(now, timeout) <= SignedDuration::ZERO
    }

    /// How long pods are still awaited if no watch event comes.
    pub(super) fn left(&self, now: Timestamp, timeout: SignedDuration) -> SignedDuration {
        self.since
            .filter(|_| !self.deleted.is_empty())
            .map_or(SignedDuration::ZERO, |since| timeout.saturating_sub(now.duration_since(since)))
    }
}
