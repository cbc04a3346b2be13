//! Reads a Job together with its spec as it came, for a status write that repeats both.

use epilogue_common::watch_event::Rejected;
use prost::bytes::Bytes;
use serde::Deserialize;

use super::json::{Json, read};
use super::protobuf::raw_spec;
use super::{Job, WireJob};

/// A Job and its spec.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeJob {
    /// The view.
    pub job: Job,
    pub(crate) spec: RawSpec,
}

/// `spec`, in the format of the Job's source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RawSpec {
    Json(Json),
    Protobuf(Bytes),
}

#[derive(Deserialize)]
struct WithSpec {
    #[serde(default)]
    spec: Json,
}

impl WholeJob {
    /// Reads a Job from its JSON; the error names the field.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let job = WireJob::read(text)?.view()?;
        Ok(Self { job, spec: RawSpec::Json(read::<WithSpec>(text)?.spec) })
    }

    /// Reads a Job from its protobuf message.
    pub fn decode(message: &[u8]) -> Result<Self, Rejected> {
        let (job, _) = Job::decode(message)?;
        Ok(Self { job, spec: RawSpec::Protobuf(raw_spec(message)?) })
    }
}
