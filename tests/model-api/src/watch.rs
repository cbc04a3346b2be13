//! Streams changes: from a version or from the start, with bookmarks, until a time or a cut.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::call::Call;
use crate::faults::Flaw;
use crate::kind::Kind;
use crate::refusal::Refusal;
use crate::selector::Selector;
use crate::state::State;
use crate::store::{Change, prefix};

/// Time between two bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// How long a watch lasts that names no time.
const LASTS: Duration = Duration::from_mins(30);
/// The annotation of the bookmark that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// An open watch.
pub(crate) struct Stream {
    state: Arc<Mutex<State>>,
    stirred: Arc<Notify>,
    kind: Kind,
    prefix: String,
    selector: Selector,
    /// The version up to which changes were sent.
    position: u64,
    pending: VecDeque<Value>,
    ends: Instant,
    /// When the next bookmark is due; `None` if the caller wants none.
    bookmark: Option<Instant>,
    cut: u64,
    is_over: bool,
}

/// What comes next.
pub(crate) enum Next {
    Event(Value),
    /// The stream ends.
    End,
    /// The connection breaks.
    Break,
}

impl Stream {
    /// Opens a watch.
    pub(crate) fn open(
        shared: &Arc<Mutex<State>>,
        stirred: Arc<Notify>,
        call: &Call,
    ) -> Result<Self, Refusal> {
        let selector = call.selector()?;
        let from = call.version()?;
        check_initial_events(call)?;
        let state = shared.lock();
        if state.faults.denies_streamed_lists && !call.parameter("sendInitialEvents").is_empty() {
            let problem = "sendInitialEvents is forbidden for watch unless the WatchList feature \
                           gate is enabled";
            let field = "sendInitialEvents";
            return Err(Refusal::invalid(field, "FieldValueForbidden", problem));
        }
        let now = Instant::now();
        let seconds = call.parameter("timeoutSeconds").parse().ok().filter(|it| *it > 0);
        let mut stream = Self {
            state: Arc::clone(shared),
            stirred,
            kind: call.kind,
            prefix: prefix(call.kind, &call.namespace),
            selector,
            position: from.unwrap_or(0),
            pending: VecDeque::new(),
            ends: now + seconds.map_or(LASTS, Duration::from_secs),
            bookmark: call.flag("allowWatchBookmarks").then_some(now + BOOKMARK_EVERY),
            cut: state.cuts.get(&call.kind).copied().unwrap_or_default().count,
            is_over: false,
        };
        let asks_initial = call.parameter("sendInitialEvents") == "true";
        let declines = call.parameter("sendInitialEvents") == "false";
        if asks_initial || stream.position == 0 && !declines {
            stream.begin(&state, asks_initial);
        } else if stream.position == 0 {
            stream.position = state.store.version();
        } else if stream.position < state.store.floor() {
            stream.expire(state.store.floor());
        }
        drop(state);
        Ok(stream)
    }

    /// Sends all objects as added, and perhaps the bookmark after them.
    fn begin(&mut self, state: &State, with_end: bool) {
        self.position = state.store.version();
        for (_, object) in state.store.list(self.kind, &self.prefix) {
            if self.selector.matches(&object) {
                self.pending.push_back(event("ADDED", &object, None));
            }
        }
        if with_end && self.bookmark.is_some() {
            let mut bookmark = self.make_bookmark();
            bookmark["object"]["metadata"]["annotations"] = json!({INITIAL_END: "true"});
            self.pending.push_back(bookmark);
        }
    }

    fn make_bookmark(&self) -> Value {
        let version = self.position.to_string();
        json!({"type": "BOOKMARK", "object": {
            "kind": self.kind.facts().name,
            "apiVersion": self.kind.api_version(),
            "metadata": {"resourceVersion": version},
        }})
    }

    fn expire(&mut self, floor: u64) {
        let message = format!("too old resource version: {} ({floor})", self.position);
        let object = Refusal::expired(message).status();
        self.pending.push_back(json!({"type": "ERROR", "object": object}));
        self.is_over = true;
    }

    /// Waits for what comes next.
    pub(crate) async fn next(&mut self) -> Next {
        let stirred = Arc::clone(&self.stirred);
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Next::Event(event);
            }
            if self.is_over {
                return Next::End;
            }
            let mut stir = pin!(stirred.notified());
            stir.as_mut().enable();
            let later = match self.take() {
                Ok(later) => later,
                Err(end) => return end,
            };
            if !self.pending.is_empty() {
                continue;
            }
            let wake = [Some(self.ends), self.bookmark, later].into_iter().flatten().min();
            tokio::select! {
                biased;
                () = stir => {}
                () = tokio::time::sleep_until(wake.unwrap_or(self.ends)) => self.ring(),
            }
        }
    }

    /// Takes in the changes that are due. Returns when the next one is, if any is held back.
    fn take(&mut self) -> Result<Option<Instant>, Next> {
        let shared = Arc::clone(&self.state);
        let state = shared.lock();
        let cut = state.cuts.get(&self.kind).copied().unwrap_or_default();
        if cut.count != self.cut {
            return Err(if cut.breaks { Next::Break } else { Next::End });
        }
        let lag = state.faults.lags.get(&self.kind).copied().unwrap_or_default();
        let now = Instant::now();
        if self.position < state.store.floor() {
            self.expire(state.store.floor());
            return Ok(None);
        }
        for change in state.store.since(self.position) {
            let due = change.at + lag;
            if due > now {
                return Ok(Some(due));
            }
            self.position = change.version;
            if change.kind == self.kind && change.key.starts_with(&self.prefix) {
                let hides = change.new.is_some() && state.faults.has(Flaw::HidesDeselection);
                let event = shown(&self.selector, change);
                let event = event.filter(|event| !(hides && event["type"] == "DELETED"));
                self.pending.extend(event);
            }
        }
        Ok(None)
    }

    /// Ends the watch or sends a bookmark, whatever is due.
    fn ring(&mut self) {
        let now = Instant::now();
        self.is_over = now >= self.ends;
        if let Some(due) = self.bookmark
            && (now >= due || self.is_over)
        {
            self.bookmark = Some(now + BOOKMARK_EVERY);
            // Another kind's change moves the position, too.
            let bookmark = self.make_bookmark();
            self.pending.push_back(bookmark);
        }
    }
}

fn check_initial_events(call: &Call) -> Result<(), Refusal> {
    let (initial, rule) =
        (call.parameter("sendInitialEvents"), call.parameter("resourceVersionMatch"));
    let problem = match (initial, rule) {
        ("", "") | ("true" | "false", "NotOlderThan") => return Ok(()),
        ("", _) => {
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                    provided"
        }
        _ => "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    };
    Err(Refusal::invalid("resourceVersionMatch", "FieldValueForbidden", problem))
}

/// The event that a watch with this selector shows of a change.
fn shown(selector: &Selector, change: &Change) -> Option<Value> {
    let matching =
        |object: &Option<_>| object.clone().filter(|it: &Arc<Value>| selector.matches(it));
    let (old, new) = (matching(&change.old), matching(&change.new));
    match (old, new) {
        (None, None) => None,
        (None, Some(new)) => Some(event("ADDED", &new, None)),
        (Some(_), Some(new)) => Some(event("MODIFIED", &new, None)),
        // It shows what was selected, at the version of the change.
        (Some(old), None) => Some(event("DELETED", &old, Some(change.version))),
    }
}

fn event(kind: &str, object: &Value, version: Option<u64>) -> Value {
    let mut object = object.clone();
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version.to_string().into();
    }
    json!({"type": kind, "object": object})
}
