//! The scopes: small ones, which the suite explores, and large ones to explore by hand.

use super::kubelet::Ending;
use super::scope::{Faults, JobKind, Scope};

/// A Job of one pod, and one process.
pub const ONE: Scope = Scope {
    name: "one",
    pods: 1,
    at_once: 1,
    indexed: false,
    backoff_limit: 1,
    kind: JobKind::Plain,
    second_leader: 0,
    faults: Faults::NONE,
    endings: &Ending::BAD,
    pods_max: 4,
    states: 0,
    sabotage: None,
};

/// A Job of two pods at once.
pub const TWO: Scope = Scope { name: "two", pods: 2, at_once: 2, pods_max: 5, ..ONE };

const THREE: Scope = Scope { pods: 3, at_once: 3, pods_max: 6, ..ONE };
const SERIAL: Scope = Scope { pods: 3, ..ONE };
const PER_INDEX: Scope = Scope { kind: JobKind::PerIndex, indexed: true, backoff_limit: 6, ..ONE };
const TIMEOUT: Scope = Scope { kind: JobKind::PendingTimeout, backoff_limit: 2, ..ONE };

const GANG: Scope = Scope { kind: JobKind::Gang, ..ONE };
const GANG_OF_TWO: Scope = Scope { kind: JobKind::Gang, ..TWO };

const WHOLE: Scope = Scope { kind: JobKind::WholeGang, ..TWO };
const WHOLE_OF_DEAD: Scope = Scope { kind: JobKind::WholeGangOfDead, ..TWO };

const ENDS: Faults = Faults { endings: 1, ..Faults::NONE };
const ENDS_TWICE: Faults = Faults { endings: 2, ..Faults::NONE };
const LATE: Faults = Faults { late_watches: 1, ..Faults::NONE };
const LATE_ENDS: Faults = Faults { late_watches: 1, ..ENDS };
const LATE_LOST_ENDS: Faults = Faults { lost_replies: 1, ..LATE_ENDS };
const CRASH: Faults = Faults { crashes: 1, ..Faults::NONE };
const CRASH_LOST: Faults = Faults { lost_replies: 1, ..CRASH };
const CRASH_ENDS: Faults = Faults { crashes: 1, ..ENDS };
const LOST_ENDS: Faults = Faults { lost_replies: 1, ..ENDS };

const LOST: &[Ending] = &[Ending::Evict, Ending::EvictByKubelet, Ending::Fail];
const EVICTED: &[Ending] = &[Ending::Evict];
const REFUSED: &[Ending] = &[Ending::Refuse];
const PENDING: &[Ending] = &[Ending::DeletePending, Ending::Delete, Ending::Fail];

/// Two processes believe that they lead.
pub const LEADERS: &[Scope] = &[
    Scope { name: "leaders", states: 27_663, second_leader: 3, ..ONE },
    Scope { name: "leaders-late", states: 263_685, second_leader: 2, faults: LATE, ..ONE },
    Scope { name: "leaders-ends", states: 21_694, second_leader: 1, faults: ENDS, ..ONE },
    Scope { name: "leaders-crash", states: 106_199, second_leader: 1, faults: CRASH_LOST, ..ONE },
    Scope { name: "leaders-two", states: 26_118, second_leader: 1, ..TWO },
    Scope { name: "leaders-indexed", states: 8_826, second_leader: 2, indexed: true, ..ONE },
    Scope { name: "leaders-two-indexed", states: 32_593, second_leader: 1, indexed: true, ..TWO },
];

/// A process dies, replies are lost, watches are late. Two pods at once are in `GANGS`.
pub const LOSSES: &[Scope] = &[
    Scope { name: "losses", states: 14_338, faults: Faults::one_each(0), ..ONE },
    Scope {
        name: "losses-two-indexed",
        states: 226_450,
        faults: Faults::one_each(0),
        indexed: true,
        ..TWO
    },
    Scope { name: "losses-serial", states: 58_947, faults: Faults::one_each(0), ..SERIAL },
    Scope { name: "crash-three", states: 128_123, faults: CRASH, ..THREE },
    Scope { name: "late-three", states: 2_029, faults: LATE, ..THREE },
];

/// As much as a minute or two allow.
pub const RARE: &[Scope] = &[
    Scope { name: "leaders-ends-large", states: 487_829, second_leader: 2, faults: ENDS, ..ONE },
    Scope { name: "losses-large", states: 634_814, faults: Faults::one_each(1), ..ONE },
    Scope {
        name: "gang-leaders-large",
        states: 131_822,
        second_leader: 1,
        faults: CRASH_LOST,
        ..GANG
    },
    Scope {
        name: "whole-gang-crash-large",
        states: 132_482,
        faults: CRASH_ENDS,
        endings: LOST,
        ..WHOLE
    },
    Scope {
        name: "whole-gang-late-large",
        states: 60_532,
        faults: LATE_ENDS,
        endings: EVICTED,
        ..WHOLE
    },
];

/// Pods end in every way.
pub const ENDINGS: &[Scope] = &[
    Scope { name: "ends-twice", states: 13_759, faults: ENDS_TWICE, ..TWO },
    Scope { name: "ends-twice-indexed", states: 14_606, faults: ENDS_TWICE, indexed: true, ..TWO },
    Scope { name: "ends-three", states: 11_844, faults: ENDS, ..THREE },
    Scope { name: "ends-three-indexed", states: 21_613, faults: ENDS, indexed: true, ..THREE },
    Scope { name: "ends-late", states: 25_840, faults: LATE_ENDS, ..TWO },
    Scope { name: "ends-late-indexed", states: 24_590, faults: LATE_ENDS, indexed: true, ..TWO },
    Scope { name: "ends-lost", states: 12_803, faults: LOST_ENDS, ..TWO },
    Scope { name: "ends-crash", states: 61_140, faults: CRASH_ENDS, ..TWO },
    Scope { name: "pending", states: 8_834, faults: ENDS_TWICE, endings: PENDING, ..TWO },
];

/// Pods that have succeeded are called Failed before they are released.
pub const TURNS: &[Scope] = &[
    Scope { name: "turns", states: 713, faults: ENDS_TWICE, endings: REFUSED, ..TWO },
    Scope { name: "turns-late", states: 2_271, faults: LATE_ENDS, endings: REFUSED, ..TWO },
    Scope { name: "turns-crash", states: 12_253, faults: CRASH_ENDS, endings: REFUSED, ..TWO },
    Scope {
        name: "turns-indexed",
        states: 655,
        indexed: true,
        faults: ENDS_TWICE,
        endings: REFUSED,
        ..TWO
    },
    Scope {
        name: "turns-indexed-late",
        states: 1_995,
        indexed: true,
        faults: LATE_ENDS,
        endings: REFUSED,
        ..TWO
    },
    Scope {
        name: "turns-indexed-crash",
        states: 27_693,
        indexed: true,
        faults: CRASH_ENDS,
        endings: REFUSED,
        ..TWO
    },
    Scope {
        name: "turns-indexed-lost",
        states: 2_026,
        indexed: true,
        faults: LOST_ENDS,
        endings: REFUSED,
        ..TWO
    },
    Scope {
        name: "turns-per-index",
        states: 933,
        pods: 2,
        at_once: 2,
        faults: ENDS_TWICE,
        endings: REFUSED,
        ..PER_INDEX
    },
];

/// Policies change what counts, and when a pod is replaced.
pub const POLICIES: &[Scope] = &[
    Scope {
        name: "failed",
        states: 5_763,
        kind: JobKind::ReplacesFailed,
        faults: ENDS_TWICE,
        ..TWO
    },
    Scope {
        name: "failed-late",
        states: 8_358,
        kind: JobKind::ReplacesFailed,
        faults: LATE_ENDS,
        ..TWO
    },
    Scope {
        name: "failed-crash",
        states: 35_213,
        kind: JobKind::ReplacesFailed,
        faults: CRASH_ENDS,
        ..TWO
    },
    Scope {
        name: "failed-leaders",
        states: 7_237,
        kind: JobKind::ReplacesFailed,
        second_leader: 1,
        faults: ENDS,
        ..ONE
    },
    Scope {
        name: "ignored",
        states: 15_629,
        kind: JobKind::IgnoresDisruptions,
        faults: ENDS_TWICE,
        ..TWO
    },
    Scope {
        name: "ignored-late",
        states: 11_382,
        kind: JobKind::IgnoresDisruptions,
        faults: LATE_ENDS,
        ..TWO
    },
    Scope {
        name: "ignored-leaders",
        states: 11_895,
        kind: JobKind::IgnoresDisruptions,
        second_leader: 1,
        faults: ENDS,
        ..ONE
    },
    Scope { name: "timeout", states: 794, pods: 2, at_once: 2, ..TIMEOUT },
    Scope { name: "timeout-losses", states: 134_389, faults: Faults::one_each(0), ..TIMEOUT },
    Scope {
        name: "per-index",
        states: 55_147,
        pods: 2,
        at_once: 2,
        faults: ENDS_TWICE,
        ..PER_INDEX
    },
    Scope { name: "per-index-crash", states: 11_111, faults: CRASH_ENDS, ..PER_INDEX },
    Scope {
        name: "per-index-leaders",
        states: 23_757,
        second_leader: 1,
        faults: ENDS,
        ..PER_INDEX
    },
];

/// The pods of a Job are in a group, which comes before them.
pub const GANGS: &[Scope] = &[
    Scope { name: "gang-losses", states: 14_612, faults: Faults::one_each(0), ..GANG },
    Scope { name: "gang-two-losses", states: 145_325, faults: Faults::one_each(0), ..GANG_OF_TWO },
    Scope { name: "gang-lost-late-ends", states: 11_376, faults: LATE_LOST_ENDS, ..GANG },
    Scope { name: "gang-crash-ends", states: 5_780, faults: CRASH_ENDS, ..GANG },
    Scope { name: "gang-leaders", states: 10_790, second_leader: 2, ..GANG },
    Scope { name: "gang-leaders-late", states: 5_883, second_leader: 1, faults: LATE, ..GANG },
    Scope { name: "gang-leaders-two", states: 44_702, second_leader: 1, ..GANG_OF_TWO },
    Scope { name: "whole-gang-twice", states: 15_409, faults: ENDS_TWICE, endings: LOST, ..WHOLE },
    Scope {
        name: "whole-gang-of-dead-crash",
        states: 52_677,
        faults: CRASH_ENDS,
        endings: LOST,
        ..WHOLE_OF_DEAD
    },
    Scope {
        name: "whole-gang-of-dead-lost",
        states: 8_471,
        faults: LOST_ENDS,
        endings: LOST,
        ..WHOLE_OF_DEAD
    },
];

/// Explored by hand.
pub const LARGE: &[Scope] = &[
    Scope { name: "large-ends-three", states: 176_867, faults: ENDS_TWICE, ..THREE },
    Scope { name: "large-ends-late-three", states: 421_491, faults: LATE_ENDS, ..THREE },
    Scope { name: "large-losses-three", states: 276_059, faults: CRASH_LOST, ..THREE },
    Scope { name: "large-leaders-three", second_leader: 1, ..THREE },
    Scope {
        name: "large-per-index",
        states: 122_970,
        pods: 2,
        at_once: 2,
        faults: CRASH_ENDS,
        ..PER_INDEX
    },
    Scope { name: "large-leaders-losses", second_leader: 1, faults: Faults::one_each(0), ..ONE },
    Scope { name: "large-leaders-late", second_leader: 1, faults: LATE_ENDS, ..ONE },
    Scope { name: "large-losses-twice", faults: Faults::one_each(2), ..ONE },
];

/// All scopes that the suite explores.
pub fn small() -> impl Iterator<Item = &'static Scope> {
    [LEADERS, LOSSES, RARE, ENDINGS, TURNS, POLICIES, GANGS].into_iter().flatten()
}
