//! Defines the annotations of the events `PodFailed` and `PodDisrupted`: the controller writes,
//! the plugin reads. One Event stands for all ends of one Job that have one cause and counted
//! alike; its `count` says how many.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The cause of these ends, as in the label `cause` of `epilogue_pod_ends_total`.
pub const CAUSE: &str = "epilogue.dev/cause";
/// How these ends counted: a [`Counted`].
pub const COUNTED: &str = "epilogue.dev/counted";
/// The last [`ENDS_MAX`] of them, oldest first: a JSON array of [`PodEnd`].
pub const ENDS: &str = "epilogue.dev/ends";
/// How many there were on each node, for the first [`NODES_MAX`] nodes: a JSON object.
pub const NODES: &str = "epilogue.dev/nodes";
/// The most ends of one Event that are described.
pub const ENDS_MAX: usize = 10;
/// The most nodes of one Event that are named.
pub const NODES_MAX: usize = 32;

/// How the Job counted an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// As a failure.
    Failed,
    /// As no failure: a rule of `podFailurePolicy` ignores it.
    Ignored,
    /// As a failure that failed its index.
    IndexFailed,
    /// As a failure that failed the Job, by a rule of `podFailurePolicy`.
    JobFailed,
    /// As another controller decides.
    Elsewhere,
}

impl Counted {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Failed, Self::Ignored, Self::IndexFailed, Self::JobFailed, Self::Elsewhere];

    /// The value of the annotation, and of the label `counted`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Failed => "Failed",
            Self::Ignored => "Ignored",
            Self::IndexFailed => "IndexFailed",
            Self::JobFailed => "JobFailed",
            Self::Elsewhere => "Elsewhere",
        }
    }
}

/// One end of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodEnd {
    /// The pod's name.
    pub pod: String,
    /// Its node, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its completion index, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// When it ended, as far as its status says; otherwise when it was counted.
    pub at: Timestamp,
    /// How it ended and how that counted, as a sentence without its full stop.
    pub says: String,
}

/// What the annotations of one Event say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEnds {
    /// The cause, as in [`CAUSE`].
    pub cause: String,
    /// How they counted, as in [`COUNTED`].
    pub counted: Counted,
    /// The last of them, oldest first.
    pub last: Vec<PodEnd>,
    /// How many there were on each node.
    pub nodes: BTreeMap<String, u32>,
}

impl PodEnds {
    /// Reads the annotations of an Event; `None` if it is not about ends of pods. A list that
    /// cannot be read is empty: the Event's count still holds.
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let cause = annotations.get(CAUSE)?.clone();
        let counted = annotations.get(COUNTED)?;
        let counted = Counted::ALL.into_iter().find(|each| each.label() == counted)?;
        let list = |name: &str| annotations.get(name).map_or("", String::as_str);
        Some(Self {
            cause,
            counted,
            last: serde_json::from_str(list(ENDS)).unwrap_or_default(),
            nodes: serde_json::from_str(list(NODES)).unwrap_or_default(),
        })
    }

    /// The annotations that say this.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        [
            (CAUSE, self.cause.clone()),
            (COUNTED, self.counted.label().to_owned()),
            (ENDS, json(serde_json::to_string(&self.last))),
            (NODES, json(serde_json::to_string(&self.nodes))),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }

    /// Adds an end. The lists stay bounded.
    pub fn add(&mut self, end: PodEnd) {
        if let Some(node) = &end.node {
            let known = self.nodes.contains_key(node);
            if known || self.nodes.len() < NODES_MAX {
                *self.nodes.entry(node.clone()).or_default() += 1;
            }
        }
        self.last.push(end);
        if self.last.len() > ENDS_MAX {
            self.last.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(number: u32) -> PodEnd {
        let at = Timestamp::from_second(1_800_000_000 + i64::from(number)).expect("a time");
        let (pod, node) = (format!("train-{number}"), Some(format!("node-{}", number % 40)));
        PodEnd { says: format!("pod {pod} was disrupted"), pod, node, index: None, at }
    }

    #[test]
    fn what_is_written_is_read_again_and_bounded() {
        let mut ends = PodEnds {
            cause: "EvictionByEvictionAPI".into(),
            counted: Counted::Ignored,
            last: Vec::new(),
            nodes: BTreeMap::new(),
        };
        for number in 0..100 {
            ends.add(end(number));
        }
        assert_eq!((ends.last.len(), ends.nodes.len()), (ENDS_MAX, NODES_MAX));
        assert_eq!(ends.last.last(), Some(&end(99)));
        assert_eq!(ends.nodes["node-3"], 3);
        assert_eq!(PodEnds::read(&ends.annotations()), Some(ends));
    }

    #[test]
    fn annotations_of_others_are_no_ends_and_a_list_that_is_broken_is_empty() {
        assert_eq!(PodEnds::read(&BTreeMap::new()), None);
        let text = [(CAUSE, "ExitCode"), (COUNTED, "Failed"), (ENDS, "[{"), (NODES, "7")];
        let annotations = text.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let ends = PodEnds::read(&annotations).expect("cause and count hold");
        assert!(ends.last.is_empty() && ends.nodes.is_empty());
    }
}
