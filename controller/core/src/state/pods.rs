//! Indexes pods by UID, and those that are relevant to Jobs by owner, and without an owner by
//! namespace.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::batching::CachedPodCounts;
use crate::event_handlers::is_relevant;
use crate::view::{Pod, Uid};

/// All pods that the state keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    by_uid: HashSet<ByUid>,
    /// By namespace and owner: whoever may create pods in another namespace can give them the UID
    /// of any Job.
    by_owner: HashMap<(Arc<str>, Uid), Owned>,
    without_owner: HashMap<Arc<str>, BTreeSet<ByUid>>,
    /// Pods whose latest version could not be read, and the namespace and owner of each.
    unreadable: HashMap<Uid, Option<(Arc<str>, Uid)>>,
}

#[derive(Clone, Debug, Default)]
struct Owned {
    pods: BTreeSet<ByUid>,
    counts: CachedPodCounts,
}

/// A pod as an entry of a set by UID. A map would repeat the UID in every entry.
#[derive(Clone, Debug)]
struct ByUid(Arc<Pod>);

impl Borrow<Uid> for ByUid {
    fn borrow(&self) -> &Uid {
        &self.0.uid
    }
}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid.hash(state);
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for ByUid {}

impl Ord for ByUid {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.uid.cmp(&other.0.uid)
    }
}

impl PartialOrd for ByUid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Pods {
    pub(super) fn get(&self, uid: &Uid) -> Option<&Arc<Pod>> {
        self.by_uid.get(uid).map(|each| &each.0)
    }

    /// A pod whose latest version could be read.
    pub(super) fn readable(&self, uid: &Uid) -> Option<&Arc<Pod>> {
        self.get(uid).filter(|_| !self.is_unreadable(uid))
    }

    /// All pods, in the order of their UIDs.
    pub(super) fn sorted(&self) -> Vec<&Arc<Pod>> {
        let mut pods: Vec<&Arc<Pod>> = self.by_uid.iter().map(|each| &each.0).collect();
        pods.sort_unstable_by(|one, other| one.uid.cmp(&other.uid));
        pods
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.by_uid.iter().map(|each| &each.0.uid)
    }

    pub(super) fn counts(&self, namespace: &Arc<str>, job: &Uid) -> CachedPodCounts {
        self.owned(namespace, job).map(|owned| owned.counts).unwrap_or_default()
    }

    /// The pods of an owner in its namespace, in the order of their UIDs.
    pub(super) fn of_owner(
        &self,
        namespace: &Arc<str>,
        owner: &Uid,
    ) -> impl Iterator<Item = &Arc<Pod>> {
        let owned = self.owned(namespace, owner).into_iter().flat_map(|owned| &owned.pods);
        owned.map(|each| &each.0)
    }

    fn owned(&self, namespace: &Arc<str>, owner: &Uid) -> Option<&Owned> {
        self.by_owner.get(&(Arc::clone(namespace), owner.clone()))
    }

    /// The pods of a namespace that have no owner, in the order of their UIDs.
    pub(super) fn without_owner(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.without_owner.get(namespace).into_iter().flatten().map(|each| &each.0)
    }

    /// Inserts a pod, and returns the one that it replaces.
    pub(super) fn insert(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let old = self.remove(&pod.uid);
        let entry = ByUid(pod);
        let pod = &entry.0;
        if !is_relevant(pod) {
            self.by_uid.insert(entry);
            return old;
        }
        if let Some(owner) = &pod.owner {
            let key = (Arc::clone(&pod.namespace), owner.uid.clone());
            let owned = self.by_owner.entry(key).or_default();
            owned.counts.add(pod);
            owned.pods.insert(entry.clone());
        } else {
            let namespace = Arc::clone(&pod.namespace);
            self.without_owner.entry(namespace).or_default().insert(entry.clone());
        }
        self.by_uid.insert(entry);
        old
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &Uid) -> Option<Arc<Pod>> {
        let ByUid(pod) = self.by_uid.take(uid)?;
        match &pod.owner {
            _ if !is_relevant(&pod) => {}
            Some(owner) => {
                let key = (Arc::clone(&pod.namespace), owner.uid.clone());
                if let Some(owned) = self.by_owner.get_mut(&key) {
                    owned.counts.remove(&pod);
                    owned.pods.remove(uid);
                    if owned.pods.is_empty() {
                        self.by_owner.remove(&key);
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

    /// The latest version of a pod could not be read.
    pub(super) fn set_unreadable(&mut self, uid: Uid, owner: Option<(Arc<str>, Uid)>) {
        self.unreadable.insert(uid, owner);
    }

    /// A pod is readable again, or gone. Returns its namespace and owner if it was unreadable.
    pub(super) fn set_readable(&mut self, uid: &Uid) -> Option<(Arc<str>, Uid)> {
        self.unreadable.remove(uid).flatten()
    }

    pub(super) fn is_unreadable(&self, uid: &Uid) -> bool {
        self.unreadable.contains_key(uid)
    }

    /// Whether a pod that is unreadable has an owner.
    pub(super) fn is_unreadable_of_owner(&self, uid: &Uid) -> bool {
        self.unreadable.get(uid).is_some_and(Option::is_some)
    }

    pub(super) fn unreadable(&self) -> impl Iterator<Item = &Uid> {
        self.unreadable.keys()
    }

    /// Whether a pod of this owner in its namespace is unreadable.
    pub(super) fn has_unreadable_of(&self, namespace: &str, owner: &Uid) -> bool {
        let mut owners = self.unreadable.values().flatten();
        owners.any(|(of, uid)| &**of == namespace && uid == owner)
    }
}
