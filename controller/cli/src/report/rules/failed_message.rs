//! Reads which failures were disruptions from the message of a Job's condition Failed: it is left
//! when pods and events are gone.

use controller_core::job::Cause;

/// What the sentence of a pod's end says of a disruption.
const SENTENCES: [&str; 4] = [
    " was disrupted (",
    " was rejected by its kubelet (",
    " was ended: its node is gone",
    " was failed without proof, as force-fail-after allows",
];

/// How many of the failures were disruptions; 0 if the message does not say.
pub(super) fn disruptions(message: &str) -> u64 {
    let lists = message.split('(').skip(1).filter_map(|part| part.split(')').next());
    let mut counts = lists.filter_map(of_list);
    counts.next().unwrap_or_else(|| {
        let last = message.rsplit("; ").next().unwrap_or_default();
        u64::from(SENTENCES.iter().any(|sentence| last.contains(sentence)))
    })
}

/// The disruptions of a list such as `2 EvictionByEvictionAPI, 1 ExitCode, 3 more`.
fn of_list(list: &str) -> Option<u64> {
    let mut disruptions = 0_u64;
    for item in list.split(", ") {
        let (number, label) = item.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        let cause = Cause::ALL.into_iter().find(|cause| cause.label() == label);
        if cause.is_none() && label != "more" {
            return None;
        }
        if cause.is_some_and(Cause::is_disruption) {
            disruptions = disruptions.saturating_add(number);
        }
    }
    Some(disruptions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller_core::job::Ending;
    use controller_core::view::{Interner, WirePod};
    use serde::Deserialize as _;
    use serde_json::json;

    #[test]
    fn the_causes_of_a_message_are_counted() {
        let upstream = "Job has reached the specified backoff limit";
        let table = [
            ("", 0),
            (": 1 failure of 0 allowed; pod a: container main exited with code 1", 0),
            (
                ": 1 failure of 0 allowed; pod a on n was disrupted (EvictionByEvictionAPI), and no \
                 rule of podFailurePolicy ignores that",
                1,
            ),
            (
                ": 4 failures of 3 allowed (2 EvictionByEvictionAPI, 1 ExitCode, 1 more); the last",
                2,
            ),
            (": 2 failures of 1 allowed (2 ExitCode); the last: pod a was disrupted (x)", 0),
            (": 3 failures of 2 allowed (1 more, 2 NodeGone); the last: pod a (index 4)", 2),
            (" (7 Sins)", 0),
        ];
        for (rest, expected) in table {
            assert_eq!(disruptions(&format!("{upstream}{rest}")), expected, "{rest}");
        }
    }

    #[test]
    fn the_sentence_of_a_disruption_is_known() {
        let target = json!([{"type": "DisruptionTarget", "status": "True", "reason": "X"}]);
        let status = json!({"phase": "Failed", "conditions": target});
        let pod =
            json!({"metadata": {"namespace": "a", "name": "p", "uid": "u"}, "status": status});
        let pod = WirePod::deserialize(&pod).expect("must be a pod");
        let pod = pod.view(&mut Interner::default());
        let sentence = Ending(&pod).to_string();
        assert_eq!(disruptions(&sentence), 1, "{sentence}");
    }
}
