//! Caches the node's pods, as the API last showed them.

use std::collections::BTreeMap;

use crate::pod::{PodUid, PodView};

/// The cache of pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Pods {
    by_uid: BTreeMap<PodUid, PodView>,
    listed: bool,
}

impl Pods {
    pub(super) fn get(&self, uid: &PodUid) -> Option<&PodView> {
        self.by_uid.get(uid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PodView> {
        self.by_uid.values()
    }

    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Whether all pods of the node were listed once.
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Replaces the cache by a full list of an API that has gone back to an earlier version, which
    /// holds whatever is known; returns the pods that are gone.
    pub(super) fn list_restored(&mut self, pods: Vec<PodView>) -> Vec<PodUid> {
        for pod in &pods {
            self.by_uid.insert(pod.uid.clone(), pod.clone());
        }
        self.list(pods)
    }

    /// Replaces the cache by a full list; returns the pods that are gone.
    pub(super) fn list(&mut self, pods: Vec<PodView>) -> Vec<PodUid> {
        let before = std::mem::take(&mut self.by_uid);
        self.listed = true;
        let kept = |pod: PodView| {
            // A list may come from a cache that is older than a read of ours.
            match before.get(&pod.uid) {
                Some(known) if is_older(&pod, known) => (known.uid.clone(), known.clone()),
                _ => (pod.uid.clone(), pod),
            }
        };
        self.by_uid = pods.into_iter().map(kept).collect();
        before.into_keys().filter(|uid| !self.by_uid.contains_key(uid)).collect()
    }

    /// Adds one pod, unless a newer state of it is known; returns whether it did.
    pub(super) fn observe(&mut self, pod: PodView) -> bool {
        if self.by_uid.get(&pod.uid).is_some_and(|known| is_older(&pod, known)) {
            return false;
        }
        self.by_uid.insert(pod.uid.clone(), pod);
        true
    }

    pub(super) fn gone(&mut self, uid: &PodUid) {
        self.by_uid.remove(uid);
    }
}

/// Compares resourceVersions, which grow where they parse as numbers.
fn is_older(pod: &PodView, known: &PodView) -> bool {
    let version = |pod: &PodView| pod.resource_version.parse::<u64>().ok();
    matches!((version(pod), version(known)), (Some(new), Some(old)) if new < old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    fn at(name: &str, version: &str) -> PodView {
        pod(name).with(|it| it.resource_version = version.into())
    }

    #[test]
    fn a_list_of_an_api_that_has_gone_back_replaces_newer_pods() {
        let mut pods = Pods::default();
        assert!(pods.list(vec![at("a", "50"), at("new", "60")]).is_empty());
        assert!(pods.list(vec![at("a", "40"), at("new", "60")]).is_empty());
        let version =
            |pods: &Pods| pods.get(&at("a", "").uid).map(|it| it.resource_version.clone());
        assert_eq!(version(&pods).as_deref(), Some("50"), "a read of ours was newer");
        let gone = pods.list_restored(vec![at("a", "40"), at("old", "30")]);
        assert_eq!(gone, [at("new", "").uid]);
        assert_eq!(version(&pods).as_deref(), Some("40"));
        assert!(pods.observe(at("a", "41")), "versions count on from here");
        assert_eq!(pods.len(), 2);
    }
}
