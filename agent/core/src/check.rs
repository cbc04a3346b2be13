//! Judges the facts of a node for its shutdown: one verdict and one remedy for each check.

pub mod api;
pub mod facts;
mod mode;
pub mod pressure;
pub mod runtime;

use epilogue_common::finding_code::FindingCode as Code;
use jiff::Timestamp;
use serde::Serialize;

use crate::finding::Finding;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::shutdown::budget::{Budget, wanted_delay};
use crate::shutdown::logind_conf::{self, DropIn, OUR_DELAY_MAX, OUR_DROP_IN};
use crate::shutdown::priority_groups::PriorityGroups;
use crate::time_span::TimeSpan;
use facts::{Answer, Bus, Facts, Inhibitor, LogindFacts, Refusal, ScheduledShutdown, Trial};

const RELOAD: &str = "run `systemctl kill --signal=HUP systemd-logind.service`";

/// Severity of a check's result, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The operator need not act.
    Ok,
    /// It works, but the operator should know.
    Warn,
    /// A shutdown would not work as intended.
    Fail,
}

impl Verdict {
    /// Name in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// Severity of the result.
    pub verdict: Verdict,
    /// Code, which `docs/troubleshooting.md` explains; `None` if there is nothing to know.
    pub code: Option<Code>,
    /// Facts that the check found.
    pub found: String,
    /// Advice for the operator.
    pub remedy: Option<String>,
}

/// Results of all checks. A check that prevents further ones comes last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Worst verdict of all checks.
    pub verdict: Verdict,
    /// Mode that the agent would use in a shutdown now, as far as logind and the kubelet report.
    pub mode: Option<Mode>,
    /// Results, in the order of the checks.
    pub checks: Vec<Check>,
    /// Time plan of a shutdown; `None` if logind does not report its delay.
    pub time: Option<Time>,
}

/// How a shutdown spends the delay, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Time {
    /// Delay that logind grants.
    pub granted_ms: u64,
    /// Delay that the priority groups and the reports need.
    pub wanted_ms: u64,
    /// Share for setting DisruptionTarget on pods that cannot survive, and for the step before it.
    pub mark_ms: u64,
    /// Share of the priority groups.
    pub kill_ms: u64,
    /// Share of the reports.
    pub flush_ms: u64,
    /// Reserve that stays unused.
    pub margin_ms: u64,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, code: None, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, code: Code, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, code: Some(code), ..Self::ok(name, found) }
    }

    fn fail(name: &'static str, code: Code, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, code, found) }
    }

    /// Result for a fault that readiness or an event reports, too.
    fn of(name: &'static str, verdict: Verdict, finding: Finding<'_>, found: String) -> Self {
        Self { verdict, ..Self::warn(name, finding.code(), found) }.remedy(finding.remedy())
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// Result for a call that must work on every node, but failed.
    fn unanswered(name: &'static str, error: &str) -> Self {
        let found = format!("no answer from logind: {error}");
        Self::fail(name, Code::LogindNoAnswer, found)
            .remedy("see `journalctl --unit=systemd-logind`")
    }
}

/// Judges all facts of a node.
pub fn judge(facts: &Facts, now: Timestamp) -> Report {
    let mut checks: Vec<Check> =
        facts.api.as_ref().map(|it| api::api(it, facts.observes)).into_iter().collect();
    checks.push(runtime::runtime(&facts.runtime, facts.observes, now));
    if let Some(found) = &facts.pressure {
        let kubelet = facts.kubelet.as_ref().and_then(|kubelet| kubelet.eviction.as_ref());
        checks.extend(pressure::pressure(found, kubelet));
    }
    checks.push(bus(facts));
    let (mut mode, mut time) = (None, None);
    match &facts.bus {
        Bus::Unreachable(_) => {}
        Bus::Mute(error) => checks.push(Check::unanswered("logind", error)),
        Bus::WithoutLogind => checks.push(no_logind()),
        Bus::WithLogind(logind) => {
            let found = format!("org.freedesktop.login1 is {}", logind.owner);
            checks.push(Check::ok("logind", found));
            checks.push(preparing(&logind.preparing));
            checks.push(scheduled(&logind.scheduled, now));
            checks.push(delay(logind, facts));
            checks.extend(inhibitors(logind, facts.kubelet.as_ref()));
            checks.push(trial(&logind.trial));
            mode = logind.inhibitors.as_ref().ok().map(|list| mode_of(list));
            if let Some(kubelet) = &facts.kubelet {
                let (detected, check) = mode::mode(kubelet, facts);
                mode = Some(detected);
                checks.push(check);
            }
            time = logind
                .delay
                .as_ref()
                .ok()
                .map(|granted| times(*granted, facts.priority_groups.as_ref()));
        }
    }
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    Report { verdict, mode, checks, time }
}

fn bus(facts: &Facts) -> Check {
    let Bus::Unreachable(error) = &facts.bus else {
        return Check::ok("bus", &facts.bus_address);
    };
    let found = format!("cannot connect to {}: {error}", facts.bus_address);
    Check::fail("bus", Code::BusUnreachable, found).remedy(
        "run dbus.service on the node; in a pod, mount /run/dbus/system_bus_socket, run as uid 0 \
         without a user namespace, and set appArmorProfile Unconfined",
    )
}

fn no_logind() -> Check {
    let found = "no program owns the bus name org.freedesktop.login1";
    Check::fail("logind", Code::LogindMissing, found).remedy(
        "run `systemctl start systemd-logind`; on a system without it no shutdown is announced: \
         run the agent with --logind=false",
    )
}

fn preparing(answer: &Answer<bool>) -> Check {
    match answer {
        Err(error) => Check::unanswered("shutdown", error),
        Ok(false) => Check::ok("shutdown", "none in progress"),
        // logind refuses a new lock during a shutdown. ([LD5])
        Ok(true) => {
            Check::warn("shutdown", Code::ShutdownInProgress, "the node is shutting down now")
                .remedy("check again when it is over or cancelled: no lock can be taken meanwhile")
        }
    }
}

fn scheduled(answer: &Answer<Option<ScheduledShutdown>>, now: Timestamp) -> Check {
    match answer {
        Err(error) => Check::unanswered("schedule", error),
        Ok(None) => Check::ok("schedule", "no shutdown is scheduled"),
        Ok(Some(shutdown)) => {
            let now_micros = u64::try_from(now.as_microsecond()).unwrap_or(0);
            let left = TimeSpan::from_micros(shutdown.at_micros.saturating_sub(now_micros));
            let seconds = left.whole_seconds().unwrap_or(u64::MAX);
            let found = format!("{} is scheduled in {seconds}s", shutdown.kind);
            Check::warn("schedule", Code::ShutdownScheduled, found)
                .remedy("drain the node before, or cancel by `shutdown -c`")
        }
    }
}

fn times(granted: TimeSpan, priority_groups: Option<&PriorityGroups>) -> Time {
    let millis =
        |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let budget = Budget::of(granted.duration());
    Time {
        granted_ms: millis(granted.duration()),
        wanted_ms: millis(wanted_delay(priority_groups, None)),
        mark_ms: millis(budget.intent + budget.pre_mark),
        kill_ms: millis(budget.kill),
        flush_ms: millis(budget.flush),
        margin_ms: millis(budget.margin),
    }
}

fn delay(logind: &LogindFacts, facts: &Facts) -> Check {
    let granted = match &logind.delay {
        Err(error) => return Check::unanswered("delay", error),
        Ok(granted) => *granted,
    };
    let Some(priority_groups) = &facts.priority_groups else {
        let found =
            format!("logind grants {granted}; graceful termination is off, so none is wanted");
        return Check::ok("delay", found);
    };
    let wanted = wanted_delay(Some(priority_groups), None);
    let times = format!(
        "logind grants {granted}; the priority groups {priority_groups} and their reports want {}",
        TimeSpan::from(wanted)
    );
    let drop_in = logind_conf::drop_in(&facts.conf_files, granted, wanted, OUR_DELAY_MAX);
    if granted.duration() < wanted {
        let kill = TimeSpan::from(Budget::of(granted.duration()).kill);
        let period = TimeSpan::from(priority_groups.period());
        let finding = Finding::DelayTooShort { granted: granted.duration(), wanted };
        let found =
            format!("{finding}; now the priority groups {priority_groups} get {kill} of {period}");
        let check = Check::of("delay", Verdict::Fail, finding, found);
        return too_short(check, &drop_in, logind.inhibitors.as_deref());
    }
    match raise(&drop_in) {
        None => Check::ok("delay", times),
        Some(remedy) => {
            // The kubelet's graceful shutdown does not run with less than it requests. ([SD5])
            let found = format!("{times}, but a file of logind's configuration asks for more");
            Check::warn("delay", Code::DelayFileWantsMore, found).remedy(remedy)
        }
    }
}

/// Judges a delay that is too short. An agent that enforces raises it at its start, and holds a
/// lock: where one does, raising has failed, and elsewhere none has tried.
fn too_short(check: Check, drop_in: &DropIn, locks: Result<&[Inhibitor], &String>) -> Check {
    let remedy = raise(drop_in).unwrap_or_else(|| {
        let most = TimeSpan::from(OUR_DELAY_MAX);
        format!("give shorter priority groups; the agent asks for no delay above {most}")
    });
    let agent_can = matches!(drop_in, DropIn::Write { .. } | DropIn::Reload { .. });
    if agent_can && locks.is_ok_and(|locks| !locks.iter().any(Inhibitor::is_agents)) {
        let found = check.found;
        let found = format!("{found}; no agent holds a lock here: it observes, or does not run");
        return Check { verdict: Verdict::Warn, found, ..check }.remedy(format!(
            "an agent with --shutdown=enforce raises it at its start; with --raise-delay=false, \
             {remedy}"
        ));
    }
    check.remedy(remedy)
}

fn raise(drop_in: &DropIn) -> Option<String> {
    let seconds = |delay: TimeSpan| {
        delay.whole_seconds().map_or_else(|| delay.to_string(), |seconds| seconds.to_string())
    };
    match drop_in {
        DropIn::NotNeeded => None,
        DropIn::Reload { by } => {
            Some(format!("{} asks for {} already: {RELOAD}", by.path, by.delay))
        }
        DropIn::Write { delay, .. } => Some(format!(
            "write `InhibitDelayMaxSec={}` below `[Login]` into {OUR_DROP_IN}, then {RELOAD}",
            seconds(*delay)
        )),
        DropIn::Shadowed { by, delay } => Some(format!(
            "write `InhibitDelayMaxSec={}` into {} in place of {}, because it is read last; \
             then {RELOAD}",
            seconds(*delay),
            by.path,
            by.delay
        )),
    }
}

fn mode_of(inhibitors: &[Inhibitor]) -> Mode {
    let armed = facts::kubelets_lock(inhibitors).is_some_and(|lock| lock.uid == 0);
    if armed { Mode::Assist } else { Mode::Replace }
}

fn inhibitors(logind: &LogindFacts, kubelet: Option<&KubeletFacts>) -> Vec<Check> {
    match &logind.inhibitors {
        Err(error) => vec![Check::unanswered("kubelet", error)],
        Ok(list) => {
            let process = logind.kubelet_process.as_deref();
            // A pod does not see the host's processes; systemd knows the unit of each.
            let known = kubelet.filter(|kubelet| kubelet.unit.is_some());
            let of_unit = known.and_then(|kubelet| kubelet.lock_armed);
            let holder = match of_unit {
                Some(true) => Holder::Unit(process),
                Some(false) => Holder::Stranger(process),
                None => Holder::Process(process),
            };
            vec![kubelets_lock(list, holder), holders(list)]
        }
    }
}

/// Who holds the kubelet's lock, and the name of the process, where it can be seen.
#[derive(Clone, Copy, Debug)]
enum Holder<'a> {
    /// A process of the kubelet's unit.
    Unit(Option<&'a str>),
    /// A process of another unit, or of none.
    Stranger(Option<&'a str>),
    /// A process; systemd has no unit of the kubelet.
    Process(Option<&'a str>),
}

/// Checks whether the kubelet's own graceful shutdown is armed. The lock proves it; the
/// configuration alone does not. ([W1])
fn kubelets_lock(list: &[Inhibitor], process: Holder<'_>) -> Check {
    let Some(lock) = facts::kubelets_lock(list) else {
        let found =
            "its own graceful shutdown is not armed: the agent would delete the pods (Replace)";
        return Check::ok("kubelet", found);
    };
    let holder = format!("uid {}, pid {}", lock.uid, lock.pid);
    if lock.uid != 0 {
        let found = format!("a lock has the kubelet's name, but is not root's ({holder})");
        return Check::warn("kubelet", Code::KubeletLockNotRoot, found)
            .remedy(format!("find out what pid {} is; the agent does not count it", lock.pid));
    }
    let armed = "its own graceful shutdown is armed: the agent would complete its reports (Assist)";
    let remedy = "see `systemd-inhibit --list`, and restart the kubelet";
    let orphaned = |found| Check::warn("kubelet", Code::KubeletLockOrphaned, found).remedy(remedy);
    match process {
        Holder::Unit(None) => Check::ok("kubelet", format!("{armed}; held by its unit, {holder}")),
        Holder::Unit(Some(name)) | Holder::Process(Some(name)) => {
            Check::ok("kubelet", format!("{armed}; held by {name}, {holder}"))
        }
        Holder::Process(None) => orphaned(format!("{armed}; {holder} is not running")),
        Holder::Stranger(name) => {
            let name = name.unwrap_or("a process that is gone or hidden");
            let found = format!("a lock has the kubelet's name, but {name} ({holder}) is not in");
            Check::warn("kubelet", Code::KubeletLockOrphaned, format!("{found} its unit")).remedy(
                "if the kubelet runs in another unit, name it by --kubelet-unit; the agent counts \
                 the lock of that unit alone",
            )
        }
    }
}

/// Lists the other holders of a shutdown lock.
fn holders(list: &[Inhibitor]) -> Check {
    let names = |mode: &str| {
        let locks = list.iter().filter(|lock| lock.holds_shutdown(mode) && !lock.is_kubelets());
        let names = locks.map(|lock| format!("{} (pid {}: {})", lock.who, lock.pid, lock.why));
        names.collect::<Vec<_>>().join(", ")
    };
    let (delaying, blocking) = (names("delay"), names("block"));
    if !blocking.is_empty() {
        let found = format!("shutdown is blocked by {blocking}");
        return Check::warn("holders", Code::ShutdownBlocked, found)
            .remedy("logind announces no shutdown until the lock goes; stop its holder first");
    }
    let found = match delaying.as_str() {
        "" => "no other program delays a shutdown".to_owned(),
        _ => format!("a shutdown also waits for {delaying}"),
    };
    Check::ok("holders", found)
}

fn trial(trial: &Trial) -> Check {
    match trial {
        Trial::Refused { why, message } => {
            let found = format!("logind refused a delay lock: {message}");
            Check::fail("lock", Code::LockRefused, found).remedy(refusal_remedy(*why))
        }
        Trial::Taken { listed: Err(error), .. } | Trial::Taken { released: Err(error), .. } => {
            Check::unanswered("lock", error)
        }
        Trial::Taken { listed: Ok(false), .. } => {
            let found = "logind gave a delay lock and does not list it";
            Check::fail("lock", Code::LockNotListed, found)
                .remedy("run `systemctl restart systemd-logind` and check again")
        }
        Trial::Taken { released: Ok(false), .. } => {
            let found = "a delay lock is still listed after its release";
            Check::fail("lock", Code::LockNotReleased, found).remedy(
                "a shutdown would wait for it: stop its holder, see `systemd-inhibit --list`",
            )
        }
        Trial::Taken { listed: Ok(true), released: Ok(true) } => {
            Check::ok("lock", "a delay lock was taken, listed and released")
        }
    }
}

fn refusal_remedy(why: Refusal) -> &'static str {
    match why {
        Refusal::ShuttingDown => {
            "a shutdown is in progress; check again when it is over or cancelled"
        }
        Refusal::NotPermitted => {
            "run as uid 0 without a user namespace, with appArmorProfile Unconfined; polkit's \
             action is org.freedesktop.login1.inhibit-delay-shutdown"
        }
        Refusal::TooManyLocks => {
            "see `systemd-inhibit --list` for who holds the locks; raise InhibitorsMax in \
             logind.conf"
        }
        Refusal::Other => "see `journalctl --unit=systemd-logind`",
    }
}

#[cfg(test)]
mod tests;
