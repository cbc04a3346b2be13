//! Chooses the pod to evict. It measures the pods' usage anew for each shortage, and takes the
//! first in rank that the agent can terminate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::Failure;

use super::super::calls::Task;
use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::notices::{LEFT_TO_KUBELET, WOULD_EVICT};
use super::super::out::Out;
use super::super::refusals::Refusals;
use super::super::status::WouldHave;
use super::Evictions;
use super::effective_mode::EffectiveMode;
use super::is_active;
use super::own_limits::ends_for_own_limits;
use super::victim::Reason;
use crate::pod::{Owner, PodUid, PodView};
use crate::pressure::message::describe;
use crate::pressure::rank::{exceeds_asks, frees, rank};
use crate::pressure::signal::Signal;
use crate::pressure::usage::{DiskLayout, DiskUsage, PodUsage, is_critical};
use crate::pressure::watch::Cause;
use crate::protocol::action::{Action, PodRef};
use crate::protocol::pressure::{Figures, PodFigures, Resource};
use crate::shutdown::candidates::BarePods;
use crate::termination::attempt::{Attempt, Pace};
use crate::termination::progress::{PATCH_STATUS, Terminator};

/// The interval between choices for a signal that the agent only observes.
const OBSERVED_AGAIN: Duration = Duration::from_secs(10);
/// The same for a disk: the agent walks its pods' directories.
const WALKED_AGAIN: Duration = Duration::from_mins(2);
/// The interval between reports that the agent would evict the same pod.
const REPORTED_LASTS: Duration = Duration::from_mins(10);
/// The wait after a choice that found no pod.
const NO_VICTIM_LASTS: Duration = Duration::from_secs(1);
/// How long a pod stays excluded after its eviction ended or was refused.
pub(super) const REFUSED_LASTS: Duration = Duration::from_mins(10);
/// The same after an API that answers other calls did not accept the mark in time.
pub(super) const LATE_LASTS: Duration = Duration::from_secs(30);
/// What a sandbox uses by itself: one process, and a few MiB of memory and on the disk.
const SANDBOX_TASKS: u64 = 1;
const SANDBOX_BYTES: u64 = 4 << 20;
const MEASURING: Pace = Pace { wait_max: Duration::from_secs(5), latest: None, salt: 5 };

/// The measurements for a choice, and earlier choices.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    asks: BTreeMap<Resource, Ask>,
    /// The end of each signal's pause between choices.
    rests: BTreeMap<Signal, Duration>,
    /// Reports about pods, and until when they are not repeated.
    reported: BTreeMap<(PodUid, &'static str), Duration>,
    /// Pods that are excluded from the choice, and until when.
    refused: BTreeMap<PodUid, Duration>,
    /// Why the last choice found no pod: the signal, and whether there were pods that free nothing.
    no_victim: Option<(Signal, bool)>,
}

/// A measurement of pods that is under way, or that failed.
#[derive(Clone, Debug, Default)]
struct Ask {
    attempt: Attempt,
    /// The pods, if the measurement covers all of them: only then can they be ranked.
    all: Option<BTreeSet<PodUid>>,
}

impl Choices {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.reported.retain(|(other, _), _| other != uid);
        self.refused.remove(uid);
    }

    pub(super) fn refuse(&mut self, uid: PodUid, until: Duration) {
        self.refused.insert(uid, until);
    }

    /// Whether a report about the pod under this name is due; if so, it starts the next pause.
    pub(super) fn may_report(&mut self, uid: &PodUid, name: &'static str, now: Duration) -> bool {
        let key = (uid.clone(), name);
        if self.reported.get(&key).is_some_and(|until| now < *until) {
            return false;
        }
        self.reported.insert(key, now + REPORTED_LASTS);
        true
    }
}

/// What decides how the agent may terminate a pod.
#[derive(Clone, Copy)]
pub(super) struct Levers<'a> {
    pub(super) facts: &'a Facts,
    pub(super) refusals: &'a Refusals,
    pub(super) disruptions: &'a Disruptions,
}

/// The resource of the pods that a signal measures.
fn resource(signal: Signal) -> Resource {
    match signal.resource() {
        "memory" => Resource::Memory,
        "pids" => Resource::Pids,
        _ => Resource::Disk,
    }
}

fn observed_again(signal: Signal) -> Duration {
    if resource(signal) == Resource::Disk { WALKED_AGAIN } else { OBSERVED_AGAIN }
}

/// Whether the figures of a pod that has not run are those of its sandbox alone.
fn is_bare_sandbox(pod: &PodView, figures: &PodFigures) -> bool {
    let total =
        |disk: DiskUsage| disk.rootfs.saturating_add(disk.logs).saturating_add(disk.volumes);
    let few = |bytes: u64| bytes <= SANDBOX_BYTES;
    !pod.has_run
        && figures.tasks.is_none_or(|tasks| tasks <= SANDBOX_TASKS)
        && figures.memory.is_none_or(few)
        && figures.disk.is_none_or(|disk| few(total(disk)))
}

/// Whether an eviction that frees so much would help against a shortage. What is not known may be
/// the cause.
///
/// DIVERGES(upstream): for a disk, a pod that would free less than a hundredth of what is missing
/// is not evicted. Upstream evicts one pod after the other, though the files that fill the disk are
/// no pod's.
fn would_help(cause: &Cause, frees: Option<u64>) -> bool {
    match (cause.shortage(), frees) {
        (Some(shortage), Some(freed)) => freed.saturating_mul(100) >= shortage.missing().max(1),
        _ => true,
    }
}

impl Evictions {
    /// Requests the measurement for a choice, as soon as there is a cause.
    pub(super) fn advance_choice(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        disruptions: &Disruptions,
    ) {
        // A signal that is only observed, or has no candidate, does not delay the next cause.
        let causes = self.causes();
        let may = |cause: &Cause| self.may_choose_for(cause, facts, disruptions);
        if let Some(cause) = causes.into_iter().find(may) {
            let pods = facts.pods.iter().filter(|pod| is_active(pod));
            let pods = pods.map(|pod| pod.uid.clone()).collect();
            self.ask(resource(cause.signal), pods, true, facts, out);
        }
    }

    fn may_choose_for(&self, cause: &Cause, facts: &Facts, disruptions: &Disruptions) -> bool {
        let still = matches!(self.effective_mode_for(cause.signal, facts), EffectiveMode::Still(_));
        if still || facts.stop_at.is_some() || !facts.pods.is_listed() {
            return false;
        }
        // The node does not need to free what a pod's own limit frees. ([EV26])
        if resource(cause.signal) == Resource::Disk && ends_for_own_limits(facts, disruptions) {
            return false;
        }
        let rests = self.choices.rests.get(&cause.signal);
        rests.is_none_or(|until| facts.clock.reached(*until))
    }

    /// Requests a measurement of pods, one per resource at a time.
    pub(super) fn ask(
        &mut self,
        of: Resource,
        pods: Vec<PodUid>,
        all: bool,
        facts: &Facts,
        out: &mut Out,
    ) {
        let ask = self.choices.asks.entry(of).or_default();
        let waits = ask.attempt.is_open() && !ask.attempt.is_due(&facts.clock);
        if ask.attempt.is_in_flight() || waits {
            return;
        }
        ask.attempt.want_again();
        ask.attempt.sent();
        ask.all = all.then(|| pods.iter().cloned().collect());
        out.calls.send(Task::MeasurePods(of), Action::MeasurePods { of, pods });
    }

    pub(in super::super) fn pods_measured(
        &mut self,
        of: Resource,
        result: Result<Figures, Failure>,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let now = facts.clock.monotonic();
        let ask = self.choices.asks.entry(of).or_default();
        let figures = match result {
            Ok(figures) => figures,
            // Without figures nothing is evicted. ([EV7])
            Err(failure) => {
                ask.attempt.failed(now, MEASURING, Some(&failure));
                let text = format!("what pods use cannot be measured: {failure}");
                out.calls.log(true, None, text);
                return;
            }
        };
        let Ask { all, .. } = std::mem::take(ask);
        if facts.situation.owns_pods {
            return;
        }
        if of == Resource::Disk {
            self.end_for_own_limits(&figures, facts, out, disruptions);
        }
        let Some(asked) = all else { return };
        // The shortage may be over by now, or be another.
        let causes = self.causes();
        let is_asked_for = |cause: &Cause| resource(cause.signal) == of;
        let mut causes = causes.into_iter().filter(is_asked_for);
        let may = |cause: &Cause| self.may_choose_for(cause, facts, disruptions);
        if let Some(cause) = causes.find(may) {
            self.choose(&cause, &figures, &asked, facts, out, disruptions);
        }
    }

    fn choose(
        &mut self,
        cause: &Cause,
        figures: &Figures,
        asked: &BTreeSet<PodUid>,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let now = facts.clock.monotonic();
        let of_disk = resource(cause.signal) == Resource::Disk;
        let known = |of: &PodFigures| of.disk.is_some() || of.inodes.is_some();
        if of_disk && !figures.values().any(known) {
            let text = format!("the pods' disk usage is not known, for {cause}");
            out.calls.log(true, None, text);
            self.choices.rests.insert(cause.signal, now + NO_VICTIM_LASTS);
            return;
        }
        let layout = self.layout.unwrap_or(DiskLayout::Single);
        // DIVERGES(upstream): the agent does not evict a pod that never ran, because it has nothing
        // to free. Upstream ranks it as a pod without figures, first of all. It then waits for its
        // end while the shortage goes on. A pod whose image is being pulled has the figures of its
        // sandbox. The agent also skips a pod that came during the measurement: its missing figures
        // prove nothing. ([EV11])
        //
        // DIVERGES(upstream): for a disk, the agent evicts only a pod whose disk usage is known.
        // The runtime's figures for layers may be older than the pod. Upstream has all figures in
        // one response, and first evicts a pod that is missing in it. ([EV11])
        let uses = |pod: &&PodView| match figures.get(&pod.uid) {
            Some(figures) => (!of_disk || known(figures)) && !is_bare_sandbox(pod, figures),
            None => !of_disk && pod.has_run && asked.contains(&pod.uid),
        };
        let active = facts.pods.iter().filter(|pod| is_active(pod)).filter(uses);
        let usages: Vec<PodUsage> =
            active.map(|pod| PodUsage::of(pod, figures.get(&pod.uid))).collect();
        let ranked = rank(cause.signal, layout, &usages);
        let levers = Levers { facts, refusals: &out.refusals, disruptions };
        if let Some(pod) = self.culprit_of_kubelet(cause.signal, layout, &ranked, levers) {
            self.leave_to_kubelet(&pod, cause, facts, out);
            return;
        }
        let may_end = |usage: &PodUsage| {
            let pod = facts.pods.get(&usage.uid)?;
            Some((pod, self.terminator_of(pod, cause.is_hard(), levers)?))
        };
        let frees = |usage: &PodUsage| frees(cause.signal, layout, usage);
        let (helpful, useless): (Vec<&PodUsage>, Vec<_>) =
            ranked.into_iter().partition(|usage| would_help(cause, frees(usage)));
        let chosen = helpful.into_iter().find_map(|usage| Some((may_end(usage)?, usage)));
        let Some(((pod, terminator), usage)) = chosen else {
            let useless = useless.into_iter().filter(|usage| may_end(usage).is_some());
            let freed: Vec<u64> = useless.filter_map(frees).collect();
            self.report_no_victim(cause, &freed, facts, out);
            return;
        };
        self.choices.no_victim = None;
        let has_figures = figures.contains_key(&usage.uid);
        let description = describe(cause.signal, cause.shortage(), has_figures.then_some(usage));
        if self.effective_mode_for(cause.signal, facts) == EffectiveMode::Enforce {
            let why = Reason { signal: cause.signal.name(), cause: Some(*cause), description };
            self.begin_eviction(pod, terminator, why, facts, out, disruptions);
            return;
        }
        let until = now + observed_again(cause.signal);
        self.choices.rests.insert(cause.signal, until);
        let (signal, why) = (cause.signal.name(), cause.to_string());
        self.would_end(pod, signal, &why, &description.message, facts, out);
    }

    /// Reports what the agent would evict, at limited intervals.
    pub(super) fn would_end(
        &mut self,
        pod: &PodView,
        signal: &'static str,
        why: &str,
        message: &str,
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        if !self.choices.may_report(&pod.uid, signal, now) {
            return;
        }
        let pod = PodRef::of(pod);
        out.calls.log(false, Some(&pod), format!("would be evicted: {why}"));
        out.status.pressure.evictions.entry(signal).or_default().would += 1;
        *out.status.would_have.entry(WouldHave::Evict).or_default() += 1;
        let text = format!("It would be evicted: {message}");
        out.emit_pod_event(pod, WOULD_EVICT, &text);
    }

    /// The first pod in rank, if it exceeds its requests and only the kubelet terminates it.
    ///
    /// DIVERGES(upstream): the agent then leaves the signal to the kubelet. An eviction of the next
    /// pods would hit innocent pods, and keep the kubelet from the culprit. ([EV12])
    fn culprit_of_kubelet(
        &self,
        signal: Signal,
        layout: DiskLayout,
        ranked: &[&PodUsage],
        levers: Levers<'_>,
    ) -> Option<PodView> {
        let facts = levers.facts;
        let first = ranked.first().filter(|usage| exceeds_asks(signal, layout, usage))?;
        // The rank for tasks starts with priority: there the first pod must also have the most
        // tasks.
        let most = ranked.iter().all(|other| other.tasks <= first.tasks);
        let pod = facts.pods.get(&first.uid)?;
        let bare = pod.owner == Owner::None && facts.settings.bare_pods == BarePods::Leave;
        let counts = signal != Signal::PidAvailable || most;
        let left =
            bare && counts && !pod.is_to_end() && self.terminator_of(pod, true, levers).is_none();
        left.then(|| pod.clone())
    }

    fn leave_to_kubelet(&mut self, pod: &PodView, cause: &Cause, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let until = now + observed_again(cause.signal);
        self.choices.rests.insert(cause.signal, until);
        if !self.choices.may_report(&pod.uid, "left to the kubelet", now) {
            return;
        }
        let pod = PodRef::of(pod);
        let text = format!(
            "It is first in rank for {cause} and has no controller: it is left to the kubelet, and \
             no other pod is evicted in its place. Let the agent terminate such pods by \
             --bare-pods."
        );
        out.warn_of_pod(pod, LEFT_TO_KUBELET, &text);
    }

    /// Reports that no pod is evicted. Those that may be would each free so much.
    fn report_no_victim(&mut self, cause: &Cause, freed: &[u64], facts: &Facts, out: &mut Out) {
        let has_useless = !freed.is_empty();
        let lasts = if has_useless { OBSERVED_AGAIN } else { NO_VICTIM_LASTS };
        self.choices.rests.insert(cause.signal, facts.clock.monotonic() + lasts);
        let why = Some((cause.signal, has_useless));
        if std::mem::replace(&mut self.choices.no_victim, why) == why {
            return;
        }
        let quantity = |units| cause.signal.quantity(units);
        let text = match cause.shortage().filter(|_| has_useless) {
            None => format!("the agent may terminate no pod for {cause}"),
            Some(shortage) => format!(
                "no pod is evicted for {cause}: {} are missing, and the {} pods that may be \
                 evicted use {} together, each less than a hundredth of what is missing. Look for \
                 files that no pod is charged for, such as those of hostPath and local volumes, of \
                 the host's services, and of files that are deleted but still open",
                quantity(shortage.missing()),
                freed.len(),
                quantity(freed.iter().fold(0, |sum, each| sum.saturating_add(*each))),
            ),
        };
        out.calls.log(true, None, text);
    }

    /// How the agent can terminate the pod alongside a live kubelet; `None` if it may not.
    ///
    /// DIVERGES(upstream): the agent terminates a bare pod that may restart only where the operator
    /// allows it. Upstream evicts it and keeps its object; the agent could only delete it. ([EV12])
    pub(super) fn terminator_of(
        &self,
        pod: &PodView,
        in_haste: bool,
        levers: Levers<'_>,
    ) -> Option<Terminator> {
        let Levers { facts, refusals, disruptions } = levers;
        let now = facts.clock.monotonic();
        let own = facts.is_own(&pod.uid);
        let refused = self.choices.refused.get(&pod.uid).is_some_and(|until| now < *until);
        let terminating = disruptions.evicts(&pod.uid) || pod.is_to_end();
        // The pod's present condition is outdated, and must be removed first.
        let revoked = disruptions.removes(&pod.uid);
        if own || refused || terminating || revoked || pod.is_terminal() || is_critical(pod) {
            return None;
        }
        let allowed = |right: &str| !refusals.forbids(right);
        let may = |by: Terminator| by.right().is_none_or(allowed).then_some(by);
        if !allowed(PATCH_STATUS) {
            return None;
        }
        // With the grace of a soft threshold, a kubelet runs the hooks that the runtime does not
        // know.
        let hooks = pod.details.pre_stop && !in_haste && pod.owner != Owner::None;
        // The object stays, as after a kubelet's eviction.
        let ends = pod.ends_with_its_containers() && pod.sidecars.is_empty();
        if ends && facts.settings.runtime && !hooks {
            return Some(Terminator::Stop);
        }
        match (pod.owner, facts.settings.bare_pods) {
            // No controller would create it again.
            (Owner::None, BarePods::Leave) => None,
            (Owner::None, BarePods::DeadlineLever) => may(Terminator::Deadline),
            _ => may(Terminator::Delete),
        }
    }
}
