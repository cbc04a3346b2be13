//! Indexes the pods that are relevant to Jobs by UID, by owner, and without an owner by namespace.

use std::collections::HashMap;
use std::sync::Arc;

use crate::batching::CachedPodCounts;
use crate::view::{Pod, Uid};

/// All pods for which [`crate::event_handlers::is_relevant`] holds.
#[derive(Debug, Default)]
pub(super) struct Pods {
    by_uid: HashMap<Uid, Arc<Pod>>,
    by_owner: HashMap<Uid, Owned>,
    without_owner: HashMap<Arc<str>, HashMap<Uid, Arc<Pod>>>,
}

#[derive(Debug, Default)]
struct Owned {
    pods: HashMap<Uid, Arc<Pod>>,
    counts: CachedPodCounts,
}

impl Pods {
    pub(super) fn get(&self, uid: &Uid) -> Option<&Arc<Pod>> {
        self.by_uid.get(uid)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_uid.values()
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.by_uid.keys()
    }

    pub(super) fn counts(&self, job: &Uid) -> CachedPodCounts {
        self.by_owner.get(job).map(|owned| owned.counts).unwrap_or_default()
    }

    pub(super) fn of_owner(&self, owner: &Uid) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_owner.get(owner).into_iter().flat_map(|owned| owned.pods.values())
    }

    pub(super) fn without_owner(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.without_owner.get(namespace).into_iter().flat_map(HashMap::values)
    }

    /// Inserts a pod, and returns the one that it replaces.
    pub(super) fn insert(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let old = self.remove(&pod.uid);
        if let Some(owner) = &pod.owner {
            let owned = self.by_owner.entry(owner.uid.clone()).or_default();
            owned.counts.add(&pod);
            owned.pods.insert(pod.uid.clone(), Arc::clone(&pod));
        } else {
            let pods = self.without_owner.entry(Arc::clone(&pod.namespace)).or_default();
            pods.insert(pod.uid.clone(), Arc::clone(&pod));
        }
        self.by_uid.insert(pod.uid.clone(), pod);
        old
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &Uid) -> Option<Arc<Pod>> {
        let pod = self.by_uid.remove(uid)?;
        match &pod.owner {
            Some(owner) => {
                if let Some(owned) = self.by_owner.get_mut(&owner.uid) {
                    owned.counts.remove(&pod);
                    owned.pods.remove(uid);
                    if owned.pods.is_empty() {
                        self.by_owner.remove(&owner.uid);
                    }
                }
            }
            None => {
                if let Some(pods) = self.without_owner.get_mut(&pod.namespace) {
                    pods.remove(uid);
                    if pods.is_empty() {
                        self.without_owner.remove(&pod.namespace);
                    }
                }
            }
        }
        Some(pod)
    }
}
