//! Indexes pods by UID, and those that are relevant to Jobs by their Job, and without an owner by
//! namespace.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::batching::CachedPodCounts;
use crate::job_pods::{JobPods, PodSet};
use crate::view::{Job, Pod, Uid};

/// All pods that the state keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    by_uid: HashSet<ByUid>,
    /// By namespace and Job: whoever may create pods in another namespace can give them the UID
    /// of any Job.
    by_owner: HashMap<(Arc<str>, Uid), JobPods>,
    without_owner: HashMap<Arc<str>, PodSet>,
    /// Pods whose latest version could not be read, and the namespace and owner of each.
    unreadable: HashMap<Uid, Option<(Arc<str>, Uid)>>,
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

/// Where a pod is found, other than by its UID.
#[derive(PartialEq)]
enum Place {
    Nowhere,
    OfJob((Arc<str>, Uid)),
    WithoutOwner(Arc<str>),
}

impl Place {
    fn of(pod: &Pod) -> Self {
        let namespace = Arc::clone(&pod.namespace);
        match &pod.owner {
            None => Self::WithoutOwner(namespace),
            Some(owner) if &*owner.kind == "Job" => Self::OfJob((namespace, owner.uid.clone())),
            Some(_) => Self::Nowhere,
        }
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
        self.owned(namespace, job).map(JobPods::counts).unwrap_or_default()
    }

    /// The pods of a Job, and those that it may adopt.
    pub(super) fn of_job(&self, namespace: &Arc<str>, job: &Uid) -> JobPods {
        let strays = self.without_owner.get(namespace).cloned().unwrap_or_default();
        self.owned(namespace, job).cloned().unwrap_or_default().with_strays(strays)
    }

    /// The pods of a Job in its namespace, in the order of their UIDs.
    pub(super) fn of_owner(
        &self,
        namespace: &Arc<str>,
        owner: &Uid,
    ) -> impl Iterator<Item = &Arc<Pod>> {
        self.owned(namespace, owner).into_iter().flat_map(JobPods::iter)
    }

    fn owned(&self, namespace: &Arc<str>, owner: &Uid) -> Option<&JobPods> {
        self.by_owner.get(&(Arc::clone(namespace), owner.clone()))
    }

    /// The pods of a namespace that have no owner, in the order of their UIDs.
    pub(super) fn without_owner(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.without_owner.get(namespace).into_iter().flat_map(PodSet::iter)
    }

    /// The Job has appeared, or has another selector.
    pub(super) fn select(&mut self, job: &Job) {
        let key = (Arc::clone(&job.key.namespace), job.uid.clone());
        if let Some(owned) = self.by_owner.get_mut(&key) {
            owned.select(job);
        }
    }

    /// Inserts a pod, and returns the one that it replaces. `job` is the Job that it names as its
    /// controller, if that is known.
    pub(super) fn insert(&mut self, pod: Arc<Pod>, job: Option<&Job>) -> Option<Arc<Pod>> {
        let place = Place::of(&pod);
        let old = self.by_uid.replace(ByUid(Arc::clone(&pod))).map(|old| old.0);
        if let Some(old) = &old {
            let former = Place::of(old);
            if former != place {
                self.displace(&former, &old.uid);
            }
        }
        match place {
            Place::Nowhere => {}
            Place::OfJob(key) => {
                self.by_owner.entry(key).or_default().insert(&pod, job);
            }
            Place::WithoutOwner(namespace) => {
                self.without_owner.entry(namespace).or_default().insert(pod);
            }
        }
        old
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &Uid) -> Option<Arc<Pod>> {
        let ByUid(pod) = self.by_uid.take(uid)?;
        self.displace(&Place::of(&pod), uid);
        Some(pod)
    }

    fn displace(&mut self, place: &Place, uid: &Uid) {
        match place {
            Place::Nowhere => {}
            Place::OfJob(key) => {
                if let Some(owned) = self.by_owner.get_mut(key) {
                    owned.remove(uid);
                    if owned.is_empty() {
                        self.by_owner.remove(key);
                    }
                }
            }
            Place::WithoutOwner(namespace) => {
                if let Some(pods) = self.without_owner.get_mut(namespace) {
                    pods.remove(uid);
                    if pods.is_empty() {
                        self.without_owner.remove(namespace);
                    }
                }
            }
        }
    }

    /// Whether each pod is in its place, and what is kept of each Job's pods is right.
    pub(super) fn is_sound(&self) -> bool {
        let is_placed = |pod: &Pod| match Place::of(pod) {
            Place::Nowhere => true,
            Place::OfJob((namespace, job)) => {
                self.owned(&namespace, &job).is_some_and(|owned| owned.get(&pod.uid).is_some())
            }
            Place::WithoutOwner(namespace) => {
                let strays = self.without_owner.get(&namespace);
                strays.is_some_and(|strays| strays.get(&pod.uid).is_some())
            }
        };
        let is_anywhere = |each: &&ByUid| Place::of(&each.0) != Place::Nowhere;
        let placed = self.by_owner.values().map(JobPods::len).sum::<usize>()
            + self.without_owner.values().map(PodSet::len).sum::<usize>();
        self.by_uid.iter().all(|each| is_placed(&each.0))
            && placed == self.by_uid.iter().filter(is_anywhere).count()
            && self.by_owner.values().all(JobPods::is_sound)
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
