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
        status_unknown: Map<String, Value>,
    },
    /// From protobuf.
    Protobuf {
        /// The message of `metadata`, without `managedFields`.
        metadata: Bytes,
        /// The message of `spec.template`.
        template: Bytes,
        /// Unknown fields of `status`.
        status_unknown: Bytes,
    },
    /// Not kept: a sync that writes reads it from the API first.
    Unkept {
        /// Size of the template in bytes.
        template_size: usize,
        /// Whether the template has labels.
        has_labels: bool,
    },
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
