//! Draws the second half of a disruption's trace: the disrupted pod of a Job gets a replacement.

use std::sync::atomic::{AtomicBool, Ordering};

use controller_core::replacements::{Replacement, Replacements, Step};
use controller_core::view::WirePod;
use epilogue_runtime::clock::Clock;
use epilogue_runtime::traces::{ROOT, Span, Tracer, attribute};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::informers::watch::WatchEvent;

/// From the watch's first sight of the disrupted pod until the replacement exists.
const CREATE: &str = "create replacement";
/// From there until the replacement runs.
const START: &str = "start replacement";
/// Reason of the `DisruptionTarget` that an agent sets, or a kubelet. The agent writes the root.
const BY_AGENT: &str = "TerminationByKubelet";

/// Follows the replacements of disrupted pods.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    tracer: Tracer,
    clock: Clock,
    replacements: Mutex<Replacements>,
    /// Whether this replica works. A standby follows, so that it knows at takeover; it exports
    /// nothing, because the leader does.
    is_working: AtomicBool,
}

impl Traces {
    /// Follows without exporting.
    pub(crate) fn new(tracer: Tracer, clock: Clock) -> Self {
        Self { tracer, clock, ..Self::default() }
    }

    /// This replica works from now on.
    pub(crate) fn open(&self) {
        self.is_working.store(true, Ordering::Relaxed);
    }

    /// The watch shows something of a pod.
    pub(crate) fn pods(&self, event: &WatchEvent<WirePod>) {
        if !self.tracer.is_on() {
            return;
        }
        let mut replacements = self.replacements.lock();
        let steps = match event {
            WatchEvent::ListBegins => return replacements.list_begins(),
            WatchEvent::ListEnds(_) => return replacements.list_ends(),
            WatchEvent::Gone(pod) => return replacements.gone(pod),
            WatchEvent::Shown(pod) => replacements.shown(pod, self.clock.now()),
            WatchEvent::Unreadable(_) | WatchEvent::UpTo(_) | WatchEvent::Restored => return,
        };
        drop(replacements);
        if !self.is_working.load(Ordering::Relaxed) {
            return;
        }
        for span in steps.iter().flat_map(|step| spans(step, self.clock.now())) {
            self.tracer.send(span);
        }
    }
}

fn spans(step: &Step, now: Timestamp) -> Vec<Span> {
    match step {
        Step::Created(it) => vec![span(it, CREATE, (it.loss.seen, it.created))],
        Step::Started(it) => {
            let mut spans = vec![span(it, START, (it.created, now))];
            if it.loss.reason != BY_AGENT {
                spans.push(span(it, ROOT, (it.loss.seen, now)));
            }
            spans
        }
    }
}

fn span(it: &Replacement, name: &'static str, (begun, ended): (Timestamp, Timestamp)) -> Span {
    let loss = &it.loss;
    let by = if it.by_index { "index" } else { "count" };
    let attributes = vec![
        (attribute::POD_UID, loss.uid.to_string()),
        (attribute::POD_NAME, loss.name.clone()),
        (attribute::NAMESPACE, loss.namespace.clone()),
        (attribute::NODE, loss.node.clone().unwrap_or_default()),
        (attribute::JOB, loss.job.clone()),
        (attribute::CAUSE, loss.reason.clone()),
        (attribute::REPLACEMENT, by.to_owned()),
        (attribute::REPLACEMENT_NAME, it.name.clone()),
        (attribute::REPLACEMENT_UID, it.uid.to_string()),
    ];
    let ended = ended.max(begun);
    Span { pod_uid: loss.uid.to_string(), name, begun, ended, attributes, error: None }
}
