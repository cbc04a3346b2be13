//! Indexes pods by UID, and those that are relevant to Jobs by their Job, and without an owner by
//! namespace.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::strays::Strays;
use crate::batching::CachedPodCounts;
use crate::job_pods::JobPods;
use crate::view::{Job, JobKey, Pod, Uid};

/// All pods that the state keeps.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    by_uid: HashSet<ByUid>,
    /// By namespace and Job: whoever may create pods in another namespace can give them the UID
    /// of any Job.
    by_owner: HashMap<(Arc<str>, Uid), JobPods>,
    without_owner: Strays,
    /// Pods whose latest version could not be read, and the Job of each.
    unreadable: HashMap<Uid, Option<OwnerJob>>,
    /// How many of them a Job has.
    unreadable_of: HashMap<OwnerJob, usize>,
}

/// The Job that a pod names as its controller, by name and UID.
pub(super) type OwnerJob = (JobKey, Uid);

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
    pub(super) fn of_job(&self, job: &Job) -> JobPods {
        let owned = self.owned(&job.key.namespace, &job.uid).cloned().unwrap_or_default();
        owned.with_strays(self.without_owner.of_job(job))
    }

    /// Remembers which pods the Job may adopt, so that none is judged again.
    pub(super) fn find_strays(&mut self, job: &Job) {
        self.without_owner.search(job);
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

    /// The pods of a namespace that have the tracking finalizer and no owner.
    pub(super) fn tracked_without_owner(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.without_owner.tracked(namespace)
    }

    /// The Job is gone, or adopts no more pods.
    pub(super) fn forget_strays(&mut self, job: &Uid) {
        self.without_owner.forget(job);
    }

    /// The Job has appeared, or has another selector.
    pub(super) fn select(&mut self, job: &Job) {
        let key = (Arc::clone(&job.key.namespace), job.uid.clone());
        if let Some(owned) = self.by_owner.get_mut(&key) {
            owned.select(job);
        }
        self.without_owner.forget(&job.uid);
    }

    /// Inserts a pod, and returns the one that it replaces. `job` finds the Job that it names as
    /// its controller, if that is known.
    pub(super) fn insert<'a>(
        &mut self,
        pod: Arc<Pod>,
        job: impl FnOnce() -> Option<&'a Job>,
    ) -> Option<Arc<Pod>> {
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
            Place::WithoutOwner(_) => self.without_owner.insert(pod),
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
            Place::WithoutOwner(namespace) => self.without_owner.remove(namespace, uid),
        }
    }

    /// Whether each pod is in its place, and what is kept of each Job's pods is right.
    pub(super) fn is_sound(&self) -> bool {
        let is_placed = |pod: &Pod| match Place::of(pod) {
            Place::Nowhere => true,
            Place::OfJob((namespace, job)) => {
                self.owned(&namespace, &job).is_some_and(|owned| owned.get(&pod.uid).is_some())
            }
            Place::WithoutOwner(_) => self.without_owner.has(pod),
        };
        let is_anywhere = |each: &&ByUid| Place::of(&each.0) != Place::Nowhere;
        let placed =
            self.by_owner.values().map(JobPods::len).sum::<usize>() + self.without_owner.len();
        self.by_uid.iter().all(|each| is_placed(&each.0))
            && placed == self.by_uid.iter().filter(is_anywhere).count()
            && self.by_owner.values().all(JobPods::is_sound)
            && self.without_owner.is_sound()
            && self.unreadable_of.values().sum::<usize>()
                == self.unreadable.values().flatten().count()
    }

    /// The latest version of a pod could not be read.
    pub(super) fn set_unreadable(&mut self, uid: Uid, owner: Option<OwnerJob>) {
        self.set_readable(&uid);
        if let Some(owner) = &owner {
            *self.unreadable_of.entry(owner.clone()).or_default() += 1;
        }
        self.unreadable.insert(uid, owner);
    }

    /// A pod is readable again, or gone. Returns its Job if it was unreadable.
    pub(super) fn set_readable(&mut self, uid: &Uid) -> Option<OwnerJob> {
        let owner = self.unreadable.remove(uid).flatten()?;
        if let Some(count) = self.unreadable_of.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.unreadable_of.remove(&owner);
            }
        }
        Some(owner)
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

    /// Whether a pod of this Job is unreadable.
    pub(super) fn has_unreadable_of(&self, job: &Job) -> bool {
        !self.unreadable_of.is_empty()
            && self.unreadable_of.contains_key(&(job.key.clone(), job.uid.clone()))
    }
}
