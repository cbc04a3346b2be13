//! Checks what must be true after faults and users have ended and enough time has passed.

use controller_core::view::{Job, Pod};

use super::kubelet::{NODES, node_name};
use super::world::World;

impl World {
    /// What has not settled.
    pub(super) fn unsettled(&self) -> Vec<String> {
        let mut problems: Vec<String> = self
            .api
            .jobs
            .values()
            .filter_map(|stored| {
                let job = &stored.view;
                let problem = self.unsettled_job(job)?;
                Some(format!("{}: {problem}", job.key))
            })
            .collect();
        problems.extend(self.api.pods.values().filter_map(|pod| self.unsettled_pod(pod)));
        if self.behaviour.pod_gc.is_some() {
            let tainted = (0..NODES).filter(|node| self.is_wrongly_tainted(*node));
            problems.extend(tainted.map(|node| format!("{} keeps its taint", node_name(node))));
        }
        problems
    }

    fn unsettled_job(&self, job: &Job) -> Option<String> {
        let pods =
            |holds: fn(&Pod) -> bool| self.api.pods_of(&job.uid).filter(|pod| holds(pod)).count();
        let (active, terminating) = (pods(Pod::is_active), pods(Pod::is_terminating));
        if job.deleting {
            let pods: Vec<_> = self.api.pods_of(&job.uid).collect();
            return Some(format!("its deletion does not come to an end: {pods:#?}"));
        }
        if job.is_finished() {
            return None;
        }
        let idle = job.spec.suspend || job.spec.parallelism == 0;
        if !idle {
            return Some(format!("neither finished nor idle: {:?}", job.status));
        }
        let status = &job.status;
        let reported = |count: Option<i32>| usize::try_from(count.unwrap_or(0)).unwrap_or(0);
        if active > 0 && job.spec.suspend {
            return Some(format!("is suspended and has {active} active pods"));
        }
        let stale =
            reported(status.active) != active || reported(status.terminating) != terminating;
        stale.then(|| format!("has {active} active pods and says {:?}", status.active))
    }

    fn unsettled_pod(&self, pod: &Pod) -> Option<String> {
        let owner = pod.owner.as_ref().and_then(|owner| self.api.job(&owner.uid));
        if owner.is_some_and(|job| !job.is_finished()) {
            // A suspended Job keeps the failed pod of an index until it may replace it.
            return None;
        }
        if !pod.is_terminal() {
            return Some(format!("{} still lives", pod.uid));
        }
        pod.tracked.then(|| format!("{} has kept its finalizer", pod.uid))
    }
}
