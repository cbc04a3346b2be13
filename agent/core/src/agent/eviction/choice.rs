//! Which pod ends: what pods use is measured anew for each shortage, and the first in rank that
//! can be ended by us is the one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::Failure;

use super::super::Agent;
use super::super::disruption_target::{PATCH_STATUS, pod_ref};
use super::super::group_deletion::{DELETE, PATCH_PODS};
use super::super::notices::{LEFT_TO_KUBELET, WOULD_EVICT};
use super::super::outbox::Task;
use super::effective_mode::EffectiveMode;
use super::is_active;
use super::victim::Why;
use crate::pod::{Owner, PodUid, PodView};
use crate::pressure::message::describe;
use crate::pressure::rank::{exceeds_asks, rank};
use crate::pressure::signal::Signal;
use crate::pressure::usage::{DiskLayout, PodUsage, is_critical};
use crate::pressure::watch::Cause;
use crate::protocol::action::Action;
use crate::protocol::pressure::{Figures, PodFigures, Resource};
use crate::shutdown::candidates::BarePods;
use crate::termination::attempt::{Attempt, Pace};
use crate::termination::progress::Terminator;

/// Until what would be done about a signal is found out again, where it is only said.
const OBSERVED_AGAIN: Duration = Duration::from_secs(10);
/// The same of a disk: its pods' directories are walked.
const WALKED_AGAIN: Duration = Duration::from_mins(2);
/// Until a pod is said again to be the one that would end.
const REPORTED_LASTS: Duration = Duration::from_mins(10);
/// Until a choice is tried again that found nobody.
const NOBODY_AGAIN: Duration = Duration::from_secs(1);
/// Until a pod whose end could not be brought about may be chosen again.
const REFUSED_LASTS: Duration = Duration::from_mins(10);
const MEASURING: Pace = Pace { wait_max: Duration::from_secs(5), latest: None, salt: 5 };

/// What is measured for a choice, and what was chosen before.
#[derive(Debug, Default)]
pub(super) struct Choices {
    asks: BTreeMap<Resource, Ask>,
    /// Until when nothing is chosen for a signal.
    rests: BTreeMap<Signal, Duration>,
    /// What was said of pods, and until when it is not said again.
    reported: BTreeMap<(PodUid, &'static str), Duration>,
    /// Pods whose end could not be brought about, and until when they are not tried again.
    refused: BTreeMap<PodUid, Duration>,
    nobody: Option<Signal>,
}

/// A measurement of pods under way, or one that failed.
#[derive(Debug, Default)]
struct Ask {
    attempt: Attempt,
    /// The pods, where it is of all that there were: only then can they be ranked.
    all: Option<BTreeSet<PodUid>>,
}

impl Choices {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.reported.retain(|(other, _), _| other != uid);
        self.refused.remove(uid);
    }

    pub(super) fn refuse(&mut self, uid: PodUid, now: Duration) {
        self.refused.insert(uid, now + REFUSED_LASTS);
    }

    /// Whether the pod may be told of under this name now; then it is not for some time.
    pub(super) fn may_report(&mut self, uid: &PodUid, name: &'static str, now: Duration) -> bool {
        let key = (uid.clone(), name);
        if self.reported.get(&key).is_some_and(|until| now < *until) {
            return false;
        }
        self.reported.insert(key, now + REPORTED_LASTS);
        true
    }
}

/// What of its pods a signal is about.
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

impl Agent {
    /// Asks for what a choice needs, as soon as there is a cause.
    pub(super) fn choose_on(&mut self) {
        // What is only said, or finds nobody, does not keep the next cause waiting.
        let causes = self.evictions.causes();
        if let Some(cause) = causes.into_iter().find(|cause| self.may_choose_for(cause)) {
            let pods = self.pods.iter().filter(|pod| is_active(pod));
            let pods = pods.map(|pod| pod.uid.clone()).collect();
            self.ask(resource(cause.signal), pods, true);
        }
    }

    fn may_choose_for(&self, cause: &Cause) -> bool {
        let still = matches!(self.effective_mode_for(cause.signal), EffectiveMode::Still(_));
        if still || self.stop_at.is_some() || !self.pods.is_listed() {
            return false;
        }
        // What a pod's own limit frees, the node need not. ([EV26])
        if resource(cause.signal) == Resource::Disk && self.ends_for_own_limits() {
            return false;
        }
        let rests = self.evictions.choices.rests.get(&cause.signal);
        rests.is_none_or(|until| self.clock.reached(*until))
    }

    /// Has pods measured, one measurement of a resource at a time.
    pub(super) fn ask(&mut self, of: Resource, pods: Vec<PodUid>, all: bool) {
        let ask = self.evictions.choices.asks.entry(of).or_default();
        let waits = ask.attempt.is_open() && !ask.attempt.is_due(&self.clock);
        if ask.attempt.is_in_flight() || waits {
            return;
        }
        ask.attempt.want_again();
        ask.attempt.sent();
        ask.all = all.then(|| pods.iter().cloned().collect());
        self.outbox.send(Task::MeasurePods(of), Action::MeasurePods { of, pods });
    }

    pub(in super::super) fn pods_measured(
        &mut self,
        of: Resource,
        result: Result<Figures, Failure>,
    ) {
        let now = self.clock.monotonic();
        let ask = self.evictions.choices.asks.entry(of).or_default();
        let figures = match result {
            Ok(figures) => figures,
            // Without figures nothing is evicted. ([EV7])
            Err(failure) => {
                ask.attempt.failed(now, MEASURING, Some(&failure));
                let text = format!("what pods use cannot be measured: {failure}");
                self.outbox.log(true, None, text);
                return;
            }
        };
        let Ask { all, .. } = std::mem::take(ask);
        if self.stands_still() {
            return;
        }
        if of == Resource::Disk {
            self.end_for_own_limits(&figures);
        }
        let Some(asked) = all else { return };
        // The shortage may be over by now, or be another.
        let causes = self.evictions.causes();
        let is_asked_for = |cause: &Cause| resource(cause.signal) == of;
        let mut causes = causes.into_iter().filter(is_asked_for);
        if let Some(cause) = causes.find(|cause| self.may_choose_for(cause)) {
            self.choose(&cause, &figures, &asked);
        }
    }

    fn choose(&mut self, cause: &Cause, figures: &Figures, asked: &BTreeSet<PodUid>) {
        let now = self.clock.monotonic();
        let of_disk = resource(cause.signal) == Resource::Disk;
        let known = |of: &PodFigures| of.disk.is_some() || of.inodes.is_some();
        if of_disk && !figures.values().any(known) {
            let text = format!("what pods have on disk is not known, for {cause}");
            self.outbox.log(true, None, text);
            self.evictions.choices.rests.insert(cause.signal, now + NOBODY_AGAIN);
            return;
        }
        let layout = self.evictions.layout.unwrap_or(DiskLayout::Single);
        // DIVERGES(upstream): a pod that never ran has nothing to give, and is not ended. The
        // reference takes it for one without figures, which go first, and waits for its end while
        // the shortage goes on. Nor is one that came while the others were measured: that it has no
        // figures says nothing of it. ([EV11])
        //
        // DIVERGES(upstream): for a disk only a pod ends of which it is known what it has there.
        // The runtime's word on layers may be older than the pod; upstream has all figures in
        // one answer, and ends who is missing in it first. ([EV11])
        let uses = |pod: &&PodView| match figures.get(&pod.uid) {
            Some(figures) => !of_disk || known(figures),
            None => !of_disk && pod.has_run && asked.contains(&pod.uid),
        };
        let active = self.pods.iter().filter(|pod| is_active(pod)).filter(uses);
        let usages: Vec<PodUsage> =
            active.map(|pod| PodUsage::of(pod, figures.get(&pod.uid))).collect();
        let ranked = rank(cause.signal, layout, &usages);
        if let Some(pod) = self.culprit_of_kubelet(cause.signal, layout, &ranked) {
            self.stand_aside(&pod, cause);
            return;
        }
        let chosen = ranked.into_iter().find_map(|usage| {
            let pod = self.pods.get(&usage.uid)?;
            let terminator = self.terminator_of(pod, cause.is_hard())?;
            Some((pod.clone(), terminator, usage))
        });
        let Some((pod, terminator, usage)) = chosen else {
            self.nobody_to_end(cause);
            return;
        };
        self.evictions.choices.nobody = None;
        let has_figures = figures.contains_key(&usage.uid);
        let description = describe(cause.signal, cause.shortage(), has_figures.then_some(usage));
        if self.effective_mode_for(cause.signal) == EffectiveMode::Enforce {
            let why = Why { signal: cause.signal.name(), cause: Some(*cause), description };
            self.begin_eviction(&pod, terminator, why);
            return;
        }
        let until = now + observed_again(cause.signal);
        self.evictions.choices.rests.insert(cause.signal, until);
        self.would_end(&pod, cause.signal.name(), &cause.to_string(), &description.message);
    }

    /// Says what would be done, once in a while.
    pub(super) fn would_end(
        &mut self,
        pod: &PodView,
        signal: &'static str,
        why: &str,
        message: &str,
    ) {
        let now = self.clock.monotonic();
        if !self.evictions.choices.may_report(&pod.uid, signal, now) {
            return;
        }
        let pod = pod_ref(pod);
        self.outbox.log(false, Some(&pod), format!("would be evicted: {why}"));
        self.status.pressure.evictions.entry(signal).or_default().would += 1;
        let text = format!("It would be evicted: {message}");
        self.emit_pod_event(pod, WOULD_EVICT, &text);
    }

    /// The first in rank, if it takes more than it asked for and only the kubelet ends it.
    ///
    /// DIVERGES(upstream): then the signal is left to the kubelet. Whoever ended the next ones
    /// would end pods that did nothing, and keep the kubelet from the one that did. ([EV12])
    fn culprit_of_kubelet(
        &self,
        signal: Signal,
        layout: DiskLayout,
        ranked: &[&PodUsage],
    ) -> Option<PodView> {
        let first = ranked.first().filter(|usage| exceeds_asks(signal, layout, usage))?;
        // Tasks go by priority first: there the first is the culprit only if it has the most.
        let most = ranked.iter().all(|other| other.tasks <= first.tasks);
        let pod = self.pods.get(&first.uid)?;
        let bare = pod.owner == Owner::None && self.settings.bare_pods == BarePods::Leave;
        let counts = signal != Signal::PidAvailable || most;
        let left = bare && counts && !pod.is_to_end() && self.terminator_of(pod, true).is_none();
        left.then(|| pod.clone())
    }

    fn stand_aside(&mut self, pod: &PodView, cause: &Cause) {
        let now = self.clock.monotonic();
        let until = now + observed_again(cause.signal);
        self.evictions.choices.rests.insert(cause.signal, until);
        if !self.evictions.choices.may_report(&pod.uid, "left to the kubelet", now) {
            return;
        }
        let pod = pod_ref(pod);
        let text = format!(
            "It is first in rank for {cause} and has no controller: it is left to the kubelet, \
             and no other pod is evicted in its place. Let the agent end such pods by --bare-pods."
        );
        self.outbox.log(true, Some(&pod), text.clone());
        self.emit_pod_event(pod, LEFT_TO_KUBELET, &text);
    }

    fn nobody_to_end(&mut self, cause: &Cause) {
        let until = self.clock.monotonic() + NOBODY_AGAIN;
        self.evictions.choices.rests.insert(cause.signal, until);
        if self.evictions.choices.nobody.replace(cause.signal) != Some(cause.signal) {
            let text = format!("no pod can be ended by us for {cause}");
            self.outbox.log(true, None, text);
        }
    }

    /// How the pod can be ended by us; none if it is not ours to end. A kubelet lives beside us.
    ///
    /// DIVERGES(upstream): a bare pod that may restart is only ours to end where the operator has
    /// said so. Upstream ends it, and keeps its object; we could only delete it. ([EV12])
    pub(super) fn terminator_of(&self, pod: &PodView, in_haste: bool) -> Option<Terminator> {
        let now = self.clock.monotonic();
        let evictions = &self.evictions;
        let own = self.settings.own_pod.as_ref() == Some(&pod.uid);
        let refused = evictions.choices.refused.get(&pod.uid).is_some_and(|until| now < *until);
        let terminating = evictions.victims.contains_key(&pod.uid) || pod.is_to_end();
        // What it bears now is of before, and goes first.
        let revoked = self.revoked_marks.has(&pod.uid);
        if own || refused || terminating || revoked || pod.is_terminal() || is_critical(pod) {
            return None;
        }
        let may = |verb| !self.refusals.forbids(verb);
        if !may(PATCH_STATUS) {
            return None;
        }
        // With the time of a soft threshold a kubelet runs the hooks that the runtime knows not of.
        let hooks = pod.details.pre_stop && !in_haste && pod.owner != Owner::None;
        // The object stays, as a kubelet's eviction leaves it.
        if pod.cannot_run_again() && pod.sidecars.is_empty() && self.settings.runtime && !hooks {
            return Some(Terminator::Stop);
        }
        match (pod.owner, self.settings.bare_pods) {
            // Nobody would create it again.
            (Owner::None, BarePods::Leave) => None,
            (Owner::None, BarePods::DeadlineLever) => {
                may(PATCH_PODS).then_some(Terminator::Deadline)
            }
            _ => may(DELETE).then_some(Terminator::Delete),
        }
    }
}
