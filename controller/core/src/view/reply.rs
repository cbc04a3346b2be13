//! Reads of a reply what a caller needs of the object that it wrote or asked for.

use epilogue_common::watch_event::Rejected;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::read;

/// The identity of an object in a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

#[derive(Deserialize)]
struct JsonReply {
    metadata: JsonMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonMeta {
    uid: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
}

impl Reply {
    /// Reads a reply from JSON.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let JsonReply { metadata } = read(text)?;
        Ok(Self {
            uid: metadata.uid,
            name: metadata.name,
            version: metadata.resource_version,
            deleting: metadata.deletion_timestamp.is_some(),
        })
    }

    /// Reads a reply from the message of an object of any kind.
    pub fn decode(message: &[u8]) -> Result<Self, Rejected> {
        super::protobuf::reply(message)
    }
}
