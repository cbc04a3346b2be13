//! The concurrent calls of one stage of a sync, and the second calls that follow on the same
//! objects.

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::input::WrittenPod;
use super::steps::{Answer, Call, Step};

/// The concurrent calls of a stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    steps: std::iter::Enumerate<std::vec::IntoIter<Step>>,
    /// Second calls on pods whose first one succeeded, and on a Job whose first one was refused.
    follow_ups: Vec<Call>,
    outcomes: Vec<Option<Outcome<Answer>>>,
    /// How many steps have no answer yet.
    pub(super) unanswered: usize,
}

impl Calls {
    /// Calls that make these steps.
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self {
            unanswered: steps.len(),
            outcomes: vec![None; steps.len()],
            follow_ups: Vec::new(),
            steps: steps.into_iter().enumerate(),
        }
    }

    /// The next call to make. A follow-up goes first: its pod is between two calls.
    pub(super) fn next(&mut self) -> Option<Call> {
        let follow_up = self.follow_ups.pop();
        follow_up.or_else(|| self.steps.next().map(|(slot, step)| Call { step, slot }))
    }

    /// Takes an outcome. The first answer of two calls on a pod stands, unless one of them failed.
    pub(super) fn done(&mut self, call: &Call, outcome: Outcome<Answer>) {
        let Some(stored) = self.outcomes.get_mut(call.slot) else { return };
        let follow_up = match &outcome {
            Ok(answer) => call.step.then(answer),
            Err(failure) => call.step.instead(failure),
        };
        let is_last = outcome.is_err() && follow_up.is_none();
        if is_last || (outcome.is_ok() && stored.is_none()) {
            *stored = Some(outcome);
        }
        match follow_up {
            Some(step) => self.follow_ups.push(Call { step, slot: call.slot }),
            None => self.unanswered -= 1,
        }
    }

    /// What the API answered, in the order of the steps.
    pub(super) fn into_outcomes(self) -> Vec<Outcome<Answer>> {
        self.outcomes.into_iter().flatten().collect()
    }
}

/// The pod that a write returned.
pub(super) fn pod(outcome: Outcome<Answer>) -> Outcome<WrittenPod> {
    match outcome? {
        Answer::Pod(pod) => Ok(pod),
        answer => Err(misplaced(&answer)),
    }
}

pub(super) fn misplaced(answer: &Answer) -> Failure {
    Failure::new(FailureKind::Other, format!("answer {answer:?} belongs to another call"))
}
