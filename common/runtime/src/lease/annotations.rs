//! What a leader says about itself on its lease, which may change while it leads.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Annotations by name; one without a value is removed. Clones share them, so that a change comes
/// with the next renewal.
#[derive(Clone, Debug, Default)]
pub struct Annotations(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Annotations {
    /// The value of this annotation.
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.lock().get(name).cloned().flatten()
    }

    /// Changes one annotation.
    pub fn set(&self, name: &'static str, value: Option<String>) {
        self.0.lock().insert(name, value);
    }

    /// All of them.
    pub(super) fn all(&self) -> BTreeMap<&'static str, Option<String>> {
        self.0.lock().clone()
    }
}

impl PartialEq for Annotations {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

impl Eq for Annotations {}

impl<const N: usize> From<[(&'static str, Option<String>); N]> for Annotations {
    fn from(all: [(&'static str, Option<String>); N]) -> Self {
        Self(Arc::new(Mutex::new(all.into())))
    }
}
