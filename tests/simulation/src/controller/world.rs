//! The whole simulated cluster and its event loop: one event at a time, in the order of virtual
//! time, and the ledger checks each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use controller_core::view::{JobKey, Uid};
use jiff::{SignedDuration, Timestamp};

use super::agenda::{Agenda, Moment};
use super::api::Api;
use super::kubelet::{NODES, PodEvent, Script};
use super::ledger::Ledger;
use super::nodes::{Node, NodeEvent};
use super::process::{Life, Process};
use super::random::Random;
use super::scenario::Behaviour;
use super::situations::Counts;
use super::watches::Kind;
use super::{Options, Sabotage};

/// How often garbage collection and pod garbage collection run, and the world checks whether all is
/// done.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// How long after all faults nothing may run while something is not settled: waits of minutes after
/// failures, and for pod GC's evidence.
const IDLE_MAX: Duration = Duration::from_hours(1);

/// How many times the error of a leader's clock comes on top: if its clock is behind, each wait
/// after a failure lasts as much longer. Of 20,000 seeds the longest was 6,265 s, two waits of a
/// leader whose clock was 53 minutes behind.
const SKEWS_MAX: u32 = 3;

/// How long after all faults pods may still run one after another. Of 20,000 seeds the longest was
/// 30,699 s: 23 indexes with two retries each, one at a time, of up to 25 minutes each.
const SETTLES_WITHIN: Duration = Duration::from_hours(12);

/// When the world begins: any whole second will do.
const EPOCH_SECONDS: i64 = 1_767_225_600;

/// An event.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A watch of this process delivers.
    Watch {
        process: usize,
        kind: Kind,
    },
    /// This process learns that it was deposed.
    Deposed {
        process: usize,
    },
    /// The workers of this process check their queues.
    Work {
        process: usize,
    },
    /// A call of a piece of work reaches the API.
    Commit {
        process: usize,
        work: u64,
        call: usize,
    },
    /// Its reply comes back.
    Reply {
        process: usize,
        work: u64,
        call: usize,
    },
    /// A kubelet, a scheduler or a disruption acts on a pod.
    Pod {
        pod: Uid,
        event: PodEvent,
    },
    /// A call of a check of pod GC reaches the API.
    CheckCommit {
        process: usize,
        check: u64,
    },
    /// Its reply comes back.
    CheckReply {
        process: usize,
        check: u64,
    },
    /// A machine, its kubelet or its object changes.
    Node {
        node: usize,
        event: NodeEvent,
    },
    /// Pods of a node that has vanished are evicted.
    Evict {
        node: usize,
    },
    Housekeeping,
    /// A user acts.
    User,
    /// Something breaks.
    Chaos,
    /// A new process of the controller begins.
    Start,
    /// Faults and users end.
    Quiet,
}

/// The simulated cluster.
#[derive(Debug)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) agenda: Agenda<Event>,
    pub(super) api: Api,
    pub(super) ledger: Ledger,
    pub(super) behaviour: Behaviour,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) processes: Vec<Process>,
    pub(super) scripts: BTreeMap<Uid, Script>,
    pub(super) nodes: Vec<Node>,
    /// Pods of which a container runs, whatever the API shows.
    pub(super) running: BTreeSet<Uid>,
    /// Pods that a shutdown has ended while their condition stood.
    pub(super) victims: BTreeSet<Uid>,
    /// Pods whose containers did not survive a boot of their node.
    pub(super) lost: BTreeSet<Uid>,
    /// Names of Jobs that users act on.
    pub(super) names: Vec<JobKey>,
    pub(super) quiet_since: Option<Moment>,
    /// When a container was last found running.
    ran_at: Moment,
    pub(super) stats: Stats,
    trace: Option<Vec<String>>,
    /// How much of the pod log the world has processed.
    observed: usize,
    deleting: BTreeSet<Uid>,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events.
    pub events: u64,
    /// Syncs that were not idle.
    pub syncs: u64,
    /// Calls that reached the API.
    pub calls: u64,
    /// Checks of pod GC.
    pub checks: u64,
    /// Calls that failed, or whose reply was lost.
    pub faults: u64,
    /// Crashes and changes of the leader.
    pub restarts: u64,
    /// Pods that were created.
    pub pods: u64,
    /// Virtual seconds.
    pub seconds: u64,
    /// Virtual seconds from the end of faults until all was settled.
    pub settled_in: u64,
    /// The longest time since then, in virtual seconds, in which no pod ran.
    pub idle: u64,
    /// How often each situation was met.
    pub met: Counts,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let behaviour = Behaviour::roll(&mut random);
        let epoch = Timestamp::from_second(EPOCH_SECONDS).expect("the epoch must be a time");
        let force_fail_after = behaviour.force_fail_after;
        let mut world = Self {
            random,
            agenda: Agenda::new(),
            api: Api::new(epoch, force_fail_after),
            ledger: Ledger::default(),
            behaviour,
            sabotage: options.sabotage,
            processes: Vec::new(),
            scripts: BTreeMap::new(),
            nodes: vec![Node::default(); NODES],
            running: BTreeSet::new(),
            victims: BTreeSet::new(),
            lost: BTreeSet::new(),
            names: Vec::new(),
            quiet_since: None,
            ran_at: Moment::ZERO,
            stats: Stats::default(),
            trace: options.trace.then(Vec::new),
            observed: 0,
            deleting: BTreeSet::new(),
        };
        world.say(|world| format!("{:?}", world.behaviour));
        world.api.serves_groups = world.behaviour.serves_groups();
        world.register_nodes();
        world.populate();
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        self.start_process();
        self.agenda.after(HOUSEKEEPING, Event::Housekeeping);
        self.agenda.after(self.behaviour.quiet_after, Event::Quiet);
        if self.behaviour.has_chaos() {
            let first = self.random.millis(50, 20_000);
            self.agenda.after(first, Event::Chaos);
        }
        if self.behaviour.users > 0 {
            let first = self.random.millis(10, 20_000);
            self.agenda.after(first, Event::User);
        }
    }

    /// Runs to the end, or to the first violation.
    pub(super) fn run(&mut self) {
        while self.ledger.violations.is_empty() {
            let Some(event) = self.agenda.next() else { break };
            self.stats.events += 1;
            let now = SignedDuration::try_from(self.agenda.now()).expect("time must be in range");
            let epoch = Timestamp::from_second(EPOCH_SECONDS).expect("the epoch must be a time");
            self.api.now = epoch + now;
            if self.is_over(&event) {
                break;
            }
            self.happen(event);
            self.observe();
        }
        self.stats.seconds = self.agenda.now().as_secs();
        let settled_in = self.quiet_since.map(|since| self.agenda.now().saturating_sub(since));
        self.stats.settled_in = settled_in.unwrap_or_default().as_secs();
        self.stats.pods = self.ledger.pods_seen() as u64;
        self.stats.met = self.ledger.met;
    }

    /// Whether all is settled, or the time for that is over. ([`super::settled`])
    fn is_over(&mut self, event: &Event) -> bool {
        let (Event::Housekeeping, Some(since)) = (event, self.quiet_since) else { return false };
        let now = self.agenda.now();
        if !self.running.is_empty() {
            self.ran_at = now;
        }
        let unsettled = self.unsettled();
        let idle = now.saturating_sub(since.max(self.ran_at));
        self.stats.idle = self.stats.idle.max(idle.as_secs());
        let skew = u64::from(self.behaviour.skew_seconds.unsigned_abs());
        let idle_max = IDLE_MAX + Duration::from_secs(skew) * SKEWS_MAX;
        let late = idle > idle_max || now.saturating_sub(since) > SETTLES_WITHIN;
        if late {
            for problem in &unsettled {
                self.ledger.violations.push(format!("not settled: {problem}"));
            }
        }
        unsettled.is_empty() || late
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Watch { process, kind } => self.deliver(process, kind),
            Event::Work { process } => self.work(process),
            Event::Commit { process, work, call } => self.commit(process, work, call),
            Event::Reply { process, work, call } => self.reply(process, work, call),
            Event::Pod { pod, event } => self.pod_event(&pod, event),
            Event::CheckCommit { process, check } => self.commit_check(process, check),
            Event::CheckReply { process, check } => self.reply_to_check(process, check),
            Event::Node { node, event } => self.node_event(node, event),
            Event::Evict { node } => self.evict(node),
            Event::Housekeeping => {
                self.collect_garbage();
                self.check_marks();
                if self.behaviour.pod_gc.is_none() {
                    self.collect_pods();
                }
                if self.random.percent(10) {
                    self.bookmark();
                }
                self.agenda.after(HOUSEKEEPING, Event::Housekeeping);
            }
            Event::User => self.user(),
            Event::Chaos => self.chaos(),
            Event::Start => self.start_process(),
            Event::Deposed { process } => self.exit(process),
            Event::Quiet => self.calm_down(),
        }
    }

    /// Passes every change in the API to the ledger, the kubelets and the watches.
    fn observe(&mut self) {
        while let Some(sighting) = self.api.pod_log.get(self.observed).cloned() {
            self.observed += 1;
            self.ledger.saw(&sighting);
            if let super::api::Sighting::Shown(pod) = sighting {
                if !self.scripts.contains_key(&pod.uid) {
                    self.schedule(&pod);
                }
                self.keeps_target(&pod);
                if pod.deletion.is_some() && self.deleting.insert(pod.uid.clone()) {
                    self.terminate(&pod);
                }
            }
        }
        for process in 0..self.processes.len() {
            for &kind in Kind::of(&self.api) {
                self.rouse(process, kind);
            }
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet_since.is_some()
    }

    /// The process that leads.
    pub(super) fn leader(&self) -> Option<usize> {
        self.processes.iter().position(|process| process.life == Life::Leads)
    }

    /// Traces an event if a trace is requested.
    pub(super) fn say(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>10.3} {}", self.agenda.now().as_secs_f64(), what(self));
            if let Some(trace) = &mut self.trace {
                trace.push(line);
            }
        }
    }

    /// The trace.
    pub(super) fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }
}
