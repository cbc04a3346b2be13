//! Defines the events of a watch, which a program's state takes whatever transport brought them.

use serde::Deserialize;

/// An event of a watch. Versions are `resourceVersion`s.
#[derive(Clone, Debug)]
pub enum WatchEvent<T> {
    /// A list begins; an unfinished one is void.
    ListBegins,
    /// The list is complete, and includes all changes up to this version.
    ListEnds(String),
    /// An object exists, listed, added or modified.
    Shown(T),
    /// An object was deleted; its version is that of the deletion.
    Gone(T),
    /// An unreadable object, which exists or was deleted.
    Unreadable(Box<Unreadable>),
    /// The watch has yielded all changes up to this version.
    UpTo(String),
    /// The API has gone back to an earlier version, as when etcd is restored from a snapshot. What
    /// the watch has yielded may not have happened; a list follows.
    Restored,
}

/// An object that its reader rejected, identified by its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// `metadata.namespace`; empty for objects without one.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// The owner with `controller: true`.
    pub owner: Option<Controller>,
    /// `spec.managedBy` of a Job.
    pub managed_by: Option<String>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether it was deleted.
    pub gone: bool,
    /// The reader's error.
    pub why: String,
}

/// Why a reader rejects the message of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// The error; it names the field.
    pub why: String,
    /// `spec.managedBy` of a Job, because only its reader knows which field that is.
    pub managed_by: Option<String>,
}

/// The entry of `metadata.ownerReferences` that has `controller: true`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Controller {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl<T> WatchEvent<T> {
    /// The same event, of another view of its object.
    pub fn map<U>(self, view: impl FnOnce(T) -> U) -> WatchEvent<U> {
        match self {
            Self::ListBegins => WatchEvent::ListBegins,
            Self::ListEnds(version) => WatchEvent::ListEnds(version),
            Self::Shown(object) => WatchEvent::Shown(view(object)),
            Self::Gone(object) => WatchEvent::Gone(view(object)),
            Self::Unreadable(object) => WatchEvent::Unreadable(object),
            Self::UpTo(version) => WatchEvent::UpTo(version),
            Self::Restored => WatchEvent::Restored,
        }
    }
}
