//! Digests a state. The agent's part is the text of its `Debug`, in which everything that it knows
//! is; only the numbers of its actions do not count.

use std::collections::hash_map::DefaultHasher;
use std::fmt::{Debug, Write as _};
use std::hash::{Hash, Hasher};

use super::model::State;
use super::process::Process;

/// How an action's number begins in a text.
const ID: &str = "ActionId(";
/// What leads the number of the next action.
const NEXT: &str = "calls: Calls { next: ";

/// The digest of a state.
pub(super) fn of(state: &State) -> u64 {
    let State {
        now,
        api,
        changes,
        node_changed: _,
        kinds: _,
        pods,
        kubelet,
        kubelet_hears,
        logind,
        off,
        process,
        disk,
        wire,
        left,
        history,
        said: _,
    } = state;
    let mut hasher = DefaultHasher::new();
    if *off {
        // Nothing follows.
        return 0;
    }
    (now, pods, kubelet, kubelet_hears, logind, left, history).hash(&mut hasher);
    let mut text = String::with_capacity(32 << 10);
    put(&mut text, &(&api.pods, &api.node, changes, disk));
    let mut lines: Vec<String> = wire.iter().map(|action| format!("{action:?}")).collect();
    lines.sort_unstable();
    if let Some(process) = process {
        put_process(&mut text, &mut lines, process, &mut hasher);
    }
    (text, lines).hash(&mut hasher);
    hasher.finish()
}

fn put(text: &mut String, what: &impl Debug) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{what:?}");
}

fn put_process(
    text: &mut String,
    lines: &mut Vec<String>,
    process: &Process,
    hasher: &mut DefaultHasher,
) {
    let Process {
        number,
        agent,
        lists,
        reads_logind,
        reads_kubelet,
        signals,
        in_flight,
        wake,
        undecided,
    } = process;
    (number, lists, reads_logind, reads_kubelet, signals, wake, undecided).hash(hasher);
    let mut flights: Vec<String> = in_flight.values().map(|flight| format!("{flight:?}")).collect();
    flights.sort_unstable();
    lines.extend(flights);
    let mut whole = String::with_capacity(32 << 10);
    put(&mut whole, agent);
    text.push_str(&without_numbers(&without_next(&whole)));
}

/// The text without the number of the next action.
fn without_next(text: &str) -> String {
    let Some((before, after)) = text.split_once(NEXT) else { return text.to_owned() };
    before.to_owned() + after.trim_start_matches(|it: char| it.is_ascii_digit())
}

/// The text without the numbers of actions: entries that a number leads are put into the order of
/// the rest.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(ID);
    let mut result = String::with_capacity(text.len());
    result.push_str(parts.next().unwrap_or_default());
    let mut entries: Vec<&str> = Vec::new();
    for part in parts {
        let rest = part.trim_start_matches(|it: char| it.is_ascii_digit());
        match rest.find('}') {
            None => entries.push(rest),
            Some(end) => {
                let (last, after) = rest.split_at(end);
                entries.push(last);
                put_sorted(&mut result, &mut entries);
                result.push_str(after);
            }
        }
    }
    put_sorted(&mut result, &mut entries);
    result
}

fn put_sorted(result: &mut String, entries: &mut Vec<&str>) {
    for entry in entries.iter_mut() {
        *entry = entry.trim_end_matches(", ");
    }
    entries.sort_unstable();
    for entry in entries.drain(..) {
        result.push_str(entry);
        result.push(';');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_actions_and_their_order_do_not_count() {
        let one = "a {ActionId(3): Mark, ActionId(12): Read} b ActionId(7)";
        let other = "a {ActionId(4): Read, ActionId(5): Mark} b ActionId(8)";
        assert_eq!(without_numbers(one), without_numbers(other));
        let third = "a {ActionId(4): Read, ActionId(5): Read} b ActionId(8)";
        assert_ne!(without_numbers(one), without_numbers(third));
    }
}
