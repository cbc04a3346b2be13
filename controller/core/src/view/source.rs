//! Keeps what a Job's writes repeat as the API sent it, so that unknown fields survive.

use prost::bytes::Bytes;
use serde_json::{Map, Value};

use super::Json;

/// The parts of a Job that its writes repeat, in the format in which the Job came. Its writes have
/// the same format.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// From JSON.
    Json {
        /// `metadata`, without `managedFields`.
        metadata: Json,
        /// `spec.template`.
        template: Json,
        /// Unknown fields of `status`.
        status_unknown: UnknownFields<Map<String, Value>>,
    },
    /// From protobuf.
    Protobuf {
        /// The message of `metadata`, without `managedFields`.
        metadata: Bytes,
        /// The message of `spec.template`.
        template: Bytes,
        /// Unknown fields of `status`.
        status_unknown: UnknownFields<Bytes>,
    },
    /// Not kept: a sync that writes reads it from the API first.
    Unkept {
        /// Size of the template in bytes.
        template_size: usize,
        /// Whether the template has labels.
        has_labels: bool,
    },
}

/// The fields of a status that a later API may have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnknownFields<T> {
    /// Of the status itself.
    pub status: T,
    /// Of each condition that has some, by its type and status.
    pub conditions: Vec<(String, String, T)>,
    /// Of `uncountedTerminatedPods`.
    pub uncounted: T,
}

impl<T> UnknownFields<T> {
    /// Those of a condition, as long as it says the same.
    pub(crate) fn of_condition(&self, kind: &str, status: &str) -> Option<&T> {
        let mut all = self.conditions.iter();
        all.find(|(of, says, _)| of == kind && says == status).map(|(_, _, unknown)| unknown)
    }
}

impl Source {
    /// Size of the template in bytes.
    pub fn template_size(&self) -> usize {
        match self {
            Self::Json { template, .. } => template.as_str().len(),
            Self::Protobuf { template, .. } => template.len(),
            Self::Unkept { template_size, .. } => *template_size,
        }
    }

    /// Whether it has to be read before a write repeats it.
    pub fn is_unkept(&self) -> bool {
        matches!(self, Self::Unkept { .. })
    }
}
