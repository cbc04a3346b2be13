//! What the agent knows and does about the end of each pod: one entry per pod, which outlives every
//! shutdown and cancel. After a boot the journal fills the table again.
//!
//! While a shutdown covers a pod, its entry holds the shutdown's calls, and while the pod is
//! evicted, those of the eviction. A shutdown that does not go on leaves the marks that it may have
//! set, and they are in question: the audit removes those that are untrue, and confirms those whose
//! pods were lost. A mark is untrue if its pod lives on: the
//! shutdown was cancelled, the eviction was not carried out, or the pod runs again after a boot.
//! The boot id and the runtime decide what has ended. A clock alone never makes a pod lost.
//! Conditions of other writers are not touched. ([AP19], [ST7], [W5])

mod cases;
mod finders;
mod reverted;
mod survivors;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::abandoned::AbandonedPod;
use super::calls::Calls;
use super::eviction::Victim;
use super::facts::{Facts, News};
use super::out::Out;
use super::stuck::StuckPod;
use super::writer::Recorded;
use crate::pod::{PodRef, PodUid, PodView};
use crate::protocol::event::Now;
use crate::termination::patches::stands;
use crate::termination::progress::{PodTermination, Terminator};

use cases::{Case, Why};
pub(super) use finders::CLOCKS_DIFFER;
use reverted::Written;
use survivors::Inspection;

/// A runtime that is silent for this long proves nothing. The kubelet waits for it, too.
const WITNESS_LASTS: Duration = Duration::from_mins(1);

/// So many marks that were found on a living pod are remembered.
const FOUND_MAX: usize = 32;

/// All entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Disruptions {
    pods: BTreeMap<PodUid, PodDisruption>,
    /// How many marks the recovery after a boot has written or removed.
    recovered: usize,
    /// Whether the first list was searched for pods that ran before this boot.
    sought_lost: bool,
}

/// What the agent knows and does about the end of one pod.
#[derive(Clone, Debug)]
pub(super) struct PodDisruption {
    pod: PodRef,
    /// What the shutdown that goes on does with the pod.
    pub(super) shutdown: Option<PodTermination>,
    /// Whether that shutdown's mark is in the journal, or on its way to it.
    pub(super) recorded: Option<Recorded>,
    /// Whether the pod had exited before that shutdown, as an earlier process found.
    pub(super) had_exited: bool,
    /// Its eviction, while that is in progress.
    pub(super) eviction: Option<Box<Victim>>,
    /// When it was first seen deleted, on CLOCK_MONOTONIC.
    pub(super) seen_deleted: Option<Duration>,
    /// What is known of it while it hangs after its deletion, and of what was done about that.
    pub(super) stuck: Option<Box<StuckPod>>,
    /// What is known of it while it may have lost its sandbox.
    pub(super) abandoned: Option<Box<AbandonedPod>>,
    past_mark: PastMark,
    history: History,
}

/// A mark that the shutdown that goes on has not set.
#[derive(Clone, Debug, Default)]
enum PastMark {
    /// There is nothing to do about a mark.
    #[default]
    Settled,
    /// Whether it is true is in question.
    InQuestion(Box<Case>),
    /// It was removed; one whose response was lost may still arrive late.
    Removed(Timestamp),
    /// It stays: a cancelled shutdown has stopped the pod, or its stop is under way.
    Kept(MarkedAt),
    /// The shutdown that goes on takes it over from an earlier one, and has not read the pod since.
    TakenOver(Timestamp),
}

/// When a mark was set, and whether the pod had run by then.
#[derive(Clone, Copy, Debug)]
struct MarkedAt {
    at: Timestamp,
    had_run: bool,
}

/// What was decided about the pod before.
#[derive(Clone, Debug, Default)]
struct History {
    /// A journal of an earlier boot explains the pod.
    is_explained: bool,
    /// The times of marks that were found on the living pod: the agent removes each of them once.
    found: BTreeSet<i64>,
    /// When its eviction ended: a kubelet may revert the phase for a moment. ([API16])
    eviction_ended_at: Option<Duration>,
    /// A runtime check of a pod that lives under a mark of ours.
    inspection: Option<Inspection>,
    /// The last write whose revert would show.
    written: Option<Written>,
}

impl History {
    /// Notes a mark on the living pod; returns whether it is new. Whoever may write the pod's
    /// status sets any number of them, so of many the oldest are forgotten: to remove one again
    /// harms nothing.
    fn note_found(&mut self, at: Timestamp) -> bool {
        let is_new = self.found.insert(at.as_second());
        let oldest = self.found.iter().copied().find(|it| *it != at.as_second());
        if let Some(oldest) = oldest.filter(|_| self.found.len() > FOUND_MAX) {
            self.found.remove(&oldest);
        }
        is_new
    }

    fn is_blank(&self) -> bool {
        let Self { is_explained, found, eviction_ended_at, inspection, written } = self;
        !is_explained
            && found.is_empty()
            && eviction_ended_at.is_none()
            && inspection.is_none()
            && written.is_none()
    }
}

impl PodDisruption {
    fn new(pod: PodRef) -> Self {
        Self {
            pod,
            shutdown: None,
            recorded: None,
            had_exited: false,
            eviction: None,
            seen_deleted: None,
            stuck: None,
            abandoned: None,
            past_mark: PastMark::Settled,
            history: History::default(),
        }
    }

    /// Whether the entry says nothing.
    fn is_blank(&self) -> bool {
        self.shutdown.is_none()
            && self.recorded.is_none()
            && !self.had_exited
            && self.eviction.is_none()
            && self.seen_deleted.is_none()
            && self.stuck.is_none()
            && self.abandoned.is_none()
            && matches!(self.past_mark, PastMark::Settled)
            && self.history.is_blank()
    }

    fn case(&self) -> Option<&Case> {
        if let PastMark::InQuestion(case) = &self.past_mark { Some(case) } else { None }
    }

    /// Whether the pod's condition has an explanation: it was removed, is in question, or stays.
    fn explains_mark(&self) -> bool {
        let is_open = !matches!(self.past_mark, PastMark::Settled | PastMark::TakenOver(_));
        is_open || self.history.is_explained
    }

    /// The time of a mark that the shutdown takes over.
    pub(super) fn taken_over(&self) -> Option<Timestamp> {
        if let PastMark::TakenOver(at) = self.past_mark { Some(at) } else { None }
    }

    /// Takes the mark from an earlier shutdown. A record of it is on the disk.
    pub(super) fn take_over(&mut self, at: Timestamp) {
        (self.past_mark, self.recorded) = (PastMark::TakenOver(at), Some(Recorded::durable(at)));
    }

    /// Ends the taking over, as the pod was read; returns the mark's time.
    pub(super) fn was_read(&mut self) -> Option<Timestamp> {
        let at = self.taken_over()?;
        self.past_mark = PastMark::Settled;
        Some(at)
    }

    /// A new shutdown takes over a condition that still stands. It is more urgent than all checks,
    /// and the journal keeps what is open.
    fn begin_shutdown(&mut self) {
        self.past_mark = match std::mem::take(&mut self.past_mark) {
            PastMark::InQuestion(case) => {
                case.stands_since().map_or(PastMark::Settled, PastMark::TakenOver)
            }
            PastMark::Removed(_) => PastMark::Settled,
            mark => mark,
        };
    }

    /// What the shutdown that does not go on may have marked is in question.
    fn leave_shutdown(&mut self, asks: bool, stays_stopped: impl Fn(&PodTermination) -> bool) {
        (self.recorded, self.had_exited) = (None, false);
        let taken_over = self.was_read();
        let termination = self.shutdown.take().filter(PodTermination::may_reach_api);
        let marked = |it: &PodTermination| MarkedAt { at: it.mark.at, had_run: it.mark.had_run };
        if let Some(stopped) = termination.as_ref().filter(|it| stays_stopped(it)) {
            self.past_mark = PastMark::Kept(marked(stopped));
            return;
        }
        let taken_over = taken_over.map(|at| MarkedAt { at, had_run: true });
        let Some(mark) = taken_over.or(termination.as_ref().map(marked)) else { return };
        let why = if asks { Why::Undecided(Duration::ZERO) } else { Why::Untrue };
        self.question(mark, why, None);
    }

    fn question(&mut self, mark: MarkedAt, why: Why, ask_until: Option<Duration>) {
        let case = Case::new(self.pod.clone(), mark, why, ask_until);
        self.past_mark = PastMark::InQuestion(Box::new(case));
    }
}

/// The entries, one by one.
impl Disruptions {
    pub(super) fn get(&self, uid: &PodUid) -> Option<&PodDisruption> {
        self.pods.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &PodUid) -> Option<&mut PodDisruption> {
        self.pods.get_mut(uid)
    }

    pub(super) fn entry(&mut self, pod: PodRef) -> &mut PodDisruption {
        self.pods.entry(pod.uid.clone()).or_insert_with(|| PodDisruption::new(pod))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PodDisruption> {
        self.pods.values_mut()
    }

    /// What the shutdown does with each pod that it covers.
    pub(super) fn covered(&self) -> impl Iterator<Item = &PodTermination> {
        self.pods.values().filter_map(|entry| entry.shutdown.as_ref())
    }

    pub(super) fn covered_mut(&mut self) -> impl Iterator<Item = &mut PodTermination> {
        self.pods.values_mut().filter_map(|entry| entry.shutdown.as_mut())
    }

    /// What the shutdown does with this pod, if it covers it.
    pub(super) fn covering(&self, uid: &PodUid) -> Option<&PodTermination> {
        self.pods.get(uid)?.shutdown.as_ref()
    }

    pub(super) fn covering_mut(&mut self, uid: &PodUid) -> Option<&mut PodTermination> {
        self.pods.get_mut(uid)?.shutdown.as_mut()
    }

    /// The pods whose eviction is in progress.
    pub(super) fn victims(&self) -> impl Iterator<Item = &Victim> {
        self.pods.values().filter_map(|entry| entry.eviction.as_deref())
    }

    /// What the eviction of this pod does, while it is in progress.
    pub(super) fn victim_mut(&mut self, uid: &PodUid) -> Option<&mut Victim> {
        self.pods.get_mut(uid)?.eviction.as_deref_mut()
    }

    /// Whether the pod's eviction is in progress.
    pub(super) fn evicts(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.eviction.is_some())
    }

    /// Pods that hang, or hung, after their deletion.
    pub(super) fn stuck(&self) -> impl Iterator<Item = &StuckPod> {
        self.pods.values().filter_map(|entry| entry.stuck.as_deref())
    }

    pub(super) fn stuck_mut(&mut self, uid: &PodUid) -> Option<&mut StuckPod> {
        self.pods.get_mut(uid)?.stuck.as_deref_mut()
    }

    fn cases(&self) -> impl Iterator<Item = &Case> {
        self.pods.values().filter_map(PodDisruption::case)
    }

    fn case_mut(&mut self, uid: &PodUid) -> Option<&mut Case> {
        match self.pods.get_mut(uid).map(|entry| &mut entry.past_mark) {
            Some(PastMark::InQuestion(case)) => Some(case),
            _ => None,
        }
    }
}

/// What others say of marks.
impl Disruptions {
    /// A shutdown begins: it takes over the conditions that still stand.
    pub(super) fn begin_shutdown(&mut self) {
        self.pods.values_mut().for_each(PodDisruption::begin_shutdown);
    }

    /// The shutdown does not go on. `asks`: whether an earlier process may have stopped pods that
    /// this one knows only by their marks, so that the runtime is asked.
    pub(super) fn leave_shutdown(&mut self, asks: bool, facts: &Facts, calls: &Calls) {
        for (uid, entry) in &mut self.pods {
            let pod = facts.pods.get(uid);
            let asks = asks && pod.is_none_or(PodView::ends_with_its_sandbox);
            // Pods that the runtime has stopped and that cannot run again are disrupted for good.
            entry.leave_shutdown(asks, |it| {
                it.end.by == Terminator::Stop
                    && (it.end.call.is_done() || calls.is_stopping(uid))
                    && pod.is_some_and(PodView::ends_with_its_sandbox)
            });
        }
    }

    /// Removes the condition that was set on the pod at `at`. The agent reads the pod first: the
    /// cached state may be older than the mark.
    pub(super) fn remove(&mut self, pod: PodRef, at: Timestamp) {
        self.entry(pod).question(MarkedAt { at, had_run: true }, Why::Untrue, None);
    }

    /// Removes the mark of an eviction that was given up.
    pub(super) fn remove_of_victim(&mut self, pod: PodRef, at: Timestamp) {
        self.entry(pod.clone()).history.note_found(at);
        self.remove(pod, at);
    }

    /// Checks a mark of a shutdown that went on to a reboot.
    pub(super) fn confirm(&mut self, pod: PodRef, at: Timestamp, had_run: bool) {
        let entry = self.entry(pod);
        entry.history.is_explained = true;
        entry.question(MarkedAt { at, had_run }, Why::Marked, None);
    }

    /// Asks the runtime whether a shutdown of this boot has stopped the pod. Until it answers, the
    /// mark stays as it is, and so does the journal: the next process asks, too.
    pub(super) fn ask_runtime(&mut self, pod: PodRef, at: Timestamp, had_run: bool) {
        let why = Why::Undecided(Duration::ZERO);
        self.entry(pod).question(MarkedAt { at, had_run }, why, None);
    }

    /// Records that the journal explains the pod: it ended before the shutdown, whatever the clock
    /// says.
    pub(super) fn explain(&mut self, pod: PodRef) {
        self.entry(pod).history.is_explained = true;
    }

    /// Records that an eviction has ended.
    pub(super) fn eviction_ended(&mut self, pod: PodRef, now: Duration) {
        self.entry(pod).history.eviction_ended_at = Some(now);
    }

    /// Adds a pod as lost; if the runtime can be asked, the runtime decides.
    fn add_lost(&mut self, pod: PodRef, why: Why, now: Now, ask: bool) {
        let entry = self.entry(pod);
        entry.history.is_explained = true;
        let ask_until = ask.then_some(now.monotonic + WITNESS_LASTS);
        entry.question(MarkedAt { at: now.wall, had_run: true }, why, ask_until);
    }
}

/// What the other parts ask.
impl Disruptions {
    /// Whether the pod's condition is being removed.
    pub(super) fn removes(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).and_then(PodDisruption::case).is_some_and(Case::is_removal)
    }

    /// The number of conditions that are being removed.
    pub(super) fn removals(&self) -> usize {
        self.cases().filter(|case| case.is_removal()).count()
    }

    /// The number of marks that are checked after a boot.
    pub(super) fn recoveries(&self) -> usize {
        self.cases().filter(|case| case.is_recovery()).count()
    }

    /// Whether the runtime is asked about marks of a shutdown of this boot that does not go on.
    pub(super) fn is_deciding(&self, facts: &Facts) -> bool {
        self.cases().any(|case| case.is_being_decided(facts))
    }
}

/// The audit of marks.
impl Disruptions {
    /// Takes what has changed.
    pub(super) fn follow(&mut self, news: &[News], facts: &Facts, out: &mut Out) {
        for news in news {
            match news {
                News::Pod(uid) => {
                    if let (Some(pod), Some(entry)) = (facts.pods.get(uid), self.get_mut(uid)) {
                        entry.note_reverted(pod, out);
                        entry.see_late(pod, facts.situation.runs);
                    }
                }
                News::PodGone(uid) => self.pod_gone(uid),
                _ => {}
            }
        }
    }

    fn pod_gone(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        // A recovery counts what is gone as checked.
        let recovers = entry.case().is_some_and(Case::is_recovery);
        if !recovers && entry.taken_over().is_none() {
            entry.past_mark = PastMark::Settled;
        }
        entry.history = History { is_explained: entry.history.is_explained, ..History::default() };
        (entry.seen_deleted, entry.stuck) = (None, None);
    }

    /// Finds marks that are in question, and advances those that are known.
    pub(super) fn audit(&mut self, facts: &Facts, out: &mut Out) {
        self.find_lost(facts, out);
        self.find_forgotten(facts, out);
        self.find_of_evictions(facts, out);
        // A case that is settled now may leave a mark on a survivor, and a survivor is a new case.
        self.advance_cases(facts, out);
        self.find_survivors(facts, out);
        self.advance_cases(facts, out);
        self.pods.retain(|_, entry| !entry.is_blank());
        if !facts.situation.runs && !facts.situation.journaled && !self.needs_journal(out) {
            out.journal.close();
        }
    }

    /// Whether the next process would have to know of a mark.
    fn needs_journal(&self, out: &Out) -> bool {
        let stopping = |it: &PodDisruption| {
            matches!(it.past_mark, PastMark::Kept(_)) && out.calls.is_stopping(&it.pod.uid)
        };
        self.pods.values().any(|entry| entry.case().is_some() || stopping(entry))
    }
}

impl PodDisruption {
    /// Removes a mark again that arrived after its removal. ([ST8])
    fn see_late(&mut self, pod: &PodView, shutdown_runs: bool) {
        let PastMark::Removed(at) = self.past_mark else { return };
        let late = stands(pod, at) && !shutdown_runs;
        if late {
            self.question(MarkedAt { at, had_run: true }, Why::Untrue, None);
        } else if pod.is_terminal() {
            self.past_mark = PastMark::Settled;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_marks_on_a_living_pod_the_oldest_are_forgotten_and_never_the_present_one() {
        let mut history = History::default();
        let at = |second| Timestamp::from_second(second).expect("a time in range");
        for second in 0..1_000 {
            assert!(history.note_found(at(second)));
            assert!(!history.note_found(at(second)), "it is known");
        }
        assert_eq!(history.found.len(), FOUND_MAX);
        // A mark with an early time may come late.
        assert!(history.note_found(at(1)) && !history.note_found(at(1)));
        assert_eq!(history.found.len(), FOUND_MAX);
    }
}
