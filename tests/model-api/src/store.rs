//! Keeps objects with their versions, and the log of changes that watches read.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;

use crate::kind::Kind;

/// An object as stored, with its `resourceVersion`.
pub(crate) type Object = Arc<Value>;

/// The version before the first write.
const FIRST_VERSION: u64 = 100;

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) kind: Kind,
    pub(crate) key: String,
    /// The object before; `None` if it is new.
    pub(crate) old: Option<Object>,
    /// The object after; `None` if it is gone.
    pub(crate) new: Option<Object>,
    pub(crate) at: Instant,
}

/// All objects and the log of their changes.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    version: u64,
    objects: BTreeMap<(Kind, String), Object>,
    changes: Vec<Change>,
    /// Changes up to this version are forgotten.
    floor: u64,
}

/// A store as it was.
#[derive(Clone, Debug)]
pub struct Snapshot(Store);

/// The key of an object in its kind. As text, because etcd sorts whole paths.
pub(crate) fn key(kind: Kind, namespace: &str, name: &str) -> String {
    if kind.facts().namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
}

/// The beginning of the keys in a namespace; empty for all.
pub(crate) fn prefix(kind: Kind, namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { key(kind, namespace, "") }
}

/// The version that an object has.
pub(crate) fn version_of(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse().unwrap_or_default()
}

impl Store {
    pub(crate) fn new() -> Self {
        let (objects, changes) = (BTreeMap::new(), Vec::new());
        Self { version: FIRST_VERSION, objects, changes, floor: FIRST_VERSION }
    }

    /// The version of the newest change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The newest version whose changes are forgotten.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    pub(crate) fn get(&self, kind: Kind, key: &str) -> Option<&Object> {
        self.objects.get(&(kind, key.to_owned()))
    }

    /// The objects whose keys begin like this, in their order.
    pub(crate) fn list(&self, kind: Kind, prefix: &str) -> Vec<(String, Object)> {
        let from = (kind, prefix.to_owned());
        let of_kind = self.objects.range(from..).take_while(|((it, _), _)| *it == kind);
        let begins = of_kind.take_while(|((_, key), _)| key.starts_with(prefix));
        begins.map(|((_, key), object)| (key.clone(), Arc::clone(object))).collect()
    }

    /// The same at an older version; `None` if it is forgotten.
    pub(crate) fn list_at(
        &self,
        kind: Kind,
        prefix: &str,
        version: u64,
    ) -> Option<Vec<(String, Object)>> {
        if version < self.floor {
            return None;
        }
        let mut all: BTreeMap<_, _> = self.list(kind, prefix).into_iter().collect();
        for change in self.since(version).iter().rev() {
            if change.kind == kind && change.key.starts_with(prefix) {
                match &change.old {
                    Some(old) => all.insert(change.key.clone(), Arc::clone(old)),
                    None => all.remove(&change.key),
                };
            }
        }
        Some(all.into_iter().collect())
    }

    /// The changes after a version.
    pub(crate) fn since(&self, version: u64) -> &[Change] {
        let begin = self.changes.partition_point(|change| change.version <= version);
        &self.changes[begin..]
    }

    /// Stores an object at the next version.
    pub(crate) fn put(&mut self, kind: Kind, key: &str, mut object: Value) -> Object {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let new = Arc::new(object);
        let old = self.objects.insert((kind, key.to_owned()), Arc::clone(&new));
        self.changed(kind, key, old, Some(Arc::clone(&new)));
        new
    }

    /// Removes an object at the next version.
    pub(crate) fn remove(&mut self, kind: Kind, key: &str) {
        if let Some(old) = self.objects.remove(&(kind, key.to_owned())) {
            self.version += 1;
            self.changed(kind, key, Some(old), None);
        }
    }

    fn changed(&mut self, kind: Kind, key: &str, old: Option<Object>, new: Option<Object>) {
        let (version, key, at) = (self.version, key.to_owned(), Instant::now());
        self.changes.push(Change { version, kind, key, old, new, at });
    }

    /// Skips so many versions, as if objects of other kinds were written.
    pub(crate) fn skip(&mut self, versions: u64) {
        self.version += versions;
    }

    /// Forgets all changes up to now.
    pub(crate) fn forget(&mut self) {
        self.floor = self.version;
        self.changes.clear();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.clone())
    }

    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        *self = snapshot.0.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(list: &[(String, Object)]) -> Vec<&str> {
        list.iter().map(|(key, _)| key.as_str()).collect()
    }

    #[test]
    fn an_older_version_is_listed_until_it_is_forgotten() {
        let mut store = Store::new();
        store.put(Kind::Pod, "a/1", json!({"metadata": {}}));
        store.put(Kind::Pod, "a-b/1", json!({"metadata": {}}));
        let before = store.version();
        store.put(Kind::Pod, "a/2", json!({"metadata": {}}));
        store.remove(Kind::Pod, "a/1");
        assert_eq!(names(&store.list(Kind::Pod, "a/")), ["a/2"]);
        assert_eq!(names(&store.list(Kind::Pod, "")), ["a-b/1", "a/2"]);
        let old = store.list_at(Kind::Pod, "", before).expect("must be known");
        assert_eq!(names(&old), ["a-b/1", "a/1"]);
        assert_eq!(version_of(&old[1].1), 101);
        store.forget();
        assert!(store.list_at(Kind::Pod, "", before).is_none());
        assert!(store.list_at(Kind::Pod, "", store.version()).is_some());
    }
}
