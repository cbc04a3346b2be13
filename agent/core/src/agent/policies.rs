//! Stops the agent while admission policies do not bound its token, as tested by dry runs. If the
//! API accepts any write of the agent, a stolen token may do the same on every node.

use std::time::Duration;

use super::facts::Facts;
use super::notices::UNBOUNDED;
use super::out::Out;
use super::settings::Settings;
use crate::finding::Finding;

/// How long the first trial may take. An API that leaves trials unanswered must not keep conditions
/// from pods.
const TRIED_WITHIN: Duration = Duration::from_secs(5);
/// The same in a shutdown.
const TRIED_WITHIN_IN_SHUTDOWN: Duration = Duration::from_secs(1);

/// How the policies are applied.
#[derive(Clone, Debug)]
pub(super) struct Policies {
    /// Whether the operator lets the agent act.
    enforce: bool,
    /// The policy that was reported as missing or too loose.
    reported: Option<String>,
    /// Since when the first trial is awaited.
    awaited_since: Option<Duration>,
}

impl Policies {
    pub(super) fn new(settings: &Settings, now: Duration) -> Self {
        let awaited = settings.enforce && settings.tries_policies;
        let awaited_since = awaited.then_some(now);
        Self { enforce: settings.enforce, reported: None, awaited_since }
    }

    /// Notes that they were tried.
    pub(super) fn tried(&mut self) {
        self.awaited_since = None;
    }

    /// Applies the state of the policies, except in a shutdown: it must finish, for its pods matter
    /// more.
    pub(super) fn apply(&mut self, facts: &mut Facts, out: &mut Out) {
        self.await_trial(facts, out);
        let missing = &facts.policy_missing;
        if *missing != self.reported {
            report(missing.as_deref(), out);
            self.reported.clone_from(missing);
        }
        if !facts.situation.runs {
            facts.settings.enforce = self.enforce && missing.is_none();
            out.status.unbounded.clone_from(missing);
        }
    }

    /// Holds back all calls to the API until the first trial has an answer, or takes too long.
    fn await_trial(&mut self, facts: &Facts, out: &mut Out) {
        let runs = facts.situation.runs;
        let within = if runs { TRIED_WITHIN_IN_SHUTDOWN } else { TRIED_WITHIN };
        let over = self.awaited_since.filter(|since| facts.clock.reached(*since + within));
        if over.is_some() {
            self.awaited_since = None;
            let text = "the admission policies are not tried yet; the agent acts all the same";
            out.calls.log(true, None, text);
        }
        out.calls.hold_back(self.awaited_since.is_some());
    }
}

fn report(missing: Option<&str>, out: &mut Out) {
    let Some(policy) = missing else {
        return out.calls.log(false, None, "the admission policies hold: the agent acts again");
    };
    out.announce(true, UNBOUNDED, Finding::PolicyMissing(policy).text());
}
