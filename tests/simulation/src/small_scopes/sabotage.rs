//! Breaks what a process hears, plans from, remembers and believes, to show that the verdicts
//! notice it.

use std::sync::Arc;

use controller_core::job::{
    Answer, Call, GroupStep, MemoryUpdate, PodGroupDraft, Step, WrittenPod,
};
use controller_core::state::{Entry, Event, Snapshot};
use controller_core::view::{
    Container, ContainerKind, EndedBy, Job, Phase, Pod, PodGroup, Terminated, Uid, Version,
};
use epilogue_common::outcome::Outcome;
use epilogue_common::watch_event::WatchEvent;
use jiff::SignedDuration;

/// A mistake that a controller could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Releases terminated pods before the status lists them.
    ReleaseFirst,
    /// Does not wait until its watches show the pods that it created.
    ForgetCreations,
    /// Forgets creations without a reply.
    ForgetDoubts,
    /// Neither waits until its watches show what was counted, nor remembers what it released.
    ForgetReleases,
    /// Writes the status whatever the version of the Job is by then.
    OverwriteStatus,
    /// Replaces terminating pods although only failed ones may be replaced.
    ReplaceTerminating,
    /// Takes each release for one that succeeded.
    BelieveReleases,
    /// Does not hear of pods that end.
    MissEnds,
    /// Deletes an excess pod although another process has given it the finalizer back.
    DeleteBlindly,
    /// Takes an excess pod out of the count whatever has become of it.
    StripBlindly,
    /// Takes a pod that turned Failed for one that failed.
    BelieveTurns,
    /// Fails a pending pod whatever has happened to it since.
    FailStarted,
    /// Makes each Workload under another name.
    RenameWorkloads,
    /// Takes each creation of a PodGroup for one that succeeded.
    BelieveGroups,
}

impl Sabotage {
    /// Changes what a watch enqueues.
    pub(super) fn heard(self, event: &mut Event, mut entries: Vec<Entry>) -> Vec<Entry> {
        let ends = matches!(event, Event::Pod(WatchEvent::Shown(pod)) if pod.is_terminal());
        if self == Self::MissEnds && ends {
            entries.clear();
        }
        entries
    }

    /// Changes what a plan is made from.
    pub(super) fn distort(self, snapshot: &mut Snapshot) {
        if self == Self::ForgetReleases {
            snapshot.memory.counted = None;
        }
        if self == Self::OverwriteStatus {
            // Otherwise the API refuses the second start before any counter differs.
            snapshot.counts_max = SignedDuration::ZERO;
        }
        if self == Self::BelieveTurns {
            snapshot.memory.completed_pods.clear();
            let failed = snapshot.pods.iter().filter(|pod| pod.phase == Phase::Failed);
            for pod in failed.cloned().collect::<Vec<_>>() {
                let containers = [failed_container()].into();
                snapshot.pods.alter(Arc::new(Pod { containers, ..Pod::clone(&pod) }));
            }
        }
        if self == Self::ReplaceTerminating {
            let mut job = Job::clone(&snapshot.job);
            job.spec.replaces_failed_only = false;
            snapshot.job = Arc::new(job);
        }
    }

    /// Whether a process keeps this in mind.
    pub(super) fn remembers(self, update: &MemoryUpdate) -> bool {
        match update {
            MemoryUpdate::Created(_) => self != Self::ForgetCreations,
            MemoryUpdate::CreationInDoubt => self != Self::ForgetDoubts,
            MemoryUpdate::PodWritten(_)
            | MemoryUpdate::JobWritten(_)
            | MemoryUpdate::RemovingFinalizer(_) => self != Self::ForgetReleases,
            _ => true,
        }
    }

    /// Changes the call that a process makes.
    pub(super) fn sent(self, call: &mut Call, (process, now): (u8, Version)) {
        if let Step::Group(GroupStep::CreateWorkload(draft)) = &mut call.step
            && self == Self::RenameWorkloads
        {
            draft.name = format!("{}-{process}-{now}", draft.name);
        }
    }

    /// What a process takes the reply to a call for.
    pub(super) fn believed(self, call: &Call, outcome: Outcome<Answer>) -> Outcome<Answer> {
        match &call.step {
            Step::RemoveFinalizer(pod) if self == Self::BelieveReleases && outcome.is_err() => {
                let (uid, name) = (pod.uid.clone(), Arc::clone(&pod.name));
                Ok(Answer::Pod(WrittenPod { uid, name, version: pod.version }))
            }
            Step::Group(GroupStep::CreatePodGroup(draft)) if self == Self::BelieveGroups => {
                Ok(Answer::PodGroup(Arc::new(as_drafted(draft)), true))
            }
            _ => outcome,
        }
    }
}

fn failed_container() -> Container {
    Container {
        name: "main".into(),
        kind: ContainerKind::Regular,
        restarts: 0,
        waiting: None,
        terminated: Some(Terminated { exit_code: 1, finished_at: None, by: EndedBy::Program }),
        last: None,
    }
}

fn as_drafted(draft: &PodGroupDraft) -> PodGroup {
    let (namespace, workload) = &draft.workload.key;
    PodGroup {
        key: (Arc::clone(namespace), draft.name.as_str().into()),
        uid: Uid::from(draft.name.as_str()),
        version: Version::default(),
        owner: draft.workload.owner.clone(),
        workload: Some(Arc::clone(workload)),
        min_count: draft.template.min_count,
        is_disrupted_whole: false,
    }
}
