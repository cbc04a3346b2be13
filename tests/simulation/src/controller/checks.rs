//! Models the workers of pod GC: they run the core's checks, and each call reaches the API and is
//! answered in its own time.

use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{Answer, Call, Cause, Check, End, Item, Next, PodWrite};
use controller_core::view::Phase;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::Sabotage;
use super::calls::Fate;
use super::kubelet::node_number;
use super::process::Life;
use super::situations::Met;
use super::world::{Event, World};
use super::{pod_gc_rules, sabotage};

/// Workers of pod GC in a process.
const WORKERS: usize = 2;

/// The longest that a watch is behind, and a call on its way.
const SHOWN_WITHIN: Duration = Duration::from_mins(20);

/// A check in hand, with its call on the way.
#[derive(Debug)]
pub(super) struct InHand {
    item: Item,
    check: Check,
    call: Option<Call>,
    outcome: Option<Outcome<Answer>>,
}

impl World {
    /// Gives items to idle workers of pod GC.
    pub(super) fn take_checks(&mut self, number: usize) {
        while self.processes[number].is_ready() {
            let now = self.agenda.now();
            let process = &mut self.processes[number];
            if process.checks.len() >= WORKERS {
                break;
            }
            let Some(taken) = process.gc_queue.take(now) else { break };
            self.stats.checks += 1;
            let (id, item) = (self.stats.checks, taken.key);
            let check = Check::new(item.clone());
            let in_hand = InHand { item, check, call: None, outcome: None };
            self.processes[number].checks.insert(id, in_hand);
            self.advance_check(number, id);
        }
    }

    fn advance_check(&mut self, number: usize, id: u64) {
        let process = &mut self.processes[number];
        let now = process.time(self.api.now);
        let Some(in_hand) = process.checks.get_mut(&id) else { return };
        match in_hand.check.next(&mut process.state, now) {
            Next::Call(call) => {
                in_hand.call = Some(call);
                let deposed = process.life == Life::Deposed;
                let delay = self.latency(deposed);
                self.agenda.after(delay, Event::CheckCommit { process: number, check: id });
            }
            Next::End(end) => self.end_check(number, id, end, now),
        }
    }

    fn end_check(&mut self, number: usize, id: u64, end: End, time: Timestamp) {
        let now = self.agenda.now();
        let process = &mut self.processes[number];
        let Some(InHand { item, .. }) = process.checks.remove(&id) else { return };
        process.gc_queue.done(&item, now);
        if let End::NotWritten(_, failure) | End::Failed(failure) = &end {
            process.gc_queue.add_failed(item, failure, now);
        } else {
            process.gc_queue.forget(&item);
            match end {
                End::CheckAgain(at) => {
                    let wait = Duration::try_from(at.duration_since(time)).unwrap_or_default();
                    process.gc_queue.add_after(item, wait, now);
                }
                End::Enqueue(entries) => process.enqueue(entries, now),
                _ => {}
            }
        }
        self.check_queues(number);
    }

    /// A call of a check reaches the API, unless it is lost.
    pub(super) fn commit_check(&mut self, number: usize, id: u64) {
        let life = self.processes[number].life;
        if life == Life::Dead {
            self.met(Met::CrashInCheck);
            if self.random.percent(50) {
                return;
            }
        }
        let call = self.processes[number].checks.get(&id).and_then(|check| check.call.clone());
        let Some(call) = call else { return };
        self.stats.calls += 1;
        let reads = matches!(call, Call::FindNode(_) | Call::GetNode(_) | Call::GetJob(_));
        let outcome = match self.fate(reads) {
            Fate::Refused(kind) => Err(Failure::new(kind, format!("injected: {kind:?}"))),
            Fate::Through => self.call_of_check(&call),
            Fate::ReplyLost => {
                let _ = self.call_of_check(&call);
                Err(Failure::new(FailureKind::Unknown, "injected: the reply is lost"))
            }
        };
        self.stats.faults += u64::from(outcome.is_err());
        self.say(|_| format!("p{number} {}: {}", described(&call), answered(&outcome)));
        if let Some(check) = self.processes[number].checks.get_mut(&id) {
            check.outcome = Some(outcome);
        }
        let delay = self.latency(life == Life::Deposed);
        self.agenda.after(delay, Event::CheckReply { process: number, check: id });
    }

    /// Its reply comes back.
    pub(super) fn reply_to_check(&mut self, number: usize, id: u64) {
        let process = &mut self.processes[number];
        if process.life == Life::Dead {
            return;
        }
        let (time, now) = (process.time(self.api.now), self.agenda.now());
        let Some(in_hand) = process.checks.get_mut(&id) else { return };
        let Some((call, outcome)) = in_hand.call.take().zip(in_hand.outcome.take()) else { return };
        let entries = in_hand.check.done(&mut process.state, call, outcome, time);
        process.enqueue(entries, now);
        self.advance_check(number, id);
    }

    fn call_of_check(&mut self, call: &Call) -> Outcome<Answer> {
        match call {
            Call::FindNode(_) if self.sabotage == Some(Sabotage::TrustWatch) => Err(not_found()),
            Call::GetNode(_) if self.sabotage == Some(Sabotage::KeepTaints) => Err(not_found()),
            Call::FindNode(name) | Call::GetNode(name) => match self.api.nodes.get(name) {
                Some(node) => Ok(Answer::Node(self.as_read(node))),
                None => Err(not_found()),
            },
            Call::GetJob(key) => match self.api.jobs.get(key) {
                Some(job) => Ok(Answer::Job(Arc::clone(&job.view))),
                None => Err(not_found()),
            },
            Call::PatchNode(name, patch) => self.untaint(name, patch),
            Call::PatchPod(write) => self.patch_pod(write),
            Call::DeletePod(write) => self.delete_by_gc(write),
        }
    }

    fn as_read(&self, node: &Value) -> Value {
        let mut read = node.clone();
        match self.sabotage {
            Some(Sabotage::UntaintEarly) => sabotage::boot_again(&mut read),
            Some(Sabotage::ClearAtOnce) => sabotage::bring_up(&mut read),
            _ => {}
        }
        read
    }

    fn patch_pod(&mut self, write: &PodWrite) -> Outcome<Answer> {
        let mut patch = write.patch.clone().unwrap_or_default();
        if self.sabotage == Some(Sabotage::ForgetVersion)
            && let Some(meta) = patch["metadata"].as_object_mut()
        {
            meta.remove("resourceVersion");
        }
        let before = self.api.pods.get(&write.uid).cloned();
        let after = self.api.patch_status(&write.uid, &patch).inspect_err(|failure| {
            if failure.kind == FailureKind::Conflict {
                self.ledger.met(Met::GcConflict);
            }
        })?;
        if let Some(before) = before {
            if after.phase == Phase::Failed && !before.is_terminal() {
                self.met(Met::GcFails);
            }
            let judged = pod_gc_rules::patched(&before, &after, &patch, self.stands(write));
            self.ledger.violations.extend(judged);
        }
        if reason(&patch) == Some("ForceFail") {
            self.ledger.exempt_from_life(&write.uid);
            self.running.remove(&write.uid);
        }
        self.met_evidence(reason(&patch));
        match write.cause {
            Cause::Marked(_) => {
                self.met(Met::GcMarks);
                self.note_mark(&write.uid);
            }
            Cause::Cleared(_) => self.met(Met::GcClears),
            _ => {}
        }
        Ok(Answer::Patched(after.version))
    }

    fn untaint(&mut self, name: &str, patch: &Value) -> Outcome<Answer> {
        self.api.patch_node(name, patch)?;
        self.met(Met::GcClears);
        if node_number(name).is_some_and(|node| self.nodes[node].shuts_down) {
            let problem = format!("pod GC removes the taint of {name}, which shuts down");
            self.ledger.violations.push(problem);
        }
        Ok(Answer::Done)
    }

    fn delete_by_gc(&mut self, write: &PodWrite) -> Outcome<Answer> {
        let Some(pod) = self.api.pods.get(&write.uid).cloned() else { return Err(not_found()) };
        self.met(Met::GcDeletes);
        let judged = pod_gc_rules::deleted(&pod, self.stands(write));
        self.ledger.violations.extend(judged);
        self.api.delete_pod(&write.uid, 0)?;
        Ok(Answer::Done)
    }

    /// What is true of a pod's containers and its node.
    fn stands(&self, write: &PodWrite) -> pod_gc_rules::Truth {
        let pod = self.api.pods.get(&write.uid);
        let node = pod.and_then(|pod| pod.node.as_deref().and_then(node_number));
        let since = self.agenda.now().saturating_sub(SHOWN_WITHIN);
        pod_gc_rules::Truth {
            shuts_down: node.is_some_and(|node| self.nodes[node].shut_down_since(since)),
            accepts: pod.is_some_and(|pod| self.accepts_double_run(pod)),
            runs: self.running.contains(&write.uid),
            is_well: node.is_some_and(|node| self.nodes[node].is_well(self.agenda.now())),
            tidies: self.behaviour.tidies() || pod.is_some_and(|pod| self.is_spare(pod)),
        }
    }
}

/// The reason of the condition that carries the evidence of a patch.
pub(super) fn reason(patch: &Value) -> Option<&str> {
    let conditions = patch["status"]["conditions"].as_array()?;
    let ended = epilogue_common::names::pod_condition::ENDED;
    conditions.iter().find(|each| each["type"] == ended)?["reason"].as_str()
}

fn not_found() -> Failure {
    Failure::new(FailureKind::NotFound, "not found")
}

fn described(call: &Call) -> String {
    match call {
        Call::FindNode(name) => format!("asks for {name}"),
        Call::GetNode(name) => format!("reads {name}"),
        Call::GetJob(key) => format!("reads {key}"),
        Call::PatchNode(name, _) => format!("removes the taint of {name}"),
        Call::PatchPod(write) => format!("patches {}: {}", write.uid, write.cause),
        Call::DeletePod(write) => format!("deletes {} without grace: {}", write.uid, write.cause),
    }
}

fn answered(outcome: &Outcome<Answer>) -> String {
    match outcome {
        Ok(_) => "done".to_owned(),
        Err(why) => format!("{:?}: {why}", why.kind),
    }
}
