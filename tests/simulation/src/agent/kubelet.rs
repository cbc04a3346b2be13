//! Models the kubelet's pod workers: start, restart, terminate, finish. Its status writes are in
//! [`super::reports`], its graceful shutdown in [`super::graceful`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use agent_core::pod::{Phase, PodUid, PodView, RestartPolicy};
use serde_json::Value;

use super::graceful::{self, Graceful};
use super::kubelet_evictions::OwnEvictions;
use super::kubelet_facts::Place;
use super::runtime::Container;
use super::world::{Life, World, name_of};
use crate::controller::agenda::Moment;

/// The shortest time between SIGTERM and SIGKILL that a kubelet gives. ([SD14])
const GRACE_MIN: Duration = Duration::from_secs(2);

/// State of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Health {
    /// No process.
    #[default]
    Dead,
    /// The process works.
    Live,
    /// The process exists, holds its locks, and does nothing.
    Hung,
    /// The same, but it answers pings and renews its lease.
    Stuck,
}

/// The process and its knowledge.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    pub(super) run: u64,
    pub(super) health: Health,
    pub(super) place: Place,
    /// Number of the source's looks.
    pub(super) watches: u64,
    pub(super) workers: BTreeMap<PodUid, Worker>,
    pub(super) graceful: Graceful,
    pub(super) queue: VecDeque<PodUid>,
    pub(super) reporting: bool,
    pub(super) renewed_at: Moment,
    pub(super) evictions: OwnEvictions,
}

/// State of one pod in the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not started.
    Waiting,
    /// Waits for a runtime call, and sees nothing else.
    Pulling,
    /// Started.
    Up,
    /// The kubelet is stopping it.
    Terminating { kill_at: Moment },
    /// No container of it runs any more.
    Stopped,
}

/// The kubelet's record of one pod.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) stage: Stage,
    /// The cached status: phase, reason and message, `DisruptionTarget`.
    pub(super) phase: Phase,
    pub(super) words: Option<(&'static str, &'static str)>,
    pub(super) disruption: Option<Value>,
    /// The final phase, whatever the exit codes.
    forced: Option<Phase>,
    annotations: Value,
    pub(super) started: bool,
    /// The next report is the one noted when the tear-down began. ([SD17])
    pub(super) half_reported: bool,
    /// The grace of a stop that has to wait for the call under way.
    pub(super) asked: Option<u32>,
}

impl Kubelet {
    pub(super) fn is_live(&self) -> bool {
        self.health == Health::Live
    }
}

impl Worker {
    /// Whether the kubelet terminates it for the shutdown.
    fn is_shut_down(&self) -> bool {
        self.words == Some(graceful::WORDS)
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Stopped
    }
}

impl World {
    /// Starts a process of the kubelet.
    pub(super) fn start_kubelet(&mut self) {
        self.kubelet.run += 1;
        self.kubelet.health = Health::Live;
        self.kubelet.place = Place::Empty;
        self.kubelet.workers.clear();
        self.kubelet.queue.clear();
        self.kubelet.reporting = false;
        self.kubelet.graceful = Graceful::default();
        self.kubelet.evictions = OwnEvictions::default();
        self.kubelet.renewed_at = self.now();
        self.log(|w| format!("kubelet   starts, run {}", w.kubelet.run));
        self.kubelet_changed();
        let life = Life::Kubelet(self.kubelet.run);
        let pause = self.random.millis(300, 3_000);
        self.after(pause, life, World::kubelet_lists);
        self.after(Duration::from_secs(10), life, World::full_pass);
        if self.behaviour.strain.presses {
            let pause = self.random.millis(2_000, 12_000);
            self.after(pause, life, World::kubelet_evicts);
        }
        self.begin_volumes();
        self.arm_graceful();
        self.see_kubelet();
    }

    /// The process ends, or hangs with everything it holds.
    pub(super) fn end_kubelet(&mut self, health: Health) {
        if self.kubelet.health == Health::Dead {
            return;
        }
        self.log(|_| format!("kubelet   is {health:?}"));
        self.kubelet_changed();
        self.kubelet.health = health;
        if health == Health::Dead && self.logind.kubelet_lock {
            self.logind.kubelet_lock = false;
            self.locks_changed();
        }
        self.see_kubelet();
    }

    fn kubelet_lists(&mut self) {
        if let Some(pause) = self.kubelet_dark() {
            let life = Life::Kubelet(self.kubelet.run);
            self.after(pause, life, World::kubelet_lists);
            return;
        }
        // A new process does not know of a shutdown under way. ([W6])
        self.api.update_node(|node| node.kubelet_says_shutdown = false);
        let uids: Vec<PodUid> = self.api.pods.keys().cloned().collect();
        for uid in uids {
            if !self.kubelet.workers.contains_key(&uid) {
                self.adopt(&uid);
            }
        }
        self.unstage_left();
    }

    /// The kubelet's watch delivers a change in the API.
    pub(super) fn kubelet_notices(&mut self, uid: PodUid) {
        if self.kubelet.is_live() {
            let pause = self.random.millis(5, 60);
            self.after(pause, Life::Kubelet(self.kubelet.run), move |w| w.kubelet_sees(&uid));
        }
    }

    fn kubelet_sees(&mut self, uid: &PodUid) {
        if let Some(pause) = self.kubelet_dark() {
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            self.after(pause, life, move |w| w.kubelet_sees(&uid));
            return;
        }
        let Some(stored) = self.api.pods.get(uid) else {
            return self.terminate(uid, 1);
        };
        let (deletion, deadline) = (stored.deletion(), stored.active_deadline);
        let annotations = stored.annotations.clone();
        let tgps = stored.view().grace_seconds.unwrap_or(30);
        let Some(worker) = self.kubelet.workers.get_mut(uid) else {
            return self.adopt(uid);
        };
        if let Some(grace) = deletion {
            return self.terminate(uid, grace);
        }
        if deadline.is_some() && matches!(worker.stage, Stage::Waiting | Stage::Up) {
            worker.forced = Some(Phase::Failed);
            worker.words = Some(("DeadlineExceeded", "Pod was active too long"));
            return self.terminate(uid, tgps);
        }
        if worker.annotations != annotations {
            worker.annotations = annotations;
            self.sync(uid);
        }
    }

    /// Adopts a pod that this run of the kubelet did not know.
    fn adopt(&mut self, uid: &PodUid) {
        let Some(stored) = self.api.pods.get(uid) else { return };
        let view = stored.view();
        let words = self.kubelet.graceful.refuses().filter(|_| !self.runtime.is_up(uid));
        let worker = Worker {
            stage: Stage::Waiting,
            phase: view.phase,
            words: None,
            disruption: stored.condition("DisruptionTarget").cloned(),
            forced: None,
            annotations: stored.annotations.clone(),
            started: self.runtime.has_run(uid),
            half_reported: false,
            asked: None,
        };
        let terminal = stored.is_terminal();
        self.kubelet.workers.insert(uid.clone(), worker);
        let life = Life::Kubelet(self.kubelet.run);
        let pause = self.random.millis(60_000, 90_000);
        let again = uid.clone();
        self.after(pause, life, move |w| w.resync(again));
        let worker = self.kubelet.workers.get_mut(uid).expect("it must be there: just put");
        if terminal {
            worker.forced = Some(view.phase);
            worker.stage = Stage::Up;
            return self.terminate(uid, view.grace_seconds.unwrap_or(30));
        }
        if let Some(words) = words {
            worker.words = Some(words);
            worker.phase = Phase::Failed;
            worker.stage = Stage::Stopped;
            return self.enqueue(uid);
        }
        if worker.started || self.runtime.has_lost_sandbox(uid) {
            worker.stage = Stage::Up;
            if let Some(grace) = view.deletion_grace_seconds {
                return self.terminate(uid, grace);
            }
            // The start of the pod is in its status: neither a container that never ran nor a boot
            // keeps a deadline from passing. ([API17])
            if view.deadline_set {
                worker.forced = Some(Phase::Failed);
                return self.terminate(uid, view.grace_seconds.unwrap_or(30));
            }
            let uid = uid.clone();
            let pause = self.random.millis(500, 3_000);
            return self.after(pause, life, move |w| w.examine(&uid));
        }
        if let Some(grace) = view.deletion_grace_seconds {
            return self.terminate(uid, grace);
        }
        if let Some(pause) = self.scripts.get(uid).and_then(|script| script.starts_after) {
            let uid = uid.clone();
            self.after(pause, life, move |w| w.start_pod(&uid));
        }
    }

    fn start_pod(&mut self, uid: &PodUid) {
        let stage = self.kubelet.workers.get(uid).map(|worker| worker.stage);
        if stage != Some(Stage::Waiting) {
            return;
        }
        match self.scripts.get(uid).and_then(|script| script.pull) {
            Some(pull) if !self.ledger.settling => self.begin_pull(uid, pull),
            _ => self.start_now(uid),
        }
    }

    /// Starts its containers.
    pub(super) fn start_now(&mut self, uid: &PodUid) {
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        worker.stage = Stage::Up;
        worker.started = true;
        worker.phase = Phase::Running;
        self.stage(uid);
        let habits = self.scripts.get(uid).map(|script| script.habits.clone()).unwrap_or_default();
        self.start_containers(uid, &habits);
        self.log(|_| format!("kubelet   starts {}", name_of(uid)));
        self.enqueue(uid);
    }

    pub(super) fn resync(&mut self, uid: PodUid) {
        if !self.kubelet.workers.contains_key(&uid) {
            return;
        }
        self.sync(&uid);
        let life = Life::Kubelet(self.kubelet.run);
        let pause = self.random.millis(60_000, 90_000);
        self.after(pause, life, move |w| w.resync(uid));
    }

    /// The worker syncs the pod. What the API says goes into its cache ([ST8]). A phase that
    /// somebody else made terminal begins a tear-down. ([API13])
    pub(super) fn sync(&mut self, uid: &PodUid) {
        let Some(stored) = self.api.pods.get(uid) else { return };
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        if worker.disruption.is_none() {
            worker.disruption = stored.condition("DisruptionTarget").cloned();
        }
        if stored.is_terminal() && matches!(worker.stage, Stage::Waiting | Stage::Up) {
            let view = stored.view();
            worker.phase = view.phase;
            worker.forced = Some(view.phase);
            self.log(|_| format!("kubelet   adopts the end of {}", name_of(uid)));
            self.terminate(uid, view.grace_seconds.unwrap_or(30));
        }
    }

    /// Stops the pod's containers; a later stop can only shorten the grace.
    pub(super) fn terminate(&mut self, uid: &PodUid, grace: u32) {
        let now = self.now();
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        let kill_at = now + Duration::from_secs(grace.into()).max(GRACE_MIN);
        match worker.stage {
            Stage::Stopped => return self.finish_pod(uid),
            Stage::Pulling => {
                worker.asked = Some(worker.asked.map_or(grace, |before| before.min(grace)));
                return;
            }
            Stage::Terminating { kill_at: before } if before <= kill_at => return,
            _ => {}
        }
        worker.stage = Stage::Terminating { kill_at };
        self.log(|_| format!("kubelet   stops {}, grace {grace}", name_of(uid)));
        self.send_term(uid);
        let life = Life::Kubelet(self.kubelet.run);
        let victim = uid.clone();
        self.after(kill_at.saturating_sub(now), life, move |w| w.send_kill(&victim, kill_at));
        if self.runtime.running(uid) == 0 {
            let uid = uid.clone();
            let pause = self.random.millis(50, 1_000);
            self.after(pause, life, move |w| w.examine(&uid));
        }
    }

    fn send_term(&mut self, uid: &PodUid) {
        if self.runtime.answers {
            self.term_pod(uid);
        } else {
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            self.after(Duration::from_secs(10), life, move |w| w.send_term(&uid));
        }
    }

    pub(super) fn send_kill(&mut self, uid: &PodUid, kill_at: Moment) {
        let stage = self.kubelet.workers.get(uid).map(|worker| worker.stage);
        if stage != Some(Stage::Terminating { kill_at }) {
            return;
        }
        if self.runtime.answers {
            self.kill(uid);
        } else {
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            self.after(Duration::from_secs(10), life, move |w| w.send_kill(&uid, kill_at));
        }
    }

    /// Containers have exited; the kubelet's relist of the runtime finds it.
    pub(super) fn container_exited(&mut self, uid: &PodUid) {
        if self.kubelet.is_live() {
            let pause = self.random.millis(20, 1_000);
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            self.after(pause, life, move |w| w.examine(&uid));
        }
    }

    /// Finds the exited containers of the pod, and acts on them.
    pub(super) fn examine(&mut self, uid: &PodUid) {
        if !self.runtime.answers {
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            return self.after(Duration::from_secs(5), life, move |w| w.examine(&uid));
        }
        let Some(worker) = self.kubelet.workers.get(uid) else { return };
        let running = self.runtime.running(uid);
        match worker.stage {
            Stage::Up => {
                self.sync(uid);
                self.restart_or_end(uid);
            }
            Stage::Terminating { .. } if running == 0 => self.stopped(uid),
            _ => {}
        }
    }

    fn restart_or_end(&mut self, uid: &PodUid) {
        let Some(stored) = self.api.pods.get(uid) else { return };
        let view = stored.view();
        let up = self.kubelet.workers.get(uid).is_some_and(|worker| worker.stage == Stage::Up);
        let Some(sandbox) = self.runtime.sandboxes.get(uid).filter(|_| up) else { return };
        if !sandbox.ready && sandbox.running() == 0 {
            return self.build_anew(uid, &view);
        }
        let exited = |container: &Container| Some((container.habit.clone(), container.exit?.code));
        let restarts = |container: &Container| {
            exited(container).is_some_and(|(habit, code)| habit.restarts(view.restart_policy, code))
        };
        // Sidecars start again for as long as the pod is not over.
        if !sandbox.works() && !sandbox.regular().any(restarts) {
            if sandbox.running() == 0 {
                return self.stopped(uid);
            }
            return self.terminate(uid, view.grace_seconds.unwrap_or(30));
        }
        let containers = sandbox.containers.iter().enumerate();
        let again = containers.filter(|(_, c)| restarts(c)).map(|(number, _)| number).collect();
        self.restart_containers(uid, again, false);
    }

    /// The sandbox is lost: by a boot, or because the agent stopped it. The pod's own policy
    /// decides whether the kubelet makes another. ([W20], [W21])
    fn build_anew(&mut self, uid: &PodUid, view: &PodView) {
        let Some(sandbox) = self.runtime.sandboxes.get(uid) else { return };
        let code = |container: &Container| container.exit.map_or(0, |exit| exit.code);
        let all = view.restarts_all && sandbox.regular().any(|each| code(each) != 0);
        let never_started = sandbox.containers.iter().any(|container| container.never_started);
        let never = view.restart_policy == RestartPolicy::Never;
        if sandbox.containers.is_empty() || all || never_started && !never {
            return self.start_now(uid);
        }
        let restarts =
            |container: &Container| container.habit.restarts(view.restart_policy, code(container));
        if never {
            // A container that would start, or start again, has no sandbox for it. It keeps the
            // phase.
            if !never_started && !sandbox.regular().any(restarts) {
                self.stopped(uid);
            }
            return;
        }
        // What is to run once has run; everything else starts again, whatever its own policy.
        let once = |container: &Container| {
            let policy = container.habit.own.unwrap_or(view.restart_policy);
            policy == RestartPolicy::OnFailure && code(container) == 0
        };
        if sandbox.regular().all(once) {
            return self.stopped(uid);
        }
        let containers = sandbox.containers.iter().enumerate();
        let again = containers.filter(|(_, c)| !once(c)).map(|(number, _)| number).collect();
        self.restart_containers(uid, again, true);
    }

    fn restart_containers(&mut self, uid: &PodUid, numbers: Vec<usize>, anew: bool) {
        let restarts = self.runtime.sandboxes.get(uid).map_or(0, |sandbox| sandbox.restarts);
        // A container that fails repeatedly restarts with growing backoff.
        let back_off = if self.behaviour.strain.presses { 1 << restarts.min(5) } else { 1 };
        for number in numbers {
            let pause = self.random.millis(200, 3_000) * back_off;
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            self.after(pause, life, move |w| w.restart_container(&uid, number, anew));
        }
    }

    fn restart_container(&mut self, uid: &PodUid, number: usize, anew: bool) {
        let up = self.kubelet.workers.get(uid).is_some_and(|worker| worker.stage == Stage::Up);
        let sandbox = self.runtime.sandboxes.get(uid).filter(|sandbox| sandbox.ready || anew);
        let exited =
            sandbox.is_some_and(|s| s.containers.get(number).is_some_and(|c| c.exit.is_some()));
        let habit = self.scripts.get(uid).and_then(|script| script.habits.get(number).cloned());
        if let (true, true, Some(habit)) = (up, exited, habit) {
            self.log(|_| format!("kubelet   restarts {} container {number}", name_of(uid)));
            self.start_container(uid, number, habit);
            self.enqueue(uid);
        }
    }

    /// No container of the pod runs any more: the exit codes decide its final phase. ([SD18],
    /// [API12])
    fn stopped(&mut self, uid: &PodUid) {
        self.stop_sandbox(uid);
        self.clean_up(uid);
        self.unstage(uid);
        self.sync(uid);
        let api = self.api.pods.get(uid);
        let api = api.filter(|stored| stored.is_terminal()).map(super::api::Stored::phase);
        let well = self.runtime.ended_well(uid);
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        let phase = if well { Phase::Succeeded } else { Phase::Failed };
        worker.phase = api.or(worker.forced).unwrap_or(phase);
        worker.stage = Stage::Stopped;
        worker.half_reported = worker.is_shut_down() && worker.started && self.random.percent(25);
        if worker.phase == Phase::Succeeded {
            worker.words = None;
        }
        self.log(|_| format!("kubelet   {} has stopped", name_of(uid)));
        self.enqueue(uid);
    }
}
