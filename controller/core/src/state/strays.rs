//! Holds the pods without a controller, and remembers which of them each Job may adopt.
//!
//! A selector is applied to such a pod once, and again only when the pod has other labels. A tenant
//! may have ten thousand of these pods next to thousands of Jobs, each of which is synced each
//! second.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::job_pods::PodSet;
use crate::view::{Job, Pod, Uid};

/// The most pods that are remembered of one Job. One that may adopt more adopts them, and then
/// searches no more; those that may not be adopted are few.
const REMEMBERED_MAX: usize = 1_000;

/// Pods without a controller.
#[derive(Clone, Debug, Default)]
pub(super) struct Strays {
    namespaces: HashMap<Arc<str>, OfNamespace>,
    /// What was found for each Job that was synced next to such pods.
    found: HashMap<Uid, Found>,
    /// How often a pod has appeared, or has been shown with other labels.
    changes: u64,
}

/// Those of one namespace.
#[derive(Clone, Debug, Default)]
struct OfNamespace {
    /// By the change since which each pod has its labels.
    by_change: BTreeMap<u64, Arc<Pod>>,
    changes: HashMap<Uid, u64>,
}

/// The pods that the selector of a Job matches, of those before this change.
#[derive(Clone, Debug)]
struct Found {
    before: u64,
    pods: Vec<Uid>,
}

impl Strays {
    pub(super) fn insert(&mut self, pod: Arc<Pod>) {
        let of = self.namespaces.entry(Arc::clone(&pod.namespace)).or_default();
        if let Some(change) = of.changes.get(&pod.uid).copied()
            && let Some(known) = of.by_change.get_mut(&change)
        {
            if is_as_adoptable(known, &pod) {
                *known = pod;
                return;
            }
            of.by_change.remove(&change);
        }
        of.changes.insert(pod.uid.clone(), self.changes);
        of.by_change.insert(self.changes, pod);
        self.changes += 1;
    }

    pub(super) fn remove(&mut self, namespace: &str, uid: &Uid) {
        let Some(of) = self.namespaces.get_mut(namespace) else { return };
        if let Some(change) = of.changes.remove(uid) {
            of.by_change.remove(&change);
        }
        if of.changes.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    pub(super) fn has(&self, pod: &Pod) -> bool {
        let of = self.namespaces.get(&pod.namespace);
        of.is_some_and(|of| of.changes.contains_key(&pod.uid))
    }

    pub(super) fn len(&self) -> usize {
        self.namespaces.values().map(|of| of.changes.len()).sum()
    }

    /// Those of a namespace that have the tracking finalizer.
    pub(super) fn tracked(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        let of = self.namespaces.get(namespace).into_iter();
        of.flat_map(|of| of.by_change.values()).filter(|pod| pod.tracked)
    }

    /// Those that a Job may adopt.
    pub(super) fn of_job(&self, job: &Job) -> PodSet {
        self.find(job).cloned().collect()
    }

    /// Remembers those that a Job may adopt.
    pub(super) fn search(&mut self, job: &Job) {
        let pods: Vec<Uid> = self.find(job).map(|pod| pod.uid.clone()).collect();
        if self.namespaces.contains_key(&job.key.namespace) && pods.len() <= REMEMBERED_MAX {
            self.found.insert(job.uid.clone(), Found { before: self.changes, pods });
        } else {
            self.found.remove(&job.uid);
        }
    }

    /// The Job is gone or has ended, or has another selector.
    pub(super) fn forget(&mut self, job: &Uid) {
        self.found.remove(job);
    }

    fn find<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a Arc<Pod>> {
        let adopts = !job.deleting && !job.is_finished();
        let of = self.namespaces.get(&job.key.namespace).filter(|_| adopts);
        let found = self.found.get(&job.uid);
        let before = found.map_or(0, |found| found.before);
        of.into_iter().flat_map(move |of| {
            let known = found.into_iter().flat_map(|found| &found.pods).filter_map(move |uid| {
                let change = of.changes.get(uid).filter(|change| **change < before)?;
                of.by_change.get(change)
            });
            let new = of.by_change.range(before..).map(|(_, pod)| pod);
            let new = new.filter(|pod| pod.deletion.is_none() && pod.matches(&job.spec.selector));
            known.filter(|pod| pod.deletion.is_none()).chain(new)
        })
    }

    /// Whether each pod is found by its UID and by its change, and nothing else is.
    pub(super) fn is_sound(&self) -> bool {
        self.namespaces.values().all(|of| {
            let is_placed = |(change, pod): (&u64, &Arc<Pod>)| {
                of.changes.get(&pod.uid) == Some(change) && pod.owner.is_none()
            };
            !of.changes.is_empty()
                && of.by_change.len() == of.changes.len()
                && of.by_change.iter().all(is_placed)
        })
    }
}

fn is_as_adoptable(one: &Pod, other: &Pod) -> bool {
    let shared = Arc::ptr_eq(&one.labels, &other.labels) || one.labels == other.labels;
    shared
        && one.index_label == other.index_label
        && one.deletion.is_some() == other.deletion.is_some()
}
