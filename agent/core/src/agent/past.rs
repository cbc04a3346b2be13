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
    /// After a reboot of the user space alone: looks into the runtime.
    looks: BTreeMap<PodUid, Attempt>,
}

/// What was done to a pod.
#[derive(Clone, Debug)]
struct PastPod {
    pod: PodRef,
    marked_at: Option<Timestamp>,
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
        let pods = self.pods.values();
        let pods = pods.filter(|pod| !pod.acknowledged.contains(&Intent::Clear));
        pods.filter_map(|pod| Some((pod.pod.clone(), pod.marked_at?)))
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
                looks: BTreeMap::new(),
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
                    acknowledged: BTreeSet::new(),
                });
                if *intent == Intent::Mark {
                    past.marked_at.get_or_insert(*at);
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
                for (pod, at) in run.marked() {
                    self.replays.add_marked(pod, at);
                }
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
        let soft = past.kind == Some(ShutdownKind::SoftReboot);
        if soft && self.settings.runtime {
            self.look_after_soft_reboot();
            return;
        }
        let marked: Vec<_> = past.marked().collect();
        if soft && past.released {
            self.outbox.say(false, None, "the user space was restarted; its pods are looked at");
            for (pod, at) in marked {
                self.replays.add_marked(pod, at);
            }
        } else {
            self.tell_cancelled("it ended while the agent was down");
            for (pod, at) in marked {
                self.clears.add(pod, at);
            }
        }
        self.past = None;
        self.restore_node();
    }

    fn look_after_soft_reboot(&mut self) {
        let Some(past) = &mut self.past else { return };
        let marked: Vec<_> = past.marked().collect();
        for (pod, _) in marked {
            let look = past.looks.entry(pod.uid.clone()).or_insert_with(Attempt::wanted);
            if look.is_due(&self.clock) && self.outbox.has_room_to_inspect() {
                look.sent();
                self.outbox.send(Task::Inspect(pod.uid.clone()), Action::InspectPod(pod));
            }
        }
        if past.looks.values().all(Attempt::is_done) {
            self.past = None;
            self.restore_node();
        }
    }

    /// Takes a look's result, if it belongs to a reboot of the user space.
    pub(super) fn past_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) -> bool {
        let Some(past) = &mut self.past else { return false };
        let Some(look) = past.looks.get_mut(uid) else { return false };
        look.done();
        let Some(pod) = past.pods.get(uid) else { return true };
        let Some(at) = pod.marked_at else { return true };
        let stopped = result.as_ref().map_or(past.released, RuntimeState::nothing_runs);
        if stopped {
            self.replays.add_marked(pod.pod.clone(), at);
        } else {
            self.clears.add(pod.pod.clone(), at);
        }
        true
    }
}
