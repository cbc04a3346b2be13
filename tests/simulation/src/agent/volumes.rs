//! Models volumes that must be attached to the node. A kubelet stages one before its pod starts,
//! unstages it after the pod has ended, and reports this with its next check of the node's status.
//! ([SD28], [SD29])

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::pod::{PodSource, PodUid, PodView};
use agent_core::protocol::event::VolumesInUse;
use agent_core::shutdown::Mode;

use super::kubelet_facts::works;
use super::promises;
use super::situations::Met;
use super::world::{Life, World, name_of};
use crate::controller::agenda::Moment;
use crate::controller::random::Random;

/// How often the kubelet checks its node's status.
const STATUS_MS: (u32, u32) = (10_000, 10_400);
/// A volume that may be of a pod that goes on may hold the lock for so long. ([AP28])
const OF_OTHERS_FOR: Duration = Duration::from_secs(12);
/// How early the agent may release the lock without a reason.
const EARLY: Duration = Duration::from_millis(50);

/// The node's volumes, by the pod that uses them.
#[derive(Debug)]
pub(super) struct Volumes {
    random: Random,
    are_there: bool,
    staged: BTreeSet<PodUid>,
    /// Those that this run of the kubelet unstages.
    unstaging: BTreeSet<PodUid>,
}

impl Volumes {
    pub(super) fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x70E5);
        let are_there = random.percent(25);
        Self { random, are_there, staged: BTreeSet::new(), unstaging: BTreeSet::new() }
    }

    /// The machine is off.
    pub(super) fn cut(&mut self) {
        self.staged.clear();
        self.unstaging.clear();
    }
}

impl World {
    /// Gives some pods a volume.
    pub(super) fn roll_volume(&mut self, view: &mut PodView) {
        let volumes = &mut self.volumes;
        if volumes.are_there && view.source == PodSource::Api && volumes.random.percent(35) {
            view.details.persistent_volumes = true;
            view.details.attachable_volumes = 1;
        }
    }

    /// The kubelet begins to work, or wakes.
    pub(super) fn begin_volumes(&mut self) {
        if self.volumes.are_there {
            self.volumes.unstaging.clear();
            let pause = self.volumes.random.millis(0, STATUS_MS.0);
            self.after(pause, Life::Kubelet(self.kubelet.run), World::report_volumes);
        }
    }

    /// Unstages what is left of pods that ended while there was no kubelet.
    pub(super) fn unstage_left(&mut self) {
        let ended = |uid: &&PodUid| self.is_ended(uid) && self.runtime.running(uid) == 0;
        let left: Vec<PodUid> = self.volumes.staged.iter().filter(ended).cloned().collect();
        for uid in left {
            self.unstage(&uid);
        }
    }

    /// A volume is reported before it is mounted, and so before its pod starts.
    pub(super) fn stage(&mut self, uid: &PodUid) {
        let nature = self.ledger.natures.get(uid);
        if nature.is_some_and(|nature| nature.view.details.attachable_volumes > 0) {
            self.volumes.unstaging.remove(uid);
            self.volumes.staged.insert(uid.clone());
            self.write_volumes();
        }
    }

    /// The pod has stopped.
    pub(super) fn unstage(&mut self, uid: &PodUid) {
        let volumes = &mut self.volumes;
        if !volumes.staged.contains(uid) || !volumes.unstaging.insert(uid.clone()) {
            return;
        }
        let takes = match volumes.random.below(20) {
            0 => None,
            1..5 => Some(volumes.random.millis(1_000, 12_000)),
            _ => Some(volumes.random.millis(20, 800)),
        };
        let Some(takes) = takes else {
            self.log(|_| format!("kubelet   cannot unstage the volume of {}", name_of(uid)));
            return self.met(Met::VolumeHangs);
        };
        let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
        self.after(takes, life, move |w| {
            if w.volumes.unstaging.remove(&uid) {
                w.volumes.staged.remove(&uid);
                w.log(|_| format!("kubelet   has unstaged the volume of {}", name_of(&uid)));
            }
        });
    }

    fn report_volumes(&mut self) {
        if self.kubelet_dark().is_none() {
            self.write_volumes();
        }
        let pause = self.volumes.random.millis(STATUS_MS.0, STATUS_MS.1);
        self.after(pause, Life::Kubelet(self.kubelet.run), World::report_volumes);
    }

    fn write_volumes(&mut self) {
        let names = self.volumes.staged.iter().map(|uid| uid.0.clone());
        let in_use = VolumesInUse::of(names);
        self.api.update_node(|node| node.volumes_in_use = in_use);
    }

    fn is_ended(&self, uid: &PodUid) -> bool {
        self.api.pods.get(uid).is_none_or(super::api::Stored::is_terminal)
    }

    /// Whether the agent knows of a volume in use by a pod that has ended, and a kubelet that works
    /// will report its end.
    pub(super) fn is_volume_left(&self) -> bool {
        let seen = self.ledger.reported_kubelet.as_ref();
        let reported = &self.ledger.reported_volumes;
        seen.is_some_and(|(_, facts)| works(facts))
            && reported.iter().any(|name| self.is_ended(&PodUid(name.clone())))
    }

    /// How long volumes of pods that go on may hold the lock.
    pub(super) fn volumes_may_hold(&self) -> Duration {
        let some = !self.ledger.reported_volumes.is_empty();
        if some { OF_OTHERS_FOR } else { Duration::ZERO }
    }

    /// Until when volumes may hold the lock in this shutdown.
    fn volumes_hold_until(&self) -> Option<Moment> {
        let shutdown = self.ledger.shutdown.as_ref()?;
        if self.mode() == Some(Mode::Assist) {
            let groups = self.behaviour.groups.as_deref().unwrap_or_default();
            let sum: u64 = groups.iter().map(|(_, seconds)| seconds).sum();
            let held = shutdown.reported_at + Duration::from_secs(sum) + promises::FOR_REPORTS;
            let last = shutdown.end.saturating_sub(shutdown.last_writes);
            return Some(shutdown.end.min(held).saturating_sub(last));
        }
        let needed = promises::needed(&self.behaviour.settings).unwrap_or_default();
        let own = shutdown.reported_at + promises::times(needed).last_writes;
        Some(shutdown.last_writes.min(own))
    }

    /// Judges a release of the lock: with time left and a kubelet that works, no volume of a pod
    /// that has ended is in use. ([AP28])
    pub(super) fn judge_volumes(&mut self, futile: bool) {
        let in_time = self.volumes_hold_until().is_some_and(|until| self.now() + EARLY < until);
        if !self.volumes.are_there || futile || !in_time || !self.is_known_live() {
            return;
        }
        let in_use: Vec<PodUid> =
            self.ledger.reported_volumes.iter().map(|name| PodUid(name.clone())).collect();
        let goes_on = |view: &&PodView| !promises::is_terminal(view);
        let of_others = self.ledger.reported.values().filter(goes_on);
        let of_others: usize = of_others.map(|view| view.details.attachable_volumes).sum();
        // They may be those of pods that go on, once the kubelet has had the time to report.
        let old = |uid: &PodUid| {
            let at = self.ledger.reported_terminal.get(uid);
            at.is_none_or(|at| *at + OF_OTHERS_FOR < self.now() + EARLY)
        };
        let excused = in_use.len() <= of_others && in_use.iter().all(old);
        let staged = |uid: &&PodUid| self.is_ended(uid) && self.volumes.staged.contains(*uid);
        let left: Vec<&str> = in_use.iter().filter(staged).map(name_of).collect();
        let (wrong, left) = (!left.is_empty() && !excused, left.join(", "));
        let words = || format!("lock released under volumes of ended pods: {left}");
        self.judge(Met::VolumesAtRelease, wrong, words);
    }
}
