//! Draws notices of the machine's end that come to nothing: they are given, moved and withdrawn,
//! before, amid and after shutdowns that logind announces. They keep new pods away, and end none.
//!
//! A notice that is due begins a shutdown; the chaos tests of the agent's core and the real node
//! play that.

use std::time::Duration;

use agent_core::protocol::ending::{Ending, Source};
use agent_core::protocol::event::Event;
use epilogue_common::names::node_condition::MAINTENANCE_PLANNED;

use super::Sabotage;
use super::situations::Met;
use super::world::{Life, World};
use crate::controller::agenda::Moment;
use crate::controller::random::Random;

/// The source that speaks.
pub(super) const SOURCE: Source = Source::File;
/// So long before a certain end new pods stay away.
const NEAR: Duration = Duration::from_mins(15);
/// A certain end is further away than any shutdown takes, and than a world lasts.
const FAR_MILLIS: (u32, u32) = (7_200_000, 36_000_000);
/// After a start the source has spoken by then.
const SPEAKS_WITHIN_MILLIS: u32 = 3_000;

/// What the source knows.
#[derive(Debug)]
pub(super) struct Notices {
    /// One of its own, so that a seed stays what it was.
    random: Random,
    /// Whether the source is there.
    speaks: bool,
    /// Whether the end is certain, and when it comes.
    given: Option<(bool, Moment)>,
}

impl Notices {
    pub(super) fn of_seed(seed: u64) -> Self {
        Self { random: Random::new(seed ^ 0x0071), speaks: false, given: None }
    }

    /// The machine is off: the file is gone with it.
    pub(super) fn power_off(&mut self) {
        self.given = None;
    }

    fn draw(&mut self, now: Moment) -> (bool, Moment) {
        let certain = self.random.percent(40);
        let (least, most) = if certain { FAR_MILLIS } else { (0, 600_000) };
        (certain, now + self.random.millis(least, most))
    }

    fn keeps_pods_away(&self, now: Moment) -> bool {
        self.given.is_some_and(|(certain, at)| !certain || at.saturating_sub(now) <= NEAR)
    }
}

impl World {
    /// Some worlds have notices, at any time.
    pub(super) fn schedule_notices(&mut self) {
        self.notices.speaks = self.notices.random.percent(30);
        if !self.notices.speaks {
            return;
        }
        let latest = u32::try_from(self.behaviour.calm_from.as_millis()).unwrap_or(u32::MAX);
        let mut times: Vec<Duration> =
            (0..4).map(|_| self.notices.random.millis(0, latest)).collect();
        times.sort();
        let withdrawn = times.pop().unwrap_or_default();
        for at in times {
            self.after(at, Life::World, World::give_notice);
        }
        self.after(withdrawn, Life::World, World::withdraw_notice);
    }

    fn give_notice(&mut self) {
        if !self.on {
            return;
        }
        let now = self.now();
        let given = self.notices.draw(now);
        self.log(|_| format!("notice    certain {}, the end at {:?}", given.0, given.1));
        self.met(if given.0 { Met::NoticeCertain } else { Met::NoticeUncertain });
        if self.ledger.shutdown.is_some() {
            self.met(Met::NoticeInShutdown);
        }
        self.notices.given = Some(given);
        self.say_notice();
    }

    fn withdraw_notice(&mut self) {
        if self.notices.given.take().is_some() {
            self.log(|_| "notice    withdrawn".into());
            self.met(Met::NoticeWithdrawn);
            self.say_notice();
        }
    }

    /// A process that has started asks the source.
    pub(super) fn watch_notices(&mut self) {
        if self.notices.speaks {
            let pause = self.notices.random.millis(5, SPEAKS_WITHIN_MILLIS);
            self.after(pause, Life::Boot(self.boot), World::say_notice);
        }
    }

    fn say_notice(&mut self) {
        let (now, Some(run)) = (self.now(), self.agent_run()) else { return };
        if self.options.sabotage == Some(Sabotage::IgnoreNotices) {
            return;
        }
        let ending = self.notices.given.map(|(certain, at)| Ending {
            within: Some(at.saturating_sub(now)),
            kind: None,
            certain,
        });
        let event = Event::EndingSeen(SOURCE, ending);
        let pause = self.notices.random.millis(1, 20);
        self.after(pause, Life::Agent(run), move |w| w.agent_handles(event));
    }

    /// What the node shows otherwise than the notice asks for.
    pub(super) fn untidy_notices(&self) -> Vec<String> {
        let enforces = self.behaviour.settings.enforce;
        let mut found = Vec::new();
        let away = enforces && self.notices.keeps_pods_away(self.now());
        if self.api.node.tainted != away {
            found.push(format!("the node is tainted: {}", self.api.node.tainted));
        }
        let planned = enforces && self.notices.given.is_some();
        if self.api.node.shows(MAINTENANCE_PLANNED) != planned {
            found.push(format!("notice is given: {planned}, and the condition says otherwise"));
        }
        found
    }
}
