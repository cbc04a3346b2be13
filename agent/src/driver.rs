//! Runs the one task that owns the agent's core: it feeds in facts, passes actions to the sinks,
//! and returns their results. Decides nothing.

mod lanes;

use std::future::pending;
use std::time::Duration;

use agent_core::agent::{Agent, ShutdownStatus, Status};
use agent_core::protocol::action::{Action, ActionId, Line, PodRef};
use agent_core::protocol::event::{ActionResult, Event, Now};
use futures::future::BoxFuture;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::traces::Traces;
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
    /// An action's task panicked.
    #[error("an action panicked")]
    Panicked(#[source] JoinError),
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
    /// The traces of disrupted pods.
    pub traces: Traces,
}

impl<S: Sinks> Driver<S> {
    /// A driver of these parts.
    pub fn new(parts: Parts<S>) -> Self {
        Self { parts, lanes: Lanes::default(), running: JoinSet::new(), wake: None }
    }

    /// Runs until `stop` is cancelled and the core has nothing left to finish.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), DriverError> {
        let mut stopping = false;
        loop {
            self.act();
            self.show();
            if stopping && self.parts.agent.status().may_exit {
                return Ok(());
            }
            let due = self.due();
            // In a fixed order, so that a run in paused time can be repeated. Calls that end cannot
            // hold up the events for long: there are few at a time.
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.handle(Event::StopRequested);
                }
                Some(ended) = self.running.join_next() => {
                    let (id, result) = ended.map_err(DriverError::Panicked)?;
                    self.handle(Event::Finished { id, result });
                }
                event = self.parts.events.recv() => self.take(event.ok_or(DriverError::NoSources)?),
                () = due => {}
            }
        }
    }

    fn now(&self) -> Now {
        (self.parts.clock)()
    }

    /// Takes in a fact, and those right behind it: a list of events is one change.
    fn take(&mut self, event: Event) {
        self.handle(event);
        for _ in 1..EVENTS_AT_ONCE {
            let Ok(event) = self.parts.events.try_recv() else { return };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        if matches!(event, Event::ShutdownAnnounced(_)) {
            self.parts.metrics.notice();
        }
        let now = self.now();
        self.parts.traces.event(&event, now);
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
                    action => self.start(id, action, now),
                }
            }
        }
    }

    /// Starts an action, once those before it in its lane have ended.
    fn start(&mut self, id: ActionId, action: Action, now: Now) {
        tracing::debug!(id = id.0, ?action, "action");
        let status = self.parts.agent.status();
        self.parts.traces.action(id, &action, status, now);
        let flushed = self.parts.traces.before(&action, status, now);
        let mut place = self.lanes.enter(self.parts.sinks.lane(&action));
        let work = self.parts.sinks.carry_out(action);
        self.running.spawn(async move {
            tokio::join!(place.turn(), flushed);
            (id, work.await)
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

fn name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn goes_on(run: &ShutdownStatus) -> bool {
    !run.cancelled && run.released_after.is_none()
}
