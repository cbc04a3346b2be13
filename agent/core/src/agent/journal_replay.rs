//! Reads the journal at the start and resumes or reverts what it records. ([AP18])

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::Timestamp;

use super::Agent;
use super::calls::{Part, Verb};
use super::shutdown::Release;
use super::shutdown::{Recorded, Shutdown};
use crate::pod::PodUid;
use crate::protocol::action::PodRef;
use crate::protocol::event::{RuntimeState, ShutdownKind};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::Mode;
use crate::termination::attempt::Attempt;

/// A shutdown, as recorded in the journal.
#[derive(Debug)]
pub(super) struct JournaledShutdown {
    boot_id: String,
    /// CLOCK_BOOTTIME at the signal.
    pub(super) at: Duration,
    pub(super) wall: Timestamp,
    pub(super) granted: Duration,
    pub(super) mode: Mode,
    pub(super) kind: Option<ShutdownKind>,
    released: bool,
    pods: BTreeMap<PodUid, JournaledPod>,
    /// Runtime checks of pods that may have been stopped; `None` until those pods are known.
    inspections: Option<BTreeMap<PodUid, Attempt>>,
}

/// What was done to a pod.
#[derive(Clone, Debug)]
struct JournaledPod {
    pod: PodRef,
    marked_at: Option<Timestamp>,
    /// Whether its containers had run when it was marked.
    had_run: bool,
    /// Whether the shutdown intended to terminate it.
    ends: bool,
    /// Whether all its containers had exited before the shutdown.
    had_exited: bool,
    acknowledged: BTreeSet<Intent>,
}

impl JournaledShutdown {
    /// Resumes the shutdown; its marks keep their original times.
    pub(super) fn restore(&self, shutdown: &mut Shutdown) {
        for (pod, at) in self.marked() {
            shutdown.recorded.insert(pod.uid.clone(), Recorded::durable(at));
            shutdown.carried.insert(pod.uid.clone(), (pod, at));
        }
        shutdown.mode_is_final =
            self.pods.values().any(|pod| pod.acknowledged.contains(&Intent::End));
        if self.released {
            shutdown.release = Release::Released;
        }
    }

    /// The pods that bear a mark of the shutdown, as far as is known.
    fn marked(&self) -> impl Iterator<Item = (PodRef, Timestamp)> {
        self.marked_pods().map(|(pod, at)| (pod.pod.clone(), at))
    }

    fn marked_pods(&self) -> impl Iterator<Item = (&JournaledPod, Timestamp)> {
        let pods = self.pods.values();
        let marked =
            |pod: &&JournaledPod| !pod.acknowledged.contains(&Intent::Clear) && !pod.had_exited;
        let pods = pods.filter(marked);
        pods.filter_map(|pod| Some((pod, pod.marked_at?)))
    }
}

/// The shutdowns of a journal, in order.
fn shutdowns(journal: &[Record]) -> Vec<JournaledShutdown> {
    let mut shutdowns: Vec<JournaledShutdown> = Vec::new();
    for record in journal {
        if let Record::Begun { boot_id, at, wall, granted, mode, kind } = record {
            shutdowns.push(JournaledShutdown {
                boot_id: boot_id.clone(),
                at: *at,
                wall: *wall,
                granted: *granted,
                mode: *mode,
                kind: kind.clone(),
                released: false,
                pods: BTreeMap::new(),
                inspections: None,
            });
            continue;
        }
        // Records before the first shutdown belong to a journal whose beginning is lost.
        let Some(shutdown) = shutdowns.last_mut() else { continue };
        match record {
            Record::Begun { .. } => {}
            Record::Intent { uid, namespace, name, intent, at } => {
                let (namespace, name) = (namespace.clone(), name.clone());
                let pod = PodRef { namespace, name, uid: uid.clone() };
                let journaled = shutdown.pods.entry(uid.clone()).or_insert_with(|| JournaledPod {
                    pod,
                    marked_at: None,
                    had_run: true,
                    ends: false,
                    had_exited: false,
                    acknowledged: BTreeSet::new(),
                });
                match intent {
                    Intent::Mark | Intent::MarkBeforeStart => {
                        journaled.marked_at.get_or_insert(*at);
                        journaled.had_run = *intent == Intent::Mark;
                    }
                    Intent::End => journaled.ends = true,
                    Intent::LeaveExited => journaled.had_exited = true,
                    Intent::Fail | Intent::Clear => {}
                }
            }
            Record::Acknowledged { uid, intent } => {
                if let Some(journaled) = shutdown.pods.get_mut(uid) {
                    journaled.acknowledged.insert(*intent);
                }
            }
            Record::Released { .. } => shutdown.released = true,
        }
    }
    shutdowns
}

impl Agent {
    /// Reads the journal. Shutdowns of earlier boots are replayed; one of this boot waits for
    /// logind's state.
    pub(super) fn recall(&mut self, journal: &[Record]) {
        if !self.settings.enforce {
            return;
        }
        for mut shutdown in shutdowns(journal) {
            if shutdown.boot_id != self.settings.boot_id {
                for (pod, at) in shutdown.marked_pods() {
                    self.boot_recovery.add_marked(pod.pod.clone(), at, pod.had_run);
                }
                let exited = shutdown.pods.iter().filter(|(_, pod)| pod.had_exited);
                exited.for_each(|(uid, _)| self.boot_recovery.explain(uid.clone()));
                continue;
            }
            if let Some(before) = self.journaled.take() {
                for (uid, pod) in before.pods {
                    shutdown.pods.entry(uid).or_insert(pod);
                }
            }
            self.journaled = Some(shutdown);
        }
    }

    /// Drops the journal's shutdown: a new signal proves that it was cancelled. Its marks still
    /// stand.
    pub(super) fn forget_journaled(&mut self) {
        let Some(journaled) = self.journaled.take() else { return };
        for (pod, at) in journaled.marked() {
            self.revoked_marks.add(pod, at);
        }
    }

    /// Decides about the shutdown of this boot, once logind has reported whether it goes on.
    ///
    /// DIVERGES(upstream): a shutdown survives a restart of the process that handles it. Upstream
    /// forgets it in a restart, and admits pods again. ([W6])
    pub(super) fn settle_journaled(&mut self) {
        if self.journaled.is_none() || self.logind.state.is_none() {
            return;
        }
        if self.logind.is_preparing() {
            if let Some(journaled) = self.journaled.take() {
                self.resume(journaled);
            }
            return;
        }
        let Some(journaled) = &mut self.journaled else { return };
        // The boot id stays the same, so only the containers show whether the user space was
        // stopped.
        if journaled.inspections.is_none() {
            journaled.inspections = Some(BTreeMap::new());
            self.sort_journaled();
        }
        self.inspect_journaled();
    }

    /// Decides about each pod of a shutdown that does not go on. The agent asks the runtime whether
    /// the pod was stopped, or removes its mark.
    fn sort_journaled(&mut self) {
        let Some(journaled) = &mut self.journaled else { return };
        let soft = journaled.kind == Some(ShutdownKind::SoftReboot);
        let rebooted = soft && journaled.released;
        let marked: Vec<_> = journaled.marked_pods().map(|(pod, at)| (pod.clone(), at)).collect();
        if rebooted {
            self.calls.log(false, None, "the user space was restarted; its pods are checked");
        } else if !soft || !self.settings.runtime {
            self.report_cancelled("logind cancelled it while the agent was down");
        }
        let Some(journaled) = &mut self.journaled else { return };
        let inspections = journaled.inspections.get_or_insert_default();
        for (pod, at) in marked {
            if self.settings.runtime && (soft || pod.ends) {
                inspections.insert(pod.pod.uid, Attempt::wanted());
            } else if rebooted {
                self.boot_recovery.add_marked(pod.pod, at, pod.had_run);
            } else {
                self.revoked_marks.add(pod.pod, at);
            }
        }
    }

    fn inspect_journaled(&mut self) {
        let Some(journaled) = &mut self.journaled else { return };
        let Some(inspections) = &mut journaled.inspections else { return };
        for (uid, inspection) in inspections.iter_mut() {
            let Some(pod) = journaled.pods.get(uid) else { continue };
            let what = (Part::Journaled, Verb::Inspect);
            self.calls.inspect(what, &pod.pod, inspection, &self.clock);
        }
        if inspections.values().all(Attempt::is_done) {
            self.journaled = None;
            self.restore_node();
        }
    }

    /// Takes the runtime's response about a pod of the journal.
    pub(super) fn journaled_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) {
        let Some(journaled) = &mut self.journaled else { return };
        let inspection =
            journaled.inspections.as_mut().and_then(|inspections| inspections.get_mut(uid));
        let Some(inspection) = inspection else { return };
        inspection.done();
        let Some(pod) = journaled.pods.get(uid) else { return };
        let Some(at) = pod.marked_at else { return };
        let stopped =
            result.as_ref().map_or(journaled.released || pod.ends, RuntimeState::nothing_runs);
        if stopped {
            self.boot_recovery.add_marked(pod.pod.clone(), at, pod.had_run);
        } else {
            self.revoked_marks.add(pod.pod.clone(), at);
        }
    }
}
