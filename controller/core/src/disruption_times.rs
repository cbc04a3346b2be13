//! Measures disruptions: how long after the first sign of it each phase was reached.
//!
//! It takes what the watches show of the pods of our Jobs, at the time at which they showed it. The
//! API's own times are whole seconds, so they stand in only where nothing else is known. Nothing
//! follows from it but figures.

mod lost_work;
mod open;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use self::lost_work::{lost_work, run_time};
use self::open::{Open, OpenDisruptions};
use crate::job::{Cause, replaces_early};
use crate::view::{Job, Phase as PodPhase, Pod, Said, Uid};

/// A disruption is forgotten after this time, whatever is still to come of it.
const OPEN_FOR: SignedDuration = SignedDuration::from_hours(1);

/// What disrupted a pod, as far as its status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Its node shuts down.
    Shutdown,
    /// Its node is short of a resource.
    Pressure,
    /// The Eviction API, as in a drain.
    Drain,
    /// A pod of a higher priority.
    Preemption,
    /// A taint with NoExecute.
    Taint,
    /// Pod GC.
    PodGc,
    /// Its node is gone, or has lost it.
    LostNode,
    /// Anything else.
    Other,
}

/// What a disruption comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The end of its containers that was announced: the length of the warning.
    Notice,
    /// DisruptionTarget is True.
    Marked,
    /// Its containers have ended.
    Ended,
    /// Its phase is terminal, or it is gone.
    Reported,
    /// The pod that takes its place is there.
    Replaced,
    /// The pod that takes its place runs.
    Running,
}

/// A phase that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// What disrupted the pod.
    pub source: Source,
    /// What was reached.
    pub phase: Phase,
    /// How long after the first sign.
    pub after: Duration,
}

/// What one change of a pod shows of disruptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observations {
    /// Phases that were reached, in this order.
    pub phases: Vec<Observation>,
    /// The run time of containers that a disruption ended.
    pub lost_work: Vec<(Source, Duration)>,
    /// How long no pod ran in a place: from the end of the containers to the running pod that took
    /// it; zero where that ran before.
    pub gaps: Vec<(Source, Duration)>,
}

/// A change of a pod that a Job of ours controls.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// The pod before; `None` if it was not known.
    pub before: Option<&'a Pod>,
    /// The pod now; `None` if it is gone.
    pub after: Option<&'a Pod>,
    /// Its Job.
    pub job: &'a Job,
    /// When it was first seen that the pod's node shuts down.
    pub node_sign: Option<Timestamp>,
    /// Whether a list shows it, which may be long after it happened.
    pub is_listed: bool,
}

/// The disruptions that are not over. It holds at most [`Self::OPEN_MAX`] of them, and nothing of
/// pods that are not disrupted.
#[derive(Clone, Debug, Default)]
pub struct DisruptionTimes(OpenDisruptions);

impl Source {
    /// All sources.
    pub const ALL: [Self; 8] = [
        Self::Shutdown,
        Self::Pressure,
        Self::Drain,
        Self::Preemption,
        Self::Taint,
        Self::PodGc,
        Self::LostNode,
        Self::Other,
    ];

    /// The name, as the value of a label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Pressure => "pressure",
            Self::Drain => "drain",
            Self::Preemption => "preemption",
            Self::Taint => "taint",
            Self::PodGc => "pod-gc",
            Self::LostNode => "lost-node",
            Self::Other => "other",
        }
    }

    /// The source of the disruption that a pod is marked for.
    pub fn of(pod: &Pod) -> Self {
        let says = pod.gc.target().map_or(Said::Other, |target| target.says);
        match Cause::of_disruption(pod) {
            Cause::EvictionByEvictionApi => Self::Drain,
            Cause::PreemptionByScheduler => Self::Preemption,
            Cause::DeletionByTaintManager => Self::Taint,
            Cause::DeletionByPodGc if pod.gc.ended() == Some("NodeGone") => Self::LostNode,
            Cause::DeletionByPodGc => Self::PodGc,
            Cause::LostByNode => Self::LostNode,
            Cause::TerminationByKubelet => match says {
                Said::Shutdown => Self::Shutdown,
                Said::Pressure => Self::Pressure,
                Said::Preemption => Self::Preemption,
                Said::Loss => Self::LostNode,
                Said::Other => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// Whether a shutdown of the node is a sign of it. A node may go away while it is drained.
    fn follows_shutdown(self) -> bool {
        matches!(self, Self::Shutdown | Self::PodGc | Self::LostNode)
    }
}

impl Phase {
    /// All phases, in their usual order.
    pub const ALL: [Self; 6] =
        [Self::Notice, Self::Marked, Self::Ended, Self::Reported, Self::Replaced, Self::Running];

    /// The name, as the value of a label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Marked => "marked",
            Self::Ended => "ended",
            Self::Reported => "reported",
            Self::Replaced => "replaced",
            Self::Running => "running",
        }
    }
}

impl Observations {
    /// Whether nothing was reached.
    pub fn is_empty(&self) -> bool {
        self.phases.is_empty() && self.lost_work.is_empty() && self.gaps.is_empty()
    }

    /// Adds those of another change.
    pub(crate) fn and(&mut self, more: Self) {
        self.phases.extend(more.phases);
        self.lost_work.extend(more.lost_work);
        self.gaps.extend(more.gaps);
    }

    /// Once it is known when the containers ended and when the next ones ran.
    fn gap(&mut self, of: &Open) {
        if let (Some(ended), Some(ran)) = (of.ended, of.ran) {
            self.gaps.push((of.source, span(ended, ran)));
        }
    }

    fn reached(&mut self, phase: Phase, of: &Open, at: Timestamp) {
        let after = span(of.sign, at);
        self.phases.push(Observation { source: of.source, phase, after });
    }
}

impl DisruptionTimes {
    /// The most disruptions that are kept; beyond it, the oldest is forgotten.
    pub const OPEN_MAX: usize = open::OPEN_MAX;

    /// Whether a change of this pod may concern any. Of a pod that is not disrupted this costs next
    /// to nothing.
    pub fn concerns(&self, pod: &Pod) -> bool {
        pod.is_target() || !self.0.is_empty()
    }

    /// Takes a change of a pod.
    pub fn see(&mut self, sight: &Sight<'_>, now: Timestamp) -> Observations {
        let mut seen = Observations::default();
        self.0.expire(now.checked_sub(OPEN_FOR).unwrap_or(Timestamp::MIN));
        self.follow_replacement(sight, now, &mut seen);
        self.mark(sight, now, &mut seen);
        self.follow(sight, now, &mut seen);
        self.replace(sight, now, &mut seen);
        seen
    }

    /// Notice was given of the end of a pod's node, and its Job replaces pods by that: its place is
    /// free from now on.
    pub fn notice(&mut self, pod: &Pod, job: &Job, now: Timestamp) {
        if self.0.of_pod(&pod.uid).is_none() {
            let number = self.0.insert(Open::new(pod, job, Source::Shutdown, now));
            self.0.wait(number);
        }
    }

    /// The notice was withdrawn. What has its mark by now stays disrupted.
    pub fn withdraw(&mut self, pod: &Uid) {
        if let Some((number, open)) = self.0.of_pod(pod)
            && !open.is_marked
        {
            self.0.forget(number);
        }
    }

    /// Forgets the disruptions of a Job that makes no more pods.
    pub fn job_rests(&mut self, job: &Job) {
        self.0.forget_job(&job.uid);
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A pod gets its mark: a disruption opens. What had ended before is not disrupted any more,
    /// and a pod that was not active when it was first seen may be replaced already.
    fn mark(&mut self, sight: &Sight<'_>, now: Timestamp, seen: &mut Observations) {
        let Some(pod) = sight.after.filter(|pod| pod.is_target()) else { return };
        let is_news = match sight.before {
            Some(before) => !before.is_target() && !before.is_terminal(),
            None => pod.is_active(),
        };
        if !is_news || sight.job.is_finished() {
            return;
        }
        let source = Source::of(pod);
        let since = pod.gc.target().and_then(|target| target.since);
        let marked = since.filter(|_| sight.is_listed).map_or(now, |since| since.min(now));
        if let Some((_, open)) = self.0.of_pod(&pod.uid).filter(|(_, open)| !open.is_marked) {
            (open.is_marked, open.source) = (true, source);
            return seen.reached(Phase::Marked, open, marked);
        }
        let signed = sight.node_sign.filter(|_| source.follows_shutdown());
        let signed = signed.map(|at| pod.created.map_or(at, |created| at.max(created)));
        let sign = signed.map_or(marked, |signed| signed.min(marked));
        let open = Open { sign, is_marked: true, ..Open::new(pod, sight.job, source, now) };
        seen.reached(Phase::Marked, &open, marked);
        let number = self.0.insert(open);
        if replaces_early(sight.job) && pod.group.is_none() {
            self.0.wait(number);
        }
    }

    /// What becomes of a pod that is marked. A mark that is taken back ends nothing.
    fn follow(&mut self, sight: &Sight<'_>, now: Timestamp, seen: &mut Observations) {
        let Some(last) = sight.after.or(sight.before) else { return };
        let Some((number, open)) = self.0.of_pod(&last.uid) else { return };
        if open.is_reported {
            return;
        }
        if let Some(ends_at) = last.gc.ends_at().filter(|_| !open.has_notice) {
            open.has_notice = true;
            seen.reached(Phase::Notice, open, ends_at);
        }
        let is_over = sight.after.is_none_or(Pod::is_terminal);
        if is_over && !open.is_marked {
            // It ended by itself before its node did.
            return self.0.forget(number);
        }
        if is_over {
            report(open, sight, now, seen);
        }
        let needs_none = last.phase == PodPhase::Succeeded && open.replacement.is_none();
        let is_taken_back = open.is_marked && !is_over && !last.is_target();
        if open.is_done() || needs_none || is_taken_back {
            self.0.forget(number);
        } else if open.replacement.is_none() && (is_over || !last.is_active()) {
            self.0.wait(number);
        }
    }

    /// A new pod takes the place of one that was disrupted.
    fn replace(&mut self, sight: &Sight<'_>, now: Timestamp, seen: &mut Observations) {
        let new = sight.after.filter(|pod| sight.before.is_none() && !pod.is_target());
        let Some(pod) = new else { return };
        let index = pod.index.filter(|_| sight.job.is_indexed());
        let Some(open) = self.0.replace(&sight.job.uid, index, &pod.uid) else { return };
        if !open.was_replaced {
            open.was_replaced = true;
            seen.reached(Phase::Replaced, open, now);
        }
        self.follow_replacement(sight, now, seen);
    }

    /// What becomes of a pod that took the place of another. Where it ends before it runs, the next
    /// one takes over; where it was disrupted itself, that is a disruption of its own.
    fn follow_replacement(&mut self, sight: &Sight<'_>, now: Timestamp, seen: &mut Observations) {
        let Some(last) = sight.after.or(sight.before) else { return };
        let Some((number, open)) = self.0.of_replacement(&last.uid) else { return };
        if open.ran.is_some() {
            return;
        }
        if matches!(last.phase, PodPhase::Running | PodPhase::Succeeded) {
            open.ran = Some(now);
            seen.reached(Phase::Running, open, now);
            seen.gap(open);
            if open.is_done() {
                self.0.forget(number);
            }
        } else if last.is_target() {
            self.0.forget(number);
        } else if sight.after.is_none() || !last.is_active() {
            self.0.wait(number);
        }
    }
}

/// A pod is terminal, or gone.
fn report(open: &mut Open, sight: &Sight<'_>, now: Timestamp, seen: &mut Observations) {
    let Some(last) = sight.after.or(sight.before) else { return };
    open.is_reported = true;
    let finished = last.containers_finished_at().map(|at| at.min(now));
    if let Some(ended) = finished.or(sight.after.map(|_| now)) {
        seen.reached(Phase::Ended, open, ended);
        open.ended = Some(ended).filter(|_| last.phase != PodPhase::Succeeded);
        seen.gap(open);
    }
    seen.reached(Phase::Reported, open, now);
    if let Some(work) = lost_work(last, last.gc.first_start(), now, now) {
        seen.lost_work.push((open.source, work));
    }
}

/// The time between two; zero if clocks disagree about their order.
pub fn span(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}
