//! Holds the body of a write, which has the format of the Job that it is made from.

use epilogue_common::names::media_type::{JSON, PROTOBUF, PROTOBUF_MAGIC};
use prost::Message;
use prost::bytes::Bytes;
use serde_json::value::RawValue;

use crate::view::WirePod;

/// The body of a create call or of a status write.
#[derive(Clone, Debug)]
pub enum Body {
    /// A JSON object.
    Json(Box<RawValue>),
    /// A protobuf message in its envelope.
    Protobuf(Vec<u8>),
}

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    kind: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    message: Bytes,
}

/// `runtime.TypeMeta`.
#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

impl Body {
    /// An object of this kind, from its message.
    pub(super) fn protobuf(api_version: &str, kind: &str, message: Vec<u8>) -> Self {
        let kind = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let envelope = Envelope { kind: Some(kind), message: message.into() };
        let mut body = PROTOBUF_MAGIC.to_vec();
        body.reserve_exact(envelope.encoded_len());
        envelope.encode(&mut body).expect("a vector grows");
        Self::Protobuf(body)
    }

    /// The value of the header `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => JSON,
            Self::Protobuf(_) => PROTOBUF,
        }
    }

    /// The bytes to send.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Json(text) => Box::<str>::from(text).into_string().into_bytes(),
            Self::Protobuf(bytes) => bytes,
        }
    }

    /// The pod that it creates; `None` if it creates none.
    pub fn pod(&self) -> Option<WirePod> {
        match self {
            Self::Json(text) => serde_json::from_str(text.get()).ok(),
            Self::Protobuf(bytes) => {
                let envelope = Envelope::decode(bytes.strip_prefix(PROTOBUF_MAGIC)?).ok()?;
                WirePod::decode(&envelope.message).ok()
            }
        }
    }

    /// The JSON text, if it is JSON.
    pub fn json(&self) -> Option<&str> {
        match self {
            Self::Json(text) => Some(text.get()),
            Self::Protobuf(_) => None,
        }
    }
}
