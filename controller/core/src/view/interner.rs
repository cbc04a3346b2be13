//! Keeps one copy of what many pods share.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::Labels;
use super::pod::{Condition, Owner, Pod};

/// Keeps one copy of each value that many pods share.
#[derive(Clone, Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    pub(super) labels: HashSet<Arc<Labels>>,
    owners: HashSet<Arc<Owner>>,
    pub(super) conditions: HashSet<Arc<[Condition]>>,
}

impl Interner {
    /// Removes the copies that nothing shares any more. Call it now and then, not on every event.
    pub fn sweep(&mut self) {
        self.texts.retain(|each| Arc::strong_count(each) > 1);
        self.labels.retain(|each| Arc::strong_count(each) > 1);
        self.owners.retain(|each| Arc::strong_count(each) > 1);
        self.conditions.retain(|each| Arc::strong_count(each) > 1);
    }

    /// Leaves of a pod only what pod GC reads. Labels are often a pod's own.
    pub(crate) fn strip(&mut self, pod: &mut Pod) {
        pod.labels = intern(&mut self.labels, Labels::default());
        pod.index_label = None;
        pod.containers = Box::default();
    }

    pub(crate) fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let fresh: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&fresh));
        fresh
    }

    /// The owner that is the controller.
    pub(crate) fn owner(&mut self, references: Option<&[OwnerReference]>) -> Option<Arc<Owner>> {
        let mut references = references.into_iter().flatten();
        let each = references.find(|each| each.controller == Some(true))?;
        let owner = Owner {
            api_version: each.api_version.as_str().into(),
            kind: each.kind.as_str().into(),
            name: each.name.as_str().into(),
            uid: each.uid.as_str().into(),
        };
        Some(intern(&mut self.owners, owner))
    }
}

pub(super) fn intern<T: Eq + Hash>(known: &mut HashSet<Arc<T>>, value: T) -> Arc<T> {
    if let Some(shared) = known.get(&value) {
        return Arc::clone(shared);
    }
    let fresh = Arc::new(value);
    known.insert(Arc::clone(&fresh));
    fresh
}
