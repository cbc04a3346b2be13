//! Reads an HTTP request as a call of the API.

use std::collections::BTreeMap;

use http::{HeaderMap, Method, Uri, header};
use serde_json::Value;

use crate::kind::{Kind, NEW_EVENTS};
use crate::protobuf::{self, MAGIC, PROTOBUF};
use crate::refusal::Refusal;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// GET of an object.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection with `watch`.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE of an object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
}

impl Verb {
    /// Whether it changes something.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchFormat {
    Json,
    Merge,
    Strategic,
}

/// A call of the API.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) kind: Kind,
    /// Empty for all, and for kinds without.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) agent: String,
    pub(crate) content: String,
    /// Whether the reply is reduced to the metadata.
    pub(crate) brief: bool,
    /// Whether the reply may be protobuf.
    pub(crate) protobuf: bool,
    /// Whether the call is one of `events.k8s.io`.
    pub(crate) new_events: bool,
}

impl Call {
    /// Reads everything but the body.
    pub(crate) fn read(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Self, Refusal> {
        let segments: Vec<String> =
            uri.path().split('/').filter(|it| !it.is_empty()).map(decoded).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, version, rest) = match &segments[..] {
            ["api", "v1", rest @ ..] => ("", "v1", rest),
            ["apis", group, version, rest @ ..] if !group.is_empty() => (*group, *version, rest),
            _ => return Err(Refusal::no_such_path()),
        };
        let (namespace, rest) = match rest {
            ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return Err(Refusal::no_such_path()),
        };
        let kind = Kind::of(group, version, plural).ok_or_else(Refusal::no_such_path)?;
        if !namespace.is_empty() && !kind.facts().namespaced {
            return Err(Refusal::no_such_path());
        }
        let query = query(uri.query().unwrap_or_default());
        let verb = verb(method, !name.is_empty(), subresource, &query)?;
        let text = |name| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let call = Self {
            verb,
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            query,
            agent: text(header::USER_AGENT),
            content: text(header::CONTENT_TYPE),
            protobuf: text(header::ACCEPT).starts_with(PROTOBUF),
            brief: text(header::ACCEPT).contains("as=PartialObjectMetadata"),
            new_events: group == NEW_EVENTS,
        };
        call.check()?;
        Ok(call)
    }

    fn check(&self) -> Result<(), Refusal> {
        let facts = self.kind.facts();
        let known = match self.subresource.as_str() {
            "" => true,
            "status" => facts.has_status,
            "binding" => self.kind == Kind::Pod,
            "finalize" => self.kind == Kind::Namespace,
            _ => false,
        };
        if !known {
            return Err(Refusal::no_such_path());
        }
        let allowed = match (self.subresource.as_str(), self.verb) {
            ("", Verb::Create) => !facts.namespaced || !self.namespace.is_empty(),
            ("", Verb::DeleteCollection) => {
                facts.namespaced && !self.namespace.is_empty() || self.kind == Kind::Node
            }
            ("status", verb) => matches!(verb, Verb::Get | Verb::Update | Verb::Patch),
            ("binding", verb) => verb == Verb::Create,
            ("finalize", verb) => verb == Verb::Update,
            _ => self.kind != Kind::PriorityClass || !self.verb.writes(),
        };
        if allowed { Ok(()) } else { Err(Refusal::not_allowed()) }
    }

    /// A parameter; empty without it.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Whether a parameter is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        is_true(&self.query, name)
    }

    /// A parameter that is a version; `None` without it.
    pub(crate) fn version(&self) -> Result<Option<u64>, Refusal> {
        let text = self.parameter("resourceVersion");
        if text.is_empty() {
            return Ok(None);
        }
        let problem = || Refusal::bad_request(format!("invalid resource version: {text:?}"));
        text.parse().map(Some).map_err(|_| problem())
    }

    /// The key of its object.
    pub(crate) fn key(&self) -> String {
        crate::store::key(self.kind, &self.namespace, &self.name)
    }

    /// The format of its patch.
    pub(crate) fn patch_format(&self) -> Result<PatchFormat, Refusal> {
        match self.content.split(';').next().unwrap_or_default() {
            "application/json-patch+json" => Ok(PatchFormat::Json),
            "application/merge-patch+json" => Ok(PatchFormat::Merge),
            "application/strategic-merge-patch+json" => Ok(PatchFormat::Strategic),
            other => Err(Refusal::unsupported(other)),
        }
    }

    /// Reads its body; null without one.
    pub(crate) fn body(&self, bytes: &[u8]) -> Result<Value, Refusal> {
        if self.content.starts_with(PROTOBUF) && bytes.starts_with(MAGIC) {
            return protobuf::read(bytes).map_err(Refusal::bad_request);
        }
        if self.content.contains("protobuf") {
            return Err(Refusal::unsupported(&self.content));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(bytes).map_err(|error| Refusal::bad_request(error.to_string()))
    }
}

fn verb(
    method: &Method,
    named: bool,
    subresource: &str,
    query: &BTreeMap<String, String>,
) -> Result<Verb, Refusal> {
    Ok(match (method.as_str(), named) {
        ("GET", _) if subresource.is_empty() && is_true(query, "watch") => Verb::Watch,
        ("GET", true) => Verb::Get,
        ("GET", false) => Verb::List,
        ("POST", false) => Verb::Create,
        ("POST", true) if !subresource.is_empty() => Verb::Create,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return Err(Refusal::not_allowed()),
    })
}

fn is_true(query: &BTreeMap<String, String>, name: &str) -> bool {
    query.get(name).is_some_and(|value| matches!(value.as_str(), "" | "true" | "1"))
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| (decoded(name), decoded(&value.replace('+', " ")))).collect()
}

/// Decodes `%3D` and the like; what is malformed stays.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        if let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &Method, uri: &str) -> Result<Call, u16> {
        let uri = uri.parse().expect("must be a URI");
        Call::read(method, &uri, &HeaderMap::new()).map_err(|refusal| refusal.code)
    }

    #[test]
    fn paths_and_methods_are_verbs_on_objects() {
        let table = [
            (Method::GET, "/api/v1/pods?limit=5", Verb::List, Kind::Pod, "", "", ""),
            (Method::GET, "/api/v1/namespaces/ns/pods?watch", Verb::Watch, Kind::Pod, "ns", "", ""),
            (Method::GET, "/api/v1/namespaces/ns", Verb::Get, Kind::Namespace, "", "ns", ""),
            (
                Method::PUT,
                "/apis/batch/v1/namespaces/ns/jobs/j/status",
                Verb::Update,
                Kind::Job,
                "ns",
                "j",
                "status",
            ),
            (Method::PATCH, "/api/v1/nodes/n/status", Verb::Patch, Kind::Node, "", "n", "status"),
            (
                Method::POST,
                "/api/v1/namespaces/ns/pods/p/binding",
                Verb::Create,
                Kind::Pod,
                "ns",
                "p",
                "binding",
            ),
        ];
        for (method, uri, verb, kind, namespace, name, subresource) in table {
            let call = read(&method, uri).expect(uri);
            assert_eq!((call.verb, call.kind), (verb, kind), "{uri}");
            let found = (&*call.namespace, &*call.name, &*call.subresource);
            assert_eq!(found, (namespace, name, subresource), "{uri}");
        }
        for (method, uri, code) in [
            (Method::GET, "/api/v1/secrets", 404),
            (Method::GET, "/api/v1/namespaces/ns/nodes", 404),
            (Method::POST, "/api/v1/pods", 405),
            (Method::POST, "/api/v1/namespaces/ns/pods/p", 405),
            (Method::GET, "/api/v1/namespaces/ns/leases/l/status", 404),
        ] {
            assert_eq!(read(&method, uri).err(), Some(code), "{uri}");
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let call = read(&Method::GET, "/api/v1/pods?fieldSelector=spec.nodeName%3Da&x=%zz&limit=2");
        let call = call.expect("must be read");
        assert_eq!(call.parameter("fieldSelector"), "spec.nodeName=a");
        assert_eq!((call.parameter("x"), call.parameter("y")), ("%zz", ""));
    }
}
