//! What the journal tells at the start, and what follows from it. (spec/node-agent.md §9.6)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::Timestamp;

use super::Agent;
use super::outbox::Task;
use super::release::Release;
use super::run::{Begin, Recorded, Run};
use crate::ending::attempt::Attempt;
use crate::pod::PodUid;
use crate::protocol::action::{Action, PodRef};
use crate::protocol::event::{RuntimeState, ShutdownKind};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::Mode;

/// A run, as the journal tells it.
#[derive(Debug)]
pub(super) struct Past {
    boot_id: String,
    /// CLOCK_BOOTTIME at the signal.
    pub(super) at: Duration,
    pub(super) wall: Timestamp,
    pub(super) granted: Duration,
    pub(super) mode: Mode,
    pub(super) kind: Option<ShutdownKind>,
    released: bool,
    pods: BTreeMap<PodUid, PastPod>,
    /// Looks into the runtime at pods that may have been stopped; none until it is known which.
    looks: Option<BTreeMap<PodUid, Attempt>>,
}

/// What was done to a pod.
#[derive(Clone, Debug)]
struct PastPod {
    pod: PodRef,
    marked_at: Option<Timestamp>,
    /// Whether its containers had run when it was marked.
    had_run: bool,
    /// Whether it was to be ended.
    ends: bool,
    /// Whether all its containers had exited before the run.
    had_exited: bool,
    acknowledged: BTreeSet<Intent>,
}

impl Past {
    /// The run goes on where it was: its marks carry the times that they had.
    pub(super) fn restore(&self, run: &mut Run) {
        for (pod, at) in self.marked() {
            run.recorded.insert(pod.uid.clone(), Recorded::durable(at));
            run.carried.insert(pod.uid.clone(), (pod, at));
        }
        run.mode_is_final = self.pods.values().any(|pod| pod.acknowledged.contains(&Intent::End));
        if self.released {
            run.release = Release::Released;
        }
    }

    /// The pods that bear a mark of the run, as far as is known.
    fn marked(&self) -> impl Iterator<Item = (PodRef, Timestamp)> {
        self.marked_pods().map(|(pod, at)| (pod.pod.clone(), at))
    }

    fn marked_pods(&self) -> impl Iterator<Item = (&PastPod, Timestamp)> {
        let pods = self.pods.values();
        let marked = |pod: &&PastPod| !pod.acknowledged.contains(&Intent::Clear) && !pod.had_exited;
        let pods = pods.filter(marked);
        pods.filter_map(|pod| Some((pod, pod.marked_at?)))
    }
}

/// The runs of a journal, in order.
fn runs(journal: &[Record]) -> Vec<Past> {
    let mut runs: Vec<Past> = Vec::new();
    for record in journal {
        if let Record::Begun { boot_id, at, wall, granted, mode, kind } = record {
            runs.push(Past {
                boot_id: boot_id.clone(),
                at: *at,
                wall: *wall,
                granted: *granted,
                mode: *mode,
                kind: kind.clone(),
                released: false,
                pods: BTreeMap::new(),
                looks: None,
            });
            continue;
        }
        // Records before the first run's are of a journal whose beginning is lost.
        let Some(run) = runs.last_mut() else { continue };
        match record {
            Record::Begun { .. } => {}
            Record::Intent { uid, namespace, name, intent, at } => {
                let (namespace, name) = (namespace.clone(), name.clone());
                let pod = PodRef { namespace, name, uid: uid.clone() };
                let past = run.pods.entry(uid.clone()).or_insert_with(|| PastPod {
                    pod,
                    marked_at: None,
                    had_run: true,
                    ends: false,
                    had_exited: false,
                    acknowledged: BTreeSet::new(),
                });
                match intent {
                    Intent::Mark | Intent::MarkBeforeStart => {
                        past.marked_at.get_or_insert(*at);
                        past.had_run = *intent == Intent::Mark;
                    }
                    Intent::End => past.ends = true,
                    Intent::LeaveExited => past.had_exited = true,
                    Intent::Fail | Intent::Clear => {}
                }
            }
            Record::Acknowledged { uid, intent } => {
                if let Some(past) = run.pods.get_mut(uid) {
                    past.acknowledged.insert(*intent);
                }
            }
            Record::Released { .. } => run.released = true,
        }
    }
    runs
}

impl Agent {
    /// Reads the journal: runs of earlier boots are replayed, one of this boot waits for what
    /// logind says.
    pub(super) fn recall(&mut self, journal: &[Record]) {
        if !self.settings.enforce {
            return;
        }
        for mut run in runs(journal) {
            if run.boot_id != self.settings.boot_id {
                for (pod, at) in run.marked_pods() {
                    self.replays.add_marked(pod.pod.clone(), at, pod.had_run);
                }
                let exited = run.pods.iter().filter(|(_, pod)| pod.had_exited);
                exited.for_each(|(uid, _)| self.replays.explain(uid.clone()));
                continue;
            }
            if let Some(before) = self.past.take() {
                for (uid, pod) in before.pods {
                    run.pods.entry(uid).or_insert(pod);
                }
            }
            self.past = Some(run);
        }
    }

    /// A new signal says that the run of the journal was cancelled; its marks still stand.
    pub(super) fn forget_past(&mut self) {
        let Some(past) = self.past.take() else { return };
        for (pod, at) in past.marked() {
            self.clears.add(pod, at);
        }
    }

    /// Decides about the run of this boot, as soon as logind has said whether it goes on.
    ///
    /// DIVERGES(upstream): a shutdown outlives the process that sees to it. The reference forgets
    /// it in a restart, and admits pods again. (W6)
    pub(super) fn settle_past(&mut self) {
        if self.past.is_none() || self.logind.state.is_none() {
            return;
        }
        if self.logind.is_preparing() {
            if let Some(past) = self.past.take() {
                self.begin(&Begin::resumed(past));
            }
            return;
        }
        let Some(past) = &mut self.past else { return };
        // The boot id stays, so only the containers tell whether the user space was stopped.
        if past.looks.is_none() {
            past.looks = Some(BTreeMap::new());
            self.sort_past();
        }
        self.look_at_past();
    }

    /// Decides about each pod of a run that does not go on: whether the runtime is to be asked if
    /// it was stopped, or its mark is taken back.
    fn sort_past(&mut self) {
        let Some(past) = &mut self.past else { return };
        let soft = past.kind == Some(ShutdownKind::SoftReboot);
        let rebooted = soft && past.released;
        let marked: Vec<_> = past.marked_pods().map(|(pod, at)| (pod.clone(), at)).collect();
        if rebooted {
            self.outbox.say(false, None, "the user space was restarted; its pods are looked at");
        } else if !soft || !self.settings.runtime {
            self.tell_cancelled("it ended while the agent was down");
        }
        let Some(past) = &mut self.past else { return };
        let looks = past.looks.get_or_insert_default();
        for (pod, at) in marked {
            if self.settings.runtime && (soft || pod.ends) {
                looks.insert(pod.pod.uid, Attempt::wanted());
            } else if rebooted {
                self.replays.add_marked(pod.pod, at, pod.had_run);
            } else {
                self.clears.add(pod.pod, at);
            }
        }
    }

    fn look_at_past(&mut self) {
        let Some(past) = &mut self.past else { return };
        let Some(looks) = &mut past.looks else { return };
        for (uid, look) in looks.iter_mut() {
            let Some(pod) = past.pods.get(uid).map(|pod| pod.pod.clone()) else { continue };
            if look.is_due(&self.clock) && self.outbox.has_room_to_inspect() {
                look.sent();
                self.outbox.send(Task::Inspect(uid.clone()), Action::InspectPod(pod));
            }
        }
        if looks.values().all(Attempt::is_done) {
            self.past = None;
            self.restore_node();
        }
    }

    /// Takes a look's result, if it belongs to a run of the journal.
    pub(super) fn past_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) -> bool {
        let Some(past) = &mut self.past else { return false };
        let look = past.looks.as_mut().and_then(|looks| looks.get_mut(uid));
        let Some(look) = look else { return false };
        look.done();
        let Some(pod) = past.pods.get(uid) else { return true };
        let Some(at) = pod.marked_at else { return true };
        let stopped = result.as_ref().map_or(past.released || pod.ends, RuntimeState::nothing_runs);
        if stopped {
            self.replays.add_marked(pod.pod.clone(), at, pod.had_run);
        } else {
            self.clears.add(pod.pod.clone(), at);
        }
        true
    }
}
