//! Adds the content of an event to what the agent knows.

use super::Agent;
use super::notices::CANCELLED;
use crate::pod::{PodUid, PodView};
use crate::protocol::event::Event;

impl Agent {
    pub(super) fn take_in(&mut self, event: Event) {
        match event {
            Event::PodsListed(pods) => self.see_pods(pods),
            Event::PodObserved(pod) => self.see_pod(&pod),
            Event::PodGone(uid) => self.see_pod_gone(&uid),
            Event::NodeObserved(view) => self.see_node(view),
            Event::LogindSeen(state) => self.see_logind(state),
            Event::LogindLost(why) => self.lose_logind(&why),
            Event::ShutdownAnnounced(announcement) => self.hear_shutdown(announcement),
            Event::ShutdownCancelled => self.hear_cancel(),
            Event::LogindConfChanged => self.logind.conf_changed(),
            Event::KubeletSeen(facts) => self.see_kubelet(facts),
            Event::PressureRose(what) => self.pressure_rose(what),
            Event::OomKilled(kill) => self.oom_killed(*kill),
            Event::OomdKilled(kill) => self.oomd_killed(*kill),
            Event::PoliciesTried(missing) => self.see_policies(missing),
            Event::StopRequested => self.hear_stop(),
            Event::Finished { id, result } => self.finished(id, result),
        }
    }

    fn see_pods(&mut self, pods: Vec<PodView>) {
        self.status.api_reachable = true;
        let first = !self.pods.is_listed();
        for uid in self.pods.list(pods) {
            self.forget_pod(&uid);
        }
        if first && self.shutdown.is_some() {
            self.enlist_all();
        } else {
            let pods: Vec<PodView> = self.pods.iter().cloned().collect();
            for pod in &pods {
                self.compare(pod);
            }
        }
        if first {
            self.find_lost();
        }
    }

    fn see_pod(&mut self, pod: &PodView) {
        if self.pods.observe(pod.clone()) {
            self.compare(pod);
        }
    }

    /// Compares a pod's new state with what was done to it.
    fn compare(&mut self, pod: &PodView) {
        self.sees_reverted(pod);
        self.sees_reversal(pod);
        if self.shutdown.as_ref().is_some_and(|shutdown| {
            !shutdown.is_released() || shutdown.terminations.contains_key(&pod.uid)
        }) {
            self.enlist(pod);
        }
        self.sees_condition(pod);
        self.revoke_again(pod);
    }

    fn see_pod_gone(&mut self, uid: &PodUid) {
        self.pods.gone(uid);
        self.forget_pod(uid);
    }

    fn forget_pod(&mut self, uid: &PodUid) {
        if let Some(shutdown) = &mut self.shutdown
            && let Some(termination) = shutdown.terminations.get_mut(uid)
        {
            shutdown.progress |= !termination.reported;
            termination.acknowledge();
        }
        self.revoked_marks.pod_gone(uid);
        self.oom.pod_gone(uid);
        self.evictions.pod_gone(uid);
        self.stuck.pod_gone(uid);
        self.reverted_writes.pod_gone(uid);
        self.survivors.pod_gone(uid);
    }

    fn hear_cancel(&mut self) {
        self.logind.prepares(false);
        self.logind.observed = false;
        if self.shutdown.is_some() {
            self.cancel("logind says so");
        } else {
            self.logind.take_anew(self.clock.monotonic());
        }
    }

    fn hear_stop(&mut self) {
        let now = self.clock.monotonic();
        self.stop_at.get_or_insert(now);
        let text = if self.shutdown.as_ref().is_some_and(|shutdown| !shutdown.is_released()) {
            "asked to stop in a shutdown: continues until the lock is released"
        } else {
            "asked to stop"
        };
        self.calls.log(false, None, text);
    }

    /// Reports that a shutdown was cancelled.
    pub(super) fn report_cancelled(&mut self, why: &str) {
        let text = format!("the shutdown is cancelled: {why}; pods that were deleted stay deleted");
        self.calls.log(true, None, text.clone());
        self.emit_event(false, CANCELLED, text);
    }
}
