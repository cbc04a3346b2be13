//! Tracks refusals of the API (403) by verb. One refusal concerns one pod: an admission webhook may
//! protect it. The agent lacks the right to a verb only if the API refused it for several pods and
//! granted it for none. An API server that has just started may refuse everything until its RBAC
//! cache is filled. So a shutdown retries before it believes a refusal. ([AP14])

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::outcome::{FailureKind, Outcome};

use super::facts::Situation;
use crate::pod::PodUid;
use crate::termination::attempt::Refusal;
use crate::termination::clock::Clock;

/// This many different pods without a single grant put a verb in doubt.
pub(super) const SEVERAL: usize = 3;
/// How long a shutdown retries what was refused from its start.
pub(super) const RETRIES_FOR: Duration = Duration::from_secs(6);
/// The shortest time of refusals before a verb counts as forbidden.
const DOUBT_MIN: Duration = Duration::from_secs(1);
/// The waits between the single calls that test a verb in doubt.
const PROBE_FIRST: Duration = Duration::from_millis(250);
const PROBE_MAX: Duration = Duration::from_secs(1);
/// How often a refusal about the node is contested outside of a shutdown, which takes half a
/// minute: the right may come late, as that of an API server that has also just booted.
const CONTESTED: u32 = 10;
/// When a refused verb is retried outside of a shutdown: the right may be granted later.
pub(super) const FORBIDDEN_FOR: Duration = Duration::from_mins(10);

/// All verbs that were tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals {
    verbs: BTreeMap<&'static str, Asked>,
    /// Until when a shutdown treats a refusal as temporary, on CLOCK_MONOTONIC.
    retries_until: Option<Duration>,
}

/// What the API has responded to one verb.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// RBAC has allowed a call: a refusal then comes from admission, and concerns its pod.
    granted: bool,
    /// Each refused pod, with the number of its last refusal.
    refused: BTreeMap<PodUid, u64>,
    refusals: u64,
    /// The first refusal that counts.
    since: Option<Duration>,
    probe_at: Duration,
    probe_wait: Duration,
    /// The agent does not try the verb any more.
    stopped: bool,
    reported: bool,
}

impl Asked {
    fn is_in_doubt(&self) -> bool {
        !self.granted && self.refused.len() >= SEVERAL
    }

    fn grant(&mut self) {
        *self = Self { granted: true, reported: self.reported, ..Self::default() };
    }

    fn begin_anew(&mut self) {
        *self = Self { reported: self.reported, ..Self::default() };
    }

    fn refuse(&mut self, uid: &PodUid, now: Duration) {
        self.since.get_or_insert(now);
        self.refusals += 1;
        self.refused.insert(uid.clone(), self.refusals);
        if self.is_in_doubt() && self.probe_wait.is_zero() {
            (self.probe_wait, self.probe_at) = (PROBE_FIRST, now + PROBE_FIRST);
        }
    }
}

impl Refusals {
    /// Resets all verbs for a shutdown; it retries refusals while it may still terminate pods.
    pub(super) fn begin_shutdown(&mut self, retries_until: Duration) {
        self.verbs.clear();
        self.retries_until = Some(retries_until);
    }

    /// Follows a shutdown whose mode changes: it retries refusals until then.
    pub(super) fn retry_until(&mut self, until: Duration) {
        self.retries_until = Some(until);
    }

    /// Whether the agent does not try the verb any more.
    pub(super) fn forbids(&self, verb: &str) -> bool {
        self.verbs.get(verb).is_some_and(|asked| asked.stopped)
    }

    /// Whether the agent does not try the verb any more for this pod. Those refused cannot speak
    /// for the others: each pod of a shutdown is asked about once.
    pub(super) fn forbids_for(&self, verb: &str, uid: &PodUid) -> bool {
        self.verbs.get(verb).is_some_and(|asked| asked.stopped && asked.refused.contains_key(uid))
    }

    /// Whether a call may begin: while a verb is in doubt, one call at a time tests it.
    pub(super) fn may_ask(&mut self, verb: &'static str, clock: &Clock) -> bool {
        let in_doubt = |asked: &&mut Asked| asked.is_in_doubt() && !asked.stopped;
        let Some(asked) = self.verbs.get_mut(verb).filter(in_doubt) else { return true };
        let due = clock.reached(asked.probe_at);
        if due {
            asked.probe_wait = (asked.probe_wait * 2).clamp(PROBE_FIRST, PROBE_MAX);
            asked.probe_at = clock.monotonic() + asked.probe_wait;
        }
        due
    }

    /// The pods in the order in which they may ask. While a verb is in doubt, pods that the API has
    /// not refused come first, then those refused the longest ago. A pod that admission protects
    /// must not speak for the others.
    pub(super) fn in_turn<'a>(
        &self,
        verbs: &[&'static str],
        pods: impl Iterator<Item = &'a PodUid>,
    ) -> Vec<PodUid> {
        let mut pods: Vec<PodUid> = pods.cloned().collect();
        for verb in verbs {
            if let Some(asked) = self.verbs.get(verb).filter(|asked| asked.is_in_doubt()) {
                pods.sort_by_key(|uid| asked.refused.get(uid).copied());
            }
        }
        pods
    }

    fn is_patient(&self, verb: &'static str, now: Duration) -> bool {
        let Some(until) = self.retries_until else { return false };
        self.verbs.get(verb).is_none_or(|asked| {
            let since = asked.since.unwrap_or(now);
            !asked.granted && now < until.max(since + DOUBT_MIN)
        })
    }

    /// Records the API's answer about a pod, and returns how to handle a refusal.
    pub(super) fn note(
        &mut self,
        verb: &'static str,
        uid: &PodUid,
        result: &Outcome<()>,
        now: Duration,
    ) -> Refusal {
        match result.as_ref().map_err(|failure| failure.kind) {
            Err(FailureKind::Forbidden) => {
                let asked = self.verbs.entry(verb).or_default();
                asked.refuse(uid, now);
                if asked.stopped {
                    return Refusal::Final;
                }
            }
            // The API checks RBAC before it searches for the object.
            Ok(())
            | Err(
                FailureKind::NotFound
                | FailureKind::Conflict
                | FailureKind::Invalid
                | FailureKind::NamespaceTerminating,
            ) => self.grant(verb),
            Err(_) => {}
        }
        if self.is_patient(verb, now) { Refusal::Passing } else { Refusal::OfPod }
    }

    /// Records a grant. If the verb was refused before, the API server's RBAC cache has been filled
    /// since, so that the refusals of other verbs until now prove nothing.
    fn grant(&mut self, verb: &'static str) {
        let asked = self.verbs.entry(verb).or_default();
        let was_refused = !asked.granted && asked.since.is_some();
        asked.grant();
        if was_refused {
            self.verbs.values_mut().filter(|it| !it.granted).for_each(Asked::begin_anew);
        }
    }

    /// Records the API's answer about the node, and returns how to handle a refusal: there is no
    /// second object to compare with.
    pub(super) fn note_of_node(
        &mut self,
        verb: &'static str,
        result: &Outcome<()>,
        situation: Situation,
        now: Duration,
    ) -> Refusal {
        match result.as_ref().map_err(|failure| failure.kind) {
            Ok(()) => self.grant(verb),
            Err(FailureKind::Forbidden) => {
                self.verbs.entry(verb).or_default().since.get_or_insert(now);
            }
            Err(_) => {}
        }
        if self.is_patient(verb, now) {
            Refusal::Passing
        } else if situation.is_urgent() || self.forbids(verb) {
            Refusal::Final
        } else {
            Refusal::UpTo(CONTESTED)
        }
    }

    /// Whether a refusal is the first one to report; later ones repeat it.
    pub(super) fn is_new(&mut self, verb: &'static str) -> bool {
        let asked = self.verbs.entry(verb).or_default();
        !asked.stopped && !std::mem::replace(&mut asked.reported, true)
    }

    /// Why the agent lacks the right to a verb that is still refused after its time. Calls without
    /// a response prove nothing.
    pub(super) fn lacks(&self, verb: &str) -> Option<String> {
        let asked = self.verbs.get(verb).filter(|asked| asked.is_in_doubt())?;
        Some(format!("refused for {} different pods, granted for none", asked.refused.len()))
    }

    /// Stops a verb; returns whether it was not stopped before.
    pub(super) fn stop(&mut self, verb: &'static str) -> bool {
        let asked = self.verbs.entry(verb).or_default();
        asked.reported = true;
        !std::mem::replace(&mut asked.stopped, true)
    }

    /// Outside of a shutdown there is time to test whether the right was granted since.
    pub(super) fn forget(&mut self, situation: Situation, clock: &Clock) {
        if situation.is_urgent() {
            return;
        }
        if !situation.runs {
            self.retries_until = None;
        }
        self.verbs.retain(|_, asked| {
            asked.since.is_none_or(|since| !clock.reached(since + FORBIDDEN_FOR))
        });
    }
}

#[cfg(test)]
mod tests {
    use epilogue_common::outcome::Failure;

    use super::*;
    use crate::protocol::event::Now;

    const MARK: &str = "patch pods/status";
    const NODE: &str = "patch nodes";

    fn refused() -> Outcome<()> {
        Err(Failure::new(FailureKind::Forbidden, "why"))
    }

    fn doubted() -> Refusals {
        let mut refusals = Refusals::default();
        for name in ["a", "b", "c"] {
            refusals.note(MARK, &PodUid(name.into()), &refused(), Duration::from_secs(1));
        }
        refusals
    }

    #[test]
    fn a_right_that_comes_late_ends_the_doubts_about_the_others() {
        let late = Duration::from_secs(2);
        let mut refusals = doubted();
        refusals.note_of_node(NODE, &refused(), Situation::default(), Duration::from_secs(1));
        assert!(refusals.lacks(MARK).is_some());
        refusals.note_of_node(NODE, &Ok(()), Situation::default(), late);
        assert_eq!(refusals.lacks(MARK), None);
        // Another right that the agent always had proves nothing.
        let mut refusals = doubted();
        refusals.note_of_node(NODE, &Ok(()), Situation::default(), late);
        assert!(refusals.lacks(MARK).is_some());
        // Nor does one that admission refuses for some pods alone.
        let mut refusals = doubted();
        refusals.note_of_node(NODE, &Ok(()), Situation::default(), late);
        refusals.note_of_node(NODE, &refused(), Situation::default(), late);
        refusals.note_of_node(NODE, &Ok(()), Situation::default(), late);
        assert!(refusals.lacks(MARK).is_some());
        // What was stopped is tried again too.
        let mut refusals = doubted();
        refusals.note_of_node(NODE, &refused(), Situation::default(), Duration::from_secs(1));
        assert!(refusals.stop(MARK));
        refusals.note_of_node(NODE, &Ok(()), Situation::default(), late);
        assert!(!refusals.forbids(MARK));
    }

    #[test]
    fn a_right_that_is_given_up_is_asked_once_about_each_other_pod() {
        let mut refusals = doubted();
        assert!(refusals.stop(MARK));
        let (a, d) = (PodUid("a".into()), PodUid("d".into()));
        assert!(refusals.forbids_for(MARK, &a));
        assert!(!refusals.forbids_for(MARK, &d));
        let (monotonic, boot, wall) = (Duration::ZERO, Duration::ZERO, jiff::Timestamp::UNIX_EPOCH);
        assert!(refusals.may_ask(MARK, &Clock::new(Now { monotonic, boot, wall })));
        assert_eq!(refusals.note(MARK, &d, &refused(), Duration::ZERO), Refusal::Final);
        assert!(refusals.forbids_for(MARK, &d));
        refusals.note(MARK, &PodUid("e".into()), &Ok(()), Duration::ZERO);
        assert!(!refusals.forbids(MARK) && !refusals.forbids_for(MARK, &a));
    }
}
