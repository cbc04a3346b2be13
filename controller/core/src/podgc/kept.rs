//! Finds the finished and counted pods of Jobs beyond the number that each Job keeps by
//! `epilogue.dev/finished-pods-kept`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use epilogue_common::names::job_option::FINISHED_PODS_KEPT;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::{SignedDuration, Timestamp};

use super::finished::{Excess, NAMED_MAX};
use crate::job::{NODES_AVOIDED_MAX, Options};
use crate::view::{Job, JobKey, Phase, Pod, Uid};

/// Failures since the latest success that stay, whatever the Job says: after a restart, backoff
/// counts them. With the default times, the seventh already waits the longest.
const FAILURES_KEPT: usize = 10;
/// One search ends after the Job with which it has read this many pods; the rest follows.
const READ_MAX: usize = 20_000;

/// What a running Job keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// `epilogue.dev/finished-pods-kept`.
    pub(crate) max: usize,
    /// `epilogue.dev/avoid-failed-nodes`.
    avoids_nodes: bool,
}

impl Rule {
    /// The rule of a Job; `None` if it has none, or does not run any more.
    pub(crate) fn of(job: &Job) -> Option<Self> {
        if !job.annotations.contains_key(FINISHED_PODS_KEPT) || job.is_finished() || job.deleting {
            return None;
        }
        let options = Options::of(&job.annotations, SignedDuration::ZERO);
        let max = usize::try_from(options.finished_pods_kept?).ok()?;
        Some(Self { max, avoids_nodes: options.avoid_failed_nodes })
    }
}

/// The order of a Job's finished pods: by their end, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    ended: Option<Timestamp>,
    name: Arc<str>,
    uid: Uid,
}

/// What the Job's rules may still read of a finished and counted pod.
#[derive(Clone, Debug)]
struct Trace {
    succeeded: bool,
    /// The index and the node of a disrupted pod.
    disrupted_on: Option<(Option<u32>, Arc<str>)>,
}

/// The finished and counted pods of each Job with a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    of_jobs: HashMap<Uid, OfJob>,
    /// The Job and the rank of each pod.
    ranks: HashMap<Uid, (Uid, Rank)>,
    /// Jobs that may have too many.
    crowded: VecDeque<Uid>,
    /// Jobs whose rule has changed. Whoever changes it again and again causes no more searches than
    /// there are for excess pods.
    changed: BTreeMap<Uid, JobKey>,
}

#[derive(Clone, Debug)]
struct OfJob {
    rule: Rule,
    pods: BTreeMap<Rank, Trace>,
    /// Whether it is among the crowded ones.
    is_crowded: bool,
}

impl Kept {
    /// Records a pod. It has the rule of its Job if it has finished and is counted. Returns whether
    /// some Job has too many.
    pub(crate) fn show(&mut self, pod: &Pod, rule: Option<Rule>) -> bool {
        match (&pod.owner, rule) {
            (Some(owner), Some(rule)) => self.insert(&owner.uid, pod, rule),
            _ => self.remove(&pod.uid),
        }
        self.is_crowded()
    }

    pub(crate) fn remove(&mut self, pod: &Uid) {
        let Some((job, rank)) = self.ranks.remove(pod) else { return };
        if let Some(of_job) = self.of_jobs.get_mut(&job) {
            of_job.pods.remove(&rank);
            if of_job.pods.is_empty() {
                self.of_jobs.remove(&job);
            }
        }
    }

    /// The rule of a Job has changed.
    pub(crate) fn change(&mut self, job: &Job) {
        self.changed.insert(job.uid.clone(), job.key.clone());
    }

    /// The next Job whose rule has changed, if a search that has read this many pods goes on.
    pub(crate) fn take_changed(&mut self, read: usize) -> Option<(Uid, JobKey)> {
        if read < READ_MAX { self.changed.pop_first() } else { None }
    }

    /// Forgets the pods of a Job, and returns them: they are to be shown again.
    pub(crate) fn forget(&mut self, job: &Uid) -> Vec<Uid> {
        let pods = self.of_jobs.remove(job).map(|of_job| of_job.pods).unwrap_or_default();
        let uids: Vec<Uid> = pods.into_keys().map(|rank| rank.uid).collect();
        for uid in &uids {
            self.ranks.remove(uid);
        }
        uids
    }

    /// Whether some Job may have too many.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.crowded.is_empty() || !self.changed.is_empty()
    }

    /// The pods in excess that were not named before, as many as one search names. Jobs take turns.
    pub(crate) fn excess(&mut self, named_before: &HashMap<Uid, Excess>) -> BTreeMap<Uid, Excess> {
        let mut named = BTreeMap::new();
        let (mut read, jobs) = (0, self.crowded.len());
        let share = (NAMED_MAX / jobs.max(1)).max(1);
        for _ in 0..jobs {
            if named.len() >= NAMED_MAX || read >= READ_MAX {
                break;
            }
            let Some(job) = self.crowded.pop_front() else { break };
            let Some(of_job) = self.of_jobs.get_mut(&job).filter(|it| it.is_crowded) else {
                continue;
            };
            read += of_job.pods.len();
            let excess = beyond(&of_job.pods, of_job.rule);
            let mut new = excess.into_iter().filter(|uid| !named_before.contains_key(*uid));
            let excess = Excess::Kept(of_job.rule.max);
            named.extend(new.by_ref().take(share).map(|uid| (uid.clone(), excess.clone())));
            let has_more = new.next().is_some();
            of_job.is_crowded = has_more;
            if has_more {
                self.crowded.push_back(job);
            }
        }
        named
    }

    fn insert(&mut self, job: &Uid, pod: &Pod, rule: Rule) {
        let ended = pod.finished_at();
        let rank = Rank { ended, name: Arc::clone(&pod.name), uid: pod.uid.clone() };
        if self.ranks.get(&pod.uid).is_some_and(|(_, known)| *known == rank) {
            return;
        }
        self.remove(&pod.uid);
        let node = pod.node.as_ref().filter(|_| pod.has_condition(DISRUPTION_TARGET));
        let trace = Trace {
            succeeded: pod.phase == Phase::Succeeded,
            disrupted_on: node.map(|node| (pod.index, Arc::clone(node))),
        };
        self.ranks.insert(pod.uid.clone(), (job.clone(), rank.clone()));
        let empty = || OfJob { rule, pods: BTreeMap::new(), is_crowded: false };
        let of_job = self.of_jobs.entry(job.clone()).or_insert_with(empty);
        of_job.pods.insert(rank, trace);
        if of_job.pods.len() > rule.max && !of_job.is_crowded {
            of_job.is_crowded = true;
            self.crowded.push_back(job.clone());
        }
    }
}

/// The pods beyond the newest ones that no rule of the Job reads any more, the oldest first. A pod
/// with its finalizer is none of these: that holds each pod that still counts, and the failed pod
/// of an index that waits for its replacement.
///
/// A pod that is gone can only matter to what a new process reads from the pods: how many failures
/// came after the latest success, and the nodes to avoid.
fn beyond(pods: &BTreeMap<Rank, Trace>, rule: Rule) -> Vec<&Uid> {
    let (mut successes, mut failures) = (0_usize, 0_usize);
    let mut avoided: HashMap<Option<u32>, Vec<&Arc<str>>> = HashMap::new();
    let mut excess = Vec::new();
    for (position, (rank, trace)) in pods.iter().rev().enumerate() {
        let counts_for_backoff = if trace.succeeded {
            successes += 1;
            successes == 1
        } else {
            failures += 1;
            successes == 0 && failures <= FAILURES_KEPT
        };
        let is_avoided = trace.disrupted_on.as_ref().filter(|_| rule.avoids_nodes).is_some_and(
            |(index, node)| {
                let nodes = avoided.entry(*index).or_default();
                let is_new = nodes.len() < NODES_AVOIDED_MAX && !nodes.contains(&node);
                if is_new {
                    nodes.push(node);
                }
                is_new
            },
        );
        if position >= rule.max && !counts_for_backoff && !is_avoided {
            excess.push(&rank.uid);
        }
    }
    excess.reverse();
    excess
}
