//! Audits the `DisruptionTarget` conditions that agents of this node have set: removes those that
//! are untrue, and confirms those whose pods were lost. Conditions of other writers are not
//! touched.
//!
//! A mark is untrue if its pod lives on: the shutdown was cancelled, the eviction was not carried
//! out, or the pod runs again after a boot. The boot id and the runtime decide what has ended. A
//! clock alone never makes a pod lost. ([AP19], [ST7], [W5])

mod cases;
mod finders;
mod reverted;
mod survivors;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::calls::Task;
use super::facts::{Facts, News};
use super::out::Out;
use crate::pod::{PodRef, PodUid, PodView};
use crate::protocol::event::{ActionResult, Now};
use crate::termination::patches::stands;

use cases::{Case, Why};
pub(super) use finders::CLOCKS_DIFFER;
use reverted::RevertedWrites;
use survivors::Survivors;

/// A runtime that is silent for this long proves nothing. The kubelet waits for it, too.
const WITNESS_LASTS: Duration = Duration::from_mins(1);

/// All marks that are in question, and what was decided about others.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnMarks {
    cases: BTreeMap<PodUid, Case>,
    /// How many marks the recovery after a boot has written or removed.
    recovered: usize,
    /// Pods that a journal of an earlier boot explains.
    explained: BTreeSet<PodUid>,
    /// Removed marks, because a mark whose response was lost may still arrive late.
    removed: BTreeMap<PodUid, (PodRef, Timestamp)>,
    /// Pods that stay marked: a cancelled shutdown has stopped them, or its stop is under way. With
    /// the mark's time, and whether the pod had run by then.
    kept: BTreeMap<PodUid, (PodRef, Timestamp, bool)>,
    /// Marks that were found on living pods: the agent removes each of them once.
    found: BTreeSet<(PodUid, i64)>,
    /// Victims that have ended: a kubelet may revert the phase for a moment. ([API16])
    ended_victims: BTreeMap<PodUid, Duration>,
    /// Whether the first list was searched for pods that ran before this boot.
    sought_lost: bool,
    survivors: Survivors,
    reverted: RevertedWrites,
}

impl OwnMarks {
    /// Removes the condition that was set on the pod at `at`. The agent reads the pod first: the
    /// cached state may be older than the mark.
    pub(super) fn remove(&mut self, pod: PodRef, at: Timestamp) {
        self.add((pod, at, true), Why::Untrue, false, Duration::ZERO);
    }

    /// Removes the mark of an eviction that was given up.
    pub(super) fn remove_of_victim(&mut self, pod: PodRef, at: Timestamp) {
        self.found.insert((pod.uid.clone(), at.as_second()));
        self.remove(pod, at);
    }

    /// Checks a mark of a shutdown that went on to a reboot.
    pub(super) fn confirm(&mut self, pod: PodRef, at: Timestamp, had_run: bool) {
        self.explained.insert(pod.uid.clone());
        self.add((pod, at, had_run), Why::Marked, false, Duration::ZERO);
    }

    /// Asks the runtime whether a shutdown of this boot has stopped the pod. Until it answers, the
    /// mark stays as it is, and so does the journal: the next process asks, too.
    pub(super) fn sort(&mut self, pod: PodRef, at: Timestamp, had_run: bool) {
        self.sort_from(Duration::ZERO, pod, at, had_run);
    }

    fn sort_from(&mut self, from: Duration, pod: PodRef, at: Timestamp, had_run: bool) {
        self.add((pod, at, had_run), Why::Unsorted(from), true, Duration::ZERO);
    }

    /// Records that the journal explains the pod: it ended before the shutdown, whatever the clock
    /// says.
    pub(super) fn explain(&mut self, uid: PodUid) {
        self.explained.insert(uid);
    }

    /// Keeps the pod's condition. If the pod runs anyway, a runtime check finds it.
    /// (`survivors.rs`)
    pub(super) fn keep(&mut self, pod: PodRef, at: Timestamp, had_run: bool) {
        self.kept.insert(pod.uid.clone(), (pod, at, had_run));
    }

    /// Records that an eviction has ended.
    pub(super) fn victim_ended(&mut self, uid: PodUid, now: Duration) {
        self.ended_victims.insert(uid, now);
    }

    fn add(&mut self, mark: (PodRef, Timestamp, bool), why: Why, asks: bool, ask_until: Duration) {
        self.cases.insert(mark.0.uid.clone(), Case::new(mark, why, asks, ask_until));
    }

    /// Adds a pod as lost; if the runtime can be asked, the runtime decides.
    fn add_lost(&mut self, pod: PodRef, why: Why, now: Now, ask: bool) {
        self.explained.insert(pod.uid.clone());
        self.add((pod, now.wall, true), why, ask, now.monotonic + WITNESS_LASTS);
    }

    /// Returns the conditions that still stand; a new shutdown takes them over. It is more urgent
    /// than all checks, and the journal keeps what is open.
    pub(super) fn hand_over(&mut self) -> BTreeMap<PodUid, (PodRef, Timestamp)> {
        self.removed.clear();
        let cases = std::mem::take(&mut self.cases).into_iter();
        cases.filter_map(|(uid, case)| Some((uid, case.stands_since()?))).collect()
    }

    /// Whether the pod's condition is being removed.
    pub(super) fn removes(&self, uid: &PodUid) -> bool {
        self.cases.get(uid).is_some_and(Case::is_removal)
    }

    /// The number of conditions that are being removed.
    pub(super) fn removals(&self) -> usize {
        self.cases.values().filter(|case| case.is_removal()).count()
    }

    /// The number of marks that are checked after a boot.
    pub(super) fn recoveries(&self) -> usize {
        self.cases.values().filter(|case| case.is_recovery()).count()
    }

    /// Whether the runtime is asked about marks of a shutdown of this boot that does not go on.
    pub(super) fn is_sorting(&self, facts: &Facts) -> bool {
        self.cases.values().any(|case| case.is_being_sorted(facts))
    }

    /// Takes what has changed.
    pub(super) fn follow(&mut self, news: &[News], facts: &Facts, out: &mut Out) {
        for news in news {
            match news {
                News::Pod(uid) => {
                    if let Some(pod) = facts.pods.get(uid) {
                        self.reverted.see(pod, out);
                        self.see_late(pod, facts);
                    }
                }
                News::PodGone(uid) => self.pod_gone(uid),
                _ => {}
            }
        }
    }

    /// Records a finished write, if it is acknowledged.
    pub(super) fn note_written(&mut self, task: &Task, result: &ActionResult, facts: &Facts) {
        self.reverted.note_written(task, result, facts);
    }

    fn pod_gone(&mut self, uid: &PodUid) {
        // A recovery counts what is gone as checked.
        if self.cases.get(uid).is_some_and(|case| !case.is_recovery()) {
            self.cases.remove(uid);
        }
        self.removed.remove(uid);
        self.kept.remove(uid);
        self.found.retain(|(other, _)| other != uid);
        self.ended_victims.remove(uid);
        self.survivors.pod_gone(uid);
        self.reverted.pod_gone(uid);
    }

    /// Finds marks that are in question, and advances those that are known. `evicts` tells which
    /// pods' evictions are in progress.
    pub(super) fn audit(&mut self, facts: &Facts, out: &mut Out, evicts: &dyn Fn(&PodUid) -> bool) {
        self.find_lost(facts, out);
        self.find_forgotten(facts, out);
        self.find_of_evictions(facts, out, evicts);
        // A case that is settled now may leave a mark on a survivor, and a survivor is a new case.
        self.advance_cases(facts, out);
        self.find_survivors(facts, out, evicts);
        self.advance_cases(facts, out);
        let open = !self.cases.is_empty() || self.kept.keys().any(|uid| out.calls.is_stopping(uid));
        if !facts.situation.runs && !facts.situation.journaled && !open {
            out.journal.close();
        }
    }

    /// Removes a mark again that arrived after its removal. ([ST8])
    fn see_late(&mut self, pod: &PodView, facts: &Facts) {
        let Some((_, at)) = self.removed.get(&pod.uid) else { return };
        let late = stands(pod, *at) && !facts.situation.runs;
        if !late && !pod.is_terminal() {
            return;
        }
        if let Some((pod, at)) = self.removed.remove(&pod.uid).filter(|_| late) {
            self.remove(pod, at);
        }
    }
}
