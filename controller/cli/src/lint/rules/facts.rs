//! Defines what lint knows besides the objects, and how lists in them are read.

use serde_json::Value;

/// What lint knows besides the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Whether the controller runs with `--manage-all-jobs`.
    pub(crate) manage_all_jobs: bool,
}

/// The entries of a list; nothing for another value.
pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
