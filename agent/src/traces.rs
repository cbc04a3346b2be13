//! Draws the trace of each pod that the agent disrupts, from the driver's actions and facts.
//! Decides nothing, and delays no action but the release of the lock, if time is left.

use std::collections::HashMap;
use std::time::Duration;

use agent_core::agent::{ShutdownStatus, Status};
use agent_core::pod::{PodUid, PodView};
use agent_core::protocol::action::{Action, ActionId, PodRef, Purpose};
use agent_core::protocol::event::{ActionResult, Event, Now};
use epilogue_runtime::traces::{ROOT, Span, Tracer, attribute};
use futures::future::BoxFuture;
use futures::{FutureExt as _, future};
use jiff::{SignedDuration, Timestamp};

/// From the notice until the API has `DisruptionTarget`.
const MARK: &str = "set DisruptionTarget";
/// From there until nothing of the pod runs.
const TERMINATE: &str = "terminate";
/// From there until the API has the terminal phase.
const REPORT: &str = "report";

/// Maximum number of pods that are followed at once: four times those of a full node.
const PODS_MAX: usize = 512;
/// Maximum number of calls whose result is awaited; the core has fewer under way.
const CALLS_MAX: usize = 1_024;
/// How long the release of the lock may wait for the collector.
const FLUSH_MAX: Duration = Duration::from_millis(200);
/// The release waits only if this much of the delay is left: logind's margin is at most 1 s.
const TIME_LEFT_MIN: Duration = Duration::from_millis(1_200);

/// The disruptions that are in progress.
#[derive(Debug, Default)]
pub struct Traces {
    tracer: Tracer,
    node: String,
    pods: HashMap<PodUid, Disruption>,
    calls: HashMap<ActionId, (PodUid, Call)>,
}

#[derive(Debug)]
struct Disruption {
    pod: PodRef,
    cause: &'static str,
    /// When the notice came.
    begun: Timestamp,
    /// When the last step ended.
    last: Timestamp,
    is_dead: bool,
    /// Whether the agent has sent the terminal phase.
    is_failed: bool,
}

/// A call whose result ends a step.
#[derive(Clone, Copy, Debug)]
enum Call {
    Mark,
    Inspect,
    Fail,
    Clear,
}

impl Traces {
    /// Follows the pods of this node.
    pub fn new(tracer: Tracer, node: String) -> Self {
        Self { tracer, node, ..Self::default() }
    }

    /// The core asks for an action.
    pub fn action(&mut self, id: ActionId, action: &Action, status: &Status, now: Now) {
        if !self.tracer.is_on() {
            return;
        }
        let (pod, call) = match action {
            Action::PatchStatus { pod, purpose, .. } => match purpose {
                Purpose::Mark => (pod, Call::Mark),
                Purpose::Fail => (pod, Call::Fail),
                Purpose::Clear => (pod, Call::Clear),
                Purpose::Cause => return,
            },
            Action::InspectPod(pod) | Action::StopPod { pod, .. } => (pod, Call::Inspect),
            Action::ReleaseLock if going(status).is_some() => return self.abandon(now),
            _ => return,
        };
        if matches!(call, Call::Mark | Call::Fail) {
            self.begin(pod, status, now);
        }
        let Some(disruption) = self.pods.get_mut(&pod.uid) else { return };
        disruption.is_failed |= matches!(call, Call::Fail);
        if self.calls.len() < CALLS_MAX {
            self.calls.insert(id, (pod.uid.clone(), call));
        }
    }

    /// A fact arrives.
    pub fn event(&mut self, event: &Event, now: Now) {
        match event {
            Event::Finished { id, result } => self.finished(*id, result, now),
            Event::PodObserved(pod) => self.observed(pod, now),
            Event::PodsListed(pods) | Event::PodsRestored(pods) => {
                for pod in pods {
                    self.observed(pod, now);
                }
            }
            Event::PodGone(uid) => self.reported(uid, ("none", "deletion"), now),
            _ => {}
        }
    }

    /// What the release of the lock waits for: the collector has the spans, or the time is over.
    pub fn before(&self, action: &Action, status: &Status, now: Now) -> BoxFuture<'static, ()> {
        let is_release = matches!(action, Action::ReleaseLock) && self.tracer.is_on();
        let left = going(status).map(|shutdown| {
            shutdown.t0.saturating_add(shutdown.granted).saturating_sub(now.monotonic)
        });
        if is_release && left.is_some_and(|left| left > TIME_LEFT_MIN) {
            return self.tracer.clone().flush(FLUSH_MAX).boxed();
        }
        future::ready(()).boxed()
    }

    fn begin(&mut self, pod: &PodRef, status: &Status, now: Now) {
        if self.pods.contains_key(&pod.uid) {
            return;
        }
        if self.pods.len() >= PODS_MAX {
            return self.tracer.overflow();
        }
        let victim = status.pressure.victims.iter().find(|victim| victim.uid == pod.uid);
        let (cause, begun) = match (victim, going(status)) {
            (Some(victim), _) => (victim.signal, before(now, victim.since)),
            (None, Some(shutdown)) => ("shutdown", shutdown.since),
            // After a boot, or of a pod that another client deleted.
            (None, None) => ("recovery", now.wall),
        };
        let begun = begun.min(now.wall);
        let disruption = Disruption {
            pod: pod.clone(),
            cause,
            begun,
            last: begun,
            is_dead: false,
            is_failed: false,
        };
        self.pods.insert(pod.uid.clone(), disruption);
    }

    fn finished(&mut self, id: ActionId, result: &ActionResult, now: Now) {
        let Some((uid, call)) = self.calls.remove(&id) else { return };
        match (call, result) {
            (Call::Mark, ActionResult::Patched(Ok(_))) => {
                if let Some(disruption) = self.pods.get_mut(&uid) {
                    let begun = disruption.begun;
                    let span = disruption.step(&self.node, MARK, begun, now.wall);
                    self.tracer.send(span);
                }
            }
            (Call::Inspect, ActionResult::Runtime(Ok(state))) if state.nothing_runs() => {
                self.dead(&uid, "runtime", now);
            }
            (Call::Fail, ActionResult::Patched(Ok(_))) => {
                self.reported(&uid, ("runtime", "agent"), now);
            }
            (Call::Clear, ActionResult::Patched(Ok(_))) => {
                self.end(&uid, Some("the disruption was cancelled"), now);
            }
            _ => {}
        }
    }

    fn observed(&mut self, pod: &PodView, now: Now) {
        let Some(disruption) = self.pods.get(&pod.uid).filter(|_| pod.is_terminal()) else {
            return;
        };
        let by = if disruption.is_failed { ("runtime", "agent") } else { ("kubelet", "kubelet") };
        self.reported(&pod.uid, by, now);
    }

    fn dead(&mut self, uid: &PodUid, proof: &'static str, now: Now) {
        let Some(disruption) = self.pods.get_mut(uid) else { return };
        if std::mem::replace(&mut disruption.is_dead, true) {
            return;
        }
        let begun = disruption.last;
        let mut span = disruption.step(&self.node, TERMINATE, begun, now.wall);
        span.attributes.push((attribute::PROOF, proof.to_owned()));
        self.tracer.send(span);
    }

    /// A kubelet reports a terminal phase only when nothing of the pod runs.
    fn reported(&mut self, uid: &PodUid, (proof, reporter): (&'static str, &str), now: Now) {
        self.dead(uid, proof, now);
        let Some(disruption) = self.pods.get_mut(uid) else { return };
        let begun = disruption.last;
        let mut span = disruption.step(&self.node, REPORT, begun, now.wall);
        span.attributes.push((attribute::REPORTER, reporter.to_owned()));
        self.tracer.send(span);
        self.end(uid, None, now);
    }

    /// The lock is released: the node goes down, and with it what the agent waits for.
    fn abandon(&mut self, now: Now) {
        let pods: Vec<PodUid> = self.pods.keys().cloned().collect();
        for uid in pods {
            self.end(&uid, Some("not reported before the lock was released"), now);
        }
        self.calls.clear();
    }

    fn end(&mut self, uid: &PodUid, error: Option<&'static str>, now: Now) {
        let Some(mut disruption) = self.pods.remove(uid) else { return };
        let begun = disruption.begun;
        let mut span = disruption.step(&self.node, ROOT, begun, now.wall);
        span.error = error;
        self.tracer.send(span);
    }
}

impl Disruption {
    /// A step that ends now. The API's clock may go back, and steps keep their order.
    fn step(&mut self, node: &str, name: &'static str, begun: Timestamp, now: Timestamp) -> Span {
        self.last = self.last.max(now);
        let attributes = vec![
            (attribute::POD_UID, self.pod.uid.0.clone()),
            (attribute::POD_NAME, self.pod.name.clone()),
            (attribute::NAMESPACE, self.pod.namespace.clone()),
            (attribute::NODE, node.to_owned()),
            (attribute::CAUSE, self.cause.to_owned()),
        ];
        let pod_uid = self.pod.uid.0.clone();
        Span { pod_uid, name, begun, ended: self.last, attributes, error: None }
    }
}

/// The shutdown, while its lock is not released and it is not cancelled.
fn going(status: &Status) -> Option<&ShutdownStatus> {
    status.shutdown.as_ref().filter(|run| !run.cancelled && run.released_after.is_none())
}

/// The wall time of an earlier moment on CLOCK_MONOTONIC.
fn before(now: Now, since: Duration) -> Timestamp {
    let ago = SignedDuration::try_from(now.monotonic.saturating_sub(since)).unwrap_or_default();
    now.wall.checked_sub(ago).unwrap_or(now.wall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::agent::VictimStatus;
    use agent_core::protocol::event::RuntimeState;
    use agent_core::shutdown::Mode;
    use agent_core::shutdown::budget::Step;
    use epilogue_common::outcome::{Failure, FailureKind};
    use epilogue_runtime::traces::Message;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use tokio::sync::mpsc::Receiver;

    const UID: &str = "0b7c3f5e-1f52-4a39-9a3e-6f1f5b1d0c7a";

    struct Scene {
        traces: Traces,
        messages: Receiver<Message>,
        status: Status,
        calls: u64,
    }

    fn at(second: u64) -> Now {
        let monotonic = Duration::from_secs(second);
        let wall = Timestamp::from_second(1_000 + second as i64).expect("must be a time");
        Now { monotonic, boot: monotonic, wall }
    }

    fn pod() -> PodRef {
        PodRef { namespace: "a".into(), name: "p".into(), uid: PodUid(UID.into()) }
    }

    fn patch(purpose: Purpose) -> Action {
        Action::PatchStatus { pod: pod(), purpose, body: Value::Null }
    }

    fn ok() -> ActionResult {
        ActionResult::Patched(Ok(None))
    }

    fn stopped() -> ActionResult {
        ActionResult::Runtime(Ok(RuntimeState::default()))
    }

    /// A shutdown that was announced at second 1, with 30 s granted.
    fn shutdown() -> ShutdownStatus {
        ShutdownStatus {
            t0: at(1).monotonic,
            since: at(1).wall,
            kind: None,
            granted: Duration::from_secs(30),
            mode: Mode::Substitute,
            step: Step::Intent,
            cancelled: false,
            candidates: 1,
            marked: 0,
            terminal: 0,
            unreported: 1,
            unacknowledged: 0,
            marked_after: None,
            reported_after: None,
            released_after: None,
            unreported_at_release: None,
            left_at_release: BTreeMap::new(),
        }
    }

    impl Scene {
        fn new() -> Self {
            let (tracer, messages) = Tracer::recorded(64).expect("must be valid");
            let traces = Traces::new(tracer, "n1".into());
            let status = Status { shutdown: Some(shutdown()), ..Status::default() };
            Self { traces, messages, status, calls: 0 }
        }

        fn act(&mut self, action: &Action, result: ActionResult, second: u64) {
            self.calls += 1;
            let id = ActionId(self.calls);
            self.traces.action(id, action, &self.status, at(second));
            self.traces.event(&Event::Finished { id, result }, at(second));
        }

        /// The spans: name, begin and end in seconds, and the attribute or error that matters.
        fn spans(&mut self) -> Vec<(&'static str, i64, i64, String)> {
            let mut spans = Vec::new();
            while let Ok(Message::Span(span)) = self.messages.try_recv() {
                let matters = [attribute::PROOF, attribute::REPORTER];
                let found = span.attributes.iter().find(|(name, _)| matters.contains(name));
                let said = found.map(|(_, value)| value.clone());
                let said = said.or(span.error.map(str::to_owned)).unwrap_or_default();
                let second = |time: Timestamp| time.as_second() - 1_000;
                spans.push((span.name, second(span.begun), second(span.ended), said));
            }
            spans
        }
    }

    #[test]
    fn the_steps_of_a_disruption_follow_each_other() {
        let mut scene = Scene::new();
        scene.act(&patch(Purpose::Mark), ok(), 2);
        scene.act(&Action::InspectPod(pod()), stopped(), 5);
        scene.act(&patch(Purpose::Fail), ok(), 6);
        let expected = [
            (MARK, 1, 2, ""),
            (TERMINATE, 2, 5, "runtime"),
            (REPORT, 5, 6, "agent"),
            (ROOT, 1, 6, ""),
        ];
        let expected = expected.map(|(name, begun, ended, said)| (name, begun, ended, said.into()));
        assert_eq!(scene.spans(), expected);
        assert!(scene.traces.pods.is_empty() && scene.traces.calls.is_empty());
    }

    #[test]
    fn what_failed_ends_no_step() {
        let mut scene = Scene::new();
        let failed = || ActionResult::Done(Err(Failure::new(FailureKind::Other, "no")));
        scene.act(&patch(Purpose::Mark), failed(), 2);
        let runs = RuntimeState { sandbox_ready: true, ..RuntimeState::default() };
        scene.act(&Action::InspectPod(pod()), ActionResult::Runtime(Ok(runs)), 3);
        scene.act(&patch(Purpose::Fail), failed(), 4);
        assert!(scene.spans().is_empty());
        scene.act(&patch(Purpose::Mark), ok(), 5);
        assert_eq!(scene.spans(), [(MARK, 1, 5, String::new())]);
    }

    #[test]
    fn an_eviction_begins_when_its_pod_was_chosen() {
        let mut scene = Scene::new();
        scene.status.shutdown = None;
        scene.status.pressure.victims = vec![VictimStatus {
            uid: pod().uid,
            namespace: "a".into(),
            name: "p".into(),
            signal: "memory.available",
            since: at(7).monotonic,
        }];
        scene.act(&patch(Purpose::Mark), ok(), 9);
        let Ok(Message::Span(span)) = scene.messages.try_recv() else { panic!("must be a span") };
        assert_eq!((span.begun, span.ended), (at(7).wall, at(9).wall));
        assert!(span.attributes.contains(&(attribute::CAUSE, "memory.available".into())));
    }

    #[test]
    fn a_cancelled_shutdown_ends_the_trace_as_an_error() {
        let mut scene = Scene::new();
        scene.act(&patch(Purpose::Mark), ok(), 2);
        scene.act(&patch(Purpose::Clear), ok(), 4);
        let spans = scene.spans();
        assert_eq!(spans[1], (ROOT, 1, 4, "the disruption was cancelled".into()));
    }

    #[test]
    fn a_pod_without_a_report_ends_with_the_lock() {
        let mut scene = Scene::new();
        scene.act(&patch(Purpose::Mark), ok(), 2);
        scene.act(&Action::ReleaseLock, ok(), 30);
        let spans = scene.spans();
        assert_eq!(spans[1], (ROOT, 1, 30, "not reported before the lock was released".into()));
        assert_eq!(spans.len(), 2);
    }

    #[test]
    fn a_clock_that_goes_back_keeps_the_order() {
        let mut scene = Scene::new();
        scene.act(&patch(Purpose::Mark), ok(), 5);
        scene.act(&patch(Purpose::Fail), ok(), 3);
        let times: Vec<_> =
            scene.spans().into_iter().map(|(_, begun, end, _)| (begun, end)).collect();
        assert_eq!(times, [(1, 5), (5, 5), (5, 5), (1, 5)]);
    }

    #[test]
    fn pods_beyond_the_limit_are_not_followed() {
        let mut scene = Scene::new();
        for number in 0..=PODS_MAX {
            let pod = PodRef { uid: PodUid(number.to_string()), ..pod() };
            let action = Action::PatchStatus { pod, purpose: Purpose::Mark, body: Value::Null };
            scene.traces.action(ActionId(number as u64), &action, &scene.status, at(2));
        }
        assert_eq!(scene.traces.pods.len(), PODS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_lock_waits_for_the_collector_only_while_time_is_left() {
        let scene = Scene::new();
        // The exporter never answers. The delay ends at second 31.
        for (action, second, expected) in [
            (Action::ReleaseLock, 5, FLUSH_MAX),
            (Action::ReleaseLock, 30, Duration::ZERO),
            (Action::TakeLock, 5, Duration::ZERO),
        ] {
            let begun = tokio::time::Instant::now();
            scene.traces.before(&action, &scene.status, at(second)).await;
            assert_eq!(begun.elapsed(), expected, "{action:?} at {second} s");
        }
    }

    #[test]
    fn without_a_tracer_nothing_is_followed() {
        let mut traces = Traces::default();
        traces.action(ActionId(1), &patch(Purpose::Mark), &Status::default(), at(1));
        assert!(traces.pods.is_empty() && traces.calls.is_empty());
    }
}
