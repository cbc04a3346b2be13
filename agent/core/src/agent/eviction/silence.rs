//! Outlasts an API that answers no call. Another victim would not be faster, so the agent keeps the
//! one it has, and evicts it as soon as the API answers. A node that is not short any more by then
//! needs no victim, unless its mark stands.

use std::time::Duration;

use super::super::facts::Facts;
use super::Evictions;
use super::effective_mode::EffectiveMode;
use super::victim::Victim;
use crate::pod::PodView;
use crate::pressure::watch::Cause;
use crate::termination::progress::Terminator;

impl Evictions {
    /// While the API is silent, the victim's time does not run, and the victim delays the next one.
    /// Returns why the agent gives it up once the API answers.
    pub(super) fn outlast_silence(
        &mut self,
        victim: &mut Victim,
        pod: &PodView,
        facts: &Facts,
    ) -> Option<String> {
        if !victim.api_is_silent {
            return None;
        }
        let now = facts.clock.monotonic();
        victim.api_is_silent = victim.termination.read.is_open();
        victim.begin_time_anew(now);
        let cause = self.present(victim.cause?);
        let config = self.watch.config();
        let grace = cause.grace_seconds(pod.grace_seconds, config.soft_grace_seconds_max);
        victim.termination.end.grace_seconds = grace;
        victim.cause = Some(cause);
        victim.hold = Some(self.watch.victim_chosen(&cause, grace, now));
        self.forget_causes();
        let may_leave = victim.termination.mark.write.is_open() && !pod.is_to_end();
        let is_over = !victim.api_is_silent && may_leave && !self.is_still_short(&cause, facts);
        is_over.then(|| "the agent may not act on its cause any more".to_owned())
    }

    /// The cause as it is by now: a soft threshold may have been followed by a hard one.
    fn present(&self, cause: Cause) -> Cause {
        let mut crossed = self.watch.crossed_now();
        let hard = crossed.find(|it| it.signal == cause.signal && it.grace.is_none());
        Cause { threshold: hard.copied().or(cause.threshold), ..cause }
    }

    fn is_still_short(&self, cause: &Cause, facts: &Facts) -> bool {
        let stalls = cause.stalled.is_some() && self.stalls.is_suspicious();
        let is_crossed = self.watch.crossed_now().any(|it| it.signal == cause.signal);
        let enforces = self.effective_mode_for(cause.signal, facts) == EffectiveMode::Enforce;
        enforces && (stalls || is_crossed)
    }
}

impl Victim {
    fn begin_time_anew(&mut self, now: Duration) {
        self.mark_until = now + self.mark_time;
        if self.termination.end.by != Terminator::Stop {
            self.end_until = None;
        }
    }
}
