//! Holds the pods of a Job, sorted by what a sync asks for, and keeps that up to date pod by pod.
//! What a sync costs then follows what changed, not how many pods the Job has.

mod pod_set;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;

pub use self::pod_set::PodSet;
use crate::batching::CachedPodCounts;
use crate::index_set::IndexSet;
use crate::view::{Job, Phase, Pod, Uid};

/// The pods that name a Job as their controller, and those that it may adopt. A copy takes next to
/// no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPods {
    all: PodSet,
    of_kind: [PodSet; Kind::ALL.len()],
    /// Those of which it is not known that the selector matches them.
    unmatched: PodSet,
    /// Pods of the namespace without a controller.
    strays: PodSet,
    counts: CachedPodCounts,
    /// The indexes of active pods; `None` without any.
    indexes: Option<Arc<ActiveIndexes>>,
}

/// The indexes of active pods.
#[derive(Clone, Debug, Default, PartialEq)]
struct ActiveIndexes {
    all: IndexSet,
    /// How many more pods than one an index has.
    repeated: BTreeMap<u32, u32>,
}

/// A kind of pods that some rule asks for. A pod may be of several kinds; one that runs and is
/// counted on is of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Terminating, or terminal and with the finalizer.
    Unsettled,
    /// Active, and without the finalizer.
    Untracked,
    /// Active, and with the phase Pending.
    Pending,
    /// With a true DisruptionTarget.
    Disrupted,
    /// Failed, and shown with a running container.
    RunsOn,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Unsettled, Self::Untracked, Self::Pending, Self::Disrupted, Self::RunsOn];

    fn holds(self, pod: &Pod) -> bool {
        match self {
            Self::Unsettled => !pod.is_active() && (pod.tracked || !pod.is_terminal()),
            Self::Untracked => pod.is_active() && !pod.tracked,
            Self::Pending => pod.is_active() && pod.phase == Phase::Pending,
            Self::Disrupted => pod.has_condition(DISRUPTION_TARGET),
            Self::RunsOn => pod.shown_running_since.is_some(),
        }
    }
}

impl JobPods {
    /// Those of a list that name the Job as their controller, and those without a controller.
    pub fn of<'a>(job: &Job, pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Self {
        let mut sorted = Self::default();
        for pod in pods {
            if pod.owner.is_none() {
                sorted.strays.insert(Arc::clone(pod));
            } else if pod.is_owned_by(&job.uid) {
                sorted.insert(pod, || Some(job));
            }
        }
        sorted
    }

    /// All pods that name the Job as their controller, in the order of their UIDs.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.all.iter()
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The one of this UID.
    pub fn get(&self, uid: &Uid) -> Option<&Arc<Pod>> {
        self.all.get(uid)
    }

    /// Those of a kind, in the order of their UIDs.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Arc<Pod>> {
        self.of_kind[kind as usize].iter()
    }

    /// Those of which it is not known that the selector matches them.
    pub fn unmatched(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.unmatched.iter()
    }

    /// Pods of the namespace without a controller, in the order of their UIDs.
    pub fn strays(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.strays.iter()
    }

    /// The pods of the Job, then those without a controller.
    pub fn iter_with_strays(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.iter().chain(self.strays())
    }

    /// Their number.
    pub fn len_with_strays(&self) -> usize {
        self.all.len() + self.strays.len()
    }

    /// How many there are of what is counted.
    pub fn counts(&self) -> CachedPodCounts {
        self.counts
    }

    /// The active pods. This walks all pods.
    pub fn active(&self) -> Vec<Arc<Pod>> {
        if self.counts.active == 0 {
            return Vec::new();
        }
        self.iter().filter(|pod| pod.is_active()).cloned().collect()
    }

    /// The indexes of active pods.
    pub fn active_indexes(&self) -> IndexSet {
        self.indexes.as_ref().map(|indexes| indexes.all.clone()).unwrap_or_default()
    }

    /// Whether an active pod has this index.
    pub fn has_active(&self, index: u32) -> bool {
        self.indexes.as_ref().is_some_and(|indexes| indexes.all.contains(index))
    }

    /// Whether each active pod has an index of its own below the bound.
    pub fn have_places(&self, bound: u32) -> bool {
        let fit = |indexes: &ActiveIndexes| {
            indexes.repeated.is_empty() && indexes.all.last().is_none_or(|last| last < bound)
        };
        self.counts.without_index == 0 && self.indexes.as_deref().is_none_or(fit)
    }

    /// The same, with these pods without a controller.
    #[must_use]
    pub fn with_strays(self, strays: PodSet) -> Self {
        Self { strays, ..self }
    }

    /// Inserts a pod that names the Job as its controller. `job` finds the Job, and is called only
    /// if the pod is new or has other labels. Without the Job, the pod is unmatched.
    pub fn insert<'a>(&mut self, pod: &Arc<Pod>, job: impl FnOnce() -> Option<&'a Job>) {
        if self.put(pod).is_some_and(|old| old.has_labels_of(pod)) {
            self.unmatched.replace(pod);
        } else if job().is_some_and(|job| pod.matches(&job.spec.selector)) {
            self.unmatched.remove(&pod.uid);
        } else {
            self.unmatched.insert(Arc::clone(pod));
        }
    }

    /// Shows a pod, of the Job or without a controller, in another state. Its labels stay.
    pub fn alter(&mut self, pod: Arc<Pod>) {
        if self.strays.get(&pod.uid).is_some() {
            self.strays.insert(pod);
        } else {
            self.put(&pod);
            self.unmatched.replace(&pod);
        }
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &Uid) -> Option<Arc<Pod>> {
        let old = self.all.remove(uid)?;
        self.uncount(&old);
        for kind in Kind::ALL {
            if kind.holds(&old) {
                self.of_kind[kind as usize].remove(uid);
            }
        }
        self.unmatched.remove(uid);
        Some(old)
    }

    /// The Job has appeared, or has another selector: finds the pods that it does not match.
    pub fn select(&mut self, job: &Job) {
        let unmatched = self.all.iter().filter(|pod| !pod.matches(&job.spec.selector));
        self.unmatched = unmatched.cloned().collect();
    }

    /// Whether what is kept pod by pod is what a walk of all pods finds.
    pub fn is_sound(&self) -> bool {
        let mut walked = Self::default();
        for pod in self.iter() {
            walked.put(pod);
        }
        let is_unmatched = |pod: &&Arc<Pod>| self.unmatched.get(&pod.uid).is_some();
        walked.unmatched = self.iter().filter(is_unmatched).cloned().collect();
        *self == walked.with_strays(self.strays.clone())
    }

    fn put(&mut self, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        let old = self.all.insert(Arc::clone(pod));
        if let Some(old) = &old {
            self.uncount(old);
        }
        self.count(pod);
        for kind in Kind::ALL {
            let was = old.as_deref().is_some_and(|old| kind.holds(old));
            put(&mut self.of_kind[kind as usize], pod, was, kind.holds(pod));
        }
        old
    }

    fn count(&mut self, pod: &Pod) {
        self.counts.add(pod);
        if let Some(index) = pod.index.filter(|_| pod.is_active()) {
            let indexes = Arc::make_mut(self.indexes.get_or_insert_default());
            if !indexes.all.insert(index) {
                *indexes.repeated.entry(index).or_default() += 1;
            }
        }
    }

    fn uncount(&mut self, pod: &Pod) {
        self.counts.remove(pod);
        let Some(index) = pod.index.filter(|_| pod.is_active()) else { return };
        let Some(indexes) = self.indexes.as_mut().map(Arc::make_mut) else { return };
        match indexes.repeated.get_mut(&index) {
            Some(1) => {
                indexes.repeated.remove(&index);
            }
            Some(more) => *more -= 1,
            None => {
                indexes.all.remove(index);
            }
        }
        if indexes.all.is_empty() {
            self.indexes = None;
        }
    }
}

fn put(set: &mut PodSet, pod: &Arc<Pod>, was: bool, is: bool) {
    if is {
        set.insert(Arc::clone(pod));
    } else if was {
        set.remove(&pod.uid);
    }
}
