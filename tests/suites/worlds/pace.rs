//! Judges how fast the programs call the API: none may repeat a call without a growing pause,
//! whether it is refused or succeeds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use model_api::{Access, Verb};

use super::host::AGENT;
use super::ledger::CONTROLLER;

/// How long calls are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of calls of a program for one thing in that time, twice what was ever seen: of a
/// list in small pages that expire.
const CALLS_MAX: usize = 120;

/// The calls for one thing in the last time.
#[derive(Default)]
struct Recent {
    at: VecDeque<Timestamp>,
    is_found: bool,
}

/// The violations of a whole run.
pub(super) fn judge(log: &[Access]) -> Vec<String> {
    let mut recent: BTreeMap<String, Recent> = BTreeMap::new();
    let mut found = Vec::new();
    let is_ours = |it: &&Access| [CONTROLLER, AGENT].iter().any(|of| it.agent.starts_with(of));
    for access in log.iter().filter(is_ours) {
        let what = what(access);
        let calls = recent.entry(what.clone()).or_default();
        calls.at.push_back(access.at);
        while calls.at.front().is_some_and(|first| *first + WINDOW < access.at) {
            calls.at.pop_front();
        }
        if calls.at.len() > CALLS_MAX && !calls.is_found {
            calls.is_found = true;
            let (at, code) = (access.at, access.code);
            found.push(format!("{at} more than {CALLS_MAX} calls in {WINDOW:?}: {what}, {code}"));
        }
    }
    found
}

/// The thing that a call is for. New objects have no name in their path: their owner stands for
/// them.
fn what(access: &Access) -> String {
    let Access { agent, verb, kind, namespace, name, subresource, body, .. } = access;
    let owner = match verb {
        Verb::Create => &body["metadata"]["ownerReferences"][0]["name"],
        _ => &serde_json::Value::Null,
    };
    let owner = owner.as_str().unwrap_or_default();
    format!("{agent} {verb:?} {kind:?} {namespace}/{name}{owner} {subresource}")
}
