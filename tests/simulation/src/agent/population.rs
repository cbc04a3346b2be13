//! Makes the pods of the node: their owners, their reaction to SIGTERM, and when they end by
//! themselves.

use std::time::Duration;

use agent_core::pod::{Asks, Details, Owner, Phase, PodSource, PodUid, PodView, RestartPolicy};

use super::api::Stored;
use super::hangs::Pull;
use super::ledger::Nature;
use super::needs::Needs;
use super::runtime::Habit;
use super::world::World;
use crate::controller::random::Random;

/// What the containers of a pod do.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) habits: Vec<Habit>,
    /// Delay after the kubelet has the pod; `None` never starts, as with a wrong image.
    pub(super) starts_after: Option<Duration>,
    /// The call that its start waits for.
    pub(super) pull: Option<Pull>,
    pub(super) needs: Needs,
}

impl World {
    /// Creates the initial pods.
    pub(super) fn populate(&mut self) {
        for _ in 0..self.behaviour.pods {
            self.new_pod();
        }
        if let Some(own) = self.behaviour.settings.own_pod.clone() {
            let view = PodView {
                owner: Owner::DaemonSet,
                priority: 2_000_001_000,
                grace_seconds: Some(60),
                ..blank("agent")
            };
            let habits = vec![Habit::default()];
            let starts_after = Some(Duration::ZERO);
            let script = Script { habits, starts_after, pull: None, needs: Needs::default() };
            self.scripts.insert(own, script);
            self.admit(view, false);
        }
    }

    /// Binds a pod to the node, unless the node announces its shutdown.
    pub(super) fn new_pod(&mut self) {
        if self.api.node.tainted || self.api.node.kubelet_says_shutdown || !self.on {
            return;
        }
        self.ledger.born += 1;
        let name = format!("p{}", self.ledger.born);
        let random = &mut self.random;
        let mut view = blank(&name);
        let mut finalizer = false;
        view.namespace = (*random.pick(&["a", "b", "c"])).into();
        match random.below(20) {
            0 | 1 => view.owner = Owner::None,
            2 => view.owner = Owner::DaemonSet,
            3 => (view.source, view.owner) = (PodSource::Static, Owner::None),
            4..9 => view.owner = Owner::Other,
            _ => {
                view.owner = Owner::Job;
                finalizer = random.percent(80);
            }
        }
        let never = match view.owner {
            Owner::Job => random.percent(80),
            Owner::None => random.percent(50),
            _ => false,
        };
        if never {
            view.restart_policy = RestartPolicy::Never;
        } else if matches!(view.owner, Owner::Job) {
            view.restart_policy = RestartPolicy::OnFailure;
        }
        view.priority = match random.below(10) {
            0 => 2_000_000_000,
            1 | 2 => 1_000,
            3 => -5,
            _ => 0,
        };
        view.grace_seconds = *random.pick(&[Some(30), Some(30), Some(1), Some(5), Some(600), None]);
        let mut script = script(random, matches!(view.owner, Owner::Job));
        view.containers = (0..script.habits.len()).map(|number| format!("main-{number}")).collect();
        vary(&mut self.shape_random, &mut script, &mut view);
        let script = self.strained(script, &mut view);
        self.roll_volume(&mut view);
        self.scripts.insert(view.uid.clone(), script);
        let deleted = self.random.percent(4);
        let uid = view.uid.clone();
        self.admit(view, finalizer);
        self.plan_preemption(&uid);
        if deleted {
            let pause = self.random.millis(0, 60_000);
            self.after(pause, super::world::Life::World, move |w| {
                let name = w.api.pods.get(&uid).map(|stored| stored.name().to_owned());
                if let Some(name) = name.filter(|_| !w.ledger.is_static(&uid)) {
                    w.log(|_| format!("user      deletes {name}"));
                    let _refused = w.api.delete(&name, &uid, 30);
                }
            });
        }
    }

    /// Binds a pod like this one, which its controller has made in its place.
    pub(super) fn bind_replacement(&mut self, like: &PodView) {
        self.ledger.born += 1;
        let name = format!("p{}", self.ledger.born);
        let (containers, asks) = (like.containers.clone(), like.asks.clone());
        let view = PodView {
            namespace: like.namespace.clone(),
            owner: like.owner,
            restart_policy: like.restart_policy,
            restarts_in_place: like.restarts_in_place,
            restarts_all: like.restarts_all,
            sidecars: like.sidecars.clone(),
            priority: like.priority,
            grace_seconds: like.grace_seconds,
            containers,
            asks,
            details: Details {
                tolerates_shutdown: like.details.tolerates_shutdown,
                ..Details::default()
            },
            ..blank(&name)
        };
        self.ledger.replacements.insert(view.uid.clone());
        if let Some(script) = self.scripts.get(&like.uid).cloned() {
            self.scripts.insert(view.uid.clone(), Script { pull: None, ..script });
            self.admit(view, like.details.job_finalizer);
        }
    }

    /// Applies the strain of the seed to a pod.
    fn strained(&mut self, mut script: Script, view: &mut PodView) -> Script {
        let strain = self.behaviour.strain.clone();
        let random = &mut self.strain_random;
        script.needs = Needs::roll(random, &strain);
        view.asks = script.needs.asks(&view.containers);
        if strain.presses && random.percent(8) {
            for habit in &mut script.habits {
                *habit = Habit { on_term: None, unkillable: true, ..habit.clone() };
            }
        }
        if strain.hangs && random.percent(35) {
            let lasts = random.percent(50).then(|| random.millis(2_000, 150_000));
            let kind = random.below(100);
            let (starts, has_sandbox) = (kind < 60, !kind.is_multiple_of(4));
            script.pull = Some(Pull { has_sandbox, lasts, starts });
        }
        if strain.hangs {
            view.details.resource_claims = random.percent(6);
            view.details.persistent_volumes = random.percent(6);
        }
        script
    }

    fn admit(&mut self, view: PodView, finalizer: bool) {
        let nature = Nature {
            is_static: view.source == PodSource::Static,
            is_own: self.behaviour.settings.own_pod.as_ref() == Some(&view.uid),
            view: view.clone(),
        };
        self.log(|w| {
            let PodView { name, owner, restart_policy, priority, grace_seconds, .. } = &view;
            let own = (view.restarts_in_place, view.restarts_all, view.sidecars.len());
            let script = &w.scripts[&view.uid];
            let shape = format!("{owner:?} {restart_policy:?} own={own:?} priority={priority}");
            let end = format!("grace={grace_seconds:?} finalizer={finalizer} {script:?}");
            format!("bound     {name} {shape} {end}")
        });
        self.ledger.natures.insert(view.uid.clone(), nature);
        self.api.create(Stored::new(view, finalizer));
    }
}

fn blank(name: &str) -> PodView {
    PodView {
        uid: PodUid(format!("uid-{name}")),
        namespace: "a".into(),
        name: name.into(),
        generation: 1,
        resource_version: String::new(),
        source: PodSource::Api,
        owner: Owner::Other,
        restart_policy: RestartPolicy::Always,
        restarts_in_place: RestartPolicy::Always,
        restarts_all: false,
        sidecars: Vec::new(),
        priority: 0,
        grace_seconds: Some(30),
        deletion_grace_seconds: None,
        phase: Phase::Pending,
        deadline_set: false,
        has_run: false,
        containers: vec!["main-0".into()],
        running_since: None,
        disruption: None,
        asks: Asks::default(),
        details: Details::default(),
    }
}

fn script(random: &mut Random, works: bool) -> Script {
    let count = if random.percent(75) { 1 } else { 2 + random.below(2) };
    let ends = random.percent(if works { 35 } else { 4 });
    let end = random.millis(500, 90_000);
    let code = *random.pick(&[0, 0, 0, 1, 42]);
    let habits = (0..count).map(|_| {
        let on_term = match random.below(10) {
            0 | 1 => None,
            2..5 => Some((random.millis(1, 4_000), 0)),
            5 => Some((random.millis(1_000, 25_000), 143)),
            _ => Some((random.millis(1, 500), 143)),
        };
        Habit { on_term, own_end: ends.then_some((end, code)), ..Habit::default() }
    });
    let habits = habits.collect();
    let starts_after = random.percent(94).then(|| random.millis(100, 5_000));
    Script { habits, starts_after, pull: None, needs: Needs::default() }
}

/// Gives some pods a native sidecar, a container with a restart policy of its own, or an image that
/// takes its time.
fn vary(random: &mut Random, script: &mut Script, view: &mut PodView) {
    if random.percent(20) {
        let first = random.below(script.habits.len());
        script.habits[first].own = Some(*random.pick(&OWN_POLICIES));
        // It starts all again after each failure.
        view.restarts_all = random.percent(10);
        if view.restarts_all {
            script.habits[first].own = Some(RestartPolicy::OnFailure);
        }
    }
    let policies = script.habits.iter().map(|habit| habit.own.unwrap_or(view.restart_policy));
    view.restarts_in_place = policies.max().unwrap_or(view.restart_policy);
    if random.percent(25) {
        let on_term = random.percent(80).then(|| (random.millis(1, 2_000), 0));
        // Some fall over now and then, and start again.
        let own_end = random.percent(20).then(|| (random.millis(5_000, 60_000), 1));
        view.sidecars.push(format!("sidecar-{}", script.habits.len()));
        script.habits.push(Habit { on_term, own_end, sidecar: true, ..Habit::default() });
    }
    if random.percent(8) {
        let lasts = Some(random.millis(5_000, 120_000));
        script.pull = Some(Pull { has_sandbox: random.percent(80), lasts, starts: true });
    }
}

const OWN_POLICIES: [RestartPolicy; 3] =
    [RestartPolicy::Never, RestartPolicy::OnFailure, RestartPolicy::Always];
