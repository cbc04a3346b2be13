//! Corrects the status of one pod: reads it, patches what was read, and begins anew until the API
//! accepts or refuses the patch.

use std::time::Duration;

use epilogue_common::outcome::Outcome;

use super::attempt::{Attempt, Follow, Pace, REPEATABLE, REPORT, Refusal, WAIT_MAX_HASTE, salt};
use crate::pod::PodView;
use crate::protocol::action::PodRef;

/// How long a refusal is contested: about a minute. The permission may come late, and an API server
/// that has also just booted may refuse everything for a while.
const LATE_RIGHT: Refusal = Refusal::UpTo(16);

/// One correction.
#[derive(Clone, Debug)]
pub struct Correction {
    /// The pod.
    pub pod: PodRef,
    /// Reads the pod: the cached state may be older than the write to correct.
    pub read: Attempt,
    /// Patches the pod as read.
    pub patch: Attempt,
}

impl Correction {
    /// Begins with a read.
    pub fn new(pod: PodRef) -> Self {
        Self { pod, read: Attempt::wanted(), patch: Attempt::default() }
    }

    /// Whether a call is under way.
    pub fn is_in_flight(&self) -> bool {
        self.read.is_in_flight() || self.patch.is_in_flight()
    }

    /// How failed calls are repeated.
    pub fn pace(&self) -> Pace {
        Pace { wait_max: WAIT_MAX_HASTE * 5, latest: None, salt: salt(&self.pod.uid.0) }
    }

    /// Takes the API's answer to the read.
    pub fn was_read(&mut self, result: &Outcome<Option<Box<PodView>>>, now: Duration) -> Follow {
        let follow = self.read.settle(result, now, self.pace(), REPEATABLE);
        match follow {
            Follow::Done if matches!(result, Ok(None)) => return Follow::Gone,
            // Without a read, the watch cache is the best available state.
            Follow::Done | Follow::Refused => self.patch.want(),
            Follow::Gone | Follow::Reread | Follow::Retry => {}
        }
        follow
    }

    /// Takes the API's answer to the patch.
    pub fn was_patched(&mut self, result: &Outcome<()>, now: Duration) -> Follow {
        let rule = REPORT.refused(LATE_RIGHT);
        let follow = self.patch.settle(result, now, self.pace(), rule);
        if matches!(follow, Follow::Reread | Follow::Retry) {
            self.read.want_again();
        }
        follow
    }
}
