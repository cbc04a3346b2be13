//! Rolls what a seed is about: the machine, its kubelet, the faults and their times. Many seeds
//! leave most faults out, so that strict checks apply and a failing seed is easy to read.

use std::time::Duration;

use agent_core::agent::{Features, Settings};
use agent_core::pod::PodUid;
use agent_core::shutdown::candidates::BarePods;
use agent_core::shutdown::priority_groups::PriorityGroupFlags;

use super::Options;
use super::crossing::Crossing;
use super::kubelet::Health;
use super::refusing::Refusing;
use super::strain::{Strain, features};
use super::wire::Verb;
use crate::controller::random::Random;

/// Outcome of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The machine powers off.
    Goes,
    /// It is cancelled after this time, unless the machine powered off before.
    Cancelled(Duration),
    /// logind restarts and forgets the shutdown.
    Forgotten(Duration),
    /// The power is cut.
    Cut(Duration),
    /// systemd stops the system, and logind announces nothing: the machine is off after this time.
    Unannounced(Duration),
}

/// One shutdown, timed from the beginning of the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shutdown {
    pub(super) at: Duration,
    pub(super) outcome: Outcome,
}

/// A fault, timed from each announcement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The API is unreachable for the agent, and possibly for the kubelet.
    Dark(Duration, bool),
    /// The agent is killed.
    Crash,
    /// The agent's process stands still.
    Freeze(Duration),
    /// The agent is asked to stop.
    Stop,
    /// The kubelet dies or hangs.
    Kubelet(Health),
    /// The kubelet is killed, and systemd starts it again after this time.
    KubeletRestarts(Duration),
    /// The kubelet is killed, and another process takes its port.
    KubeletsPortTaken,
    /// The kubelet starts, or restarts.
    KubeletStarts,
    /// The runtime's socket does not answer.
    RuntimeSilent(Duration),
    /// The wall clock jumps.
    Clock(i32),
    /// The machine was suspended.
    Suspend(Duration),
    /// A pod is bound to the node.
    Arrival,
}

/// How rough a seed is. Chances are per mille.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    /// No faults: strict checks apply.
    pub(super) strict: bool,
    pub(super) lost_requests: u32,
    pub(super) lost_replies: u32,
    pub(super) refusals: u32,
    pub(super) watch_breaks: u32,
    pub(super) throttle: Option<u32>,
    pub(super) forbidden: Option<Verb>,
    pub(super) rtt_ms: (u32, u32),
    pub(super) watch_ms: (u32, u32),
    pub(super) sync_ms: (u32, u32),
    pub(super) read_only_disk: bool,
    /// The kubelet's own groups: priority and seconds.
    pub(super) groups: Option<Vec<(i32, u64)>>,
    pub(super) delay: Duration,
    pub(super) raise_works: bool,
    pub(super) mute_delay: bool,
    pub(super) lost_cancel: bool,
    pub(super) other_lock: Option<Duration>,
    /// From the start of the power-off until everything is off.
    pub(super) tail: Duration,
    pub(super) boots_after: Option<Duration>,
    pub(super) shutdowns: Vec<Shutdown>,
    pub(super) faults: Vec<(Duration, Fault)>,
    pub(super) pods: usize,
    pub(super) calm_from: Duration,
    pub(super) ends_at: Duration,
    pub(super) settings: Settings,
    pub(super) strain: Strain,
    pub(super) refusing: Refusing,
    pub(super) crossing: Crossing,
    /// How long before each announcement the kubelet dies: pods end unreported.
    pub(super) kubelet_dies_before: Option<Duration>,
    /// When a strained node loses the API, and for how long; it is not a fault for strict checks.
    pub(super) outage: Option<(Duration, Duration)>,
}

/// How long a strained node without a shutdown is observed.
const STRAIN_LASTS: Duration = Duration::from_mins(2);

impl Behaviour {
    /// Later additions use a generator of their own, so that a seed stays what it was.
    pub(super) fn roll(
        random: &mut Random,
        apart: &mut Random,
        refusals: &mut Random,
        crossings: &mut Random,
        outages: &mut Random,
        options: Options,
    ) -> Self {
        let strict = options.strict || random.percent(35);
        let rough = !strict;
        let strain = Strain::roll(apart, rough);
        let strain = if options.unstrained { strain.without_any() } else { strain };
        let shutdowns = strained(apart, &strain, shutdowns(random));
        let last = shutdowns.last().map_or(STRAIN_LASTS, |shutdown| shutdown.at);
        let alone = strain.is_there() && shutdowns.is_empty();
        let calm_from = last + Duration::from_secs(if alone { 60 } else { 150 });
        let delay = Duration::from_secs(*random.pick(&[1, 5, 5, 10, 30, 30, 45, 60, 120]));
        let slow = rough && random.percent(15);
        Self {
            strict,
            lost_requests: rate(random, rough, 30, &[10, 50, 200]),
            lost_replies: rate(random, rough, 30, &[10, 50, 200]),
            refusals: rate(random, rough, 30, &[10, 50, 300]),
            watch_breaks: rate(random, rough, 25, &[10, 50]),
            throttle: (rough && random.percent(8)).then_some(5),
            forbidden: (rough && random.percent(10)).then(|| *random.pick(&VERBS)),
            rtt_ms: if slow { (80, 120) } else { *random.pick(&[(0, 1), (1, 4), (2, 15)]) },
            watch_ms: if slow { (80, 400) } else { (1, 40) },
            sync_ms: *random.pick(&[(1, 3), (1, 20), (5, 120)]),
            read_only_disk: rough && random.percent(4),
            groups: groups(random),
            delay,
            raise_works: random.percent(50),
            mute_delay: rough && random.percent(5),
            lost_cancel: rough && random.percent(25),
            other_lock: random.percent(30).then(|| random.millis(100, 40_000)),
            tail: if random.percent(60) { Duration::ZERO } else { random.millis(50, 3_000) },
            boots_after: random.percent(80).then(|| random.millis(5_000, 40_000)),
            faults: if rough { faults(random) } else { Vec::new() },
            pods: *random.pick(&[1, 2, 3, 4, 5, 6, 8, 10, 14, 40]),
            shutdowns,
            calm_from,
            ends_at: calm_from + strain.lasts(),
            settings: Settings { features: features(apart, &strain), ..settings(random) },
            refusing: Refusing::roll(refusals, strain.is_there()),
            crossing: Crossing::roll(crossings, strict),
            outage: (alone && !options.strict && outages.percent(40))
                .then(|| (outages.millis(5_000, 70_000), outages.millis(10_000, 60_000))),
            kubelet_dies_before: (rough && !strain.is_there() && refusals.percent(12))
                .then(|| refusals.millis(8_000, 40_000)),
            strain,
        }
    }
}

const VERBS: [Verb; 5] =
    [Verb::PatchStatus, Verb::PatchPod, Verb::DeletePod, Verb::PatchNode, Verb::CreateEvent];

/// One of these chances in this percentage of the rough seeds; otherwise zero.
fn rate(random: &mut Random, rough: bool, percent: u32, from: &[u32]) -> u32 {
    if rough && random.percent(percent) { *random.pick(from) } else { 0 }
}

fn shutdowns(random: &mut Random) -> Vec<Shutdown> {
    let mut at = random.millis(8_000, 40_000);
    let mut shutdowns = Vec::new();
    while random.percent(35) && shutdowns.len() < 2 {
        let after = random.millis(10, 20_000);
        let outcome = match random.below(10) {
            0..7 => Outcome::Cancelled(after),
            _ => Outcome::Forgotten(after),
        };
        shutdowns.push(Shutdown { at, outcome });
        at += random.millis(45_000, 120_000);
    }
    if shutdowns.is_empty() || random.percent(60) {
        let cut = random.percent(10);
        let outcome = if cut { Outcome::Cut(random.millis(0, 30_000)) } else { Outcome::Goes };
        shutdowns.push(Shutdown { at, outcome });
    }
    shutdowns
}

/// A strained node mostly has no shutdown; otherwise its shutdown comes during the strain.
fn strained(random: &mut Random, strain: &Strain, mut shutdowns: Vec<Shutdown>) -> Vec<Shutdown> {
    if !strain.is_there() {
        return shutdowns;
    }
    if strain.deserted.is_some() || random.percent(60) {
        return Vec::new();
    }
    let later = random.millis(0, 60_000);
    for shutdown in &mut shutdowns {
        shutdown.at += later;
    }
    shutdowns
}

fn groups(random: &mut Random) -> Option<Vec<(i32, u64)>> {
    match random.below(10) {
        0..5 => None,
        5 => Some(vec![(0, 3), (2_000_000_000, 1)]),
        6 | 7 => Some(vec![(0, 20), (2_000_000_000, 10)]),
        8 => Some(vec![(0, 5), (1_000, 5), (2_000_000_000, 5)]),
        _ => Some(vec![(0, 40), (2_000_000_000, 20)]),
    }
}

fn faults(random: &mut Random) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    for _ in 0..random.below(4) {
        // Before, around and after the announcement, and in the run after it.
        let after = match random.below(10) {
            0..2 => random.millis(0, 20),
            2..5 => random.millis(0, 2_000),
            5..9 => random.millis(0, 40_000),
            _ => random.millis(0, 100_000),
        };
        let fault = match random.below(22) {
            0..4 => Fault::Dark(random.millis(200, 60_000), random.percent(50)),
            4..8 => Fault::Crash,
            8..10 => Fault::Freeze(random.millis(200, 15_000)),
            10 => Fault::Stop,
            11 | 12 => Fault::Kubelet(Health::Dead),
            13 => Fault::Kubelet(Health::Hung),
            14 | 15 => Fault::KubeletStarts,
            16 => Fault::RuntimeSilent(random.millis(500, 40_000)),
            17 => Fault::Clock(*random.pick(&[-3_600, -5, -1, 1, 7, 3_600])),
            18 => Fault::Suspend(random.millis(1_000, 600_000)),
            _ => Fault::Arrival,
        };
        faults.push((after, fault));
    }
    if random.percent(15) {
        faults.push((Duration::ZERO, Fault::Kubelet(*random.pick(&[Health::Dead, Health::Hung]))));
    }
    faults
}

fn settings(random: &mut Random) -> Settings {
    let list = *random.pick(&[
        "0=20,2000000000=10",
        "0=20,2000000000=10",
        "0=3,2000000000=2",
        "0=5,1000=5,2000000000=5",
        "0=60",
    ]);
    let flags =
        PriorityGroupFlags { by_priority: Some(list.into()), ..PriorityGroupFlags::default() };
    let priority_groups =
        flags.priority_groups().expect("the simulation's priority groups must be priority groups");
    Settings {
        boot_id: String::new(),
        booted_at: None,
        own_pod: random.percent(40).then(|| PodUid("uid-agent".into())),
        priority_groups: if random.percent(95) { priority_groups } else { None },
        priority_groups_given: true,
        priority_max: *random.pick(&[2_000_000_000, 1_999_999_999, 1_000]),
        bare_pods: *random.pick(&[BarePods::Leave, BarePods::Delete, BarePods::DeadlineLever]),
        runtime: random.percent(90),
        logind: true,
        notices: [super::notices::SOURCE].into(),
        raise_delay: random.percent(60),
        enforce: random.percent(96),
        tries_policies: false,
        in_flight_max: *random.pick(&[1, 4, 16, 32]),
        features: Features::default(),
    }
}
