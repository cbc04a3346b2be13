//! Reports, shortly before a scheduled shutdown, what would fail while there is still time to fix
//! it.

use jiff::SignedDuration;

use super::Agent;
use super::calls::Task;
use super::notices::NOT_READY;
use super::status::LockState;

/// The agent polls logind's schedule every 10 s.
const AHEAD: SignedDuration = SignedDuration::from_mins(1);

impl Agent {
    /// Checks each schedule once, identified by its kind and time.
    pub(super) fn check_ahead(&mut self) {
        let scheduled = self.logind.state.as_ref().and_then(|state| state.scheduled.as_ref());
        let Some((kind, at)) = scheduled else { return };
        let left = at.duration_since(self.clock.now().wall);
        let foretold = self.logind.foretold.as_ref() == scheduled;
        if left >= AHEAD || foretold || self.is_getting_ready() {
            return;
        }
        let when = format!("{kind} is scheduled in {} s", left.as_secs().max(0));
        self.logind.foretold = scheduled.cloned();
        let doubts = self.doubts();
        if doubts.is_empty() {
            self.calls.log(false, None, format!("{when}; everything is ready for it"));
            return;
        }
        let message = format!("{when}, and the node is not ready for it: {}", doubts.join("; "));
        self.calls.log(true, None, message.clone());
        self.emit_event(true, NOT_READY, message);
    }

    /// Whether the answer may change within a moment.
    fn is_getting_ready(&self) -> bool {
        self.logind.lock == LockState::Taking || self.calls.count(|t| *t == Task::RaiseDelay) > 0
    }

    /// What would fail if the machine went down now.
    fn doubts(&self) -> Vec<String> {
        let status = &self.status;
        let (granted, wanted) = (self.logind.granted.unwrap_or_default(), self.wanted_delay());
        let mut doubts = Vec::new();
        if self.settings.enforce {
            if self.logind.lock != LockState::Held {
                doubts.push("the delay lock is not held, so that nothing waits for pods".into());
            }
            if granted < wanted {
                let (granted, wanted) = (granted.as_secs_f64(), wanted.as_secs());
                doubts.push(format!("logind grants {granted} s, {wanted} s are wanted"));
            }
            if status.marks_only {
                doubts.push(format!("no component would terminate pods: {}", status.mode_reason));
            }
        }
        if !self.pods.is_listed() {
            doubts.push("the node's pods are not known yet".into());
        } else if !status.api_reachable {
            doubts.push("the API does not answer".into());
        }
        doubts
    }
}
