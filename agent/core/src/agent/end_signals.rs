//! Sends a pod's main process the signal that it asks for ahead of its end
//! (`epilogue.dev/end-signal`).
//!
//! It is a word, and ends nothing: what comes of it changes no decision about the pod. After a
//! restart of the agent it may be sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::end_signal::EndSignal;
use epilogue_common::names::node::END_SIGNAL;
use epilogue_common::outcome::{FailureKind, Outcome};
use serde::Serialize;

use super::calls::Task;
use super::disruptions::Disruptions;
use super::facts::Facts;
use super::notices::{END_SIGNAL_FAILED, END_SIGNAL_SENT};
use super::out::Out;
use super::shutdown::Shutdowns;
use crate::pod::{PodSource, PodUid, PodView};
use crate::protocol::action::{Action, Notice, PodRef};
use crate::termination::attempt::{Attempt, Follow, Pace, REPEATABLE, salt};

/// The longest wait before a signal is tried again.
const AGAIN_WITHIN: Duration = Duration::from_secs(2);
/// How often one is tried.
const TRIES_MAX: u32 = 5;

/// Signals by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndSignalTally {
    /// The runtime has sent them.
    pub sent: u64,
    /// The runtime has refused them or gave no answer, or what the pod asks for cannot be read.
    pub failed: u64,
}

/// The signals of the end that is announced.
#[derive(Clone, Debug, Default)]
pub(super) struct EndSignals {
    asked: BTreeMap<PodUid, Asked>,
    /// The pods that cannot have what they ask for.
    refused: BTreeSet<PodUid>,
    tally: EndSignalTally,
}

/// The signal to one pod.
#[derive(Clone, Debug)]
struct Asked {
    pod: PodRef,
    /// The runtime's id of the container.
    container: String,
    signal: EndSignal,
    attempt: Attempt,
}

impl EndSignals {
    /// Sends what is due.
    pub(super) fn advance(
        &mut self,
        shutdowns: &Shutdowns,
        disruptions: &Disruptions,
        facts: &Facts,
        out: &mut Out,
    ) {
        self.asked.retain(|uid, _| facts.pods.get(uid).is_some());
        self.refused.retain(|uid| facts.pods.get(uid).is_some());
        let mut asking = facts.pods.iter().filter(|pod| asks(pod)).peekable();
        let acts = facts.settings.enforce && out.status.unbounded.is_none();
        if !acts || asking.peek().is_none() {
            return;
        }
        let Some(ends) = shutdowns.pod_ends(facts, disruptions) else {
            // The next end is another one.
            self.asked.clear();
            self.refused.clear();
            return;
        };
        for pod in asking {
            let signal = match pod.details.end_signal.as_deref().map(str::parse::<EndSignal>) {
                Some(Ok(signal)) => signal,
                Some(Err(error)) => {
                    self.refuse(pod, &error.to_string(), out);
                    continue;
                }
                None => continue,
            };
            let at = ends.at(&pod.uid).saturating_sub(signal.ahead);
            if facts.clock.reached(at) {
                self.send(pod, signal, facts, out);
            }
        }
    }

    fn send(&mut self, pod: &PodView, signal: EndSignal, facts: &Facts, out: &mut Out) {
        let Some(container) = main_container(pod) else { return };
        if !facts.settings.runtime {
            return self.refuse(pod, "the agent may not use the container runtime", out);
        }
        let asked = self.asked.entry(pod.uid.clone()).or_insert_with(|| Asked {
            pod: PodRef::of(pod),
            container: String::new(),
            signal,
            attempt: Attempt::default(),
        });
        if asked.container != container && !asked.attempt.is_in_flight() {
            (asked.container, asked.attempt) = (container.to_owned(), Attempt::wanted());
        }
        if asked.attempt.is_due(&facts.clock) {
            asked.attempt.sent();
            let (pod, container) = (asked.pod.clone(), asked.container.clone());
            let action = Action::SignalContainer { pod: pod.clone(), container, signal };
            out.calls.send(Task::EndSignal(pod.uid), action);
        }
    }

    /// Says once that a pod cannot have what it asks for.
    fn refuse(&mut self, pod: &PodView, why: &str, out: &mut Out) {
        if self.refused.insert(pod.uid.clone()) {
            self.fail(PodRef::of(pod), why, out);
        }
    }

    fn fail(&mut self, pod: PodRef, why: &str, out: &mut Out) {
        self.tally.failed += 1;
        let text = format!("The pod gets no signal ahead of its end, as {END_SIGNAL} asks: {why}");
        out.warn_of_pod(pod, END_SIGNAL_FAILED, &text);
    }

    /// Takes the runtime's answer.
    pub(super) fn settle(
        &mut self,
        uid: &PodUid,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Some(asked) = self.asked.get_mut(uid) else { return };
        let now = facts.clock.monotonic();
        let pace = Pace { wait_max: AGAIN_WITHIN, latest: None, salt: salt(&uid.0) };
        let follow = asked.attempt.settle(result, now, pace, REPEATABLE);
        let unsupported = result.as_ref().is_err_and(|failure| failure.kind == FailureKind::Other);
        match (follow, result) {
            (Follow::Done, _) => {
                self.tally.sent += 1;
                let message = format!("The agent sent {} ahead of the pod's end.", asked.signal);
                let pod = Some(asked.pod.clone());
                let (reason, annotations) = (END_SIGNAL_SENT, Vec::new());
                out.emit_notice(Notice { pod, warning: false, reason, message, annotations });
            }
            // It has exited meanwhile.
            (Follow::Gone, _) => {}
            (_, Err(failure)) if unsupported || asked.attempt.failures() >= TRIES_MAX => {
                asked.attempt.give_up();
                let pod = asked.pod.clone();
                self.fail(pod, &failure.to_string(), out);
            }
            _ => {}
        }
    }

    pub(super) fn tally(&self) -> EndSignalTally {
        self.tally
    }
}

/// Whether the pod asks for a signal, and may still take it: one that is deleted has had SIGTERM.
fn asks(pod: &PodView) -> bool {
    pod.details.end_signal.is_some()
        && pod.source == PodSource::Api
        && !pod.is_terminal()
        && !pod.is_to_end()
}

/// The container that kubectl takes, too, where a pod has several: the one that the pod names, or
/// else the first.
fn main_container(pod: &PodView) -> Option<&str> {
    let named = pod.details.default_container.as_ref().filter(|it| pod.containers.contains(it));
    let name = named.or(pod.containers.first())?;
    let (_, id) = pod.details.container_ids.iter().find(|(of, _)| of == name)?;
    pod.running_since.is_some().then_some(id)
}
