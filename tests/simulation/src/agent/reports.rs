//! Models how the kubelet writes status: one goroutine, GET and PATCH per pod, a full pass every 10
//! s. ([API12])

use std::time::Duration;

use agent_core::pod::{Phase, PodUid};
use serde_json::{Value, json};

use super::api::Stored;
use super::graceful;
use super::kubelet::Worker;
use super::merge::merge;
use super::world::{Life, World, name_of};

/// 50 calls a second, two for each report.
const REPORT_MIN: Duration = Duration::from_millis(40);
const FULL_PASS: Duration = Duration::from_secs(10);

impl World {
    /// A status has changed.
    pub(super) fn enqueue(&mut self, uid: &PodUid) {
        if !self.kubelet.queue.contains(uid) {
            self.kubelet.queue.push_back(uid.clone());
        }
        self.report_next();
    }

    fn report_next(&mut self) {
        if self.kubelet.reporting || self.kubelet.queue.is_empty() {
            return;
        }
        self.kubelet.reporting = true;
        let (low, high) = self.behaviour.rtt_ms;
        let cost = self.random.millis(low * 2, high * 2).max(REPORT_MIN);
        self.after(cost, Life::Kubelet(self.kubelet.run), |w| {
            w.kubelet.reporting = false;
            if let Some(uid) = w.kubelet.queue.pop_front() {
                w.report(&uid);
            }
            w.report_next();
        });
    }

    fn report(&mut self, uid: &PodUid) {
        // The next full pass notices a report that does not get through.
        if self.kubelet_dark().is_some() {
            return;
        }
        let Some(worker) = self.kubelet.workers.get_mut(uid) else { return };
        // Taken from the cache before the end and sent after it; the next full pass sends the end.
        let half = std::mem::take(&mut worker.half_reported);
        let mut worker = worker.clone();
        if half {
            (worker.phase, worker.words) = (Phase::Failed, Some(graceful::WORDS));
        }
        let at = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let name = name_of(uid);
        self.log(|_| format!("kubelet   reports {name} {:?}", worker.phase));
        let shown = self.runtime.shown(uid);
        self.api.update(uid, |stored| {
            write(stored, &worker, &at);
            if worker.started && !half {
                stored.note_containers(shown);
            }
        });
        if worker.is_over() && !half {
            self.finish_pod(uid);
        }
    }

    /// Compares the cache with the API, and writes where they differ. This takes back a phase that
    /// somebody else wrote. ([API13])
    pub(super) fn full_pass(&mut self) {
        self.kubelet.renewed_at = self.now();
        let differs = |stored: &Stored, worker: &Worker| {
            let shown = self.runtime.shown(stored.uid());
            stored.phase() != worker.phase
                || (worker.started && stored.shown() != shown)
                || (worker.is_over() && stored.deletion().is_some())
        };
        if self.kubelet_dark().is_none() {
            let workers = &self.kubelet.workers;
            let pods = self.api.pods.iter();
            let different: Vec<PodUid> = pods
                .filter(|(uid, stored)| workers.get(*uid).is_some_and(|w| differs(stored, w)))
                .map(|(uid, _)| uid.clone())
                .collect();
            for uid in different {
                self.enqueue(&uid);
            }
        }
        self.after(FULL_PASS, Life::Kubelet(self.kubelet.run), World::full_pass);
    }

    /// The final phase is in the API and nothing is left: the object of a deleted pod goes. ([PT4])
    pub(super) fn finish_pod(&mut self, uid: &PodUid) {
        let Some(stored) = self.api.pods.get(uid) else {
            self.kubelet.workers.remove(uid);
            return;
        };
        if stored.deletion().is_none() || !stored.is_terminal() {
            return;
        }
        let uid = uid.clone();
        let pause = self.random.millis(50, 1_500);
        self.after(pause, Life::Kubelet(self.kubelet.run), move |w| {
            if w.kubelet_dark().is_none() {
                let name = w.api.pods.get(&uid).map(|stored| stored.name().to_owned());
                let _gone = name.map(|name| w.api.delete(&name, &uid, 0));
            }
        });
    }
}

/// The kubelet's merge of its cache into the live status. ([API12])
fn write(stored: &mut Stored, worker: &Worker, at: &str) {
    let terminal = matches!(worker.phase, Phase::Succeeded | Phase::Failed);
    let ends = terminal && !stored.is_terminal();
    let (reason, message) = match worker.words {
        Some((reason, message)) if terminal => (reason.into(), message.into()),
        _ if stored.phase() == worker.phase => {
            (stored.status["reason"].clone(), stored.status["message"].clone())
        }
        _ => (Value::Null, Value::Null),
    };
    let mut status = json!({
        "phase": format!("{:?}", worker.phase),
        "reason": reason,
        "message": message,
    });
    let mut conditions = Vec::new();
    if terminal {
        conditions.push(json!({"type": "Ready", "status": "False", "reason": "PodFailed"}));
    }
    if let Some(disruption) = worker.disruption.as_ref().filter(|_| ends) {
        let live = stored.condition("DisruptionTarget");
        let same = live.is_some_and(|live| live["status"] == disruption["status"]);
        let since = if same { live.map(|live| live["lastTransitionTime"].clone()) } else { None };
        let mut disruption = disruption.clone();
        disruption["lastTransitionTime"] = since.unwrap_or_else(|| at.into());
        conditions.push(disruption);
    }
    status["conditions"] = conditions.into();
    merge(&mut stored.status, &status);
}
