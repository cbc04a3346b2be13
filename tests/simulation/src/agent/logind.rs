//! Models logind: delay locks, the announcement, the timer, and their outcomes.

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::ending::{Ending, ShutdownKind, Source};
use agent_core::protocol::event::{Event, LogindState};

use super::api::Stored;
use super::situations::Met;
use super::world::{Life, World};

/// How often the agent's source rereads the properties.
const POLL: Duration = Duration::from_secs(10);

/// Stage of a shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// No shutdown was requested.
    #[default]
    Idle,
    /// Announced; delay locks hold it.
    Delayed,
    /// It is under way.
    Going,
}

/// The service.
#[derive(Debug, Default)]
pub(super) struct Logind {
    pub(super) delay: Duration,
    pub(super) stage: Stage,
    /// The process of the agent that holds a lock.
    pub(super) agent_lock: Option<u64>,
    pub(super) kubelet_lock: bool,
    pub(super) other_lock: bool,
    /// Whether its bus name has no owner at the moment.
    pub(super) down: bool,
    pub(super) owner: u32,
    /// Number of the announcement; a timer of an earlier one is void.
    pub(super) announcements: u64,
}

impl Logind {
    fn is_locked(&self) -> bool {
        self.agent_lock.is_some() || self.kubelet_lock || self.other_lock
    }
}

impl World {
    /// Somebody requests a shutdown. ([LD1])
    pub(super) fn announce_shutdown(&mut self) {
        if self.logind.down || self.logind.stage != Stage::Idle {
            return;
        }
        self.logind.stage = Stage::Delayed;
        self.logind.announcements += 1;
        self.log(|w| format!("logind    announces a shutdown, delay {:?}", w.logind.delay));
        if let Some(held) = self.behaviour.other_lock {
            self.logind.other_lock = true;
            self.met(Met::OtherLock);
            let release = |w: &mut Self| {
                w.logind.other_lock = false;
                w.locks_changed();
            };
            self.after(held, Life::Boot(self.boot), release);
        }
        if self.behaviour.mute_delay {
            self.met(Met::MuteDelay);
        }
        let granted = (!self.behaviour.mute_delay).then_some(self.logind.delay);
        let kind = Some(ShutdownKind::Poweroff);
        self.signal(Some(Ending::certain(granted, kind)));
        self.rights_are_late();
        self.kubelet_hears_shutdown();
        self.watch_kubelet();
        let number = self.logind.announcements;
        let delay = self.logind.delay;
        self.after(delay, Life::Boot(self.boot), move |w| {
            if w.logind.announcements == number && w.logind.stage == Stage::Delayed {
                w.log(|_| "logind    waits no longer".into());
                w.go();
            }
        });
        self.locks_changed();
    }

    /// Cancels the delayed shutdown.
    pub(super) fn cancel_shutdown(&mut self) {
        if self.logind.stage != Stage::Delayed {
            return;
        }
        self.logind.stage = Stage::Idle;
        self.log(|_| "logind    cancels the shutdown".into());
        self.met_cancel();
        if self.behaviour.lost_cancel {
            self.met(Met::LostCancel);
        } else {
            self.signal(None);
        }
        self.kubelet_hears_cancel();
        self.cancelled_at = Some(self.now());
    }

    /// Counts what the agent has to take back.
    fn met_cancel(&mut self) {
        let marked = |(uid, stored): (&PodUid, &Stored)| {
            stored.is_marked() && self.runtime.running(uid) > 0 && stored.deletion().is_none()
        };
        if self.api.pods.iter().any(marked) {
            self.met(Met::CancelWithMarks);
        }
        if self.api.node.tainted {
            self.met(Met::CancelWithTaint);
        }
        if self.api.node.announced.as_deref().is_some_and(|text| text != "idle") {
            self.met(Met::CancelWithAnnouncement);
        }
    }

    /// logind restarts: it keeps the locks, and forgets a delayed shutdown without a signal.
    /// ([LD7])
    pub(super) fn restart_logind(&mut self) {
        if self.logind.stage == Stage::Going || self.logind.down {
            return;
        }
        self.log(|_| "logind    restarts".into());
        self.logind.down = true;
        self.handle_soon(Event::LogindLost("org.freedesktop.login1 has no owner".into()));
        let pause = self.random.millis(20, 2_500);
        self.after(pause, Life::Boot(self.boot), |w| {
            w.logind.down = false;
            w.logind.owner += 1;
            if w.logind.stage == Stage::Delayed {
                w.logind.stage = Stage::Idle;
                w.cancelled_at = Some(w.now());
            }
            w.see_logind();
        });
    }

    /// A lock was taken or released: releasing the last one lets the shutdown continue. ([LD3])
    pub(super) fn locks_changed(&mut self) {
        if self.logind.stage == Stage::Delayed && !self.logind.down && !self.logind.is_locked() {
            self.log(|_| "logind    has no more locks".into());
            self.go();
        }
        self.see_kubelet();
    }

    fn go(&mut self) {
        self.logind.stage = Stage::Going;
        self.after(self.behaviour.tail, Life::Boot(self.boot), World::power_off);
    }

    /// The agent's source has a connection: it reads logind's state now, and again from time to
    /// time.
    pub(super) fn watch_logind(&mut self) {
        let Some(run) = self.agent_run() else { return };
        self.see_logind();
        self.after(POLL, Life::Agent(run), World::watch_logind);
    }

    /// The agent's source reads the properties.
    pub(super) fn see_logind(&mut self) {
        if self.logind.down || self.agent_run().is_none() {
            return;
        }
        if let Some(process) = &mut self.process {
            process.subscribed = true;
        }
        let state = LogindState {
            owner: format!(":1.{}", self.logind.owner),
            delay: (!self.behaviour.mute_delay).then_some(self.logind.delay),
            preparing: self.logind.stage != Stage::Idle,
            scheduled: None,
            lock_listed: Some(self.logind.agent_lock == self.agent_run()),
        };
        self.handle_soon(Event::LogindSeen(state));
    }

    /// A signal reaches a subscribed agent.
    fn signal(&mut self, ending: Option<Ending>) {
        if self.process.as_ref().is_some_and(|process| process.subscribed) {
            self.handle_soon(Event::EndingSeen(Source::Logind, ending));
        }
    }
}
