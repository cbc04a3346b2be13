//! Parses what the API sends, one object at a time, so that an unreadable object does not hold up
//! others. Pure.

use std::borrow::Cow;

use epilogue_common::names::media_type::{JSON, PROTOBUF};
use epilogue_common::watch_event::{Controller, Rejected, Unreadable};
use http::{HeaderMap, HeaderValue, header};
use kube::core::Status as ApiStatus;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::protobuf;

/// Annotation of the bookmark that ends a streamed list.
pub(super) const LIST_END: &str = "k8s.io/initial-events-end";

/// How to read an object of one kind.
#[derive(Debug)]
pub struct Read<T> {
    /// From JSON.
    pub json: ReadJson<T>,
    /// From protobuf, where the server has it; `None` asks for JSON.
    pub protobuf: Option<ReadProtobuf<T>>,
}

/// Parses an object from JSON.
type ReadJson<T> = fn(&str) -> Result<T, serde_json::Error>;
/// Parses an object from its protobuf message.
pub(super) type ReadProtobuf<T> = fn(&[u8]) -> Result<T, Rejected>;

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON; a watch sends one line for each event.
    Json,
    /// Protobuf; a watch sends a length before each event.
    Protobuf,
}

impl<T> Clone for Read<T> {
    fn clone(&self) -> Self {
        Self { json: self.json, protobuf: self.protobuf }
    }
}

impl<T> Read<T> {
    /// The value of the header `Accept`.
    pub fn accept(&self) -> HeaderValue {
        HeaderValue::from_static(match self.protobuf {
            Some(_) => "application/vnd.kubernetes.protobuf,application/json",
            None => JSON,
        })
    }
}

impl Format {
    /// The format that the headers of a reply name.
    pub fn of(headers: &HeaderMap) -> Self {
        let content = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if content.is_some_and(|content| content.starts_with(PROTOBUF)) {
            Self::Protobuf
        } else {
            Self::Json
        }
    }
}

/// One event of a watch.
#[derive(Debug)]
pub enum Event<T> {
    /// An object was listed, added, modified or deleted.
    Object {
        /// The object, or its identity if it is unreadable.
        object: Result<T, Box<Unreadable>>,
        /// Whether it was deleted.
        gone: bool,
    },
    /// All changes up to this version were sent.
    Bookmark {
        /// The version.
        version: String,
        /// Whether a streamed list ends here.
        ends_list: bool,
    },
    /// The server ends the watch with an error.
    Error {
        /// `code` of the Status.
        code: u16,
        /// `message` of the Status.
        message: String,
    },
}

/// A page of a list.
#[derive(Debug)]
pub struct Page<T> {
    /// Version of the list.
    pub version: String,
    /// Continue token of the next page; empty on the last one.
    pub token: String,
    /// The objects, each parsed on its own.
    pub objects: Vec<Result<T, Box<Unreadable>>>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
    r#continue: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BookmarkMeta {
    resource_version: String,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

/// The fields that identify any API object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Peek {
    metadata: PeekMeta,
    spec: Option<PeekSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PeekMeta {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
    owner_references: Option<Vec<PeekOwner>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PeekOwner {
    controller: Option<bool>,
    #[serde(flatten)]
    owner: Controller,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PeekSpec {
    managed_by: Option<String>,
}

/// Parses one frame of a watch. The error concerns the frame itself and not its object.
pub fn event<T>(format: Format, frame: &[u8], read: &Read<T>) -> Result<Event<T>, String> {
    match read.protobuf {
        Some(read) if format == Format::Protobuf => protobuf::event(frame, read),
        _ => json_event(frame, read.json),
    }
}

/// Parses a page of a list.
pub fn page<T>(format: Format, body: &[u8], read: &Read<T>) -> Result<Page<T>, String> {
    match read.protobuf {
        Some(read) if format == Format::Protobuf => protobuf::page(body, read),
        _ => json_page(body, read.json),
    }
}

/// Parses an object that is a reply on its own.
pub fn reply<T>(format: Format, body: &[u8], read: &Read<T>) -> Result<T, serde_json::Error> {
    match read.protobuf {
        Some(read) if format == Format::Protobuf => {
            protobuf::object(body, read).map_err(serde::de::Error::custom)
        }
        _ => (read.json)(&String::from_utf8_lossy(body)),
    }
}

/// Parses the body of a refusal with this code. A proxy may have written it.
pub fn refusal(format: Format, body: &[u8], code: u16) -> ApiStatus {
    status(format, body, code).unwrap_or_else(|| {
        let text = String::from_utf8_lossy(body);
        ApiStatus::failure(text.trim(), "").with_code(code)
    })
}

/// Parses the status in the body of a refusal with this code; `None` if a proxy wrote it.
pub(crate) fn status(format: Format, body: &[u8], code: u16) -> Option<ApiStatus> {
    match format {
        Format::Json => serde_json::from_slice(body).ok(),
        Format::Protobuf => protobuf::status(body).map(|status| status.refusal(code)),
    }
}

/// Parses a line. The API accepts invalid UTF-8 in `managedFields`; it is read as U+FFFD.
fn json_event<T>(line: &[u8], read: ReadJson<T>) -> Result<Event<T>, String> {
    let line = String::from_utf8_lossy(line);
    let raw: RawEvent<'_> =
        serde_json::from_str(&line).map_err(|error| format!("no watch event: {error}"))?;
    let text = raw.object.get();
    Ok(match &*raw.kind {
        "BOOKMARK" => {
            let Bookmark { metadata } = serde_json::from_str(text).unwrap_or_default();
            let annotations = metadata.annotations.unwrap_or_default();
            let ends_list = annotations.contains_key(LIST_END);
            Event::Bookmark { version: metadata.resource_version, ends_list }
        }
        "ERROR" => {
            let status: Status = serde_json::from_str(text).unwrap_or_default();
            let said = [status.message, status.reason];
            let message = said.into_iter().find(|said| !said.is_empty());
            let message = message.unwrap_or_else(|| "an error without a message".to_owned());
            Event::Error { code: status.code, message }
        }
        "ADDED" | "MODIFIED" => Event::Object { object: object(text, read, false), gone: false },
        "DELETED" => Event::Object { object: object(text, read, true), gone: true },
        other => return Err(format!("a watch event of the unknown type {other:?}")),
    })
}

fn json_page<T>(body: &[u8], read: ReadJson<T>) -> Result<Page<T>, String> {
    let body = String::from_utf8_lossy(body);
    let raw: RawPage<'_> =
        serde_json::from_str(&body).map_err(|error| format!("no list: {error}"))?;
    let items = raw.items.unwrap_or_default();
    Ok(Page {
        version: raw.metadata.resource_version,
        token: raw.metadata.r#continue,
        objects: items.into_iter().map(|item| object(item.get(), read, false)).collect(),
    })
}

fn object<T>(text: &str, read: ReadJson<T>, gone: bool) -> Result<T, Box<Unreadable>> {
    read(text).map_err(|error| Box::new(unreadable(text, gone, &error)))
}

fn unreadable(text: &str, gone: bool, error: &serde_json::Error) -> Unreadable {
    // Unknown fields are skipped without recursion, however deep they are.
    let Peek { metadata, spec } = serde_json::from_str(text).unwrap_or_default();
    let owners = metadata.owner_references.unwrap_or_default();
    let owner = owners.into_iter().find(|each| each.controller == Some(true));
    Unreadable {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        version: metadata.resource_version.unwrap_or_default(),
        owner: owner.map(|each| each.owner),
        managed_by: spec.and_then(|spec| spec.managed_by),
        deleting: metadata.deletion_timestamp.is_some(),
        gone,
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_str(text)
    }

    fn object_of(line: &[u8]) -> Result<Value, Box<Unreadable>> {
        match json_event(line, read).expect("must be an event") {
            Event::Object { object, .. } => object,
            other => panic!("{other:?}"),
        }
    }

    fn deep(levels: usize) -> String {
        format!("{}1{}", "{\"f:a\":".repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn object_too_deep_says_who_it_is_and_who_owns_it() {
        let line = format!(
            "{{\"type\":\"MODIFIED\",\"object\":{{\"metadata\":{{\"namespace\":\"t1\",\"name\":\
             \"deep\",\"uid\":\"u1\",\"resourceVersion\":\"7\",\"ownerReferences\":[{{\"kind\":\
             \"Job\",\"name\":\"j\",\"uid\":\"o1\",\"controller\":true}}]}},\"spec\":{{\
             \"managedBy\":\"a/b\",\"x\":{}}}}}}}",
            deep(500)
        );
        let unreadable = object_of(line.as_bytes()).expect_err("must be too deep");
        let owner = Controller { kind: "Job".into(), name: "j".into(), uid: "o1".into() };
        assert_eq!(
            (&*unreadable.namespace, &*unreadable.name, &*unreadable.uid),
            ("t1", "deep", "u1")
        );
        assert_eq!((unreadable.owner, unreadable.managed_by), (Some(owner), Some("a/b".into())));
        assert_eq!((unreadable.version.as_str(), unreadable.gone), ("7", false));
        assert!(unreadable.why.contains("recursion limit"), "{}", unreadable.why);
        assert!(!unreadable.deleting);
        let now = line.replace("\"uid\":\"u1\"", "\"deletionTimestamp\":\"2026-01-01T00:00:00Z\"");
        assert!(object_of(now.as_bytes()).expect_err("as before").deleting);
    }

    #[test]
    fn bytes_that_are_no_utf_8_are_read_as_replacement_characters() {
        let mut line = b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a".to_vec();
        line.extend([0xff, 0xfe]);
        line.extend(b"\"}}}");
        let object = object_of(&line).expect("must be read");
        assert_eq!(object["metadata"]["name"], "a\u{fffd}\u{fffd}");
    }

    #[test]
    fn one_object_of_a_page_that_cannot_be_read_leaves_the_others() {
        let body = format!(
            "{{\"metadata\":{{\"resourceVersion\":\"9\",\"continue\":\"c\"}},\"items\":[\
             {{\"metadata\":{{\"name\":\"a\"}}}},{{\"metadata\":{{\"name\":\"b\"}},\"x\":{}}}]}}",
            deep(200)
        );
        let page = json_page(body.as_bytes(), read).expect("must be a page");
        assert_eq!((page.version.as_str(), page.token.as_str()), ("9", "c"));
        assert_eq!(page.objects[0].as_ref().expect("must be read")["metadata"]["name"], "a");
        assert_eq!(page.objects[1].as_ref().expect_err("must be too deep").name, "b");
    }

    #[test]
    fn line_that_is_no_event_is_an_error_that_says_so() {
        for (line, why) in [
            (&b"HTTP proxy says no"[..], "no watch event"),
            (b"{\"type\":\"NEW\",\"object\":{}}", "unknown type \"NEW\""),
            (b"", "no watch event"),
        ] {
            let error = json_event(line, read).expect_err("must be refused");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn error_event_gives_the_server_s_words() {
        let line = json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}});
        let Ok(Event::<Value>::Error { code, message }) =
            json_event(line.to_string().as_bytes(), read)
        else {
            panic!("must be an error");
        };
        assert_eq!((code, message.as_str()), (410, "too old"));
    }
}
