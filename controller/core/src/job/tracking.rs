//! Counts each pod exactly once: UID into the status, finalizer away, UID into the counter. ([T9],
//! [T11], [T14])

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};

use super::facts::Facts;
use super::plan::PodPlan;
use super::verdict::{End, Verdict};
use super::{IndexSet, census};
use crate::view::{Job, Phase, Pod, Uid};

/// The accounting of one sync, between its first and its second write of the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounting {
    /// Pods that lose their finalizer once the first write is stored.
    pub release: Vec<Arc<Pod>>,
    /// Rules of the failure policy that matched, by action.
    pub handled: BTreeMap<&'static str, u32>,
    /// Failed pods that the status lists, or that the failure policy ignores.
    pub failed: Vec<Arc<Pod>>,
    /// Whether there was more to account for than one sync may do. ([T6])
    pub cut_off: bool,
    /// Listed pods with the finalizer. ([T2])
    pub tracked: HashSet<Uid>,
}

/// Decides which pods keep their finalizer, and which failures count.
struct Rules<'a> {
    facts: &'a Facts,
    /// Whether the end was decided before any call, whatever its outcomes.
    decided: bool,
    /// The end that takes effect.
    end: Option<End>,
}

impl Accounting {
    /// Enters the known facts into the status. ([T1], [T2], [T3], [T4], [T7])
    pub(super) fn enter(plan: &PodPlan, finish: Option<&Verdict>, status: &mut JobStatus) -> Self {
        let facts = &plan.facts;
        let rules = Rules {
            facts,
            decided: plan.verdict.is_some(),
            end: finish.map(|verdict| verdict.end),
        };
        let tracked = facts.census.tracked_of(listed(status));
        let mut accounting = Self { tracked, ..Self::default() };
        settle(status, &accounting.tracked, &HashSet::new(), facts.job.is_indexed());
        let mut removable: Vec<&Arc<Pod>> = if rules.may_release_active() {
            facts.census.tracked().filter(|pod| rules.allows_removal(pod)).collect()
        } else {
            facts.census.ended.iter().filter(|pod| rules.allows_removal(pod)).collect()
        };
        if facts.job.is_indexed() {
            removable.sort_by_key(|pod| pod.index);
        }
        accounting.walk(&rules, &removable, status);
        accounting.tracked.extend(accounting.release.iter().map(|pod| pod.uid.clone()));
        if let Some(indexes) = &facts.indexes {
            status.succeeded = Some(success_count(&facts.job, indexes.succeeded.len()));
            status.completed_indexes = text(&indexes.succeeded);
            status.failed_indexes =
                indexes.per_index.as_ref().map(|per_index| per_index.failed.to_string());
        }
        accounting
    }

    /// Lists each pod that is released, up to the limit of one sync. ([T4], [T6])
    fn walk(&mut self, rules: &Rules<'_>, removable: &[&Arc<Pod>], status: &mut JobStatus) {
        let (facts, known) = (rules.facts, &rules.facts.census.uncounted);
        let mut new_indexes: HashSet<u32> = HashSet::new();
        for pod in removable {
            if facts.holds(pod, rules.decided || rules.end.is_some()) {
                self.cut_off = true;
                continue;
            }
            self.release.push(Arc::clone(pod));
            if pod.phase == Phase::Succeeded && !known.failed.contains(&pod.uid) {
                match &facts.indexes {
                    Some(indexes) => new_indexes.extend(pod.index.filter(|index| {
                        facts.job.has_index(*index) && !indexes.stored.contains(*index)
                    })),
                    None => {
                        if !known.succeeded.contains(&pod.uid) {
                            lists(status).succeeded.get_or_insert_default().push(uid(pod));
                        }
                    }
                }
            } else if rules.counts_as_failed(pod) {
                self.failed.push(Arc::clone(pod));
                if self.is_counted(rules, pod) {
                    lists(status).failed.get_or_insert_default().push(uid(pod));
                }
            }
            let lists = lists(status);
            let listed = lists.succeeded.iter().chain(&lists.failed).map(Vec::len).sum::<usize>();
            if new_indexes.len() + listed >= facts.pods_per_sync {
                self.cut_off = true;
                break;
            }
        }
    }

    /// Applies the failure policy, and records the action for the metric.
    fn is_counted(&mut self, rules: &Rules<'_>, pod: &Pod) -> bool {
        match census::failure_action(&rules.facts.job, pod) {
            Some(action) => {
                *self.handled.entry(action.as_str()).or_default() += 1;
                action.counts()
            }
            None => true,
        }
    }
}

/// The number of succeeded indexes.
///
/// DIVERGES(upstream): the API lets it decrease only while completions equal parallelism. A user
/// may scale both down and then change parallelism alone. The number then stays as it was;
/// upstream's writes are refused until a user scales again. ([X4])
fn success_count(job: &Job, indexes: u32) -> i32 {
    let count = indexes.cast_signed();
    let elastic = job.spec.completions == Some(job.spec.parallelism);
    if elastic { count } else { count.max(job.status.succeeded.unwrap_or(0)) }
}

impl Rules<'_> {
    /// Whether pods that run may lose their finalizer, too. ([T5])
    fn may_release_active(&self) -> bool {
        self.facts.job.deleting || self.end == Some(End::Failure)
    }

    /// Whether the pod's finalizer may be removed. ([T5])
    fn allows_removal(&self, pod: &Pod) -> bool {
        if self.end == Some(End::Success) && pod.is_active() {
            // The deletion has removed it already.
            return false;
        }
        if self.decided && self.end.is_none() {
            // A pod that still runs counts by the Job's end, once that takes effect.
            return pod.is_terminal() && !self.is_delayed(pod);
        }
        if self.facts.job.deleting || self.end.is_some() || pod.phase == Phase::Succeeded {
            return true;
        }
        census::is_failed(&self.facts.job, pod) && !self.is_delayed(pod)
    }

    /// Whether the pod waits for its replacement. ([I10])
    fn is_delayed(&self, pod: &Pod) -> bool {
        self.facts.per_index().is_some_and(|per_index| per_index.delays(pod))
    }

    /// Failed, or still there when the Job fails, and neither listed nor out of place. ([T4])
    fn counts_as_failed(&self, pod: &Pod) -> bool {
        let job = &self.facts.job;
        (census::is_failed(job, pod) || self.end == Some(End::Failure))
            && !self.facts.census.uncounted.contains(&pod.uid)
            && census::has_valid_index(job, pod)
    }
}

/// Moves UIDs without a tracked pod into the counters. ([T3], [T12])
///
/// Successes of an Indexed Job are counted by index, so the list of them stays empty.
pub(super) fn settle(
    status: &mut JobStatus,
    tracked: &HashSet<Uid>,
    untracked: &HashSet<Uid>,
    indexed: bool,
) {
    let is_tracked = |text: &String| {
        let uid = Uid::from(text.as_str());
        tracked.contains(&uid) && !untracked.contains(&uid)
    };
    let Some(lists) = &mut status.uncounted_terminated_pods else { return };
    let succeeded = keep(&mut lists.succeeded, is_tracked);
    let failed = keep(&mut lists.failed, is_tracked);
    if !indexed {
        add(&mut status.succeeded, succeeded);
    }
    add(&mut status.failed, failed);
}

/// Drops UIDs for which `holds` is false and returns how many; an empty list becomes an absent one.
fn keep(list: &mut Option<Vec<String>>, holds: impl Fn(&String) -> bool) -> usize {
    let Some(uids) = list else { return 0 };
    let before = uids.len();
    uids.retain(|uid| holds(uid));
    let dropped = before - uids.len();
    if uids.is_empty() {
        *list = None;
    }
    dropped
}

fn add(counter: &mut Option<i32>, more: usize) {
    if more > 0 {
        let sum = census::counter(*counter).saturating_add(more);
        *counter = Some(i32::try_from(sum).unwrap_or(i32::MAX));
    }
}

fn lists(status: &mut JobStatus) -> &mut UncountedTerminatedPods {
    status.uncounted_terminated_pods.get_or_insert_default()
}

/// The pods that a status lists and does not count yet.
fn listed(status: &JobStatus) -> HashSet<Uid> {
    let lists = status.uncounted_terminated_pods.iter();
    let uids = lists.flat_map(|lists| lists.succeeded.iter().chain(&lists.failed).flatten());
    uids.map(|uid| Uid::from(uid.as_str())).collect()
}

fn uid(pod: &Pod) -> String {
    pod.uid.as_str().to_owned()
}

fn text(set: &IndexSet) -> Option<String> {
    (!set.is_empty()).then(|| set.to_string())
}

/// What a user has to know where [`counts_are`] is false.
pub(super) const ALTERED: &str = "the API stored other counts than were written, so that no pod \
                                  is released: does a mutating webhook or policy change \
                                  jobs/status? Exempt status.uncountedTerminatedPods, \
                                  succeeded, failed, completedIndexes and failedIndexes";

/// Whether the API stored these counts.
pub(super) fn counts_are(written: &JobStatus, stored: &JobStatus) -> bool {
    let lists = |status: &JobStatus| {
        let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
        [lists.succeeded.unwrap_or_default(), lists.failed.unwrap_or_default()]
    };
    let numbers = |status: &JobStatus| [status.succeeded, status.failed].map(census::counter);
    let indexes = |status: &JobStatus| {
        let fields = [&status.completed_indexes, &status.failed_indexes];
        fields.map(|field| field.clone().unwrap_or_default())
    };
    lists(written) == lists(stored)
        && numbers(written) == numbers(stored)
        && indexes(written) == indexes(stored)
}

/// Whether the lists of uncounted UIDs are empty.
pub(super) fn is_settled(status: &JobStatus) -> bool {
    status.uncounted_terminated_pods.as_ref().is_none_or(|lists| {
        [&lists.succeeded, &lists.failed]
            .into_iter()
            .all(|list| list.as_ref().is_none_or(Vec::is_empty))
    })
}
