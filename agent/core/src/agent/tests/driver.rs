//! Drives the agent under a manual clock. The API, the runtime and the disk respond at once unless
//! a script says otherwise. Each action of the agent becomes a line: `150 mark a`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::names::node::ENDS_AT;
use epilogue_common::names::pod_condition::OOM_KILLED;
use epilogue_common::outcome::{Failure, FailureKind};
use jiff::{SignedDuration, Timestamp};

use crate::agent::{Agent, Features, Plan, Settings};
use crate::pod::tests::pod;
use crate::pod::{Disruption, Phase, PodRef, PodSource, PodUid, PodView};
use crate::protocol::action::{Action, ActionId, Purpose, Reach};
use crate::protocol::ending::{Ending, ShutdownKind, Source};
use crate::protocol::event::{
    ActionResult, Event, LogindState, Now, RuntimeContainer, RuntimePod, RuntimeState,
};
use crate::protocol::journal::Record;
use crate::protocol::node::{Healthz, KubeletFacts, MainPort, Unit};
use crate::shutdown::budget::Budget;
use crate::shutdown::candidates::BarePods;
use crate::shutdown::priority_groups::{PriorityGroup, PriorityGroupFlags};

use super::scarcity::Scarcity;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn settings() -> Settings {
    let flags =
        PriorityGroupFlags { by_priority: Some("0=20,2000000000=10".into()), ..Default::default() };
    Settings {
        boot_id: "boot-1".into(),
        booted_at: None,
        own_pod: Some(PodUid("uid-agent".into())),
        priority_groups: flags.priority_groups().expect("must be priority groups"),
        priority_groups_given: true,
        priority_max: 2_000_000_000,
        bare_pods: BarePods::Leave,
        runtime: true,
        logind: true,
        notices: BTreeSet::new(),
        raise_delay: true,
        enforce: true,
        tries_policies: false,
        in_flight_max: 32,
        features: Features::default(),
    }
}

/// A kubelet without a graceful shutdown of its own.
pub(crate) fn plain() -> KubeletFacts {
    KubeletFacts {
        lock_armed: Some(false),
        shutdown_groups: Some(Vec::new()),
        main_pid: Some(700),
        unit: Some(Unit::Active),
        healthy: Some(Healthz::Ok),
        main_port: Some(MainPort::Answers),
        lease_age: Some(Duration::from_secs(2)),
        eviction: None,
    }
}

pub(crate) fn armed() -> KubeletFacts {
    KubeletFacts {
        lock_armed: Some(true),
        shutdown_groups: Some(PriorityGroup::of_all(Duration::from_secs(30))),
        ..plain()
    }
}

pub(crate) fn dead() -> KubeletFacts {
    KubeletFacts {
        unit: Some(Unit::Inactive),
        healthy: Some(Healthz::Refused),
        main_port: Some(MainPort::Refused),
        ..plain()
    }
}

/// How a script responds to one kind of action about one pod.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// With this failure, this many times.
    Fail(FailureKind, u32),
    /// Not at all, until the script releases it.
    Hold,
}

pub(crate) struct World {
    pub(crate) agent: Agent,
    pub(crate) now: Duration,
    /// CLOCK_BOOTTIME minus CLOCK_MONOTONIC.
    pub(crate) suspended: Duration,
    pub(crate) pods: BTreeMap<String, PodView>,
    pub(crate) runtime: BTreeMap<String, RuntimeState>,
    /// Pods that the API no longer has.
    past: Vec<PodRef>,
    pub(crate) journal: Vec<Record>,
    pub(crate) node_says: Option<String>,
    pub(crate) readiness: Option<String>,
    pub(crate) tainted: bool,
    /// Annotation `epilogue.dev/ends-at` of the pods.
    pub(crate) ends_at: BTreeMap<String, Timestamp>,
    /// Responses by `mark a`, `mark *` or `*`.
    pub(crate) answers: BTreeMap<String, Answer>,
    pub(crate) held: Vec<(ActionId, String, Action)>,
    pub(crate) log: Vec<String>,
    pub(crate) logged: Vec<String>,
    /// Events: reason and message.
    pub(crate) reported: Vec<(&'static str, String)>,
    /// Violations: phases written while a container ran, and terminations before their marks.
    pub(crate) lies: Vec<String>,
    /// The measurements of the node and its pods, and the reports about them.
    pub(crate) scarcity: Scarcity,
    zero: Duration,
    version: u64,
    shown: u64,
    /// The number of actions before the agent dies, and whether the last one is carried out.
    pub(crate) dies_after: Option<(usize, bool)>,
    /// When the agent wants to decide again.
    wake: Option<Duration>,
}

/// logind announces a shutdown, and grants so much time.
pub(crate) fn announced(granted: Duration, kind: Option<ShutdownKind>) -> Event {
    Event::EndingSeen(Source::Logind, Some(Ending::certain(Some(granted), kind)))
}

pub(crate) fn wall(now: Duration) -> Timestamp {
    let start: Timestamp = "2026-11-21T14:00:00Z".parse().expect("must be a time");
    start + SignedDuration::try_from(now).expect("must be short")
}

impl World {
    pub(crate) fn new(settings: Settings, pods: Vec<PodView>) -> Self {
        let now = Duration::from_secs(1_000);
        let agent = Agent::new(settings, &[], at(now, Duration::ZERO));
        let pods = pods.into_iter().map(|pod| (pod.name.clone(), pod)).collect();
        Self {
            agent,
            now,
            suspended: Duration::ZERO,
            pods,
            runtime: BTreeMap::new(),
            past: Vec::new(),
            journal: Vec::new(),
            node_says: None,
            readiness: None,
            tainted: false,
            ends_at: BTreeMap::new(),
            answers: BTreeMap::new(),
            held: Vec::new(),
            log: Vec::new(),
            logged: Vec::new(),
            reported: Vec::new(),
            lies: Vec::new(),
            scarcity: Scarcity::default(),
            zero: now,
            version: 100,
            shown: 100,
            dies_after: None,
            wake: None,
        }
    }

    /// A standing agent: it holds the lock, has listed the pods and has seen the kubelet.
    pub(crate) fn standing(settings: Settings, facts: KubeletFacts, pods: Vec<PodView>) -> Self {
        let mut world = Self::new(settings, pods);
        world.started(facts, false);
        world
    }

    /// Sends the shell's events at a start.
    pub(crate) fn started(&mut self, facts: KubeletFacts, preparing: bool) {
        self.event(Event::KubeletSeen(facts));
        self.list();
        self.event(Event::LogindSeen(logind(preparing)));
        if !preparing {
            self.pass(ms(3_000));
            self.log.clear();
            self.logged.clear();
        }
        self.zero = self.now;
    }

    /// Kills the agent and starts another on the same journal.
    pub(crate) fn restart(&mut self, settings: Settings) {
        self.held.clear();
        self.dies_after = None;
        self.shown = self.version;
        self.agent = Agent::new(settings, &self.journal, at(self.now, self.suspended));
        self.log.clear();
        self.logged.clear();
    }

    /// Boots the machine: clocks at zero, all containers gone.
    pub(crate) fn reboot(&mut self, mut settings: Settings) {
        self.now = Duration::from_secs(20);
        self.zero = self.now;
        settings.boot_id = "boot-2".into();
        self.restart(settings);
    }

    pub(crate) fn list(&mut self) {
        let pods = self.pods.values().cloned().collect();
        self.event(Event::PodsListed(pods));
    }

    pub(crate) fn clock(&self) -> Now {
        at(self.now, self.suspended)
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.agent.handle(event, self.clock());
        self.drain();
    }

    pub(crate) fn shutdown(&mut self, seconds: u64) {
        self.zero = self.now;
        self.event(announced(Duration::from_secs(seconds), Some(ShutdownKind::Reboot)));
    }

    /// logind says that there is no shutdown any more.
    pub(crate) fn cancel(&mut self) {
        self.event(Event::EndingSeen(Source::Logind, None));
    }

    /// Advances the time, and wakes the agent at each of its deadlines.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            match self.wake {
                Some(deadline) if deadline <= end => {
                    assert!(deadline > self.now, "wakes itself at once: {:#?}", self.log);
                    self.now = deadline;
                    self.drain();
                }
                _ => {
                    self.now = end;
                    self.drain();
                    return;
                }
            }
        }
        panic!(
            "never rests: {:#?} {:#?} {:?}",
            self.log,
            &self.logged[self.logged.len().saturating_sub(10)..],
            self.agent
        );
    }

    /// Advances the time while the agent is frozen.
    pub(crate) fn freeze(&mut self, time: Duration) {
        self.now += time;
        self.drain();
    }

    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.is_dead() {
                return;
            }
            let plan = self.agent.plan(self.clock());
            self.wake = plan.wake;
            self.asked_again(&plan);
            if plan.actions.is_empty() {
                return;
            }
            for (id, action) in plan.actions {
                if self.is_dead() {
                    return;
                }
                self.start(id, action);
            }
        }
        panic!(
            "never rests: {:#?} {:#?} {:?}",
            self.log,
            &self.logged[self.logged.len().saturating_sub(10)..],
            self.agent
        );
    }

    /// Without anything new, the agent gives nothing new.
    fn asked_again(&mut self, plan: &Plan) {
        let report = self.agent.status().clone();
        let again = self.agent.plan(self.clock());
        assert_eq!(again.actions, Vec::new(), "{:#?}", self.log);
        // A call under way needs no wake-up.
        let later = |wake: Option<Duration>| wake.unwrap_or(Duration::MAX);
        assert!(later(again.wake) >= later(plan.wake), "{plan:?} {again:?}");
        assert_eq!(*self.agent.status(), report, "{:#?}", self.log);
    }

    fn is_dead(&self) -> bool {
        matches!(self.dies_after, Some((0, _)))
    }

    fn start(&mut self, id: ActionId, action: Action) {
        if let Some((left, carried_out)) = self.dies_after {
            self.dies_after = Some((left - 1, carried_out));
            if left == 1 {
                if carried_out {
                    self.carry_out(&action);
                }
                return;
            }
        }
        if let Action::Log(line) = &action {
            self.logged.push(line.text.clone());
            return;
        }
        if let Action::EmitEvent(notice) = &action {
            self.reported.push((notice.reason, notice.message.clone()));
        }
        let name = printed(&action);
        self.watch(&action);
        self.scarcity.note(&action, self.now);
        if !matches!(
            action,
            Action::Journal(_)
                | Action::CloseJournal
                | Action::EmitEvent(_)
                | Action::Measure
                | Action::Publish(_)
        ) {
            let at = self.now.saturating_sub(self.zero);
            self.log.push(format!("{} {name}", at.as_millis()));
        }
        self.answer(id, &name, action);
    }

    /// Checks an action against the rules that must never break.
    fn watch(&mut self, action: &Action) {
        let early = |shutdown: &crate::agent::ShutdownStatus| {
            let time = Budget::of(shutdown.granted).timetable().end.min(ms(40_000));
            shutdown.unreported + shutdown.unacknowledged > 0 && self.now < shutdown.t0 + time
        };
        let shutdown = self.agent.status().shutdown.as_ref().filter(|shutdown| !shutdown.cancelled);
        if *action == Action::ReleaseLock && shutdown.is_some_and(early) {
            self.lies.push(format!("released with reports open: {shutdown:?}"));
        }
        if let Action::DeletePod { pod, .. } = action {
            let marked = format!("mark {}", pod.name);
            let known = self
                .pods
                .get(&pod.name)
                .is_none_or(|pod| pod.is_disrupted() || pod.is_terminating() || pod.is_terminal());
            let known = known || self.scarcity.beyond_limits.contains(&pod.name);
            // A verb that the API forbids is not tried again, and blocks no termination. ([AP14])
            let forbidden = |line: &String| line.contains("forbids `patch pods/status`");
            let known = known || self.logged.iter().any(forbidden);
            if !known && !self.log.iter().any(|line| line.ends_with(&marked)) {
                self.lies.push(format!("deleted without a mark: {}", pod.name));
            }
        }
    }

    fn answer(&mut self, id: ActionId, name: &str, action: Action) {
        let kind = name.split(' ').next().unwrap_or_default();
        let api = !matches!(
            action,
            Action::TakeLock
                | Action::ReleaseLock
                | Action::RaiseDelay { .. }
                | Action::Journal(_)
                | Action::CloseJournal
                | Action::StopPod { .. }
                | Action::InspectPod(_)
                | Action::ListRuntimePods
                | Action::Measure
                | Action::MeasurePods { .. }
        );
        let mut keys = vec![name.to_owned(), format!("{kind} *")];
        if api {
            keys.push("*".into());
        }
        let key = keys.into_iter().find(|key| self.answers.contains_key(key));
        let failure = match key.and_then(|key| self.answers.get_mut(&key)) {
            Some(Answer::Hold) => {
                self.held.push((id, name.to_owned(), action));
                return;
            }
            Some(Answer::Fail(kind, times)) if *times > 0 => {
                *times -= 1;
                Some(Failure::new(*kind, "configured to fail"))
            }
            _ => None,
        };
        let result = match failure {
            Some(failure) => refused(&action, failure),
            None => self.carry_out(&action),
        };
        self.agent.handle(Event::Finished { id, result }, self.clock());
        self.show();
    }

    /// Responds to the held actions, which are carried out now.
    pub(crate) fn let_go(&mut self, kind: &str) {
        self.answers.retain(|key, _| !key.starts_with(kind));
        let held = std::mem::take(&mut self.held);
        let (now, still): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, name, _)| kind == "*" || name.starts_with(kind));
        self.held = still;
        for (id, _, action) in now {
            let result = self.carry_out(&action);
            self.agent.handle(Event::Finished { id, result }, self.clock());
        }
        self.show();
        self.drain();
    }

    /// Shows the agent the pods that have changed since the last time.
    fn show(&mut self) {
        let shown = self.shown;
        let changed = |pod: &&PodView| {
            pod.resource_version.parse::<u64>().is_ok_and(|version| version > shown)
        };
        let pods: Vec<_> = self.pods.values().filter(changed).cloned().collect();
        self.shown = self.version;
        for pod in pods {
            self.agent.handle(Event::PodObserved(Box::new(pod)), self.clock());
        }
    }

    pub(crate) fn change(&mut self, name: &str, change: impl FnOnce(&mut PodView)) {
        self.version += 1;
        let pod = self.pods.get_mut(name).expect("must be a pod");
        change(pod);
        pod.resource_version = self.version.to_string();
        let pod = pod.clone();
        self.event(Event::PodObserved(Box::new(pod)));
    }

    /// The kubelet reports the pod's end.
    pub(crate) fn ends(&mut self, name: &str, phase: Phase) {
        self.change(name, |pod| {
            pod.phase = phase;
            pod.running_since = None;
        });
    }

    pub(crate) fn gone(&mut self, name: &str) {
        let pod = self.pods.remove(name).expect("must be a pod");
        self.past.push(PodRef::of(&pod));
        self.event(Event::PodGone(pod.uid));
    }

    /// Carries out the action, and loses its response.
    pub(crate) fn lose_answer(&mut self, id: ActionId, action: &Action) {
        self.carry_out(action);
        self.time_out(id, action);
        self.show();
        self.drain();
    }

    /// Times out the action; it may still arrive.
    pub(crate) fn time_out(&mut self, id: ActionId, action: &Action) {
        let result = refused(action, Failure::new(FailureKind::Unknown, "timed out"));
        self.agent.handle(Event::Finished { id, result }, self.clock());
        self.drain();
    }

    /// Carries out an action whose response comes later, and of which no watch shows anything.
    pub(crate) fn carry_out_unseen(&mut self, action: &Action) -> ActionResult {
        let result = self.carry_out(action);
        self.shown = self.version;
        result
    }

    /// Another client changes the pod, and no watch shows it.
    pub(crate) fn change_unseen(&mut self, name: &str) {
        self.version += 1;
        self.shown = self.version;
        let pod = self.pods.get_mut(name).expect("must be a pod");
        pod.resource_version = self.version.to_string();
    }

    /// Carries out an action whose response is no longer expected.
    pub(crate) fn arrive(&mut self, action: &Action) {
        self.carry_out(action);
        self.show();
        self.drain();
    }

    /// Sets what the runtime has of the pod: exit codes, or running.
    pub(crate) fn containers(&mut self, name: &str, codes: &[Option<i32>]) {
        let state = runtime(codes);
        self.runtime.insert(name.into(), state);
    }

    fn carry_out(&mut self, action: &Action) -> ActionResult {
        match action {
            Action::TakeLock => ActionResult::Locked,
            Action::RaiseDelay { wanted } => ActionResult::Delay(Ok(*wanted)),
            Action::Journal(records) => {
                self.journal.extend(records.iter().cloned());
                ActionResult::Done(Ok(()))
            }
            Action::CloseJournal => {
                self.journal.clear();
                ActionResult::Done(Ok(()))
            }
            Action::Announce(text) => {
                self.node_says = Some(text.clone());
                ActionResult::Done(Ok(()))
            }
            Action::Publish(text) => {
                self.readiness = Some(text.clone());
                ActionResult::Done(Ok(()))
            }
            Action::Taint { present } => {
                self.tainted = *present;
                ActionResult::Done(Ok(()))
            }
            Action::PatchStatus { pod, purpose: Purpose::Fail, body }
                if self.runtime.get(&pod.name).is_some_and(|state| !proves(state, body)) =>
            {
                self.lies.push(printed(action));
                ActionResult::Patched(Ok(None))
            }
            Action::PatchStatus { pod, body, .. } => {
                let patched = self.patch(&pod.name, body);
                ActionResult::Patched(patched.map(|()| Some(self.version.to_string())))
            }
            Action::DeletePod { pod, version, grace_seconds } => {
                self.version += 1;
                let Some(view) = self.pods.get_mut(&pod.name) else {
                    return ActionResult::Done(Err(Failure::new(FailureKind::NotFound, "gone")));
                };
                if *version != view.resource_version {
                    let failure = Failure::new(FailureKind::Conflict, "it has changed");
                    return ActionResult::Done(Err(failure));
                }
                view.deletion_grace_seconds = Some(*grace_seconds);
                view.resource_version = self.version.to_string();
                ActionResult::Done(Ok(()))
            }
            Action::PatchPod { pod, body } => {
                let Some(view) = self.pods.get(&pod.name) else {
                    return ActionResult::Done(Err(Failure::new(FailureKind::NotFound, "gone")));
                };
                let version = &view.resource_version;
                if body["metadata"]["resourceVersion"] != version.as_str() {
                    let failure = Failure::new(FailureKind::Conflict, "it has changed");
                    return ActionResult::Done(Err(failure));
                }
                self.change(&pod.name, |pod| pod.deadline_set = true);
                ActionResult::Done(Ok(()))
            }
            Action::ReadPod(pod) => {
                ActionResult::Pod(Ok(self.pods.get(&pod.name).cloned().map(Box::new)))
            }
            Action::StopPod { pod, reach, .. } => {
                let stopped = || runtime(&[Some(143)]);
                let state = self.runtime.entry(pod.name.clone()).or_insert_with(stopped);
                // An empty sandbox is removed; a pod that still runs keeps its own.
                if *reach == Reach::Pod {
                    state.sandbox_ready &=
                        !state.containers.iter().all(|container| container.exited);
                }
                ActionResult::Runtime(Ok(state.clone()))
            }
            Action::InspectPod(pod) => ActionResult::Runtime(Ok(self.account(&pod.name))),
            Action::ListRuntimePods => ActionResult::RuntimePods(Ok(self.runtime_pods())),
            _ => self.scarcity.carry_out(action, self.now),
        }
    }

    fn account(&self, name: &str) -> RuntimeState {
        let ended = self.pods.get(name).is_none_or(PodView::is_terminal);
        let code = if ended { Some(143) } else { None };
        self.runtime.get(name).cloned().unwrap_or_else(|| runtime(&[code]))
    }

    /// The pods that the runtime knows. What only `runtime` has was never in the API.
    fn runtime_pods(&self) -> Vec<RuntimePod> {
        let api = self.pods.values().map(|pod| (PodRef::of(pod), pod.source == PodSource::Static));
        let past = self.past.iter().map(|pod| (pod.clone(), false));
        let mut known: Vec<_> = api.chain(past).collect();
        let is_new = |name: &&String| !known.iter().any(|(pod, _)| pod.name == **name);
        let unseen: Vec<_> = self.runtime.keys().filter(is_new).collect();
        known.extend(unseen.into_iter().map(|name| (PodRef::of(&pod(name)), false)));
        let listed = |(pod, is_static): (PodRef, bool)| {
            let state = self.account(&pod.name);
            let may_run = !state.nothing_runs();
            (!state.knows_nothing()).then_some(RuntimePod { pod, is_static, may_run })
        };
        known.into_iter().filter_map(listed).collect()
    }

    fn patch(&mut self, name: &str, body: &serde_json::Value) -> Result<(), Failure> {
        self.version += 1;
        let missing = Failure::new(FailureKind::NotFound, "gone");
        let pod = self.pods.get_mut(name).ok_or(missing)?;
        let version = body["metadata"]["resourceVersion"].as_str();
        if version.is_some_and(|version| version != pod.resource_version) {
            return Err(Failure::new(FailureKind::Conflict, "it has changed"));
        }
        if body["status"]["phase"] == "Failed" {
            pod.phase = Phase::Failed;
        }
        match &body["metadata"]["annotations"].get(ENDS_AT) {
            Some(serde_json::Value::String(at)) => {
                self.ends_at.insert(name.to_owned(), at.parse().expect("must be a time"));
            }
            Some(_) => drop(self.ends_at.remove(name)),
            None => {}
        }
        for condition in body["status"]["conditions"].as_array().into_iter().flatten() {
            let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
            if condition["type"] == OOM_KILLED {
                pod.details.oom_killed = Some((condition["status"] == "True", text("reason")));
            }
            if condition["type"] == Disruption::TYPE {
                pod.disruption = Some(Disruption {
                    stands: condition["status"] == "True",
                    reason: text("reason"),
                    message: text("message"),
                    since: text("lastTransitionTime").parse().ok(),
                });
            }
        }
        pod.resource_version = self.version.to_string();
        Ok(())
    }

    /// The pods with the condition, by name.
    pub(crate) fn disrupted(&self) -> Vec<&str> {
        let pods = self.pods.values().filter(|pod| pod.is_disrupted());
        pods.map(|pod| pod.name.as_str()).collect()
    }

    /// The log lines of these kinds of action.
    pub(crate) fn done(&self, kinds: &[&str]) -> Vec<&str> {
        let of_kind = |line: &&String| {
            let kind = line.split(' ').nth(1).unwrap_or_default();
            kinds.contains(&kind)
        };
        self.log.iter().filter(of_kind).map(String::as_str).collect()
    }

    pub(crate) fn released(&self) -> bool {
        self.agent
            .status()
            .shutdown
            .as_ref()
            .is_some_and(|shutdown| shutdown.released_after.is_some())
    }
}

/// Whether the runtime's state justifies the phase.
fn proves(state: &RuntimeState, body: &serde_json::Value) -> bool {
    let evicted = body["status"]["reason"] == "Evicted";
    state.nothing_runs() || evicted && state.containers_ended()
}

pub(crate) fn runtime(codes: &[Option<i32>]) -> RuntimeState {
    let container = |code: &Option<i32>| RuntimeContainer {
        id: "c".into(),
        name: "main".into(),
        exited: code.is_some(),
        exit_code: *code,
        finished_at: None,
        reason: String::new(),
    };
    let containers: Vec<_> = codes.iter().map(container).collect();
    let sandbox_ready = containers.iter().any(|container| !container.exited);
    RuntimeState { containers, sandbox_ready, sandbox_known: true }
}

pub(crate) fn logind(preparing: bool) -> LogindState {
    LogindState {
        owner: ":1.7".into(),
        delay: Some(Duration::from_secs(40)),
        preparing,
        scheduled: None,
        lock_listed: Some(true),
    }
}

fn at(now: Duration, suspended: Duration) -> Now {
    Now { monotonic: now, boot: now + suspended, wall: wall(now) }
}

fn refused(action: &Action, failure: Failure) -> ActionResult {
    match action {
        Action::ReadPod(_) => ActionResult::Pod(Err(failure)),
        Action::StopPod { .. } | Action::InspectPod(_) => ActionResult::Runtime(Err(failure)),
        Action::ListRuntimePods => ActionResult::RuntimePods(Err(failure)),
        Action::RaiseDelay { .. } => ActionResult::Delay(Err(failure)),
        _ => ActionResult::Done(Err(failure)),
    }
}

fn printed(action: &Action) -> String {
    match action {
        Action::TakeLock => "lock".into(),
        Action::ReleaseLock => "release".into(),
        Action::RaiseDelay { wanted } => format!("raise {}", wanted.as_secs()),
        Action::Journal(records) => format!("journal {}", records.len()),
        Action::CloseJournal => "close".into(),
        Action::Announce(text) => {
            format!("announce {}", text.split(';').next().unwrap_or_default())
        }
        Action::Publish(text) => format!("publish {text}"),
        Action::Taint { present } => format!("taint {present}"),
        Action::PatchStatus { pod, purpose, body } => {
            let kind = match purpose {
                Purpose::Mark => "mark",
                Purpose::Clear => "clear",
                Purpose::Cause => "cause",
                Purpose::Fail => {
                    assert!(!body["metadata"]["annotations"].is_null(), "{body}");
                    "fail"
                }
            };
            format!("{kind} {}", pod.name)
        }
        Action::PatchPod { pod, .. } => format!("deadline {}", pod.name),
        Action::DeletePod { pod, grace_seconds, .. } => {
            format!("delete {} {grace_seconds}", pod.name)
        }
        Action::ReadPod(pod) => format!("read {}", pod.name),
        Action::StopPod { pod, grace_seconds, .. } => format!("stop {} {grace_seconds}", pod.name),
        Action::InspectPod(pod) => format!("inspect {}", pod.name),
        Action::SignalContainer { pod, container, signal } => {
            format!("signal {} {container} {signal}", pod.name)
        }
        Action::ListRuntimePods => "list".into(),
        Action::Measure => "measure".into(),
        Action::MeasurePods { of, pods } => format!("measure {of:?} of {}", pods.len()),
        Action::SetNodeCondition { kind, stands, .. } => format!("{kind} {stands}"),
        Action::EmitEvent(notice) => format!("event {}", notice.reason),
        Action::Log(line) => format!("log {}", line.text),
    }
}
