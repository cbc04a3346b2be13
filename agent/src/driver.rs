//! Runs the one task that owns the agent's core: it feeds in facts, passes actions to the sinks,
//! and returns their results. Decides nothing.

mod lanes;

use std::any::Any;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use agent_core::agent::{Agent, ShutdownStatus, Status};
use agent_core::protocol::action::{Action, ActionId, Line, PodRef};
use agent_core::protocol::ending::{Ending, Source};
use agent_core::protocol::event::{ActionResult, Event, Now};
use epilogue_common::outcome::{Failure, FailureKind};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::source::stop::Stopping;
pub use lanes::Lane;
use lanes::Lanes;

/// Maximum number of facts that the driver takes in before it asks for actions again.
const EVENTS_AT_ONCE: usize = 64;

/// Where actions are carried out.
pub trait Sinks: Send + 'static {
    /// The lane of an action: actions in one lane run one after the other.
    fn lane(&self, action: &Action) -> Lane;
    /// Carries out an action, one attempt.
    fn carry_out(&self, action: Action) -> BoxFuture<'static, ActionResult>;
}

/// The clocks, as the core reads them.
pub type Clock = Box<dyn Fn() -> Now + Send>;

/// What other tasks can read.
#[derive(Debug)]
pub struct Shown {
    /// The core's status.
    pub status: watch::Sender<Status>,
    /// Whether a shutdown is in progress, for the watch of pods and that of the node. Each has a
    /// channel of its own, because a channel wakes its receivers in any order.
    pub hurry: [watch::Sender<bool>; 2],
}

/// Why the driver cannot go on.
#[derive(Debug, Error)]
pub enum DriverError {
    /// All sources have ended.
    #[error("no source of facts is left")]
    NoSources,
    /// The task of an action ended without a result.
    #[error("an action has no result")]
    NoResult(#[source] JoinError),
}

/// The core and its surroundings.
pub struct Driver<S> {
    parts: Parts<S>,
    lanes: Lanes,
    running: JoinSet<(ActionId, ActionResult)>,
    /// When the core wants to decide again, on CLOCK_MONOTONIC.
    wake: Option<Duration>,
}

/// What the driver starts with.
pub struct Parts<S> {
    /// The core.
    pub agent: Agent,
    /// The node's name, for the log.
    pub node: String,
    /// The clocks.
    pub clock: Clock,
    /// Facts from all sources.
    pub events: mpsc::Receiver<Event>,
    /// Where actions go.
    pub sinks: S,
    /// Where notices are counted.
    pub metrics: Metrics,
    /// What other tasks can read.
    pub shown: Shown,
}

impl<S: Sinks> Driver<S> {
    /// A driver of these parts.
    pub fn new(parts: Parts<S>) -> Self {
        Self { parts, lanes: Lanes::default(), running: JoinSet::new(), wake: None }
    }

    /// Runs until `stop` is ready and the core has nothing left to finish.
    pub async fn run(mut self, stop: impl Future<Output = Stopping>) -> Result<(), DriverError> {
        let mut stop = pin!(stop);
        let mut stopping = false;
        loop {
            self.act();
            self.show();
            if stopping && self.parts.agent.status().may_exit {
                return Ok(());
            }
            let due = self.due();
            // In a fixed order, so that a run in paused time can be repeated. With each call that
            // ends come the events that wait: calls that end one after the other hold up none.
            tokio::select! {
                biased;
                stopped = &mut stop, if !stopping => {
                    stopping = true;
                    if stopped == Stopping::System {
                        let stop = Ending::certain(None, None);
                        self.handle(Event::EndingSeen(Source::Systemd, Some(stop)));
                    }
                    self.handle(Event::StopRequested);
                }
                Some(ended) = self.running.join_next() => {
                    let (id, result) = ended.map_err(DriverError::NoResult)?;
                    self.take(Event::Finished { id, result });
                }
                event = self.parts.events.recv() => self.take(event.ok_or(DriverError::NoSources)?),
                () = due => {}
            }
        }
    }

    fn now(&self) -> Now {
        (self.parts.clock)()
    }

    /// Takes in a fact, and the events that wait: a list of events is one change.
    fn take(&mut self, event: Event) {
        self.handle(event);
        for _ in 1..EVENTS_AT_ONCE {
            let Ok(event) = self.parts.events.try_recv() else { return };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        if matches!(event, Event::EndingSeen(Source::Logind, Some(_))) {
            self.parts.metrics.notice();
        }
        let now = self.now();
        self.parts.agent.handle(event, now);
    }

    /// Starts all actions that are due now.
    fn act(&mut self) {
        loop {
            let now = self.now();
            let plan = self.parts.agent.plan(now);
            self.wake = plan.wake;
            if plan.actions.is_empty() {
                return;
            }
            for (id, action) in plan.actions {
                match action {
                    Action::Log(line) => self.log(&line),
                    action => self.start(id, action),
                }
            }
        }
    }

    /// Starts an action, once those before it in its lane have ended.
    fn start(&mut self, id: ActionId, action: Action) {
        tracing::debug!(id = id.0, ?action, "action");
        let mut place = self.lanes.enter(self.parts.sinks.lane(&action));
        let of = ActionResult::failed(&action);
        let work = self.parts.sinks.carry_out(action);
        self.running.spawn(async move {
            place.turn().await;
            // The lock must outlive the panic: the process keeps it.
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            (id, ended.unwrap_or_else(|panic| of(panicked(panic.as_ref()))))
        });
    }

    /// Sleeps until the core's next deadline.
    fn due(&self) -> impl Future<Output = ()> + use<S> {
        let left = self.wake.map(|at| at.saturating_sub(self.now().monotonic));
        async move {
            match left {
                Some(left) => tokio::time::sleep_until(Instant::now() + left).await,
                None => pending().await,
            }
        }
    }

    fn show(&self) {
        let status = self.parts.agent.status();
        let hurry = status.preparing || status.shutdown.as_ref().is_some_and(goes_on);
        for watch in &self.parts.shown.hurry {
            watch.send_if_modified(|shown| std::mem::replace(shown, hurry) != hurry);
        }
        self.parts.shown.status.send_if_modified(|shown| {
            let changed = shown != status;
            if changed {
                shown.clone_from(status);
            }
            changed
        });
    }

    /// Writes a decision to the log. Its fields' names are an interface.
    fn log(&self, line: &Line) {
        let node = self.parts.node.as_str();
        let pod = line.pod.as_ref().map(name);
        let uid = line.pod.as_ref().map(|pod| pod.uid.0.as_str());
        if line.warning {
            tracing::warn!(node, pod, uid, "{}", line.text);
        } else {
            tracing::info!(node, pod, uid, "{}", line.text);
        }
    }
}

/// The failure of an action that panicked; such as one for which the system has no thread left.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure::new(FailureKind::Other, format!("the action panicked: {text}"))
}

fn name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn goes_on(run: &ShutdownStatus) -> bool {
    !run.cancelled && run.released_after.is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    use agent_core::agent::{Features, LockState, Settings};
    use agent_core::pod::PodView;
    use agent_core::protocol::action::Purpose;
    use agent_core::protocol::event::LogindState;
    use agent_core::protocol::node::{Healthz, KubeletFacts, Unit};
    use agent_core::shutdown::candidates::BarePods;
    use futures::poll;
    use jiff::Timestamp;
    use prometheus::Registry;
    use serde_json::json;
    use tokio::task::yield_now;

    use super::*;
    use crate::source::wire_pod::WirePod;

    /// How many calls end at once.
    const CALLS: usize = 32;

    /// A pod that runs under the mark of a shutdown that is forgotten.
    fn marked(number: usize) -> PodView {
        let pod = json!({
            "metadata": {"uid": format!("u{number}"), "namespace": "a", "name": format!("p{number}")},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "main", "state": {"running": {"startedAt": "2026-11-21T13:30:00Z"}}},
                ],
                "conditions": [{
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "TerminationByKubelet",
                    "message": "Pod was terminated in response to imminent node shutdown.",
                    "lastTransitionTime": "2026-11-21T13:40:00Z",
                }],
            },
        });
        serde_json::from_value::<WirePod>(pod).expect("must parse").view()
    }

    /// All reads end at once, when the gate opens; nothing else ends.
    struct Gated {
        gate: watch::Receiver<bool>,
        pods: BTreeMap<String, PodView>,
        begun: Arc<Mutex<Vec<&'static str>>>,
        ended: mpsc::UnboundedSender<()>,
    }

    impl Sinks for Gated {
        fn lane(&self, _: &Action) -> Lane {
            Lane::Free
        }

        fn carry_out(&self, action: Action) -> BoxFuture<'static, ActionResult> {
            let kind = match &action {
                Action::ReadPod(_) => "read",
                Action::PatchStatus { purpose: Purpose::Clear, .. } => "clear",
                Action::Announce(text) if text.starts_with("shutting-down") => "announce",
                _ => "other",
            };
            self.begun.lock().expect("must not be poisoned").push(kind);
            let Action::ReadPod(pod) = action else { return pending().boxed() };
            let (mut gate, ended) = (self.gate.clone(), self.ended.clone());
            let view = self.pods.get(&pod.name).cloned().map(Box::new);
            async move {
                gate.wait_for(|open| *open).await.expect("must not be closed");
                ended.send(()).expect("must be counted");
                ActionResult::Pod(Ok(view))
            }
            .boxed()
        }
    }

    fn settings() -> Settings {
        Settings {
            boot_id: "boot-1".into(),
            booted_at: None,
            own_pod: None,
            priority_groups: None,
            priority_groups_given: true,
            priority_max: 2_000_000_000,
            bare_pods: BarePods::Leave,
            runtime: false,
            logind: true,
            notices: BTreeSet::new(),
            raise_delay: false,
            enforce: true,
            tries_policies: false,
            in_flight_max: 2 * CALLS,
            features: Features::default(),
        }
    }

    /// Each first action of a kind panics; locks are granted then.
    struct Panics {
        begun: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    }

    impl Sinks for Panics {
        fn lane(&self, _: &Action) -> Lane {
            Lane::Free
        }

        fn carry_out(&self, action: Action) -> BoxFuture<'static, ActionResult> {
            let (kind, then) = match action {
                Action::TakeLock => ("lock", ActionResult::Locked),
                Action::Announce(_) => ("announce", ActionResult::Done(Ok(()))),
                _ => return pending().boxed(),
            };
            let mut begun = self.begun.lock().expect("must not be poisoned");
            let count = begun.entry(kind).or_default();
            *count += 1;
            let panics = *count == 1;
            async move {
                assert!(!panics, "OS can't spawn worker thread");
                then
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_action_that_panics_has_failed_and_is_tried_again() {
        let wall: Timestamp = "2026-11-21T14:00:00Z".parse().expect("must be a time");
        let start = Instant::now();
        let clock = move || {
            let uptime = Duration::from_hours(1) + start.elapsed();
            Now { monotonic: uptime, boot: uptime, wall: wall + start.elapsed() }
        };
        let (events, heard) = mpsc::channel(8);
        let (status, mut shown) = watch::channel(Status::default());
        let begun = Arc::new(Mutex::new(BTreeMap::new()));
        let driver = Driver::new(Parts {
            agent: Agent::new(settings(), &[], clock()),
            node: "n1".to_owned(),
            clock: Box::new(clock),
            events: heard,
            sinks: Panics { begun: Arc::clone(&begun) },
            metrics: Metrics::new(&Registry::new()).expect("must register"),
            shown: Shown { status, hurry: Default::default() },
        });
        let calm = LogindState {
            owner: ":1.0".into(),
            delay: Some(Duration::from_secs(30)),
            preparing: false,
            scheduled: None,
            lock_listed: Some(false),
        };
        events.try_send(Event::LogindSeen(calm)).expect("must have room");
        let held = async {
            shown.wait_for(|status| status.lock == LockState::Held).await.expect("must go on");
        };
        tokio::select! {
            ended = driver.run(pending()) => panic!("it must go on: {ended:?}"),
            () = held => {}
        }
        assert_eq!(begun.lock().expect("must not be poisoned").get("lock"), Some(&2));
    }

    #[tokio::test]
    async fn calls_that_end_one_after_the_other_hold_up_no_event() {
        let uptime = Duration::from_hours(1);
        let wall = "2026-11-21T14:00:00Z".parse().expect("must be a time");
        let now = Now { monotonic: uptime, boot: uptime, wall };
        let (open, gate) = watch::channel(false);
        let (events, heard) = mpsc::channel(8);
        let (ended, mut ends) = mpsc::unbounded_channel();
        let (status, _shown) = watch::channel(Status::default());
        let begun = Arc::new(Mutex::new(Vec::new()));
        let pods: Vec<PodView> = (0..CALLS).map(marked).collect();
        let by_name = pods.iter().map(|pod| (pod.name.clone(), pod.clone())).collect();
        let driver = Driver::new(Parts {
            agent: Agent::new(settings(), &[], now),
            node: "n1".to_owned(),
            clock: Box::new(move || now),
            events: heard,
            sinks: Gated { gate, pods: by_name, begun: Arc::clone(&begun), ended },
            metrics: Metrics::new(&Registry::new()).expect("must register"),
            shown: Shown { status, hurry: Default::default() },
        });
        let count = |kind| {
            let begun = begun.lock().expect("must not be poisoned");
            begun.iter().filter(|begun| **begun == kind).count()
        };
        let mut run = pin!(driver.run(pending()));

        let lives = KubeletFacts {
            unit: Some(Unit::Active),
            healthy: Some(Healthz::Ok),
            lock_armed: Some(false),
            ..KubeletFacts::default()
        };
        let calm = LogindState {
            owner: ":1.0".into(),
            delay: Some(Duration::from_secs(30)),
            preparing: false,
            scheduled: None,
            lock_listed: Some(false),
        };
        for event in [Event::KubeletSeen(lives), Event::LogindSeen(calm), Event::PodsListed(pods)] {
            events.try_send(event).expect("must have room");
        }
        assert!(poll!(&mut run).is_pending());
        assert_eq!(count("read"), CALLS, "{begun:?}");

        // All reads end, and a shutdown is announced, before the driver goes on.
        open.send(true).expect("must be awaited");
        for _ in 0..CALLS {
            ends.recv().await.expect("must end");
        }
        yield_now().await;
        let announced = Event::EndingSeen(Source::Logind, Some(Ending::certain(None, None)));
        events.try_send(announced).expect("must have room");
        while count("announce") == 0 {
            assert!(poll!(&mut run).is_pending());
            yield_now().await;
        }
        let begun = begun.lock().expect("must not be poisoned");
        let before = begun.iter().take_while(|kind| **kind != "announce");
        let before = before.filter(|kind| **kind == "clear").count();
        assert!(before <= 1, "{before} results came first: {begun:?}");
    }
}
