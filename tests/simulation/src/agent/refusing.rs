//! Models what the API refuses the agent: an admission webhook that protects some pods from one
//! verb, and an API server that refuses everything until its RBAC cache is filled.

use std::time::Duration;

use agent_core::pod::{Owner, PodUid, PodView};
use agent_core::shutdown::Mode;
use agent_core::shutdown::candidates::BarePods;
use epilogue_common::outcome::FailureKind;

use super::promises;
use super::sabotage::Sabotage;
use super::situations::Met;
use super::wire::Verb;
use super::world::{World, name_of};
use crate::controller::agenda::Moment;
use crate::controller::random::Random;

/// How long after the rights arrive all pods must be marked.
const CATCHES_UP: Duration = Duration::from_secs(2);

/// The refusals of a seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusing {
    /// The verb that the webhook refuses, for one pod in this many.
    webhook: Option<(Verb, u32)>,
    /// How long after each announcement everything is refused.
    late: Option<Duration>,
}

impl Refusing {
    pub(super) fn roll(random: &mut Random, strained: bool) -> Self {
        if strained {
            return Self::default();
        }
        let verbs = [Verb::PatchStatus, Verb::PatchPod, Verb::DeletePod, Verb::DeletePod];
        let webhook = (*random.pick(&verbs), *random.pick(&[2, 3, 5]));
        let late = random.millis(50, 4_000);
        Self {
            webhook: random.percent(20).then_some(webhook),
            late: random.percent(15).then_some(late),
        }
    }

    /// Whether the webhook protects pods from marks.
    pub(super) fn protects_marks(&self) -> bool {
        self.webhook.is_some_and(|(verb, _)| verb == Verb::PatchStatus)
    }

    /// Whether the webhook protects the pod from the verb.
    fn protects(&self, verb: Verb, uid: &PodUid) -> bool {
        let number = name_of(uid).trim_start_matches('p').parse::<u32>();
        let hit = |(of, one_in): (Verb, u32)| {
            of == verb && number.as_ref().is_ok_and(|number| number % one_in == 0)
        };
        self.webhook.is_some_and(hit)
    }
}

impl World {
    /// Refuses everything from now on, for a while.
    pub(super) fn rights_are_late(&mut self) {
        if let Some(late) = self.behaviour.refusing.late.filter(|_| !self.ledger.settling) {
            self.log(|_| format!("api       refuses everything for {late:?}"));
            self.wire.refused_until = self.now() + late;
        }
    }

    /// Counts why the API refuses the call, if it does.
    pub(super) fn met_refusal(&mut self, verb: Verb, about: Option<&PodUid>) {
        if self.behaviour.forbidden == Some(verb) {
            self.met(Met::VerbForbidden);
        } else if self.now() < self.wire.refused_until {
            self.met(Met::LateRights);
        } else if about.is_some_and(|uid| self.behaviour.refusing.protects(verb, uid)) {
            self.met(Met::Webhook);
        }
    }

    /// Whether the API refuses the call.
    pub(super) fn is_refused(&self, verb: Verb, about: Option<&PodUid>) -> bool {
        let late = self.now() < self.wire.refused_until;
        let sabotaged = self.options.sabotage == Some(Sabotage::StopAtRefusal)
            && self.wire.has_refused
            && verb == Verb::DeletePod;
        late || sabotaged || about.is_some_and(|uid| self.behaviour.refusing.protects(verb, uid))
    }

    /// How the API words its refusals. Policies find a write invalid unless they say otherwise.
    pub(super) fn refused_as(&self) -> FailureKind {
        let late = self.now() < self.wire.refused_until;
        let policy = self.behaviour.refusing.webhook.is_some_and(|(_, one_in)| one_in == 3);
        if policy && !late && self.behaviour.forbidden.is_none() {
            FailureKind::Invalid
        } else {
            FailureKind::Forbidden
        }
    }

    /// Whether the API refuses every way in which the agent could terminate the pod.
    pub(super) fn is_protected(&self, view: &PodView, mode: Mode) -> bool {
        // A pod that is deleted already is deleted again, with less grace.
        let lever = view.owner == Owner::None
            && !view.is_terminating()
            && self.behaviour.settings.bare_pods == BarePods::DeadlineLever;
        let verb = match mode {
            Mode::Replace if lever => Verb::PatchPod,
            Mode::Replace => Verb::DeletePod,
            Mode::Substitute => Verb::PatchStatus,
            Mode::Assist | Mode::Observe => return false,
        };
        self.behaviour.refusing.protects(verb, &view.uid)
    }

    /// Whether the agent could mark the pod at a moment.
    pub(super) fn may_be_marked(&self, uid: &PodUid, at: Moment) -> bool {
        // An agent with little time terminates pods without marks before that time is over.
        let time_to_kill = promises::times(self.logind.delay).to_end;
        let too_late =
            self.behaviour.refusing.late.is_some_and(|late| late + CATCHES_UP > time_to_kill);
        let late = too_late || at < self.wire.refused_until + CATCHES_UP;
        !late && !self.behaviour.refusing.protects(Verb::PatchStatus, uid)
    }
}
