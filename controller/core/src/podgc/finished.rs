//! Finds excess finished pods: beyond a number in the cluster, beyond a number of one owner, or
//! kept for long enough. What a Job asks for is in `kept.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::settings::{KeptFor, Settings};
use crate::view::{Phase, Pod, Uid};

/// The most pods that one search names; the rest follows.
pub(super) const NAMED_MAX: usize = 500;
/// The reason of pods that the kubelet evicted.
const EVICTED: &str = "Evicted";

/// Why a finished pod is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Excess {
    /// More pods than this have finished in the cluster.
    Cluster(usize),
    /// More pods of its owner than this have failed.
    Owner(usize),
    /// More pods of its Job than it keeps have finished and are counted.
    Kept(usize),
    /// It was kept for this long, the limit for its reason or phase.
    Age(SignedDuration),
}

impl fmt::Display for Excess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(max) => write!(formatter, "more than {max} pods have finished"),
            Self::Owner(max) => write!(formatter, "more than {max} pods of its owner have failed"),
            Self::Kept(max) => write!(formatter, "its Job keeps {max} finished pods"),
            Self::Age(age) => write!(formatter, "finished more than {}s ago", age.as_secs()),
        }
    }
}

/// The time until which a finished pod is kept.
pub(crate) fn kept_until(pod: &Pod, rules: &KeptFor) -> Option<(Timestamp, Excess)> {
    let phase = if pod.phase == Phase::Failed { "Failed" } else { "Succeeded" };
    let kept = rules.of(pod.gc.reason(), phase)?;
    Some((pod.gc.finished()?.checked_add(kept).ok()?, Excess::Age(kept)))
}

/// The order in which finished pods are deleted: evicted ones first, then the oldest, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    stays: bool,
    created: Option<Timestamp>,
    name: Arc<str>,
    uid: Uid,
}

/// All finished pods, in the order of deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finished {
    all: BTreeSet<Rank>,
    /// The failed pods by owner.
    failed: HashMap<Uid, BTreeSet<Rank>>,
    /// Owners with too many failed pods.
    crowded: BTreeSet<Uid>,
    /// The rank and owner of each pod.
    ranks: HashMap<Uid, (Rank, Option<Uid>)>,
}

impl Finished {
    /// Records a pod, finished or not; returns whether there are too many now.
    ///
    /// DIVERGES(upstream): a pod without a phase has not begun; upstream counts it as finished.
    pub(crate) fn show(&mut self, pod: &Pod, settings: &Settings) -> bool {
        if !pod.is_terminal() {
            self.remove(&pod.uid);
            return false;
        }
        let limited = settings.finished_max.is_some() || settings.failed_per_owner_max.is_some();
        if limited && !self.ranks.contains_key(&pod.uid) {
            self.insert(pod, settings);
        }
        self.is_crowded(settings)
    }

    pub(crate) fn remove(&mut self, uid: &Uid) {
        let Some((rank, owner)) = self.ranks.remove(uid) else { return };
        self.all.remove(&rank);
        let Some(owner) = owner else { return };
        if let Some(failed) = self.failed.get_mut(&owner) {
            failed.remove(&rank);
            if failed.is_empty() {
                self.failed.remove(&owner);
            }
        }
    }

    /// The pods in excess that were not named before, as many as one search names. Pods that were
    /// named and cannot be deleted hold up none of the others.
    pub(crate) fn excess(
        &mut self,
        settings: &Settings,
        named_before: &HashMap<Uid, Excess>,
    ) -> BTreeMap<Uid, Excess> {
        let is_new = |rank: &&Rank| !named_before.contains_key(&rank.uid);
        let mut named = BTreeMap::new();
        if let Some(max) = settings.finished_max {
            let count = self.all.len().saturating_sub(max);
            let first = self.all.iter().take(count).filter(is_new).take(NAMED_MAX);
            named.extend(first.map(|rank| (rank.uid.clone(), Excess::Cluster(max))));
        }
        let Some(max) = settings.failed_per_owner_max else { return named };
        for owner in std::mem::take(&mut self.crowded) {
            let Some(failed) = self.failed.get(&owner) else { continue };
            let count = failed.len().saturating_sub(max);
            let left = NAMED_MAX.saturating_sub(named.len());
            let mut first = failed.iter().take(count).filter(is_new);
            let some = first.by_ref().take(left).map(|rank| (rank.uid.clone(), Excess::Owner(max)));
            named.extend(some);
            if first.next().is_some() {
                self.crowded.insert(owner);
            }
        }
        named
    }

    fn insert(&mut self, pod: &Pod, settings: &Settings) {
        let rank = Rank {
            stays: pod.phase != Phase::Failed || pod.gc.reason() != Some(EVICTED),
            created: pod.created,
            name: Arc::clone(&pod.name),
            uid: pod.uid.clone(),
        };
        let owner = pod.owner.as_ref().filter(|_| pod.phase == Phase::Failed);
        let owner = owner.map(|owner| owner.uid.clone());
        if let (Some(owner), Some(max)) = (&owner, settings.failed_per_owner_max) {
            let failed = self.failed.entry(owner.clone()).or_default();
            failed.insert(rank.clone());
            if failed.len() > max {
                self.crowded.insert(owner.clone());
            }
        }
        self.all.insert(rank.clone());
        self.ranks.insert(pod.uid.clone(), (rank, owner));
    }

    fn is_crowded(&self, settings: &Settings) -> bool {
        !self.crowded.is_empty() || settings.finished_max.is_some_and(|max| self.all.len() > max)
    }
}
