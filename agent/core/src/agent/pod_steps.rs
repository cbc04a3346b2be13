//! The one protocol that terminates a pod: DisruptionTarget in the API, then stop, then proof that
//! nothing runs, then Failed, then the API's acknowledgement.
//!
//! A policy (shutdown, eviction, stuck pods, the audit of our marks) decides when a step may begin.
//! What a step sends, how it is repeated and what its answer means is the same for all, except
//! where the `Goal` says otherwise.

use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::calls::{Answer, Part, Task, Verb};
use super::facts::Facts;
use super::out::Out;
use crate::pod::PodView;
use crate::protocol::action::{Action, Purpose, Reach};
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{
    Attempt, END, EVICTION, Follow, MARK, Pace, REPEATABLE, REPORT, Refusal, Rule,
};
use crate::termination::clock::Clock;
use crate::termination::progress::{
    PATCH_STATUS, PodTermination, Terminator, all_known_exited, would_succeed,
};
use crate::termination::{patches, stop_timeout};

/// How long a stopped pod certainly has no new container: a kubelet takes longer to start one.
pub(super) const PROOF_LASTS: Duration = Duration::from_millis(500);
/// How long a refusal of a correction is contested: about a minute. The permission may come late,
/// and an API server that has also just booted may refuse everything for a while.
const LATE_RIGHT: Refusal = Refusal::UpTo(16);

/// Why a policy acts on a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why<'a> {
    /// The node shuts down.
    Shutdown,
    /// The pod is evicted, with this message.
    Eviction(&'a str),
    /// Another client deleted the pod.
    Deletion,
    /// The pod has lost its sandbox, and no kubelet reports its end.
    Abandoned {
        /// Whether the loss is not the pod's own doing.
        disrupted: bool,
    },
    /// A condition of ours is untrue, or missing.
    OwnMark,
}

/// What a policy wants of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal<'a> {
    pub(super) why: Why<'a>,
    /// How failed calls are repeated.
    pub(super) pace: Pace,
}

/// What an answer means for the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The call is acknowledged.
    Done,
    /// The API no longer has the pod.
    Gone,
    /// The API does not accept the write.
    Refused,
    /// The call is repeated.
    Again,
    /// The runtime shows that the pod runs.
    Runs,
    /// The runtime proves that nothing of the pod runs.
    Ended,
    /// Nothing runs, but the runtime does not know a pod that has run: it may be another runtime.
    Unproven,
}

impl Why<'_> {
    fn part(self) -> Part {
        match self {
            Self::Shutdown => Part::Shutdown,
            Self::Eviction(_) => Part::Eviction,
            Self::Deletion => Part::Stuck,
            Self::Abandoned { .. } => Part::Abandoned,
            Self::OwnMark => Part::OwnMarks,
        }
    }

    /// What follows a failed write; `refusal` is what other answers say about the right.
    fn rule(self, verb: Verb, refusal: Refusal) -> Rule {
        match (self, verb) {
            (Self::OwnMark, _) => REPORT.refused(LATE_RIGHT).slowly(),
            // The shutdown's time limits end the retries.
            (Self::Shutdown, Verb::Patch(Purpose::Mark)) => {
                MARK.refused(refusal).slowly_without_end()
            }
            (Self::Shutdown, Verb::End) => END.refused(refusal).slowly_without_end(),
            (Self::Shutdown, _) => REPORT.refused(refusal).slowly_without_end(),
            // The phase of what was stopped is true however late it is accepted. Other writes of an
            // eviction are final, because another pod may be evicted faster.
            (Self::Eviction(_), Verb::Patch(Purpose::Fail)) => EVICTION.slowly(),
            // The read shows whether the API answers at all.
            (Self::Eviction(_), Verb::End) => Rule { rereads: true, ..END },
            (_, Verb::End) => END,
            (Self::Eviction(_), _) => EVICTION,
            (Self::Deletion | Self::Abandoned { .. }, _) => REPORT,
        }
    }

    /// Whether the end of the containers is the pod's end: an eviction stops only pods that cannot
    /// run again, so the sandbox that remains does not matter.
    fn has_ended(self, state: &RuntimeState) -> bool {
        state.nothing_runs() || matches!(self, Self::Eviction(_)) && state.containers_ended()
    }

    /// What a write that the API refuses means; `None` where the policy says it.
    fn refused(self, verb: Verb) -> Option<&'static str> {
        match (self, verb) {
            (Self::Shutdown, Verb::Patch(Purpose::Mark)) => {
                Some("the API refuses its DisruptionTarget; it is terminated without")
            }
            (Self::Shutdown, Verb::End) => {
                Some("the API refuses its termination, which is given up")
            }
            (Self::Eviction(_), Verb::Patch(Purpose::Fail)) => {
                Some("the API refuses its phase, the kubelet reports it")
            }
            (Self::Shutdown | Self::Deletion | Self::Abandoned { .. }, _) => {
                Some("the API refuses its phase")
            }
            (Self::Eviction(_) | Self::OwnMark, _) => None,
        }
    }

    fn failed(self, pod: &PodView, clock: &Clock) -> Value {
        let at = clock.now().wall;
        match self {
            Self::Eviction(message) => patches::evicted(pod, at, message),
            Self::Deletion => patches::failed_for_deleter(pod, at),
            Self::Abandoned { disrupted } => patches::abandoned(pod, at, disrupted),
            Self::Shutdown | Self::OwnMark => patches::failed(pod, at),
        }
    }
}

/// The steps of one pod, as far as they are due.
impl PodTermination {
    fn attempt(&mut self, verb: Verb) -> &mut Attempt {
        match verb {
            Verb::Read => &mut self.read,
            Verb::ExitCheck => &mut self.mark.exit_check,
            Verb::Inspect => &mut self.report.inspect,
            Verb::End | Verb::Stop => &mut self.end.call,
            Verb::Patch(Purpose::Fail) => &mut self.report.write,
            Verb::Patch(_) => &mut self.mark.write,
        }
    }

    /// Reads the pod, or asks the runtime.
    pub(super) fn ask(&mut self, verb: Verb, why: Why<'_>, clock: &Clock, out: &mut Out) {
        let (part, pod) = (why.part(), self.pod.clone());
        match verb {
            Verb::Read => out.calls.read(part, &pod, &mut self.read, clock),
            verb => out.calls.inspect((part, verb), &pod, self.attempt(verb), clock),
        }
    }

    /// Sets DisruptionTarget, and announces the end that is known.
    pub(super) fn send_mark(
        &mut self,
        pod: &PodView,
        why: Why<'_>,
        ends_at: Option<Timestamp>,
        out: &mut Out,
    ) {
        let body = match (why, ends_at) {
            (Why::Eviction(message), _) => patches::pressed(pod, self.mark.at, message),
            (_, Some(ends_at)) => patches::announced(pod, self.mark.at, ends_at),
            _ => patches::mark(pod, self.mark.at),
        };
        self.mark.write.sent();
        out.calls.patch(why.part(), Purpose::Mark, &self.pod, body);
    }

    /// Terminates the pod through the API, or stops it through the runtime. ([API17], [API18])
    ///
    /// The first stop of an eviction reaches only the containers. One that was only created goes
    /// with the sandbox.
    pub(super) fn send_end(&mut self, pod: &PodView, why: Why<'_>, out: &mut Out) {
        let part = why.part();
        if self.end.by != Terminator::Stop {
            self.end.call.sent();
            let version = self.version_to_end(pod);
            let (grace_seconds, of) = (self.end.grace_seconds, self.pod.clone());
            let task = Task::Pod(part, Verb::End, of.uid.clone());
            let action = if self.end.by == Terminator::Deadline {
                Action::PatchPod { pod: of, body: patches::deadline(pod, &version) }
            } else {
                Action::DeletePod { pod: of, version, grace_seconds }
            };
            return out.calls.send(task, action);
        }
        let evicts = part == Part::Eviction;
        let reach = if evicts && !self.end.call.may_have_applied() {
            Reach::Containers
        } else {
            Reach::Pod
        };
        let wait = stop_timeout::after(self.end.call.failures(), part == Part::Shutdown);
        self.end.call.sent();
        out.calls.stop(part, pod, self.end.grace_seconds, reach, wait);
    }

    /// Whether the phase is due on a proof that is fresh; otherwise requests another proof.
    pub(super) fn may_fail(&mut self, clock: &Clock) -> bool {
        if !self.report.write.is_due(clock) {
            return false;
        }
        let now = clock.monotonic();
        let fresh = self.report.proven_at.is_some_and(|at| now < at + PROOF_LASTS);
        if !fresh && !self.report.inspect.is_open() {
            self.report.inspect.want_again();
        }
        fresh
    }

    /// Writes the phase.
    pub(super) fn send_fail(&mut self, pod: &PodView, why: Why<'_>, clock: &Clock, out: &mut Out) {
        self.report.write.sent();
        let body = why.failed(pod, clock);
        out.calls.patch(why.part(), Purpose::Fail, &self.pod, body);
    }

    /// Takes an answer.
    pub(super) fn answered(
        &mut self,
        verb: Verb,
        answer: Answer<'_>,
        goal: &Goal<'_>,
        facts: &Facts,
        out: &mut Out,
    ) -> Meaning {
        match answer {
            Answer::Written(result, version) => {
                if let Some(version) = version {
                    self.patched_version = Some(version.to_owned());
                }
                self.was_written(verb, result, goal, facts, out)
            }
            Answer::Read(result) => {
                let now = facts.clock.monotonic();
                match self.read.settle(result, now, goal.pace, REPEATABLE) {
                    Follow::Gone => Meaning::Gone,
                    Follow::Done if matches!(result, Ok(None)) => Meaning::Gone,
                    Follow::Done => Meaning::Done,
                    Follow::Refused => Meaning::Refused,
                    Follow::Reread | Follow::Retry | Follow::Slowly => Meaning::Again,
                }
            }
            Answer::Runtime(result) => self.was_shown(verb, result, goal, facts, out),
        }
    }

    fn was_written(
        &mut self,
        verb: Verb,
        result: &Outcome<()>,
        goal: &Goal<'_>,
        facts: &Facts,
        out: &mut Out,
    ) -> Meaning {
        let right = if verb == Verb::End { self.end.by.right() } else { Some(PATCH_STATUS) };
        let right = right.filter(|_| !matches!(goal.why, Why::OwnMark));
        let refusal = right.map(|right| out.note_answer(facts, right, &self.pod.uid, result));
        // The mode has changed since: now the runtime terminates the pod.
        if verb == Verb::End && self.end.by == Terminator::Stop {
            return Meaning::Again;
        }
        let rule = goal.why.rule(verb, refusal.unwrap_or(Refusal::Final));
        let now = facts.clock.monotonic();
        let follow = self.attempt(verb).settle(result, now, goal.pace, rule);
        let slowly = "the API refuses its correction, which is tried again slowly";
        let text = match follow {
            Follow::Refused => goal.why.refused(verb),
            Follow::Slowly => Some(goal.why.refused(verb).unwrap_or(slowly)),
            _ => None,
        };
        if let Some(text) = text.filter(|_| self.attempt(verb).times_invalid() < 2) {
            out.calls.log_refusal(&self.pod, text, result);
        }
        match follow {
            Follow::Done => Meaning::Done,
            Follow::Gone => Meaning::Gone,
            Follow::Refused => Meaning::Refused,
            Follow::Retry | Follow::Slowly => Meaning::Again,
            Follow::Reread => {
                self.patched_version = None;
                self.read.want_again();
                // The runtime's proof is older than the attempt.
                if verb == Verb::Patch(Purpose::Fail) {
                    self.report.inspect.want_again();
                }
                Meaning::Again
            }
        }
    }

    /// Takes the runtime's answer to a stop or a check.
    fn was_shown(
        &mut self,
        verb: Verb,
        result: &Result<RuntimeState, Failure>,
        goal: &Goal<'_>,
        facts: &Facts,
        out: &mut Out,
    ) -> Meaning {
        let now = facts.clock.monotonic();
        match result {
            Ok(state) if goal.why.has_ended(state) => {
                self.attempt(verb).done();
                if self.end.by == Terminator::Stop {
                    self.end.call.done();
                }
                self.is_proven(state, facts, out)
            }
            Ok(_) => {
                self.report.write.drop_it();
                self.attempt(verb).failed(now, goal.pace, None);
                if verb == Verb::Stop {
                    let text = "it still runs after its stop; it is stopped again";
                    out.calls.log(true, Some(&self.pod), text);
                }
                Meaning::Runs
            }
            Err(failure) => {
                self.attempt(verb).failed(now, goal.pace, Some(failure));
                if verb == Verb::Stop {
                    let text = format!("the runtime does not stop it: {failure}");
                    out.calls.log(true, Some(&self.pod), text);
                }
                Meaning::Again
            }
        }
    }

    /// Decides whether `Failed` is true, now that nothing of the pod runs.
    fn is_proven(&mut self, state: &RuntimeState, facts: &Facts, out: &mut Out) -> Meaning {
        let Some(pod) = facts.pods.get(&self.pod.uid) else { return Meaning::Ended };
        self.report.proven_at = Some(facts.clock.monotonic());
        if would_succeed(pod, state) {
            // Exit code 0 within the grace: the pod succeeds, and the kubelet reports it. ([EV16])
            self.report.leave();
            let text = "all its containers exited with 0; its result is left to the kubelet";
            out.calls.log(false, Some(&self.pod), text);
        } else if state.nothing_runs() && !state.proves_end(pod.has_run) {
            return Meaning::Unproven;
        } else if self.end.by == Terminator::Stop || all_known_exited(pod, state) {
            self.report.write.want();
        }
        Meaning::Ended
    }
}
