//! Adds the content of an event to what the agent knows. Decides nothing.

use super::Agent;
use super::facts::News;
use super::pods::Pods;
use crate::pod::{PodUid, PodView};
use crate::protocol::event::{Announcement, Event, LogindState};

impl Agent {
    pub(super) fn learn(&mut self, event: Event) {
        let Self { facts, out, .. } = self;
        // Lists and watches are answers of the API, too.
        out.status.api_reachable |= matches!(
            event,
            Event::PodsListed(_)
                | Event::PodsRestored(_)
                | Event::PodObserved(_)
                | Event::PodGone(_)
                | Event::NodeObserved(_)
        );
        let now = facts.clock.monotonic();
        match event {
            Event::PodsListed(pods) => self.see_pods(|known| known.list(pods)),
            Event::PodsRestored(pods) => self.see_pods(|known| known.list_restored(pods)),
            Event::PodObserved(pod) => self.see_pod(*pod),
            Event::PodGone(uid) => self.see_pod_gone(uid),
            Event::NodeObserved(view) => {
                self.node.compare(&view);
                facts.node = Some(view);
            }
            Event::LogindSeen(state) => self.see_logind(state),
            Event::LogindLost(why) => {
                facts.logind.connected = false;
                let text = format!("logind is lost: {why}; a lock that is held is kept");
                out.calls.log(true, None, text);
            }
            Event::ShutdownAnnounced(announcement) => self.hear_shutdown(announcement),
            Event::ShutdownCancelled => {
                facts.logind.prepares(false);
                self.news.push(News::Cancelled);
            }
            Event::LogindConfChanged => self.lock.conf_changed(),
            Event::KubeletSeen(seen) => facts.kubelet.see(seen, now),
            Event::PressureRose(_) => self.evictions.pressure_rose(now),
            Event::OomKilled(kill) => self.oom.killed(*kill, facts, out),
            Event::OomdKilled(kill) => self.oom.oomd_killed(*kill, facts, out),
            Event::PoliciesTried(missing) => facts.policy_missing = missing,
            Event::StopRequested => self.hear_stop(),
            Event::Finished { id, result } => self.finished(id, result),
        }
    }

    fn see_pods(&mut self, list: impl FnOnce(&mut Pods) -> Vec<PodUid>) {
        if !self.facts.pods.is_listed() {
            self.news.push(News::FirstList);
        }
        let gone = list(&mut self.facts.pods);
        self.news.extend(gone.into_iter().map(News::PodGone));
        self.news.extend(self.facts.pods.iter().map(|pod| News::Pod(pod.uid.clone())));
    }

    fn see_pod(&mut self, pod: PodView) {
        let uid = pod.uid.clone();
        if self.facts.pods.observe(pod) {
            self.news.push(News::Pod(uid));
        }
    }

    fn see_pod_gone(&mut self, uid: PodUid) {
        self.facts.pods.gone(&uid);
        self.news.push(News::PodGone(uid));
    }

    fn see_logind(&mut self, seen: LogindState) {
        let Self { facts, out, .. } = self;
        let logind = &mut facts.logind;
        let owner = logind.state.as_ref().map(|state| &state.owner);
        let restarted = owner.is_some_and(|owner| *owner != seen.owner);
        let listed = seen.lock_listed;
        logind.connected = true;
        logind.granted = seen.delay.or(logind.granted);
        logind.state = Some(seen);
        self.lock.was_listed(listed, facts, out);
        self.news.push(News::LogindRead { restarted });
    }

    fn hear_shutdown(&mut self, announcement: Announcement) {
        let logind = &mut self.facts.logind;
        logind.prepares(true);
        logind.granted = announcement.granted.or(logind.granted);
        self.news.push(News::Announced(announcement));
    }

    fn hear_stop(&mut self) {
        let Self { facts, out, .. } = self;
        facts.stop_at.get_or_insert(facts.clock.monotonic());
        let situation = facts.situation;
        let text = if situation.runs && !situation.released {
            "asked to stop in a shutdown: continues until the lock is released"
        } else {
            "asked to stop"
        };
        out.calls.log(false, None, text);
    }
}
