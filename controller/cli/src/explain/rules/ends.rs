//! Lists how pods of a Job ended: from the pods that are left, and from events about those that are
//! gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use controller_core::disruption_times::Source;
use controller_core::job::{Cause, Ending, SyncInput, counts_as_failure, plain};
use controller_core::view::{Phase, Pod};
use epilogue_common::pod_end::{Counted, PodEnds};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::kind::Kind;
use crate::waits::{count, is_about};

/// The most ends that are listed.
const LISTED_MAX: usize = 20;
/// The most characters of what an event says.
const TEXT_MAX: usize = 400;

/// How a Job's pods ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Ends {
    /// The last ones, the latest first.
    pub(crate) last: Vec<End>,
    /// How many more there were, of which only the number is known.
    pub(crate) more: u64,
}

/// How one pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct End {
    /// When, as far as its status says.
    pub(crate) at: Option<Timestamp>,
    /// The pod.
    pub(crate) pod: String,
    /// Its node.
    pub(crate) node: Option<String>,
    /// The cause, as in metrics and events.
    pub(crate) cause: String,
    /// How it counted, as in metrics and events; `None` if that is not known yet.
    pub(crate) counted: Option<&'static str>,
    /// How it ended.
    pub(crate) says: String,
}

impl Ends {
    /// Those of one pod.
    pub(super) fn of(self, pod: &str) -> Self {
        Self { last: self.last.into_iter().filter(|end| end.pod == pod).collect(), more: 0 }
    }
}

impl End {
    /// Whether it counted against a limit of the Job.
    pub(crate) fn is_counted(&self) -> bool {
        let counted = [Counted::Failed, Counted::IndexFailed, Counted::JobFailed];
        counted.iter().any(|each| Some(each.label()) == self.counted)
    }

    /// The cause, if this version knows it.
    pub(crate) fn known_cause(&self) -> Option<Cause> {
        Cause::ALL.into_iter().find(|cause| cause.label() == self.cause)
    }
}

/// The ends of the Job's pods.
pub(super) fn ends(input: &SyncInput<'_>, events: &[Value]) -> Ends {
    let of_job = events.iter().filter(|it| is_about(it, Kind::Job.name(), input.job.uid.as_str()));
    let mut all = Vec::new();
    let mut number = 0;
    for event in of_job {
        let annotations = event["metadata"]["annotations"].clone();
        let annotations = serde_json::from_value(annotations).unwrap_or_default();
        let Some(of_event) = PodEnds::read(&annotations) else { continue };
        number += count(event);
        all.extend(of_event.last.iter().map(|end| End {
            at: Some(end.at),
            pod: plain(&end.pod, TEXT_MAX),
            node: end.node.as_deref().map(|node| plain(node, TEXT_MAX)),
            cause: plain(&of_event.cause, TEXT_MAX),
            counted: Some(of_event.counted.label()),
            says: plain(&end.says, TEXT_MAX),
        }));
    }
    let known: BTreeSet<String> = all.iter().map(|end| end.pod.clone()).collect();
    let failed = input.pods.iter().filter(|pod| {
        pod.phase == Phase::Failed && pod.is_owned_by(&input.job.uid) && !known.contains(&*pod.name)
    });
    all.extend(failed.map(|pod| of_pod(input, pod)));
    all.sort_by(|left, right| (right.at, &left.pod).cmp(&(left.at, &right.pod)));
    let failed = u64::try_from(input.job.status.failed.unwrap_or(0)).unwrap_or(0);
    let total = number.max(failed).max(all.len() as u64);
    all.truncate(LISTED_MAX);
    Ends { more: total - all.len() as u64, last: all }
}

/// The end of a pod that is left.
fn of_pod(input: &SyncInput<'_>, pod: &Arc<Pod>) -> End {
    let counted =
        if counts_as_failure(input.job, pod) { Counted::Failed } else { Counted::Ignored };
    let ended = pod.containers.iter().filter_map(|each| each.terminated?.finished_at).max();
    let target = pod.gc.target().filter(|target| target.stands);
    End {
        at: ended.or_else(|| target.and_then(|target| target.since)),
        pod: pod.name.to_string(),
        node: pod.node.as_ref().map(ToString::to_string),
        cause: Cause::of(pod).label().to_owned(),
        counted: (!pod.tracked).then(|| counted.label()),
        says: Ending(pod).to_string(),
    }
}

/// That a disruption is about to end the pod: what it is, and by when, if that is announced.
pub(super) fn to_end(pod: &Pod) -> String {
    if !pod.is_target() {
        return String::new();
    }
    let source = Source::of(pod).label();
    let by = pod.gc.ends_at().map_or(String::new(), |at| format!(" by {at}"));
    format!("; it is to end{by} (DisruptionTarget, source {source})")
}
