//! Reads a namespace for the rules of pod GC.

use std::collections::BTreeMap;

use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use jiff::SignedDuration;

use crate::go_duration::GoDuration;

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceView {
    /// `metadata.name`.
    pub name: String,
    /// Its force-fail policy for its Jobs' pods.
    pub force_fail_after: Option<SignedDuration>,
}

impl NamespaceView {
    /// Reads the annotations of a namespace.
    pub fn new(name: impl Into<String>, annotations: &BTreeMap<String, String>) -> Self {
        let text = annotations.get(FORCE_FAIL_AFTER);
        Self { name: name.into(), force_fail_after: text.and_then(|text| force_fail_after(text)) }
    }
}

/// The time in an annotation. One that cannot be read counts as absent: the admission policy
/// refuses it.
pub(crate) fn force_fail_after(text: &str) -> Option<SignedDuration> {
    SignedDuration::try_from(text.parse::<GoDuration>().ok()?.0).ok()
}
