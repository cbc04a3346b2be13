//! Reads the journal at the start and resumes or reverts what it records. ([AP18])

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::out::Out;
use super::{Release, Shutdown};
use crate::pod::PodUid;
use crate::protocol::action::PodRef;
use crate::protocol::ending::{ShutdownKind, Source};
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::Mode;

/// A shutdown, as recorded in the journal.
#[derive(Clone, Debug)]
pub(in super::super) struct Journaled {
    boot_id: String,
    /// CLOCK_BOOTTIME at the signal.
    pub(super) at: Duration,
    pub(super) wall: Timestamp,
    pub(super) granted: Duration,
    pub(super) mode: Mode,
    pub(super) kind: Option<ShutdownKind>,
    source: Source,
    released: bool,
    pods: BTreeMap<PodUid, JournaledPod>,
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

impl Journaled {
    /// Who says whether it goes on. A stop that systemd announced goes on only by logind.
    pub(super) fn source(&self) -> Source {
        if self.source.gives_notice() { self.source } else { Source::Logind }
    }

    /// Resumes the shutdown; its marks keep their original times.
    pub(super) fn restore(&self, shutdown: &mut Shutdown, disruptions: &mut Disruptions) {
        for exited in self.pods.values().filter(|pod| pod.had_exited) {
            disruptions.entry(exited.pod.clone()).had_exited = true;
        }
        for (pod, at) in self.marked() {
            disruptions.entry(pod).take_over(at);
        }
        shutdown.mode.is_final =
            self.pods.values().any(|pod| pod.acknowledged.contains(&Intent::End));
        if self.released {
            shutdown.release = Release::Released;
        }
    }

    /// Decides about each pod of a shutdown that does not go on. The agent asks the runtime whether
    /// the pod was stopped, or removes its mark. The boot id stays the same, so only the containers
    /// show whether the user space was restarted. Returns whether the shutdown was cancelled.
    pub(super) fn decide(
        self,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) -> bool {
        let soft = self.kind == Some(ShutdownKind::SoftReboot);
        let rebooted = soft && self.released;
        if rebooted {
            let text = "the user space was restarted; its pods are checked";
            out.calls.log(false, None, text);
        }
        for (pod, at) in self.marked_pods() {
            let (reference, had_run) = (pod.pod.clone(), pod.had_run);
            if facts.settings.runtime && (soft || pod.ends) {
                disruptions.ask_runtime(reference, at, had_run);
            } else if rebooted {
                disruptions.confirm(reference, at, had_run);
            } else {
                disruptions.remove(reference, at);
            }
        }
        !rebooted && (!soft || !facts.settings.runtime)
    }

    /// The pods that bear a mark of the shutdown, as far as is known.
    pub(super) fn marked(&self) -> impl Iterator<Item = (PodRef, Timestamp)> {
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
fn shutdowns(journal: &[Record]) -> Vec<Journaled> {
    let mut shutdowns: Vec<Journaled> = Vec::new();
    for record in journal {
        if let Record::Begun { boot_id, at, wall, granted, mode, kind, source } = record {
            shutdowns.push(Journaled {
                boot_id: boot_id.clone(),
                at: *at,
                wall: *wall,
                granted: *granted,
                mode: *mode,
                kind: kind.clone(),
                source: *source,
                released: false,
                pods: BTreeMap::new(),
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

impl JournaledPod {
    /// A shutdown takes over the marks of a cancelled one and does not record them again.
    fn take_mark_of(&mut self, earlier: &Self) {
        if self.marked_at.is_none() && !earlier.acknowledged.contains(&Intent::Clear) {
            self.marked_at = earlier.marked_at;
            self.had_run = earlier.had_run;
        }
        self.ends |= earlier.ends;
    }
}

/// Reads the journal. Marks of earlier boots are checked; a shutdown of this boot waits for the
/// state of logind.
pub(in super::super) fn recall(
    journal: &[Record],
    facts: &Facts,
    disruptions: &mut Disruptions,
) -> Option<Journaled> {
    if !facts.settings.enforce {
        return None;
    }
    let mut latest: Option<Journaled> = None;
    for mut shutdown in shutdowns(journal) {
        if shutdown.boot_id != facts.settings.boot_id {
            for (pod, at) in shutdown.marked_pods() {
                disruptions.confirm(pod.pod.clone(), at, pod.had_run);
            }
            let exited = shutdown.pods.values().filter(|pod| pod.had_exited);
            exited.for_each(|exited| disruptions.explain(exited.pod.clone()));
            continue;
        }
        for (uid, pod) in latest.take().into_iter().flat_map(|before| before.pods) {
            match shutdown.pods.entry(uid) {
                Entry::Vacant(place) => drop(place.insert(pod)),
                Entry::Occupied(known) => known.into_mut().take_mark_of(&pod),
            }
        }
        latest = Some(shutdown);
    }
    latest
}
