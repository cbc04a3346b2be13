//! Models the containers of the machine, which are the truth about what runs, and the runtime's
//! account of them.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::pod::{PodUid, RestartPolicy};
use agent_core::protocol::event::{RuntimeContainer, RuntimeState};

use super::api::Shown;
use super::world::{Life, World, name_of};
use crate::controller::agenda::Moment;

/// What a container does by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Habit {
    /// After SIGTERM: delay and exit code; `None` ignores the signal.
    pub(super) on_term: Option<(Duration, i32)>,
    /// By itself: delay after its start, and exit code.
    pub(super) own_end: Option<(Duration, i32)>,
    /// Whether it waits for a device, so that no signal reaches it.
    pub(super) unkillable: bool,
    /// Whether it is a native sidecar, which stops last. Sidecars follow the others.
    pub(super) sidecar: bool,
    /// A restart policy of its own.
    pub(super) own: Option<RestartPolicy>,
}

impl Habit {
    /// Whether a kubelet starts it again in the pod's sandbox after this exit. ([API19])
    pub(super) fn restarts(&self, pod: RestartPolicy, code: i32) -> bool {
        match self.own.unwrap_or(pod) {
            _ if self.sidecar => true,
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => code != 0,
            RestartPolicy::Never => false,
        }
    }
}

/// One run of a container.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) habit: Habit,
    /// Number of the run; an event meant for an earlier run has no effect.
    pub(super) run: u64,
    pub(super) exit: Option<Exit>,
    started_at: jiff::Timestamp,
    pub(super) began: Moment,
    /// When the kernel killed one of its processes and freed its memory.
    pub(super) relieved: Option<Moment>,
    pub(super) oom_killed: bool,
    /// Whether it was only created: power went before its start.
    pub(super) never_started: bool,
    /// How often the OOM killer killed one of its processes.
    pub(super) kills: u32,
    pub(super) terminating: bool,
}

impl Container {
    fn never_started(habit: Habit, run: u64, at: jiff::Timestamp, since: Moment) -> Self {
        Self {
            habit,
            run,
            exit: Some(Exit { code: 0, at, since }),
            started_at: at,
            began: since,
            relieved: None,
            oom_killed: false,
            never_started: true,
            kills: 0,
            terminating: false,
        }
    }

    pub(super) fn is_unkillable(&self) -> bool {
        self.habit.unkillable
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Exit {
    pub(super) code: i32,
    at: jiff::Timestamp,
    /// The same, independent of the node's clock.
    since: Moment,
}

/// The runtime's record of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Sandbox {
    pub(super) ready: bool,
    pub(super) containers: Vec<Container>,
    /// Bytes on disk that its containers have left.
    pub(super) left_behind: u64,
    /// How often a container was started again.
    pub(super) restarts: u32,
    /// Whether the previous run of the first container was OOM-killed.
    last_killed: bool,
    /// Whether all its containers are to stop: the sidecars after the others.
    stopping: bool,
}

/// The container runtime.
#[derive(Debug, Default)]
pub(super) struct Runtime {
    pub(super) sandboxes: BTreeMap<PodUid, Sandbox>,
    /// Whether its socket answers.
    pub(super) answers: bool,
    pub(super) runs: u64,
}

impl Sandbox {
    pub(super) fn running(&self) -> usize {
        self.containers.iter().filter(|container| container.exit.is_none()).count()
    }

    /// The containers that decide about the pod's phase.
    pub(super) fn regular(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| !container.habit.sidecar)
    }

    /// Whether a regular container runs.
    pub(super) fn works(&self) -> bool {
        self.regular().any(|container| container.exit.is_none())
    }
}

/// The name of a container in its pod.
fn named(number: usize, container: &Container) -> String {
    format!("{}-{number}", if container.habit.sidecar { "sidecar" } else { "main" })
}

impl Runtime {
    /// How many containers of the pod are running.
    pub(super) fn running(&self, uid: &PodUid) -> usize {
        self.sandboxes.get(uid).map_or(0, Sandbox::running)
    }

    /// Whether a container of the pod has run: one that still pulls its images has none.
    pub(super) fn has_run(&self, uid: &PodUid) -> bool {
        let sandbox = self.sandboxes.get(uid);
        sandbox.is_some_and(|sandbox| sandbox.containers.iter().any(|each| !each.never_started))
    }

    /// Whether the pod has containers and no sandbox any more, so that none of them runs or can.
    pub(super) fn has_lost_sandbox(&self, uid: &PodUid) -> bool {
        self.sandboxes.get(uid).is_some_and(|sandbox| {
            !sandbox.ready && sandbox.running() == 0 && !sandbox.containers.is_empty()
        })
    }

    /// What a kubelet reports of the pod's containers; times are in whole seconds.
    pub(super) fn shown(&self, uid: &PodUid) -> Shown {
        let Some(sandbox) = self.sandboxes.get(uid) else { return Shown::default() };
        let running = sandbox.regular().filter(|c| c.exit.is_none());
        let first = sandbox.containers.first();
        let killed = sandbox.last_killed || first.is_some_and(|first| first.oom_killed);
        let containers = sandbox.containers.iter().enumerate();
        let ids = containers.map(|(n, c)| (named(n, c), format!("c{}", c.run)));
        Shown {
            running_since: running.map(|container| container.started_at).max(),
            ids: ids.collect(),
            restarted: sandbox.restarts > 0,
            killed: if killed { vec!["main-0".into()] } else { Vec::new() },
        }
    }

    /// Whether the pod had regular containers, and all of them exited with 0.
    pub(super) fn ended_well(&self, uid: &PodUid) -> bool {
        self.sandboxes.get(uid).is_some_and(|sandbox| {
            let ended_well =
                |c: &Container| !c.never_started && c.exit.is_some_and(|exit| exit.code == 0);
            !sandbox.containers.is_empty() && sandbox.regular().all(ended_well)
        })
    }

    /// When the last regular container of the pod ended; `None` while one runs, or without any.
    pub(super) fn all_ended_at(&self, uid: &PodUid) -> Option<Moment> {
        let containers = self.sandboxes.get(uid)?.regular();
        let ends = containers.map(|container| Some(container.exit?.since));
        ends.collect::<Option<Vec<Moment>>>()?.into_iter().max()
    }

    /// Whether the containers of the pod have received a signal to terminate.
    pub(super) fn is_doomed(&self, uid: &PodUid) -> bool {
        let sandbox = self.sandboxes.get(uid);
        sandbox.is_some_and(|sandbox| sandbox.containers.iter().any(|c| c.terminating))
    }

    /// Whether a container of the pod keeps running whatever signal it gets.
    pub(super) fn is_unkillable(&self, uid: &PodUid) -> bool {
        let sandbox = self.sandboxes.get(uid);
        sandbox.is_some_and(|sandbox| {
            sandbox.containers.iter().any(|c| c.exit.is_none() && c.habit.unkillable)
        })
    }

    /// Whether anything of the pod exists.
    pub(super) fn is_up(&self, uid: &PodUid) -> bool {
        self.sandboxes.get(uid).is_some_and(|sandbox| sandbox.ready || sandbox.running() > 0)
    }

    /// The pods that it knows.
    pub(super) fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.sandboxes.keys()
    }

    /// What the runtime answers about the pod.
    pub(super) fn account(&self, uid: &PodUid) -> RuntimeState {
        let Some(sandbox) = self.sandboxes.get(uid) else { return RuntimeState::default() };
        let containers = sandbox.containers.iter().enumerate().map(|(number, container)| {
            let reason = match container.exit {
                None => "",
                Some(_) if container.never_started => "",
                Some(_) if container.oom_killed => "OOMKilled",
                Some(exit) if exit.code == 0 => "Completed",
                Some(_) => "Error",
            };
            RuntimeContainer {
                id: format!("c{}", container.run),
                name: named(number, container),
                exited: container.exit.is_some(),
                exit_code: container
                    .exit
                    .filter(|_| !container.never_started)
                    .map(|exit| exit.code),
                finished_at: container
                    .exit
                    .filter(|_| !container.never_started)
                    .map(|exit| exit.at),
                reason: reason.into(),
            }
        });
        let containers = containers.collect();
        RuntimeState { containers, sandbox_ready: sandbox.ready, sandbox_known: true }
    }
}

impl World {
    /// Starts all containers of a pod afresh.
    pub(super) fn start_containers(&mut self, uid: &PodUid, habits: &[Habit]) {
        self.kernel.pods.entry(uid.clone()).or_default();
        let sandbox = self.runtime.sandboxes.entry(uid.clone()).or_default();
        (sandbox.ready, sandbox.stopping) = (true, false);
        sandbox.containers = Vec::new();
        for (number, habit) in habits.iter().enumerate() {
            self.start_container(uid, number, habit.clone());
        }
    }

    /// Starts one container in place of its last run.
    pub(super) fn start_container(&mut self, uid: &PodUid, number: usize, habit: Habit) {
        let second = self.wall().as_second();
        let started_at = jiff::Timestamp::from_second(second).expect("a clock must be in range");
        self.runtime.runs += 1;
        let run = self.runtime.runs;
        if let Some((after, code)) = habit.own_end {
            let uid = uid.clone();
            self.after(after, Life::Boot(self.boot), move |w| w.exit(&uid, number, run, code));
        }
        let began = self.now();
        let Some(sandbox) = self.runtime.sandboxes.get_mut(uid) else { return };
        (sandbox.ready, sandbox.stopping) = (true, false);
        let container = Container {
            habit,
            run,
            exit: None,
            started_at,
            began,
            relieved: None,
            oom_killed: false,
            never_started: false,
            kills: 0,
            terminating: false,
        };
        if number < sandbox.containers.len() {
            if number == 0 {
                sandbox.last_killed = sandbox.containers[0].oom_killed;
            }
            sandbox.containers[number] = container;
            sandbox.restarts += 1;
        } else {
            sandbox.containers.push(container);
        }
    }

    /// SIGTERM to all containers of the pod that have not received it; to sidecars once no other
    /// runs any more. ([AP25])
    pub(super) fn term(&mut self, uid: &PodUid) {
        let Some(sandbox) = self.runtime.sandboxes.get_mut(uid) else { return };
        let mut ends = Vec::new();
        sandbox.stopping = true;
        let works = sandbox.works();
        for (number, container) in sandbox.containers.iter_mut().enumerate() {
            let waits = container.habit.sidecar && works;
            if container.exit.is_none() && !container.terminating && !waits {
                container.terminating = true;
                ends.extend(
                    container
                        .habit
                        .on_term
                        .map(|(after, code)| (number, container.run, after, code)),
                );
            }
        }
        for (number, run, after, code) in ends {
            let uid = uid.clone();
            self.after(after, Life::Boot(self.boot), move |w| w.exit(&uid, number, run, code));
        }
    }

    /// SIGKILL to all containers of the pod.
    pub(super) fn kill(&mut self, uid: &PodUid) {
        let Some(sandbox) = self.runtime.sandboxes.get(uid) else { return };
        let containers = sandbox.containers.iter().enumerate();
        let killable = containers.filter(|(_, container)| !container.is_unkillable());
        let runs: Vec<_> = killable.map(|(n, container)| (n, container.run)).collect();
        for (number, run) in runs {
            self.exit(uid, number, run, 137);
        }
    }

    /// Stops the sandbox of a pod without running containers.
    pub(super) fn stop_sandbox(&mut self, uid: &PodUid) {
        if let Some(sandbox) = self.runtime.sandboxes.get_mut(uid)
            && sandbox.running() == 0
        {
            sandbox.ready = false;
        }
    }

    pub(super) fn exit(&mut self, uid: &PodUid, number: usize, run: u64, code: i32) {
        let (at, since) = (self.wall(), self.now());
        let disk = self.use_of(uid).disk;
        let Some(sandbox) = self.runtime.sandboxes.get_mut(uid) else { return };
        let Some(container) = sandbox.containers.get_mut(number) else { return };
        if container.run != run || container.exit.is_some() {
            return;
        }
        container.exit = Some(Exit { code, at, since });
        if number == 0 {
            sandbox.left_behind = disk;
        }
        let sidecars_stop = sandbox.stopping && !sandbox.works();
        let name = name_of(uid);
        self.log(|_| format!("runtime   {name} container {number} exits with {code}"));
        if sidecars_stop {
            self.term(uid);
        }
        self.container_exited(uid);
        self.stops_progress(uid);
    }

    /// Removes what the pod has left on the disk. An evicted terminal pod loses its dead containers
    /// at once, others within moments.
    pub(super) fn clean_up(&mut self, uid: &PodUid) {
        let pause = self.strain_random.millis(100, 1_500);
        let uid = uid.clone();
        self.after(pause, Life::Kubelet(self.kubelet.run), move |w| {
            if let Some(sandbox) = w.runtime.sandboxes.get_mut(&uid) {
                sandbox.left_behind = 0;
            }
        });
    }

    /// The machine powers off: nothing runs any more, and no event reports it. Some containers were
    /// created a moment before. ([W21])
    pub(super) fn cut_containers(&mut self) {
        let (at, since) = (self.wall(), self.now());
        for (uid, sandbox) in &mut self.runtime.sandboxes {
            let pulled = sandbox.ready && sandbox.containers.is_empty();
            let habit = self.scripts.get(uid).and_then(|script| script.habits.first());
            if let Some(habit) = habit.filter(|_| pulled && self.shape_random.percent(40)) {
                self.runtime.runs += 1;
                let run = self.runtime.runs;
                sandbox.containers.push(Container::never_started(habit.clone(), run, at, since));
            }
            sandbox.ready = false;
            for container in &mut sandbox.containers {
                container.exit.get_or_insert(Exit { code: 255, at, since });
            }
        }
    }
}
