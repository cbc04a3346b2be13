//! Takes one check of pod GC from its verdict to its end, one call to the API at a time. The
//! program and the simulation make the calls; nothing else of a check is theirs.

use std::sync::Arc;

use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize as _;
use serde_json::Value;

use super::case::{Cause, PodWrite, Stale, Verdict};
use super::check::Item;
use super::evidence::Evidence;
use super::namespace::force_fail_after;
use super::node::{NodeView, WireNode};
use super::stale_taint::untaint_patch;
use crate::state::{ClusterState, Entry};
use crate::view::{Job, JobKey, Version};

/// The answer to whether a node exists is followed by another verdict.
const VERDICTS_MAX: u32 = 3;
/// A pod whose node turns out to be alive, or whose Job decides, is checked again after this time.
const ALIVE_FOR: SignedDuration = SignedDuration::from_secs(30);

/// A check in progress. Take [`Check::next`], make its call, give the outcome to [`Check::done`].
#[derive(Debug)]
pub struct Check {
    item: Item,
    verdicts: u32,
    /// What to write if a live read of the pod's node, and of its Job, confirms it.
    unconfirmed: Option<PodWrite>,
    stage: Stage,
}

/// One call to the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Read whether a node exists that no watch shows. ([GC7])
    FindNode(Arc<str>),
    /// Read a node as it is now: to remove its stale taint, or to confirm a write to its pod.
    GetNode(Arc<str>),
    /// Read a Job that no watch shows, to confirm a write to its pod.
    GetJob(JobKey),
    /// Patch a node with this merge patch.
    PatchNode(Arc<str>, Value),
    /// Patch the status of a pod.
    PatchPod(PodWrite),
    /// Delete a pod without grace.
    DeletePod(PodWrite),
}

/// What the API answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The node that was read.
    Node(Value),
    /// The Job that was read.
    Job(Arc<Job>),
    /// The version of the pod after the patch.
    Patched(Version),
    /// Nothing that matters.
    Done,
}

/// How a check goes on.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// By this call.
    Call(Call),
    /// It is over.
    End(End),
}

/// How a check ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// There is nothing to do, or nothing any more.
    Nothing,
    /// Time alone may change that: check again then.
    CheckAgain(Timestamp),
    /// These items are to be checked.
    Enqueue(Vec<Entry>),
    /// The write is only to be reported: pod GC observes.
    Observed(PodWrite),
    /// The write was carried out.
    Written(PodWrite),
    /// The write failed; check again after a backoff.
    NotWritten(PodWrite, Failure),
    /// The stale taint of this node was removed.
    Untainted(Arc<str>),
    /// A node could not be read or patched; check again after a backoff.
    Failed(Failure),
}

#[derive(Debug)]
enum Stage {
    /// The state decides next.
    Decide,
    /// This call is next.
    Call(Call),
    /// Its end.
    Over(End),
}

impl Check {
    /// Begins the check of an item.
    pub fn new(item: Item) -> Self {
        Self { item, verdicts: 0, unconfirmed: None, stage: Stage::Decide }
    }

    /// How it goes on.
    pub fn next(&mut self, state: &mut ClusterState, now: Timestamp) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Over(End::Nothing)) {
            Stage::Decide => self.decide(state, now),
            Stage::Call(call) => Next::Call(call),
            Stage::Over(end) => Next::End(end),
        }
    }

    fn decide(&mut self, state: &mut ClusterState, now: Timestamp) -> Next {
        if self.verdicts == VERDICTS_MAX {
            return Next::End(End::Nothing);
        }
        self.verdicts += 1;
        let verdict = match &self.item {
            Item::Node(name) => state.check_node(name, now),
            Item::Pod(_, uid) => state.check_pod(uid, now),
            Item::Excess => return Next::End(End::Enqueue(state.check_excess())),
        };
        let observes = state.observes();
        match verdict {
            Verdict::Leave => Next::End(End::Nothing),
            Verdict::CheckAgain(at) => Next::End(End::CheckAgain(at)),
            Verdict::Ask(name) => Next::Call(Call::FindNode(name)),
            Verdict::Untaint(_) if observes => Next::End(End::Nothing),
            Verdict::Untaint(name) => Next::Call(Call::GetNode(name)),
            Verdict::Do(write) if observes && state.is_new_report(&write) => {
                Next::End(End::Observed(write))
            }
            Verdict::Do(_) if observes => Next::End(End::Nothing),
            Verdict::Do(write) => match state.node_of(&write.uid) {
                Some(name) if confirms(&write.cause).is_some() => {
                    self.unconfirmed = Some(write);
                    Next::Call(Call::GetNode(name))
                }
                _ => Next::Call(first_call(write)),
            },
        }
    }

    /// Takes the outcome of a call, and returns what to enqueue.
    pub fn done(
        &mut self,
        state: &mut ClusterState,
        call: Call,
        outcome: Outcome<Answer>,
        now: Timestamp,
    ) -> Vec<Entry> {
        match call {
            Call::FindNode(name) => return self.found(state, &name, outcome, now),
            Call::GetNode(name) => match self.unconfirmed.take() {
                Some(write) => self.node_read(state, write, outcome, now),
                None => self.stage = taint_read(name, outcome, now),
            },
            Call::GetJob(_) => {
                if let Some(write) = self.unconfirmed.take() {
                    self.job_read(state, write, outcome, now);
                }
            }
            Call::PatchNode(name, _) => {
                self.stage = Stage::Over(match outcome {
                    Ok(_) => End::Untainted(name),
                    Err(failure) => End::Failed(failure),
                });
            }
            Call::PatchPod(write) => return self.patched(state, write, outcome, now),
            Call::DeletePod(write) => {
                if outcome.is_ok() {
                    state.pod_deleted(&write.uid);
                }
                return self.wrote(state, write, outcome.err(), now);
            }
        }
        Vec::new()
    }

    /// The watch may be behind: only the node as it is now lets the write happen.
    ///
    /// It is not shown to the state, where older events of the watch would follow a newer node.
    fn node_read(
        &mut self,
        state: &mut ClusterState,
        write: PodWrite,
        outcome: Outcome<Answer>,
        now: Timestamp,
    ) {
        match outcome {
            Ok(Answer::Node(node)) if allows(&write.cause, &node) => {
                self.stage = Stage::Call(match state.unshown_job(&write) {
                    Some(key) => {
                        self.unconfirmed = Some(write);
                        Call::GetJob(key)
                    }
                    None => first_call(write),
                });
            }
            Err(failure) if failure.kind != FailureKind::NotFound => {
                self.unwritten(state, End::NotWritten(write.clone(), failure), &write, now);
            }
            _ => self.unwritten(state, later(now), &write, now),
        }
    }

    /// The namespace accepts that a pod of its Jobs is done twice, unless the Job itself says
    /// otherwise. No watch shows the Job: it is gone, or the watch is behind.
    fn job_read(
        &mut self,
        state: &mut ClusterState,
        write: PodWrite,
        outcome: Outcome<Answer>,
        now: Timestamp,
    ) {
        // A later Job may have the same name.
        let owner = state.pod(&write.uid).and_then(|pod| Some(pod.owner.as_ref()?.uid.clone()));
        let decides = |job: &Job| {
            let text = job.annotations.get(FORCE_FAIL_AFTER);
            owner.as_ref() == Some(&job.uid)
                && text.is_some_and(|text| force_fail_after(text).is_some())
        };
        match outcome {
            Ok(Answer::Job(job)) if decides(&job) => {
                self.unwritten(state, later(now), &write, now);
            }
            Err(failure) if failure.kind != FailureKind::NotFound => {
                self.unwritten(state, End::NotWritten(write.clone(), failure), &write, now);
            }
            _ => self.stage = Stage::Call(first_call(write)),
        }
    }

    /// The pod is checked again later, not by the verdict that is known already.
    fn unwritten(&mut self, state: &mut ClusterState, end: End, write: &PodWrite, now: Timestamp) {
        self.stage = Stage::Over(end);
        drop(state.pod_done(&write.uid, now));
    }

    fn found(
        &mut self,
        state: &mut ClusterState,
        name: &Arc<str>,
        outcome: Outcome<Answer>,
        now: Timestamp,
    ) -> Vec<Entry> {
        let exists = match outcome {
            Ok(_) => true,
            Err(failure) if failure.kind == FailureKind::NotFound => false,
            Err(failure) => {
                self.stage = Stage::Over(End::Failed(failure));
                return Vec::new();
            }
        };
        self.stage = Stage::Decide;
        state.node_answered(name, exists, now)
    }

    fn patched(
        &mut self,
        state: &mut ClusterState,
        write: PodWrite,
        outcome: Outcome<Answer>,
        now: Timestamp,
    ) -> Vec<Entry> {
        if let Ok(Answer::Patched(version)) = &outcome {
            state.pod_written(&write.uid, &write.cause, *version);
        }
        if outcome.is_ok() && write.delete {
            self.stage = Stage::Call(Call::DeletePod(write));
            return Vec::new();
        }
        self.wrote(state, write, outcome.err(), now)
    }

    /// The last call for a pod was answered.
    fn wrote(
        &mut self,
        state: &mut ClusterState,
        write: PodWrite,
        failure: Option<Failure>,
        now: Timestamp,
    ) -> Vec<Entry> {
        let is_gone = failure.as_ref().is_some_and(|it| it.kind == FailureKind::NotFound);
        if is_gone {
            // The watch has not shown it yet.
            state.pod_deleted(&write.uid);
        }
        let entries = state.pod_done(&write.uid, now);
        let (end, entries) = match failure {
            None => (End::Written(write), entries),
            Some(_) if is_gone => (End::Nothing, entries),
            // The backoff applies instead.
            Some(failure) => (End::NotWritten(write, failure), Vec::new()),
        };
        self.stage = Stage::Over(end);
        entries
    }
}

fn later(now: Timestamp) -> End {
    End::CheckAgain(now.checked_add(ALIVE_FOR).unwrap_or(now))
}

fn first_call(write: PodWrite) -> Call {
    if write.patch.is_some() { Call::PatchPod(write) } else { Call::DeletePod(write) }
}

/// What a live read of the pod's node must show before a write of this cause, if anything.
///
/// Nothing proves the end of a pod that `force-fail-after` fails: its node must be silent. A
/// condition that is reset would be missing at the end of a pod whose node is in its next shutdown:
/// the node must be up.
fn confirms(cause: &Cause) -> Option<fn(&NodeView) -> bool> {
    match cause {
        Cause::Ended(Evidence::ForceFail(_)) => Some(NodeView::is_silent),
        Cause::Cleared(Stale::NotShutDown | Stale::Restarted | Stale::Cancelled) => {
            Some(NodeView::is_up)
        }
        _ => None,
    }
}

fn allows(cause: &Cause, node: &Value) -> bool {
    let view = WireNode::deserialize(node).map(|node| NodeView::read(&node));
    view.is_ok_and(|view| confirms(cause).is_none_or(|shows| shows(&view)))
}

fn taint_read(name: Arc<str>, outcome: Outcome<Answer>, now: Timestamp) -> Stage {
    match outcome {
        Ok(Answer::Node(node)) => match untaint_patch(&node, now) {
            Some(patch) => Stage::Call(Call::PatchNode(name, patch)),
            None => Stage::Over(End::Nothing),
        },
        Err(failure) if failure.kind != FailureKind::NotFound => Stage::Over(End::Failed(failure)),
        _ => Stage::Over(End::Nothing),
    }
}
