//! Holds what the events `PodFailed` and `PodDisrupted` on a Job say of its pods, bounded: others
//! may write such events, too.

use std::collections::BTreeMap;

use epilogue_common::names::pod_end_event::{POD_DISRUPTED, POD_FAILED};
use epilogue_common::pod_end::{Counted, ENDS_MAX, NODES_MAX, PodEnd, PodEnds};
use jiff::Timestamp;

/// Events beyond this many are counted and not kept: they take 3 KiB each.
pub(super) const KEPT_MAX: usize = 10_000;
/// The most characters of a name, as of the API.
pub(super) const NAME_MAX: usize = 253;
/// The most characters of a cause.
const CAUSE_MAX: usize = 64;
/// The most characters of a sentence.
const SENTENCE_MAX: usize = 512;

/// Which Job an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl JobId {
    /// Whether the Job may have this UID.
    pub(super) fn may_have(&self, uid: &str) -> bool {
        uid.is_empty() || self.uid.is_empty() || self.uid == uid
    }
}

/// One event: ends of a Job's pods that have one cause and counted alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JobEvent {
    pub(super) job: JobId,
    pub(super) is_disruption: bool,
    pub(super) cause: String,
    pub(super) counted: Counted,
    /// How many; at least those that it describes.
    pub(super) number: u64,
    /// When the first one was counted.
    pub(super) first: Timestamp,
    /// When the last one was counted.
    pub(super) last: Timestamp,
    /// The last of them, oldest first.
    pub(super) described: Vec<PodEnd>,
    /// How many there were on each node, as far as the event names nodes.
    pub(super) nodes: BTreeMap<String, u64>,
}

/// Whether an event of this reason, on a Job, is about ends of pods; and if so, whether these were
/// disruptions.
pub(super) fn is_disruption(reason: &str) -> Option<bool> {
    match reason {
        POD_DISRUPTED => Some(true),
        POD_FAILED => Some(false),
        _ => None,
    }
}

impl JobEvent {
    /// The event with these annotations; `None` if they are not about ends of pods.
    pub(super) fn read(
        job: JobId,
        is_disruption: bool,
        annotations: &BTreeMap<String, String>,
        number: u64,
        (first, last): (Timestamp, Timestamp),
    ) -> Option<Self> {
        let PodEnds { cause, counted, last: mut described, nodes } = PodEnds::read(annotations)?;
        described.drain(..described.len().saturating_sub(ENDS_MAX));
        for end in &mut described {
            end.pod = clean(&end.pod, NAME_MAX);
            end.node = end.node.take().map(|node| clean(&node, NAME_MAX));
            end.says = clean(&end.says, SENTENCE_MAX);
        }
        described.sort_by_key(|end| end.at);
        let number = number.max(described.len() as u64);
        let (mut left, mut on) = (number, BTreeMap::new());
        for (node, ends) in nodes.into_iter().take(NODES_MAX) {
            let ends = u64::from(ends).min(left);
            left -= ends;
            let sum: &mut u64 = on.entry(clean(&node, NAME_MAX)).or_default();
            *sum += ends;
        }
        on.retain(|_, ends| *ends > 0);
        Some(Self {
            job,
            is_disruption,
            cause: clean(&cause, CAUSE_MAX),
            counted,
            number,
            first: first.min(last),
            last,
            described,
            nodes: on,
        })
    }

    /// How many it only counts.
    pub(super) fn rest(&self) -> u64 {
        self.number - self.described.len() as u64
    }
}

/// Text of others, bounded and without control characters.
pub(super) fn clean(text: &str, max: usize) -> String {
    let plain = text.chars().map(|each| if each.is_control() { ' ' } else { each });
    plain.take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("must be a time")
    }

    fn read(annotations: &BTreeMap<String, String>, number: u64) -> JobEvent {
        let job = JobId { namespace: "a".into(), name: "j".into(), uid: "u".into() };
        JobEvent::read(job, true, annotations, number, (at(0), at(9))).expect("must be of ends")
    }

    #[test]
    fn lists_and_texts_of_an_event_are_bounded_whoever_wrote_them() {
        let end = |number: i64| PodEnd {
            pod: format!("p\u{1b}{}", "x".repeat(9_000)),
            node: Some("n".repeat(9_000)),
            index: None,
            at: at(100 - number),
            says: "\n".repeat(9_000),
        };
        let nodes = (0..500).map(|number| (format!("n{number}"), u32::MAX)).collect();
        let (cause, counted) = ("c".repeat(9_000), Counted::Failed);
        let written = PodEnds { cause, counted, last: (0..99).map(end).collect(), nodes };
        let event = read(&written.annotations(), 40);
        assert_eq!((event.described.len(), event.number, event.rest()), (ENDS_MAX, 40, 30));
        assert_eq!(event.nodes, [("n0".to_owned(), 40)].into());
        assert!(event.described.is_sorted_by_key(|end| end.at));
        let last = event.described.last().expect("must be described");
        assert_eq!(last.pod.chars().count(), NAME_MAX);
        assert!(last.pod.starts_with("p x") && event.cause.len() == CAUSE_MAX);
        assert_eq!(last.says, " ".repeat(SENTENCE_MAX));
    }

    #[test]
    fn an_event_counts_no_fewer_ends_than_it_describes() {
        let end = PodEnd { pod: "p".into(), node: None, index: None, at: at(1), says: "p".into() };
        let written = PodEnds {
            cause: "ExitCode".into(),
            counted: Counted::Failed,
            last: vec![end],
            nodes: BTreeMap::new(),
        };
        let event = read(&written.annotations(), 0);
        assert_eq!((event.number, event.rest()), (1, 0));
    }
}
