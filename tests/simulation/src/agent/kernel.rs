//! Models the kernel of a node whose pods exhaust it: what is left, which tasks wait (PSI), which
//! process the OOM killer kills, and which witness reports it. Its state is the truth.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::pressure::observe::{Observation, Psi, Stall};
use agent_core::pressure::signal::Signal;
use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::{OomConstraint, OomKill, OomWitness, Stalling};

use super::needs::Appetite;
use super::situations::Met;
use super::strain::MI;
use super::world::{Life, World, name_of};
use crate::controller::agenda::Moment;

/// How often the kernel model ticks without an event.
const TICK: Duration = Duration::from_millis(250);
/// Memory that the system uses in addition to its pods.
const SYSTEM: u64 = 400 * MI;
const SYSTEM_TASKS: u64 = 150;
/// After this many kills, a container makes no more children.
const KILLS_MAX: u32 = 5;
/// Milliseconds of each second at which a trigger fires.
const TRIGGER: u64 = 50;
/// Stall that a pod waiting at its own limit, or a slow disk, causes.
const THRASHES: u64 = 500;

/// How long tasks have waited, in µs, as `total` counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waited {
    total: u64,
    /// Milliseconds of each second, now.
    pub(super) rate: u64,
    avg10: f64,
}

/// Counters of the kernel in this boot.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    pub(super) all_pods: Waited,
    pub(super) pods: BTreeMap<PodUid, Waited>,
    pub(super) io: Waited,
    ticked_at: Moment,
}

impl Kernel {
    pub(super) fn psi(&self, of: Waited, now: Moment) -> Psi {
        of.psi(now.saturating_sub(self.ticked_at))
    }
}

/// What one pod uses now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    pub(super) memory: u64,
    pub(super) tasks: u64,
    pub(super) disk: u64,
}

/// An OOM kill, as it really happened.
#[derive(Clone, Debug)]
pub(super) struct Kill {
    pub(super) uid: PodUid,
    pub(super) constraint: OomConstraint,
    /// Whether the container survived.
    pub(super) lives: bool,
    pub(super) at: Moment,
    /// When a witness that knows the shortage and the victim reported it to the agent.
    pub(super) reported_at: Option<Moment>,
    run: u64,
    limit: Option<u64>,
}

impl Waited {
    fn go_on(&mut self, rate: u64) {
        self.rate = rate;
        let millis = u64::try_from(TICK.as_millis()).unwrap_or(0);
        self.total += rate * millis;
        #[allow(clippy::cast_precision_loss, reason = "a rate is at most 1000")]
        let percent = rate as f64 / 10.0;
        self.avg10 += (percent - self.avg10) * TICK.as_secs_f64() / 10.0;
    }

    /// The value as read this long after the last tick.
    fn psi(self, since: Duration) -> Psi {
        let millis = u64::try_from(since.as_millis()).unwrap_or(0);
        let total = self.total + self.rate * millis;
        let full = Stall { avg10: self.avg10, total };
        Psi { some: Stall { total: total * 2, ..full }, full }
    }
}

impl World {
    /// What the pod uses at this moment.
    pub(super) fn use_of(&self, uid: &PodUid) -> Use {
        let Some(sandbox) = self.runtime.sandboxes.get(uid) else { return Use::default() };
        let Some(needs) = self.scripts.get(uid).map(|script| &script.needs) else {
            return Use::default();
        };
        let Some(first) = sandbox.containers.first().filter(|c| c.exit.is_none()) else {
            return Use { disk: sandbox.left_behind, ..Use::default() };
        };
        // At the end, users have repaired their pods.
        if self.ledger.settling {
            return Use::default();
        }
        let age = self.now().saturating_sub(first.began);
        let spent = first.kills > KILLS_MAX;
        let memory_age = self.now().saturating_sub(first.relieved.unwrap_or(first.began));
        Use {
            memory: if spent { 0 } else { needs.memory.at(memory_age) },
            tasks: needs.tasks.at(age),
            disk: needs.disk.at(age),
        }
    }

    /// What all pods use together.
    pub(super) fn used(&self) -> Use {
        self.runtime.sandboxes.keys().fold(Use::default(), |sum, uid| {
            let used = self.use_of(uid);
            Use {
                memory: sum.memory + used.memory,
                tasks: sum.tasks + used.tasks,
                disk: sum.disk + used.disk,
            }
        })
    }

    /// What is left of the resource of a signal.
    pub(super) fn left(&self, signal: Signal) -> Observation {
        self.left_of(signal, self.used())
    }

    pub(super) fn left_of(&self, signal: Signal, used: Use) -> Observation {
        let strain = &self.behaviour.strain;
        let Use { memory, tasks, disk } = used;
        let (used, capacity) = match signal {
            Signal::MemoryAvailable => (memory + SYSTEM, strain.memory),
            Signal::AllocatableMemoryAvailable => (memory, strain.memory - SYSTEM),
            Signal::PidAvailable => (tasks + SYSTEM_TASKS, strain.tasks),
            Signal::NodefsInodesFree
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsInodesFree => (1_000, strain.inodes),
            _ => (disk + strain.disk / 10, strain.disk),
        };
        Observation { available: capacity.saturating_sub(used), capacity }
    }

    /// One tick of the kernel.
    pub(super) fn kernel_tick(&mut self) {
        if self.on {
            self.kill_at_limits();
            while self.left(Signal::MemoryAvailable).available == 0 && self.kill_biggest() {}
            self.count_stalls();
            self.judge_shortage();
        }
        self.after(TICK, Life::World, World::kernel_tick);
    }

    /// Kills in containers beyond limits of their own.
    fn kill_at_limits(&mut self) {
        let beyond = |uid: &&PodUid| {
            let needs = self.scripts.get(*uid).map(|script| &script.needs);
            let limit = needs.and_then(|needs| needs.memory_limit);
            limit.is_some_and(|limit| self.use_of(uid).memory > limit)
        };
        let uids: Vec<PodUid> = self.runtime.sandboxes.keys().filter(beyond).cloned().collect();
        for uid in uids {
            let needs = &self.scripts[&uid].needs;
            let constraint = if needs.pod_limit {
                OomConstraint::PodLimit
            } else {
                OomConstraint::ContainerLimit
            };
            let limit = needs.memory_limit;
            self.oom_kill(&uid, constraint, limit);
        }
    }

    /// Kills in the biggest pod that the node itself does not need; false if no such pod exists.
    fn kill_biggest(&mut self) -> bool {
        let size = |uid: &PodUid| self.use_of(uid).memory;
        let killable = |uid: &&PodUid| {
            let first = self.runtime.sandboxes[*uid].containers.first();
            size(uid) > 0 && first.is_some_and(|container| !container.is_unkillable())
        };
        let biggest = self.runtime.sandboxes.keys().filter(killable).max_by_key(|uid| size(uid));
        let Some(uid) = biggest.cloned() else { return false };
        self.oom_kill(&uid, OomConstraint::Node, None);
        true
    }

    fn oom_kill(&mut self, uid: &PodUid, constraint: OomConstraint, limit: Option<u64>) {
        let now = self.now();
        let child = self.scripts[uid].needs.children && self.random.percent(60);
        let sandbox = self.runtime.sandboxes.get_mut(uid);
        let Some(first) = sandbox.and_then(|sandbox| sandbox.containers.first_mut()) else {
            return;
        };
        let run = first.run;
        first.relieved = Some(now);
        first.kills += 1;
        let lives = child || first.is_unkillable();
        if !lives {
            first.oom_killed = true;
        }
        self.met_oom_kill(constraint, lives);
        self.log(|_| format!("kernel    kills {} for {constraint:?}, {lives}", name_of(uid)));
        let uid = uid.clone();
        let kill =
            Kill { uid: uid.clone(), constraint, lives, at: now, reported_at: None, run, limit };
        self.ledger.kills.push(kill);
        self.stats.oom_kills += 1;
        let number = self.ledger.kills.len() - 1;
        if !lives {
            self.exit(&uid, 0, run, 137);
        }
        self.report_kill(number, OomWitness::MemoryEvents, (1, 60));
        if self.behaviour.strain.kernel_log {
            self.report_kill(number, OomWitness::KernelLog, (1, 400));
        }
    }

    fn met_oom_kill(&mut self, constraint: OomConstraint, lives: bool) {
        let node = constraint == OomConstraint::Node;
        self.met(match lives {
            true => Met::ChildKilled,
            false if node => Met::NodeKill,
            false => Met::LimitKill,
        });
        if !self.behaviour.settings.features.oom_causes {
            self.met(Met::KillUnsaid);
        }
    }

    fn report_kill(&mut self, number: usize, witness: OomWitness, within_ms: (u32, u32)) {
        let Some(run) = self.agent_run() else { return };
        let lost = self.behaviour.strain.lost_witnesses;
        if !self.ledger.settling && self.random.per_mille(lost) {
            return self.met(Met::WitnessLost);
        }
        let vague = self.random.per_mille(self.behaviour.strain.vague_witnesses);
        if vague {
            self.met(Met::WitnessVague);
        }
        let blind = vague && self.random.percent(50);
        let pause = self.random.millis(within_ms.0, within_ms.1);
        self.after(pause, Life::Agent(run), move |w| {
            let kill = w.ledger.kills[number].clone();
            let by_log = witness == OomWitness::KernelLog;
            let event = OomKill {
                pod: kill.uid,
                container_id: Some(format!("c{}", kill.run)),
                constraint: if vague { OomConstraint::Unknown } else { kill.constraint },
                limit: kill.limit.filter(|_| !vague),
                process: by_log.then(|| (4_000 + kill.run as u32, "hog".to_owned())),
                container_lives: (!blind).then_some(kill.lives),
                witness,
                at: w.clocks().monotonic,
            };
            if !vague {
                let now = w.now();
                w.ledger.kills[number].reported_at.get_or_insert(now);
            }
            w.agent_handles(Event::OomKilled(Box::new(event)));
        });
    }

    fn count_stalls(&mut self) {
        let Observation { available, capacity } = self.left(Signal::MemoryAvailable);
        let node = match available * 100 / capacity {
            0..3 => 400,
            3..8 => 150,
            _ => 0,
        };
        let mut all = node;
        let mut pods = std::mem::take(&mut self.kernel.pods);
        for (uid, waited) in &mut pods {
            let rate = self.waits(uid, node);
            all = all.max(rate);
            waited.go_on(rate);
        }
        self.kernel.pods = pods;
        let now = self.now();
        let stalls = |(from, until): (Moment, Moment)| from <= now && now < until;
        let io = if self.behaviour.strain.io_stalls.is_some_and(stalls) { THRASHES } else { 0 };
        self.kernel.ticked_at = now;
        self.kernel.all_pods.go_on(all);
        self.kernel.io.go_on(io);
        if node > 0 {
            self.ledger.memory_stalled_at = Some(now);
        }
        if io > 0 {
            self.met(Met::IoStall);
            self.ledger.io_stalled_at = Some(now);
        }
        self.trigger(all, Stalling::Memory);
        self.trigger(io, Stalling::Io);
    }

    /// How long a pod waits if all pods of the node wait for `node`, in ms of each second.
    fn waits(&self, uid: &PodUid, node: u64) -> u64 {
        let runs = self.runtime.running(uid) > 0;
        let Some(needs) = self.scripts.get(uid).map(|script| &script.needs) else { return 0 };
        let limit = needs.memory_limit.unwrap_or(u64::MAX);
        let at_limit = needs.thrashes && self.use_of(uid).memory >= limit / 100 * 98;
        match needs.memory {
            _ if !runs => 0,
            _ if at_limit => THRASHES,
            Appetite::Grows { .. } => node,
            _ => node / 10,
        }
    }

    /// The kernel reports stalls, if it can.
    fn trigger(&mut self, rate: u64, what: Stalling) {
        let Some(run) = self.agent_run() else { return };
        let strain = &self.behaviour.strain;
        let lost = strain.lost_triggers;
        if rate < TRIGGER || !strain.psi || self.random.per_mille(lost) {
            return;
        }
        let pause = self.random.millis(0, 240);
        self.after(pause, Life::Agent(run), move |w| w.agent_handles(Event::PressureRose(what)));
    }
}
