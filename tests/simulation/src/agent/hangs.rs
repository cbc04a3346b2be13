//! Models what hangs: starts of pods that never end, kubelets that stop or wake up again, and users
//! who delete pods meanwhile.

use std::time::Duration;

use agent_core::pod::PodUid;

use super::kubelet::{Health, Stage};
use super::situations::Met;
use super::world::{Life, World, name_of};

/// A call that the kubelet's worker waits for while it starts a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pull {
    /// Whether it pulls an image, for which the pod has its sandbox. Otherwise it waits for volumes
    /// or the network.
    pub(super) has_sandbox: bool,
    /// `None` lasts for ever.
    pub(super) lasts: Option<Duration>,
    /// Whether the container starts then.
    pub(super) starts: bool,
}

impl World {
    /// Starts the hangs that the seed rolled.
    pub(super) fn begin_hangs(&mut self) {
        let strain = self.behaviour.strain.clone();
        if let Some((at, health)) = strain.deserted {
            self.after(at, Life::Boot(self.boot), move |w| {
                w.deserted = true;
                w.met(Met::KubeletDeserts);
                w.end_kubelet(health);
            });
        }
        if let Some(at) = strain.wakes_at {
            self.after(at, Life::Boot(self.boot), World::wake_kubelet);
        }
        if let Some(at) = strain.runtime_dies {
            self.after(at, Life::Boot(self.boot), |w| {
                w.log(|_| "runtime   is silent from now on".into());
                w.met(Met::RuntimeDies);
                w.runtime.answers = false;
                w.runtime_is_dead = true;
            });
        }
        if strain.hangs {
            self.delete_some();
        }
    }

    /// Users delete pods, whatever comes of it.
    fn delete_some(&mut self) {
        // A live kubelet has a minute to terminate what is deleted, before its pods may be failed.
        let fails = self.behaviour.settings.features.fail_hanging_starts;
        let early = fails && self.behaviour.strain.deserted.is_none();
        let latest = if early { 60_000 } else { 120_000 };
        let uids: Vec<PodUid> = self.api.pods.keys().cloned().collect();
        for uid in uids {
            if self.ledger.is_static(&uid) || self.is_own(&uid) || self.random.percent(40) {
                continue;
            }
            let pause = self.random.millis(500, latest);
            let grace = *self.random.pick(&[1, 5, 30]);
            self.after(pause, Life::World, move |w| {
                let name = w.api.pods.get(&uid).map(|stored| stored.name().to_owned());
                if let Some(name) = name {
                    w.met(Met::UserDeletes);
                    w.log(|_| format!("user      deletes {name}, grace {grace}"));
                    let _refused = w.api.delete(&name, &uid, grace);
                }
            });
        }
    }

    pub(super) fn is_own(&self, uid: &PodUid) -> bool {
        self.behaviour.settings.own_pod.as_ref() == Some(uid)
    }

    /// The worker calls the runtime, and waits.
    pub(super) fn begin_pull(&mut self, uid: &PodUid, pull: Pull) {
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        worker.stage = Stage::Pulling;
        self.met(Met::PullHangs);
        if pull.has_sandbox {
            self.runtime.sandboxes.entry(uid.clone()).or_default().ready = true;
        }
        self.log(|_| format!("kubelet   pulls for {}, {pull:?}", name_of(uid)));
        if let Some(lasts) = pull.lasts {
            let (uid, life) = (uid.clone(), Life::Kubelet(self.kubelet.run));
            self.after(lasts, life, move |w| w.pull_ends(&uid, Some(pull)));
        }
    }

    /// The call returns: only now the worker sees that the pod was deleted meanwhile. The container
    /// starts before that, unless its sandbox was stopped.
    fn pull_ends(&mut self, uid: &PodUid, pull: Option<Pull>) {
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        if worker.stage != Stage::Pulling {
            return;
        }
        let asked = worker.asked.take();
        worker.stage = Stage::Waiting;
        let barred = |pull: &Pull| {
            pull.has_sandbox && !self.runtime.sandboxes.get(uid).is_some_and(|it| it.ready)
        };
        let starts = pull.is_some_and(|pull| pull.starts && !barred(&pull));
        self.log(|_| format!("kubelet   has pulled for {}: {starts}", name_of(uid)));
        if starts {
            self.judge_start(uid);
            self.start_now(uid);
        }
        if let Some(grace) = asked {
            self.terminate(uid, grace);
        } else {
            self.sync(uid);
        }
    }

    /// From now on, calls return.
    pub(super) fn end_pulls(&mut self) {
        let pulling = self.kubelet.workers.iter().filter(|(_, w)| w.stage == Stage::Pulling);
        let uids: Vec<PodUid> = pulling.map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.pull_ends(&uid, None);
        }
    }

    /// A hung kubelet resumes with the state that it had then. ([API13])
    fn wake_kubelet(&mut self) {
        if self.kubelet.health != Health::Hung {
            return;
        }
        self.log(|_| "kubelet   wakes".into());
        self.met(Met::KubeletWakes);
        if !self.ledger.pressure.unstuck.is_empty() {
            self.met(Met::StuckAgain);
        }
        self.deserted = false;
        self.kubelet_changed();
        self.kubelet.health = Health::Live;
        self.kubelet.reporting = false;
        self.kubelet.queue.clear();
        self.begin_volumes();
        self.unstage_left();
        let life = Life::Kubelet(self.kubelet.run);
        // The loop that runs first decides the fate of a phase that others wrote.
        let pause = self.random.millis(0, 10_000);
        self.after(pause, life, World::full_pass);
        let pause = self.random.millis(0, 10_000);
        self.after(pause, life, World::kubelet_evicts);
        let workers: Vec<(PodUid, Stage)> =
            self.kubelet.workers.iter().map(|(uid, worker)| (uid.clone(), worker.stage)).collect();
        for (uid, stage) in workers {
            if let Stage::Terminating { kill_at } = stage {
                let pause = kill_at.saturating_sub(self.now());
                let victim = uid.clone();
                self.after(pause, life, move |w| w.send_kill(&victim, kill_at));
            }
            if stage == Stage::Pulling {
                let uid = uid.clone();
                let pause = self.random.millis(0, 30_000);
                self.after(pause, life, move |w| w.pull_ends(&uid, None));
            }
            let pause = self.random.millis(0, 60_000);
            let again = uid.clone();
            self.after(pause, life, move |w| w.resync(again));
            self.container_exited(&uid);
        }
        let uids: Vec<PodUid> = self.api.pods.keys().cloned().collect();
        for uid in uids {
            self.kubelet_notices(uid);
        }
        self.see_kubelet();
    }
}
