//! Simulates a node that runs short: the measurements of its signals, stalls and pods, and the
//! reports about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::driver::*;
use crate::agent::{Enforcement, Settings};
use crate::pod::{PodUid, PodView};
use crate::pressure::observe::{Observation, Psi, Stall};
use crate::pressure::signal::Signal;
use crate::pressure::stall::{PodStall, StallSample};
use crate::pressure::thresholds::ThresholdFlags;
use crate::pressure::usage::{DiskLayout, DiskUsage};
use crate::pressure::watch::{EvictionConfig, Measured};
use crate::protocol::action::{Action, Notice};
use crate::protocol::event::{ActionResult, Event, NodeCondition, NodeView};
use crate::protocol::node::{KubeletEviction, KubeletFacts};
use crate::protocol::pressure::{Figures, PodFigures, Sample};

/// The capacity of every resource.
pub(crate) const CAPACITY: u64 = 1_000;

/// The measurements of the node and its pods.
#[derive(Default)]
pub(crate) struct Scarcity {
    /// What is left, by signal.
    pub(crate) left: BTreeMap<Signal, u64>,
    pub(crate) figures: Figures,
    /// Whether there is PSI, and how long all tasks of pods have waited so far, in ms.
    pub(crate) psi: bool,
    pub(crate) stalled_ms: u64,
    /// The stalling pods: how long, and in percent of a limit.
    pub(crate) pods: BTreeMap<String, (u64, Option<u64>)>,
    pub(crate) io_percent: f64,
    pub(crate) swap: Option<Observation>,
    /// The node conditions that are ours.
    pub(crate) conditions: BTreeMap<&'static str, bool>,
    /// Pods that exceed a limit of their own: they are evicted without a mark.
    pub(crate) beyond_limits: BTreeSet<String>,
    /// When the node was sampled.
    pub(crate) samples: Vec<Duration>,
    pub(crate) reported: Vec<Notice>,
}

impl Scarcity {
    pub(crate) fn note(&mut self, action: &Action, now: Duration) {
        match action {
            Action::Measure => self.samples.push(now),
            Action::EmitEvent(notice) => self.reported.push(notice.clone()),
            _ => {}
        }
    }

    pub(crate) fn carry_out(&mut self, action: &Action, now: Duration) -> ActionResult {
        match action {
            Action::Measure => ActionResult::Measured(Ok(Box::new(self.sample(now)))),
            Action::MeasurePods { pods, .. } => {
                let asked = self.figures.iter().filter(|(uid, _)| pods.contains(uid));
                let figures = asked.map(|(uid, figures)| (uid.clone(), figures.clone())).collect();
                ActionResult::Figures(Ok(figures))
            }
            Action::SetNodeCondition { kind, stands, .. } => {
                self.conditions.insert(kind, *stands);
                ActionResult::Done(Ok(()))
            }
            _ => ActionResult::Done(Ok(())),
        }
    }

    fn sample(&self, now: Duration) -> Sample {
        let measured = |available: &u64| Measured { observation: of(*available), at: now };
        let stall = StallSample {
            at: now,
            all_pods: psi(self.stalled_ms),
            available: of(self.left.get(&Signal::MemoryAvailable).copied().unwrap_or(CAPACITY)),
            pods: self
                .pods
                .iter()
                .map(|(name, (ms, limit))| pod_stall(name, *ms, *limit))
                .collect(),
        };
        let share = Stall { avg10: self.io_percent, total: 0 };
        Sample {
            signals: self.left.iter().map(|(signal, left)| (*signal, measured(left))).collect(),
            swap: self.swap,
            layout: Some(DiskLayout::Single),
            stall: self.psi.then_some(stall),
            io: self.psi.then_some(Psi { some: share, full: share }),
            unreadable: Vec::new(),
        }
    }
}

fn of(available: u64) -> Observation {
    Observation { available, capacity: CAPACITY }
}

fn psi(ms: u64) -> Psi {
    let stall = Stall { avg10: 0.0, total: ms * 1_000 };
    Psi { some: stall, full: stall }
}

fn pod_stall(name: &str, ms: u64, limit: Option<u64>) -> PodStall {
    let limit = limit.map(|percent| (percent, 100));
    PodStall { uid: PodUid(format!("uid-{name}")), psi: psi(ms), limit }
}

/// An agent with these hard and soft thresholds; soft ones have 10 s.
pub(crate) fn with_config(enforcement: Enforcement, hard: &str, soft: &str) -> Settings {
    let graces: Vec<_> = soft
        .split(',')
        .filter_map(|entry| Some(format!("{}=10s", entry.split_once('<')?.0)))
        .collect();
    let flags = ThresholdFlags {
        hard: Some(hard.into()),
        soft: Some(soft.into()),
        soft_grace: Some(graces.join(",")),
        minimum_reclaim: None,
    };
    let mut settings = settings();
    settings.features.pressure = enforcement;
    settings.features.eviction = EvictionConfig {
        thresholds: flags.thresholds().expect("must be thresholds"),
        transition: Duration::from_mins(5),
        soft_grace_seconds_max: None,
    };
    settings
}

pub(crate) fn enforcing(hard: &str) -> Settings {
    with_config(Enforcement::Enforce, hard, "")
}

/// A kubelet that evicts late.
pub(crate) fn late() -> KubeletFacts {
    let hard = ["memory.available", "nodefs.available", "pid.available"];
    let hard = hard.map(|signal| (signal.to_owned(), "50".to_owned())).to_vec();
    let eviction = KubeletEviction { hard, soft: Vec::new(), local_storage_limits: true };
    KubeletFacts { eviction: Some(eviction), ..plain() }
}

impl World {
    /// A node with enough of everything, and a live kubelet.
    pub(crate) fn at_ease(settings: Settings, pods: Vec<PodView>) -> Self {
        let mut world = Self::new(settings, pods);
        for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
            world.scarcity.left.insert(signal, CAPACITY);
        }
        world.started(late(), false);
        world.see_node();
        world.scarcity.samples.clear();
        world
    }

    /// Sets what is left from now on.
    pub(crate) fn left(&mut self, signal: Signal, left: u64) {
        self.scarcity.left.insert(signal, left);
    }

    pub(crate) fn memory(&mut self, left: u64) {
        self.left(Signal::MemoryAvailable, left);
    }

    /// Sets the pod's memory, its number of tasks, and its bytes on disk to the same amount.
    pub(crate) fn uses(&mut self, name: &str, amount: u64) {
        let disk = DiskUsage { rootfs: amount, ..DiskUsage::default() };
        let figures = PodFigures {
            memory: Some(amount),
            tasks: Some(amount),
            disk: Some(disk),
            inodes: Some(disk),
            ..PodFigures::default()
        };
        self.scarcity.figures.insert(PodUid(format!("uid-{name}")), figures);
    }

    /// Advances the time in steps; in each step pods wait for a part of it.
    pub(crate) fn stalls(&mut self, steps: u64, step_ms: u64, waited_ms: u64) {
        for _ in 0..steps {
            self.scarcity.stalled_ms += waited_ms;
            self.pass(ms(step_ms));
        }
    }

    /// The watch shows the node as it is.
    pub(crate) fn see_node(&mut self) {
        self.kubelet_says(&[]);
    }

    /// Sets the kubelet's conditions that are True.
    pub(crate) fn kubelet_says(&mut self, pressure: &[&str]) {
        let conditions = self.scarcity.conditions.iter();
        let view = NodeView {
            announced: self.node_says.clone(),
            tainted: self.tainted,
            kubelet_pressure: pressure.iter().map(|kind| (*kind).to_owned()).collect(),
            conditions: conditions.map(|(kind, is)| NodeCondition::ours(kind, *is)).collect(),
            ..NodeView::default()
        };
        self.event(Event::NodeObserved(view));
    }

    /// The objects of the events with this reason: the pods, or the node.
    pub(crate) fn reported(&self, reason: &str) -> Vec<String> {
        let of_reason = self.scarcity.reported.iter().filter(|notice| notice.reason == reason);
        let name = |notice: &Notice| {
            notice.pod.as_ref().map_or_else(|| "node".to_owned(), |pod| pod.name.clone())
        };
        of_reason.map(name).collect()
    }

    /// The counts of a signal: evicted, would be evicted, given up.
    pub(crate) fn counted(&self, signal: &str) -> (u64, u64, u64) {
        let counts = &self.agent.status().pressure.evictions;
        let count = counts.get(signal).copied().unwrap_or_default();
        (count.done, count.would, count.given_up)
    }

    /// The actions on pods, without the measurements.
    pub(crate) fn actions(&self) -> Vec<&str> {
        let kinds = ["mark", "stop", "inspect", "fail", "fail", "delete", "deadline", "clear"];
        self.done(&kinds)
            .into_iter()
            .map(|line| line.split_once(' ').map_or("", |it| it.1))
            .collect()
    }
}
