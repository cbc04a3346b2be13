//! Lists objects: selectors, pages, and the versions that a list may have.

use serde_json::{Value, json};

use crate::call::{Call, Verb};
use crate::kind::Kind;
use crate::refusal::Refusal;
use crate::selector::Selector;
use crate::state::State;
use crate::store::{Object, prefix};

/// Where a list goes on.
struct Token {
    version: u64,
    /// The key of the last object.
    after: String,
}

impl Call {
    /// Its selectors, and the name if it has one.
    pub(crate) fn selector(&self) -> Result<Selector, Refusal> {
        let (labels, fields) = (self.parameter("labelSelector"), self.parameter("fieldSelector"));
        let selector = Selector::parse(self.kind, labels, fields)?;
        Ok(if self.name.is_empty() { selector } else { selector.named(&self.name) })
    }
}

impl State {
    pub(crate) fn list(&self, call: &Call) -> Result<Value, Refusal> {
        let selector = call.selector()?;
        let prefix = prefix(call.kind, &call.namespace);
        let (version, after) = self.list_version(call)?;
        let Some(all) = self.store.list_at(call.kind, &prefix, version) else {
            return Err(forgotten(&after));
        };
        let rest = all.into_iter().skip_while(|(key, _)| *key <= after);
        let mut rest = rest.peekable();
        let limit: usize = call.parameter("limit").parse().unwrap_or(0);
        let page_max = self.faults.page_max.unwrap_or(usize::MAX);
        let limit = if limit == 0 { usize::MAX } else { limit.min(page_max) };
        let (mut page, mut last) = (Vec::new(), String::new());
        while page.len() < limit
            && let Some((key, object)) = rest.next()
        {
            if selector.matches(&object) {
                page.push(object);
            }
            last = key;
        }
        let mut list = of(call.kind, page, version);
        // There may be no further one that is selected.
        if rest.peek().is_some() {
            list["metadata"]["continue"] = Token { version, after: last }.text().into();
            if selector.is_empty() {
                list["metadata"]["remainingItemCount"] = rest.count().into();
            }
        }
        Ok(list)
    }

    /// The version at which a list is read, and the key after which it begins.
    fn list_version(&self, call: &Call) -> Result<(u64, String), Refusal> {
        let (asked, rule) = (call.version()?, call.parameter("resourceVersionMatch"));
        let current = self.store.version();
        let token = call.parameter("continue");
        let bad = |problem: &str| {
            Err(Refusal::invalid("resourceVersionMatch", "FieldValueForbidden", problem))
        };
        if !token.is_empty() {
            if asked.is_some_and(|version| version != 0) || !rule.is_empty() {
                return Err(Refusal::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let Token { version, after } = Token::read(token)?;
            return Ok((if version == 0 { current } else { version }, after));
        }
        if !call.parameter("sendInitialEvents").is_empty() {
            return bad("sendInitialEvents is forbidden for list");
        }
        let version = match (asked, rule) {
            (None, "") | (Some(0), "" | "NotOlderThan") => current,
            (None, _) => {
                return bad("resourceVersionMatch is forbidden unless resourceVersion is \
                                     provided");
            }
            (Some(version), _) if version > current => {
                return Err(Refusal::too_large_version(version, current));
            }
            (Some(0), "Exact") => return bad("Exact is forbidden for resourceVersion 0"),
            (Some(version), "Exact") => version,
            (Some(version), "") if !matches!(call.parameter("limit"), "" | "0") => version,
            (Some(_), "" | "NotOlderThan") => current,
            (Some(_), _) => return bad("unknown"),
        };
        Ok((version, String::new()))
    }
}

/// The refusal of a list at a version that is forgotten, after this key.
fn forgotten(after: &str) -> Refusal {
    if after.is_empty() {
        return Refusal::expired("The resourceVersion for the provided list is too old.");
    }
    let message = "The provided continue parameter is too old to display a consistent list \
                   result. You can start a new list without the continue parameter, or use the \
                   continue token in this response to retrieve the remainder of the results. \
                   Continuing with the provided token results in an inconsistent list - objects \
                   that were created, modified, or deleted between the time the first chunk was \
                   returned and now may show up in the list.";
    let token = Token { version: 0, after: after.to_owned() };
    Refusal { token: Some(token.text()), ..Refusal::expired(message) }
}

/// The refusal of a call that goes on with a list, if that can be too old.
pub(crate) fn expired(call: &Call) -> Option<Refusal> {
    let token = Token::read(call.parameter("continue")).ok()?;
    (call.verb == Verb::List && token.version != 0).then(|| forgotten(&token.after))
}

/// A list of these objects. Their own kinds are left out, as the API does.
pub(crate) fn of(kind: Kind, objects: impl IntoIterator<Item = Object>, version: u64) -> Value {
    let items = objects.into_iter().map(|object| {
        let mut item = Value::clone(&object);
        if let Some(fields) = item.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        item
    });
    json!({
        "kind": format!("{}List", kind.facts().name),
        "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": version.to_string()},
        "items": items.collect::<Vec<_>>(),
    })
}

impl Token {
    /// URL-safe text: the version and the key, in hexadecimal digits.
    fn text(&self) -> String {
        let key: Vec<String> = self.after.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}", self.version, key.concat())
    }

    fn read(text: &str) -> Result<Self, Refusal> {
        let problem = || Refusal::bad_request("continue key is not valid");
        let (version, key) = text.split_once('-').ok_or_else(problem)?;
        let digits: Vec<char> = key.chars().collect();
        let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
        let bytes: Result<Vec<u8>, _> = pairs.map(|pair| u8::from_str_radix(&pair, 16)).collect();
        let after = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let version = version.parse().map_err(|_| problem())?;
        Ok(Self { version, after: after.ok_or_else(problem)? })
    }
}
