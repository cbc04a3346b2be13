//! Finds the Jobs that may adopt a pod by a label that their selectors need. So the event of a pod
//! costs no search among all Jobs of its namespace.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::view::{Job, JobKey, Needed, Pod};

/// Maximum number of labels among which the rarest is searched.
const LABELS_MAX: usize = 16;

/// Each Job that adopts pods, under the hash of what it needs: of several labels, the one that the
/// fewest Jobs are under. Where hashes are equal by chance, the selector decides all the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Adopters {
    jobs: BTreeSet<(u64, JobKey)>,
    counts: HashMap<u64, usize>,
}

impl Adopters {
    pub(super) fn insert(&mut self, job: &Job) {
        let count = |hash: &u64| self.counts.get(hash).copied().unwrap_or_default();
        let Some(rarest) = hashes(job).min_by_key(count) else { return };
        if self.jobs.insert((rarest, job.key.clone())) {
            *self.counts.entry(rarest).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, job: &Job) {
        for hash in hashes(job) {
            if self.jobs.remove(&(hash, job.key.clone()))
                && let Some(count) = self.counts.get_mut(&hash)
            {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&hash);
                }
            }
        }
    }

    /// Whether each of these Jobs is there once, and no other.
    pub(super) fn is_sound<'a>(&self, jobs: impl Iterator<Item = &'a Arc<Job>>) -> bool {
        let mut count = 0;
        let is_there = |job: &Arc<Job>| {
            let at = |hash: u64| self.jobs.contains(&(hash, job.key.clone()));
            let (places, needs) = (hashes(job).filter(|hash| at(*hash)).count(), hashes(job));
            count += places;
            places == usize::from(needs.count() > 0)
        };
        jobs.into_iter().all(is_there)
            && count == self.jobs.len()
            && count == self.counts.values().sum::<usize>()
    }

    /// The Jobs of a pod's namespace that do not need a label that it lacks.
    pub(super) fn of_pod(&self, pod: &Pod) -> impl Iterator<Item = &JobKey> {
        let values = pod.all_labels().map(|(key, value)| Needed::Value(key, value));
        let keys = pod.all_labels().map(|(key, _)| Needed::Key(key));
        let first = JobKey::new(Arc::clone(&pod.namespace), "");
        values.chain(keys).chain([Needed::Nothing]).flat_map(move |needed| {
            let hash = hash(&first.namespace, needed);
            let namespace = Arc::clone(&first.namespace);
            let from = self.jobs.range((hash, first.clone())..);
            let is_there =
                move |(at, key): &&(u64, JobKey)| *at == hash && key.namespace == namespace;
            from.take_while(is_there).map(|(_, key)| key)
        })
    }
}

/// Under what a Job may be found; nothing if its selector matches no pod.
fn hashes(job: &Job) -> impl Iterator<Item = u64> {
    let needed = job.spec.selector.needed_labels().into_iter();
    let mut labels = needed.map(|labels| labels.take(LABELS_MAX).collect::<Vec<_>>());
    let labels =
        labels.next().map(|labels| if labels.is_empty() { vec![Needed::Nothing] } else { labels });
    labels.into_iter().flatten().map(|needed| hash(&job.key.namespace, needed))
}

fn hash(namespace: &str, needed: Needed<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (namespace, needed).hash(&mut hasher);
    hasher.finish()
}
