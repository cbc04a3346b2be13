//! The whole simulated node and its event loop: one event at a time, in the order of virtual time,
//! and the ledger checks each.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::event::Now;
use agent_core::protocol::pressure::Sample;
use jiff::{SignedDuration, Timestamp};

use super::api::{Api, Change};
use super::disk::Disk;
use super::kernel::Kernel;
use super::kubelet::Kubelet;
use super::kubelet_facts::vary;
use super::ledger::Ledger;
use super::logind::Logind;
use super::notices::Notices;
use super::population::Script;
use super::process::Process;
use super::runtime::Runtime;
use super::scenario::Behaviour;
use super::sinks::Stop;
use super::unannounced::hide;
use super::volumes::Volumes;
use super::wire::Wire;
use super::{Options, Stats};
use crate::controller::agenda::{Agenda, Moment};
use crate::controller::random::Random;

/// When the world begins: any whole second will do.
const EPOCH_SECONDS: i64 = 1_795_000_000;

/// What CLOCK_MONOTONIC shows when a machine's agent could first read it.
const BOOT_BASE: Duration = Duration::from_secs(3);

/// More events than any seed needs; an excess is a storm.
const EVENTS_MAX: u64 = 400_000;

/// An event to come.
type Step = Box<dyn FnOnce(&mut World)>;

/// The owner of an event: when it ends, the event is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Never ends.
    World,
    /// The machine's, from boot to power-off.
    Boot(u64),
    /// A run of the kubelet.
    Kubelet(u64),
    /// A run of the agent.
    Agent(u64),
}

/// The simulated node.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) agenda: Agenda<(Life, Step)>,
    pub(super) options: Options,
    pub(super) behaviour: Behaviour,
    pub(super) api: Api,
    pub(super) wire: Wire,
    pub(super) runtime: Runtime,
    pub(super) kubelet: Kubelet,
    pub(super) logind: Logind,
    pub(super) process: Option<Process>,
    pub(super) disk: Disk,
    pub(super) stops: Vec<Stop>,
    pub(super) scripts: BTreeMap<PodUid, Script>,
    pub(super) ledger: Ledger,
    /// Which boot of the machine this is.
    pub(super) boot: u64,
    /// Whether the machine runs.
    pub(super) on: bool,
    booted_at: Moment,
    /// What the wall clock showed then: systemd notes it.
    pub(super) boot_wall: Option<Timestamp>,
    /// Time in system suspend in this boot.
    pub(super) suspended: Duration,
    /// Total time in suspend, and errors of the wall clock.
    pub(super) wall_offset: SignedDuration,
    pub(super) cancelled_at: Option<Moment>,
    /// When systemd began a stop of the system that logind has not announced, and which pods the
    /// agent has to mark for it.
    pub(super) stopping: Option<(Moment, Vec<PodUid>)>,
    pub(super) stats: Stats,
    pub(super) over: bool,
    /// Number of agent runs so far.
    pub(super) runs: u64,
    pub(super) kernel: Kernel,
    pub(super) last_sample: Option<Sample>,
    /// Number of actions that a broken agent has given besides its own.
    pub(super) forged: u64,
    /// Strain uses a generator of its own, so that other seeds stay as they were.
    pub(super) strain_random: Random,
    /// What crosses its calls, too.
    pub(super) cross_random: Random,
    /// And the controllers that replace what has ended.
    pub(super) replaced_random: Random,
    /// So do the shapes of pods.
    pub(super) shape_random: Random,
    pub(super) volumes: Volumes,
    pub(super) notices: Notices,
    /// The kubelet is gone for good.
    pub(super) deserted: bool,
    pub(super) runtime_is_dead: bool,
    trace: Option<Vec<String>>,
    observed: usize,
}

impl World {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed ^ 0xA6E7);
        let mut strain_random = Random::new(seed ^ 0x57A1);
        let mut refusals = Random::new(seed ^ 0x0403);
        let mut cross_random = Random::new(seed ^ 0xC055);
        let mut outages = Random::new(seed ^ 0x0A9E);
        let behaviour = Behaviour::roll(
            &mut random,
            &mut strain_random,
            &mut refusals,
            &mut cross_random,
            &mut outages,
            options,
        );
        let mut behaviour = behaviour;
        vary(&mut behaviour.faults, &mut Random::new(seed ^ 0x4B1E));
        hide(&mut behaviour.shutdowns, &mut Random::new(seed ^ 0x5E17));
        Self {
            random,
            agenda: Agenda::new(),
            options,
            api: Api::default(),
            wire: Wire::default(),
            runtime: Runtime { answers: true, ..Runtime::default() },
            kubelet: Kubelet::default(),
            logind: Logind { delay: behaviour.delay, ..Logind::default() },
            process: None,
            disk: Disk::default(),
            stops: Vec::new(),
            scripts: BTreeMap::new(),
            ledger: Ledger::default(),
            boot: 0,
            on: false,
            booted_at: Moment::ZERO,
            boot_wall: None,
            suspended: Duration::ZERO,
            wall_offset: SignedDuration::ZERO,
            cancelled_at: None,
            stopping: None,
            stats: Stats::default(),
            over: false,
            runs: 0,
            kernel: Kernel::default(),
            last_sample: None,
            forged: 0,
            strain_random,
            cross_random,
            replaced_random: Random::new(seed ^ 0x2E91),
            shape_random: Random::new(seed ^ 0x51DE),
            volumes: Volumes::of_seed(seed),
            notices: Notices::of_seed(seed),
            deserted: false,
            runtime_is_dead: false,
            trace: options.trace.then(Vec::new),
            observed: 0,
            behaviour,
        }
    }

    /// From the first boot to the end.
    pub(super) fn run(&mut self) {
        self.log(|w| format!("{:?}", w.behaviour));
        self.begin();
        while let Some((life, step)) = self.agenda.next() {
            if self.lives(life) {
                self.api.clock = self.server_time();
                step(self);
                self.observe();
                self.stats.events += 1;
            }
            if self.stats.events > EVENTS_MAX {
                self.violate("storm: there is no end of events");
                break;
            }
            if self.over {
                break;
            }
        }
        self.check_end();
        self.stats.seconds = self.now().as_secs();
    }

    pub(super) fn lives(&self, life: Life) -> bool {
        match life {
            Life::World => true,
            Life::Boot(boot) => self.on && self.boot == boot,
            Life::Kubelet(run) => self.kubelet.is_live() && self.kubelet.run == run,
            Life::Agent(run) => self.agent_run() == Some(run),
        }
    }

    /// The run of the agent's process, while it exists.
    pub(super) fn agent_run(&self) -> Option<u64> {
        self.process.as_ref().map(|process| process.run)
    }

    /// Schedules an event, void if its owner has ended by then.
    pub(super) fn after(
        &mut self,
        delay: Duration,
        life: Life,
        step: impl FnOnce(&mut Self) + 'static,
    ) {
        self.agenda.after(delay, (life, Box::new(step)));
    }

    pub(super) fn now(&self) -> Moment {
        self.agenda.now()
    }

    /// The API's time, as the machine believes it to be.
    pub(super) fn wall(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.now()).expect("a simulation must be short");
        let epoch = Timestamp::from_second(EPOCH_SECONDS).expect("the epoch must be a time");
        epoch.checked_add(since + self.wall_offset).expect("clocks must stay in range")
    }

    /// The API server's time.
    fn server_time(&self) -> Timestamp {
        let since = SignedDuration::try_from(self.now()).expect("a simulation must be short");
        let epoch = Timestamp::from_second(EPOCH_SECONDS).expect("the epoch must be a time");
        epoch.checked_add(since).expect("clocks must stay in range")
    }

    /// The machine's clocks.
    pub(super) fn clocks(&self) -> Now {
        let monotonic = BOOT_BASE + self.now().saturating_sub(self.booted_at);
        Now { monotonic, boot: monotonic + self.suspended, wall: self.wall() }
    }

    /// When the machine's CLOCK_MONOTONIC shows this.
    pub(super) fn moment_of(&self, monotonic: Duration) -> Moment {
        (monotonic + self.booted_at).saturating_sub(BOOT_BASE)
    }

    /// The machine starts: new clocks, a new boot id, nothing runs yet.
    pub(super) fn begin_boot(&mut self) {
        self.boot += 1;
        self.on = true;
        self.booted_at = self.now();
        self.boot_wall = Some(self.wall());
        self.suspended = Duration::ZERO;
        self.log(|w| format!("machine   boots, {}", w.boot_id()));
    }

    pub(super) fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }

    /// Passes every change in the API to the ledger, the kubelets, controllers and watches.
    fn observe(&mut self) {
        while let Some(change) = self.api.log.get(self.observed).cloned() {
            self.observed += 1;
            self.ledger_sees(&change);
            self.watch_sees(&change);
            match change {
                Change::Pod(stored) => {
                    self.kubelet_notices(stored.uid().clone());
                    self.controllers_notice(&stored);
                }
                Change::Gone(stored) => {
                    self.kubelet_notices(stored.uid().clone());
                    self.replace(&stored);
                }
                Change::Node => self.taint_seen(),
            }
        }
    }

    /// Records a violation.
    pub(super) fn violate(&mut self, what: &str) {
        self.log(|_| format!("VIOLATION {what}"));
        let at = self.now().as_secs_f64();
        self.ledger.violations.push(format!("at {at:.3}: {what}"));
    }

    /// Traces an event if a trace is requested.
    pub(super) fn log(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>10.3} {}", self.now().as_secs_f64(), what(self));
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

/// Name of a pod in messages.
pub(super) fn name_of(uid: &PodUid) -> &str {
    uid.0.trim_start_matches("uid-")
}
