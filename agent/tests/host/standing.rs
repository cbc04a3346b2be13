//! Runs a session with logind for a test, and collects what it reports.

use std::collections::VecDeque;
use std::time::Duration;

use agent_core::protocol::event::{Event, LogindState};
use epilogue_agent::source::logind::OurLock;
use epilogue_agent::source::logind_session::{Changes, LogindSession, Pace};
use epilogue_agent::source::session::Pauses;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum wait of a test.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// The reason of the agent's lock.
pub(crate) fn words() -> OurLock {
    OurLock::new(Duration::from_secs(7))
}

/// A running session.
pub(crate) struct Session {
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) changes: watch::Receiver<Changes>,
    seen: VecDeque<Event>,
    stop: CancellationToken,
    task: JoinHandle<Option<()>>,
}

impl Session {
    /// Starts a session with a short poll, whose events go into a queue of this length.
    pub(crate) fn start(address: &str, queue: usize) -> Self {
        let pace = Pace {
            poll: Duration::from_millis(100),
            poll_going_down: Duration::from_millis(50),
            pauses: Pauses { min: Duration::from_millis(20), max: Duration::from_millis(100) },
        };
        let session = LogindSession::new(address.to_owned(), words()).at_pace(pace);
        let (sender, events) = mpsc::channel(queue);
        let (stop, changes) = (CancellationToken::new(), session.changes());
        let task = tokio::spawn(stop.clone().run_until_cancelled_owned(session.run(sender)));
        Self { events, changes, seen: VecDeque::new(), stop, task }
    }

    /// The next event that `wanted` accepts; earlier ones are dropped.
    pub(crate) async fn next<T>(&mut self, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let end = Instant::now() + WITHIN;
        loop {
            let event = match tokio::time::timeout_at(end, self.events.recv()).await {
                Ok(Some(event)) => event,
                Ok(None) => panic!("the session ended before {what}; last: {:?}", self.seen),
                Err(elapsed) => panic!("{elapsed}: no {what}; last: {:?}", self.seen),
            };
            if let Some(found) = wanted(&event) {
                return found;
            }
            self.seen.push_back(event);
            if self.seen.len() > 8 {
                self.seen.pop_front();
            }
        }
    }

    /// The next state of logind that `wanted` accepts.
    pub(crate) async fn state(
        &mut self,
        what: &str,
        wanted: impl Fn(&LogindState) -> bool,
    ) -> LogindState {
        let seen = |event: &Event| match event {
            Event::LogindSeen(state) if wanted(state) => Some(state.clone()),
            _ => None,
        };
        self.next(what, seen).await
    }

    /// All events but states, up to and with the second state from now: by then everything is
    /// reported.
    pub(crate) async fn words(&mut self) -> Vec<Event> {
        let mut words = Vec::new();
        let mut checks = 0;
        while checks < 2 {
            let event = self.next("event", |event| Some(event.clone())).await;
            if matches!(event, Event::LogindSeen(_)) {
                checks += 1;
            } else {
                words.push(event);
            }
        }
        words
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        drop(self.events);
        self.task.await.expect("the session must not panic");
    }
}
