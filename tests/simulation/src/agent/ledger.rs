//! Records what the checks need: what the agent heard and when, what it tried, what the API has
//! shown. The verdicts are in [`super::verdicts`] and [`super::settled`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::pod::{Owner, PodUid, PodView};
use agent_core::protocol::action::ActionId;
use agent_core::protocol::ending::Source;
use agent_core::protocol::event::{ActionResult, Event};
use agent_core::protocol::node::KubeletFacts;
use agent_core::shutdown::Mode;
use epilogue_common::outcome::FailureKind;

use super::api::{Change, Stored};
use super::kernel::Kill;
use super::logind::Stage;
use super::pressure_ledger::PressureLedger;
use super::promises;
use super::situations::Met;
use super::verdicts::ENDED_LONG_BEFORE;
use super::world::World;
use crate::controller::agenda::Moment;

/// How long after a signal a contradicting check may be an older one.
const CHECK_LASTS: Duration = Duration::from_secs(2);

/// Properties of a pod from its creation on.
#[derive(Clone, Debug)]
pub(super) struct Nature {
    pub(super) is_static: bool,
    pub(super) is_own: bool,
    pub(super) view: PodView,
}

/// A shutdown, as the agent has heard of it.
#[derive(Clone, Debug)]
pub(super) struct Shutdown {
    pub(super) reported_at: Moment,
    /// When the agent may start no more kills.
    pub(super) last_writes: Moment,
    /// When the time for the reports is over.
    pub(super) end: Moment,
    /// Until when the agent may hold the lock: the journal's last record may take half of the
    /// margin.
    pub(super) latest: Moment,
    /// Whether this process heard the announcement itself.
    pub(super) heard: bool,
    /// A process before this one heard of it, so each check of this process is a later one.
    inherited: bool,
    /// The pods known to be alive at that time.
    pub(super) pods: BTreeSet<PodUid>,
    pub(super) released: bool,
    /// Whether the agent has begun to terminate pods.
    pub(super) killing: bool,
    pub(super) needless_since: Option<Moment>,
    pub(super) blamed: bool,
}

/// The recorded state.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Whether systemd has stopped the system without an announcement.
    pub(super) system_stopped: bool,
    pub(super) violations: Vec<String>,
    pub(super) natures: BTreeMap<PodUid, Nature>,
    pub(super) born: u32,
    pub(super) shutdown: Option<Shutdown>,
    /// The faults are over.
    pub(super) settling: bool,
    pub(super) settling_since: Option<Moment>,
    pub(super) frozen_at: Option<Moment>,
    pub(super) thawed_at: Option<Moment>,
    pub(super) kubelet_was_armed: bool,
    /// The pods as the watch reported them to the agent's process.
    pub(super) reported: BTreeMap<PodUid, PodView>,
    /// When it got its first list of them.
    pub(super) listed_at: Option<Moment>,
    /// When the watch reported a pod's final phase to it.
    pub(super) reported_terminal: BTreeMap<PodUid, Moment>,
    pub(super) reported_not_ready: bool,
    pub(super) reported_volumes: Vec<String>,
    /// The reported state of the kubelet, and since when it has been the same.
    pub(super) reported_kubelet: Option<(Moment, KubeletFacts)>,
    granted: Option<Duration>,
    owner: Option<String>,
    /// Attempted marks by action, and the pods with a failed attempt.
    pub(super) marking: BTreeMap<ActionId, PodUid>,
    /// Attempted phases by action. An API that refuses one would refuse the mark, too.
    pub(super) failing: BTreeMap<ActionId, PodUid>,
    pub(super) mark_failed: BTreeSet<PodUid>,
    /// Pods that the agent deleted, as the API accepted it.
    pub(super) deleted: BTreeSet<PodUid>,
    pub(super) calls: BTreeMap<PodUid, u32>,
    /// Pods that their controllers have replaced, and those that came in their place.
    pub(super) replaced: BTreeSet<PodUid>,
    pub(super) replacements: BTreeSet<PodUid>,
    /// When the node got the taint.
    pub(super) tainted_at: Moment,
    was_tainted: bool,
    /// The last state of every pod in the API, and whether the object is gone.
    pub(super) last: BTreeMap<PodUid, (Stored, bool)>,
    /// Pods that ran when the machine powered off.
    pub(super) cut: BTreeSet<PodUid>,
    /// Those of them that were marked then.
    pub(super) cut_marked: BTreeSet<PodUid>,
    /// How many checks in a row found something that should have been tidied up.
    pub(super) untidy: u32,
    pub(super) recent_actions: u32,
    /// The drained records that the agent wrote, and when first.
    pub(super) drained_records: BTreeMap<String, Moment>,
    lock_taken_at: Option<Moment>,
    /// All OOM kills.
    pub(super) kills: Vec<Kill>,
    pub(super) kubelet_victims: BTreeSet<PodUid>,
    /// When pods last waited for memory of the node, and when tasks last waited for disks.
    pub(super) memory_stalled_at: Option<Moment>,
    pub(super) io_stalled_at: Option<Moment>,
    pub(super) pressure: PressureLedger,
}

impl Ledger {
    pub(super) fn is_static(&self, uid: &PodUid) -> bool {
        self.natures.get(uid).is_some_and(|nature| nature.is_static)
    }

    /// The knowledge of a process is gone with it.
    pub(super) fn process_ends(&mut self) {
        self.reported.clear();
        self.listed_at = None;
        self.reported_terminal.clear();
        self.reported_not_ready = false;
        self.reported_volumes.clear();
        self.reported_kubelet = None;
        self.marking.clear();
        self.failing.clear();
        self.pressure.process_ends();
        for kill in &mut self.kills {
            kill.reported_at = None;
        }
        self.untidy = 0;
        self.granted = None;
        self.owner = None;
        self.frozen_at = None;
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.heard = false;
            shutdown.inherited = true;
        }
    }

    /// Notes since when the node has the taint.
    pub(super) fn node_tainted(&mut self, is: bool, now: Moment) {
        if is && !std::mem::replace(&mut self.was_tainted, is) {
            self.tainted_at = now;
        }
        self.was_tainted = is;
    }

    pub(super) fn lock_taken(&mut self, now: Moment) {
        self.lock_taken_at = Some(now);
    }

    pub(super) fn lock_lost(&mut self) {
        self.lock_taken_at = None;
    }

    fn reported_of(&mut self, view: PodView, now: Moment) {
        if promises::is_terminal(&view) {
            self.reported_terminal.entry(view.uid.clone()).or_insert(now);
        }
        self.reported.insert(view.uid.clone(), view);
    }

    fn begin_shutdown(&mut self, granted: Option<Duration>, heard: bool, now: Moment) {
        let granted = granted.or(self.granted).unwrap_or(promises::DELAY_DEFAULT);
        let times = promises::times(granted);
        let alive = self.reported.values().filter(|view| !promises::is_terminal(view));
        self.shutdown = Some(Shutdown {
            reported_at: now,
            last_writes: now + times.last_writes,
            end: now + times.end,
            latest: now + times.end + times.left / 2,
            heard,
            inherited: false,
            pods: alive.map(|view| view.uid.clone()).collect(),
            released: false,
            killing: false,
            needless_since: None,
            blamed: false,
        });
    }
}

impl World {
    /// Records an event that the agent is about to receive.
    pub(super) fn ledger_hears(&mut self, event: &Event) {
        let (now, mode) = (self.now(), self.mode());
        let ledger = &mut self.ledger;
        match event {
            Event::PodsListed(views) => {
                ledger.reported.clear();
                ledger.listed_at.get_or_insert(now);
                for view in views {
                    ledger.reported_of(view.clone(), now);
                }
                // If a new process found the shutdown, it begins with the pods of its first list.
                if let Some(shutdown) =
                    ledger.shutdown.as_mut().filter(|shutdown| shutdown.pods.is_empty())
                {
                    let alive = views.iter().filter(|view| !promises::is_terminal(view));
                    shutdown.pods = alive.map(|view| view.uid.clone()).collect();
                }
            }
            Event::PodObserved(view) => ledger.reported_of((**view).clone(), now),
            Event::PodGone(uid) => {
                ledger.reported.remove(uid);
            }
            Event::NodeObserved(node) => {
                // An agent that has already switched to Replace continues with it.
                if let Some(shutdown) =
                    ledger.shutdown.as_mut().filter(|_| mode == Some(Mode::Replace))
                {
                    shutdown.killing |= !ledger.reported_not_ready && node.kubelet_says_shutdown;
                }
                ledger.reported_not_ready = node.kubelet_says_shutdown;
                ledger.reported_volumes.clone_from(&node.volumes_in_use.names);
                ledger.pressure.node_reported(node);
            }
            Event::KubeletSeen(facts) => {
                let same = ledger.reported_kubelet.as_ref().filter(|(_, before)| {
                    let ports =
                        (before.healthy, before.main_port) == (facts.healthy, facts.main_port);
                    ports && before.lock_armed == facts.lock_armed
                });
                let since = same.map_or(now, |(since, _)| *since);
                ledger.reported_kubelet = Some((since, facts.clone()));
            }
            Event::EndingSeen(Source::Logind, Some(ending))
                if ledger.shutdown.as_ref().is_none_or(|shutdown| !shutdown.heard) =>
            {
                ledger.begin_shutdown(ending.within, true, now);
                self.met_announcement(mode);
            }
            Event::EndingSeen(Source::Logind, None) => ledger.shutdown = None,
            Event::LogindSeen(state) => {
                ledger.granted = state.delay.or(ledger.granted);
                // A check may be older than the signal, unless another logind answers it.
                let restarted = ledger.owner.as_ref().is_some_and(|owner| *owner != state.owner);
                ledger.owner = Some(state.owner.clone());
                let shutdown = ledger.shutdown.as_mut();
                let fresh = shutdown.is_some_and(|shutdown| {
                    shutdown.inherited &= !state.preparing;
                    !shutdown.inherited && now < shutdown.reported_at + CHECK_LASTS
                });
                if state.preparing && ledger.shutdown.is_none() {
                    ledger.begin_shutdown(None, false, now);
                } else if !state.preparing && (restarted || !fresh) {
                    ledger.shutdown = None;
                }
            }
            _ => {}
        }
    }

    /// Counts what the agent must respect in the shutdown that it hears of.
    fn met_announcement(&mut self, mode: Option<Mode>) {
        let seen = self.ledger.reported_kubelet.as_ref().map(|(_, facts)| facts.lock_armed);
        match seen {
            Some(Some(true)) => self.met(Met::ArmedKubelet),
            Some(Some(false)) => self.met(Met::UnarmedKubelet),
            _ => {}
        }
        let alive: Vec<PodView> = self
            .ledger
            .reported
            .values()
            .filter(|view| !promises::is_terminal(view))
            .cloned()
            .collect();
        let observes = !self.behaviour.settings.enforce;
        let dead = !self.kubelet.is_live();
        for view in alive {
            let Some(nature) = self.ledger.natures.get(&view.uid) else { continue };
            let (is_static, is_own) = (nature.is_static, nature.is_own);
            let daemon = view.owner == Owner::DaemonSet && mode == Some(Mode::Replace);
            let foreign = view.disruption.as_ref().is_some_and(|disruption| {
                disruption.stands && disruption.reason != promises::REASON
            });
            let ended_at = self.runtime.all_ended_at(&view.uid).filter(|_| dead);
            let ended = promises::had_its_only_run(&view)
                && ended_at.is_some_and(|at| at + ENDED_LONG_BEFORE < self.now());
            let found = [
                (is_static, Met::StaticInShutdown),
                (is_own, Met::OwnInShutdown),
                (daemon, Met::DaemonInReplace),
                (observes, Met::ObservedInShutdown),
                (foreign, Met::ForeignMark),
                (ended, Met::EndedLongBefore),
            ];
            for (_, met) in found.into_iter().filter(|(found, _)| *found) {
                self.met(met);
            }
        }
    }

    /// Records that an action of the agent has ended.
    pub(super) fn ledger_hears_result(&mut self, id: ActionId, result: &ActionResult) {
        self.ledger_hears_sample(result);
        let failure = match result {
            ActionResult::Done(result) => result.as_ref().err(),
            ActionResult::Patched(result) => result.as_ref().err(),
            _ => return,
        };
        let marking = self.ledger.marking.remove(&id).filter(|_| failure.is_some());
        let refused = failure.is_some_and(|failure| failure.kind == FailureKind::Forbidden);
        let failing = self.ledger.failing.remove(&id).filter(|_| refused);
        self.ledger.mark_failed.extend(marking.into_iter().chain(failing));
    }

    /// Records a change in the API.
    pub(super) fn ledger_sees(&mut self, change: &Change) {
        match change {
            Change::Pod(stored) => {
                let uid = stored.uid().clone();
                let before = self.ledger.last.insert(uid.clone(), ((**stored).clone(), false));
                if let Some((before, _)) = before
                    && stored.is_terminal()
                    && !before.is_terminal()
                {
                    self.judge_terminal(&uid, &before, stored);
                    self.judge_lost(&before, stored);
                }
            }
            Change::Gone(stored) => {
                let uid = stored.uid().clone();
                self.ledger.last.insert(uid.clone(), ((**stored).clone(), true));
                self.judge_gone(&uid, stored);
            }
            Change::Node => {}
        }
    }

    /// The machine powers off: records what ran until then.
    pub(super) fn ledger_at_power_off(&mut self) {
        let elapsed = self
            .ledger
            .shutdown
            .as_ref()
            .map(|shutdown| self.now().saturating_sub(shutdown.reported_at));
        let uids: Vec<PodUid> = self.api.pods.keys().cloned().collect();
        for uid in uids {
            let stored = &self.api.pods[&uid];
            if self.runtime.running(&uid) == 0 || stored.is_terminal() {
                continue;
            }
            let marked = stored.is_disrupted();
            self.stats.ended += 1;
            self.ledger.cut.insert(uid.clone());
            // A pod that the API has never shown to run may start for the first time after the
            // boot, so its mark is taken back.
            if marked && stored.view().has_run {
                self.ledger.cut_marked.insert(uid.clone());
            }
            self.judge_cut(&uid, marked, elapsed);
        }
        self.ledger.shutdown = None;
        self.ledger.frozen_at = None;
        if self.logind.stage == Stage::Going {
            self.ledger.untidy = 0;
        }
    }
}
