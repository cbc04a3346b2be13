//! Parses the API's protobuf, by the tags of the published `generated.proto`. Pure.
//!
//! Text that clients may store is read as bytes: the API keeps text that is not UTF-8.

use epilogue_common::names::media_type::PROTOBUF_MAGIC;
use epilogue_common::watch_event::{Controller, Rejected, Unreadable};
use kube::core::Status as ApiStatus;
use kube::core::response::{StatusCause as ApiCause, StatusDetails as ApiDetails};
use prost::Message;
use prost::bytes::Bytes;

use super::wire::{Event, LIST_END, Page, ReadProtobuf};

/// `metav1.WatchEvent`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) kind: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub(super) object: Option<RawExtension>,
}

/// `runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) raw: Bytes,
}

/// `runtime.Unknown`, without its type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) raw: Bytes,
}

/// A list of any kind; its items stay bytes.
#[derive(Clone, PartialEq, Message)]
struct ListMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    r#continue: String,
}

/// `metav1.Status`, as far as errors need it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(bytes = "vec", tag = "3")]
    pub(super) message: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) reason: Vec<u8>,
    #[prost(message, optional, tag = "5")]
    pub(super) details: Option<StatusDetails>,
    #[prost(int32, tag = "6")]
    pub(super) code: i32,
}

/// `metav1.StatusDetails`, as far as errors need it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusDetails {
    #[prost(message, repeated, tag = "4")]
    pub(super) causes: Vec<StatusCause>,
    #[prost(int32, tag = "5")]
    pub(super) retry_after_seconds: i32,
}

/// `metav1.StatusCause`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusCause {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) reason: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) message: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) field: Vec<u8>,
}

/// The identity of an object of any kind.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Peek {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<PeekMeta>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PeekMeta {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) name: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) namespace: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) uid: Vec<u8>,
    #[prost(bytes = "vec", tag = "6")]
    pub(super) resource_version: Vec<u8>,
    /// A time, of which only the presence counts.
    #[prost(bytes = "vec", optional, tag = "9")]
    deletion_timestamp: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "12")]
    pub(super) annotations: Vec<Entry>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
}

/// An entry of a map.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct OwnerReference {
    #[prost(bytes = "vec", tag = "1")]
    kind: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    uid: Vec<u8>,
    #[prost(bool, tag = "6")]
    controller: bool,
}

/// Parses one frame of a watch.
pub(super) fn event<T>(frame: &[u8], read: ReadProtobuf<T>) -> Result<Event<T>, String> {
    let WatchMessage { kind, object } = WatchMessage::decode(Bytes::copy_from_slice(frame))
        .map_err(|error| format!("no watch event: {error}"))?;
    let message = unwrapped(&object.unwrap_or_default().raw)?;
    Ok(match &*kind {
        b"BOOKMARK" => {
            let peek = Peek::decode(message).map_err(|error| format!("no bookmark: {error}"))?;
            let metadata = peek.metadata.unwrap_or_default();
            let ends_list = metadata.annotations.iter().any(|it| it.key == LIST_END.as_bytes());
            Event::Bookmark { version: text(&metadata.resource_version), ends_list }
        }
        b"ERROR" => {
            let status = Status::decode(message).unwrap_or_default();
            Event::Error { code: status.code(), message: status.words() }
        }
        b"ADDED" | b"MODIFIED" => {
            Event::Object { object: object_of(message, read, false), gone: false }
        }
        b"DELETED" => Event::Object { object: object_of(message, read, true), gone: true },
        other => return Err(format!("a watch event of the unknown type {:?}", text(other))),
    })
}

/// Parses a page of a list.
pub(super) fn page<T>(body: &[u8], read: ReadProtobuf<T>) -> Result<Page<T>, String> {
    let list = ListMessage::decode(unwrapped(&Bytes::copy_from_slice(body))?)
        .map_err(|error| format!("no list: {error}"))?;
    let metadata = list.metadata.unwrap_or_default();
    Ok(Page {
        version: metadata.resource_version,
        token: metadata.r#continue,
        objects: list.items.into_iter().map(|item| object_of(item, read, false)).collect(),
    })
}

/// Parses the body of a refusal.
pub(super) fn status(body: &[u8]) -> Option<Status> {
    Status::decode(unwrapped(&Bytes::copy_from_slice(body)).ok()?).ok()
}

/// Parses an object that is a reply on its own.
pub(super) fn object<T>(body: &[u8], read: ReadProtobuf<T>) -> Result<T, String> {
    let message = unwrapped(&Bytes::copy_from_slice(body))?;
    read(&message).map_err(|rejected| rejected.why)
}

/// The message inside of an object.
fn unwrapped(object: &Bytes) -> Result<Bytes, String> {
    if !object.starts_with(PROTOBUF_MAGIC) {
        return Err("an object that does not begin as protobuf does".to_owned());
    }
    let unknown = Unknown::decode(object.slice(PROTOBUF_MAGIC.len()..));
    Ok(unknown.map_err(|error| format!("no object: {error}"))?.raw)
}

fn object_of<T>(message: Bytes, read: ReadProtobuf<T>, gone: bool) -> Result<T, Box<Unreadable>> {
    read(&message).map_err(|rejected| Box::new(unreadable(message, gone, rejected)))
}

fn unreadable(message: Bytes, gone: bool, rejected: Rejected) -> Unreadable {
    let metadata = Peek::decode(message).unwrap_or_default().metadata.unwrap_or_default();
    let owner = metadata.owner_references.iter().find(|each| each.controller);
    Unreadable {
        namespace: text(&metadata.namespace),
        name: text(&metadata.name),
        uid: text(&metadata.uid),
        version: text(&metadata.resource_version),
        owner: owner.map(|each| Controller {
            kind: text(&each.kind),
            name: text(&each.name),
            uid: text(&each.uid),
        }),
        managed_by: rejected.managed_by,
        deleting: metadata.deletion_timestamp.is_some(),
        gone,
        why: rejected.why,
    }
}

impl Status {
    /// `code`, as HTTP has it.
    pub(super) fn code(&self) -> u16 {
        u16::try_from(self.code).unwrap_or_default()
    }

    /// `message`, or else `reason`.
    pub(super) fn words(&self) -> String {
        let said = [&self.message, &self.reason].into_iter().find(|said| !said.is_empty());
        said.map_or_else(|| "an error without a message".to_owned(), |said| text(said))
    }

    /// The same as JSON gives it, with this code.
    pub(super) fn refusal(&self, code: u16) -> ApiStatus {
        let status = ApiStatus::failure(&text(&self.message), &text(&self.reason)).with_code(code);
        let Some(details) = &self.details else { return status };
        let cause = |each: &StatusCause| ApiCause {
            reason: text(&each.reason),
            message: text(&each.message),
            field: text(&each.field),
        };
        status.with_details(ApiDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: details.causes.iter().map(cause).collect(),
            retry_after_seconds: u32::try_from(details.retry_after_seconds).unwrap_or_default(),
        })
    }
}

/// Text of the API, with U+FFFD in place of what is not UTF-8.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
pub(crate) mod samples {
    //! Builds what an API server sends.

    use super::*;

    /// An object as the API wraps it.
    pub(crate) fn wrapped(message: &impl Message) -> Vec<u8> {
        let unknown = Unknown { raw: message.encode_to_vec().into() };
        [PROTOBUF_MAGIC, &unknown.encode_to_vec()].concat()
    }

    /// A frame of a watch, with its length.
    pub(crate) fn frame(kind: &str, object: &impl Message) -> Vec<u8> {
        let object = Some(RawExtension { raw: wrapped(object).into() });
        let event = WatchMessage { kind: kind.into(), object }.encode_to_vec();
        let length = u32::try_from(event.len()).expect("must be short").to_be_bytes();
        [&length[..], &event].concat()
    }

    /// An object that has only metadata.
    pub(crate) fn object(name: &str, version: u64, annotations: &[&str]) -> Peek {
        let entry = |key: &&str| Entry { key: (*key).into() };
        Peek {
            metadata: Some(PeekMeta {
                name: name.into(),
                uid: name.into(),
                resource_version: version.to_string().into(),
                annotations: annotations.iter().map(entry).collect(),
                owner_references: vec![OwnerReference {
                    kind: "Job".into(),
                    name: "j".into(),
                    uid: "o1".into(),
                    controller: true,
                }],
                ..PeekMeta::default()
            }),
        }
    }

    /// A page with these objects.
    pub(crate) fn page(version: u64, token: &str, objects: &[Peek]) -> Vec<u8> {
        let (resource_version, token) = (version.to_string(), token.to_owned());
        wrapped(&ListMessage {
            metadata: Some(ListMeta { resource_version, r#continue: token }),
            items: objects.iter().map(|it| it.encode_to_vec().into()).collect(),
        })
    }

    /// A refusal with a cause and a wait.
    pub(crate) fn detailed(code: i32, reason: &str, cause: &str, seconds: i32) -> Status {
        let causes = vec![StatusCause { reason: cause.into(), ..StatusCause::default() }];
        let details = Some(StatusDetails { causes, retry_after_seconds: seconds });
        Status { details, ..status(code, reason) }
    }

    /// A refusal.
    pub(crate) fn status(code: i32, reason: &str) -> Status {
        Status { message: reason.into(), reason: reason.into(), code, details: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses every object.
    fn refuse(_: &[u8]) -> Result<(), Rejected> {
        Err(Rejected { why: "spec.odd: no number".into(), managed_by: Some("a/b".into()) })
    }

    #[test]
    fn an_unreadable_object_says_who_it_is_and_who_owns_it() {
        let frame = samples::frame("MODIFIED", &samples::object("odd", 7, &[]));
        let Ok(Event::Object { object: Err(object), gone: false }) = event(&frame[4..], refuse)
        else {
            panic!("must be an unreadable object");
        };
        assert_eq!((&*object.name, &*object.version), ("odd", "7"));
        let owner = Controller { kind: "Job".into(), name: "j".into(), uid: "o1".into() };
        assert_eq!(object.owner, Some(owner));
        assert_eq!(object.managed_by.as_deref(), Some("a/b"));
        assert_eq!(object.why, "spec.odd: no number");
        assert!(!object.deleting);
    }

    /// A `Time` of zero seconds is an empty message.
    #[test]
    fn an_unreadable_object_says_whether_it_is_being_deleted() {
        for time in [&[8, 1][..], &[]] {
            let mut metadata = vec![9 << 3 | 2, u8::try_from(time.len()).expect("short")];
            metadata.extend_from_slice(time);
            let mut object = vec![1 << 3 | 2, u8::try_from(metadata.len()).expect("short")];
            object.extend(metadata);
            let rejected = refuse(&object).expect_err("it refuses every object");
            assert!(unreadable(object.into(), false, rejected).deleting, "{time:?}");
        }
    }

    #[test]
    fn an_error_event_gives_the_server_s_words() {
        let frame = samples::frame("ERROR", &samples::status(410, "Expired"));
        let Ok(Event::Error { code, message }) = event(&frame[4..], refuse) else {
            panic!("must be an error");
        };
        assert_eq!((code, message.as_str()), (410, "Expired"));
    }

    #[test]
    fn bytes_that_are_no_event_are_an_error_that_says_so() {
        let new = samples::frame("NEW", &samples::object("a", 1, &[]));
        let bare = WatchMessage { kind: "ADDED".into(), object: None }.encode_to_vec();
        for (bytes, why) in [
            (&b"HTTP proxy says no"[..], "no watch event"),
            (&new[4..], "unknown type \"NEW\""),
            (&bare, "does not begin as protobuf does"),
        ] {
            let error = event(bytes, refuse).expect_err("must be refused");
            assert!(error.contains(why), "{error}");
        }
        assert!(page(b"<html>", refuse).is_err());
        assert_eq!(status(b"<html>"), None);
    }
}
