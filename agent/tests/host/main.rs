//! The agent's shells that face the host, against doubles of logind and systemd on a private
//! bus, and a directory for the host's files. (spec/node-agent.md §10.6-6, §10.6-7)

#[path = "../check/bus.rs"]
mod bus;
mod configz;
mod delay;
mod journal;
mod kubelet;
mod lock;
mod login1;
mod session;
mod systemd1;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use agent_core::protocol::event::{Event, LogindState};
use bus::PrivateBus;
use epilogue_agent::host::Host;
use epilogue_agent::sink::logind::LogindSink;
use epilogue_agent::source::logind::OurLock;
use epilogue_agent::source::logind_session::{Changes, LogindSession, Pace};
use login1::Login1;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// logind's name.
const NAME: &str = "org.freedesktop.login1";
/// What a test waits for at most.
const PATIENCE: Duration = Duration::from_secs(20);

/// A host: its files, its bus, its logind.
struct Node {
    login1: Login1,
    bus: PrivateBus,
    root: TempDir,
}

impl Node {
    /// A host whose logind grants this many seconds.
    async fn start(delay_seconds: u64) -> Self {
        let root = tempfile::tempdir().expect("must be creatable");
        let bus = PrivateBus::start(root.path());
        let login1 = Login1::start(&bus.address, root.path(), delay_seconds).await;
        Self { login1, bus, root }
    }

    fn host(&self) -> Host {
        Host::new(self.root.path().to_owned())
    }

    fn sink(&self) -> LogindSink {
        LogindSink::new(self.bus.address.clone(), self.host(), words())
    }

    fn session(&self) -> Session {
        Session::start(&self.bus.address, 64)
    }

    fn write(&self, path: &str, text: &str) {
        write(self.root.path(), path, text);
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    let dir = path.parent().expect("must lie in a directory");
    std::fs::create_dir_all(dir).expect("the root must be writable");
    std::fs::write(path, text).expect("the root must be writable");
}

fn words() -> OurLock {
    OurLock::new(Duration::from_secs(7))
}

/// A session that runs.
struct Session {
    events: mpsc::Receiver<Event>,
    changes: watch::Receiver<Changes>,
    seen: VecDeque<Event>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Session {
    /// Starts a session with a short poll, whose events go into a queue of this length.
    fn start(address: &str, queue: usize) -> Self {
        let pace = Pace {
            poll: Duration::from_millis(100),
            poll_going_down: Duration::from_millis(50),
            pause_min: Duration::from_millis(20),
            pause_max: Duration::from_millis(100),
        };
        let session = LogindSession::new(address.to_owned(), words()).at_pace(pace);
        let (sender, events) = mpsc::channel(queue);
        let (stop, changes) = (CancellationToken::new(), session.changes());
        let task = tokio::spawn(session.run(sender, stop.clone()));
        Self { events, changes, seen: VecDeque::new(), stop, task }
    }

    /// The next event that `wanted` takes; those before it are gone.
    async fn next<T>(&mut self, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
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

    /// The next state of logind that is as `wanted` says.
    async fn state(&mut self, what: &str, wanted: impl Fn(&LogindState) -> bool) -> LogindState {
        let seen = |event: &Event| match event {
            Event::LogindSeen(state) if wanted(state) => Some(state.clone()),
            _ => None,
        };
        self.next(what, seen).await
    }

    /// All but the looks, up to and with the second look from now: what was to be told is told
    /// by then.
    async fn words(&mut self) -> Vec<Event> {
        let mut words = Vec::new();
        let mut looks = 0;
        while looks < 2 {
            let event = self.next("event", |event| Some(event.clone())).await;
            if matches!(event, Event::LogindSeen(_)) {
                looks += 1;
            } else {
                words.push(event);
            }
        }
        words
    }

    async fn end(self) {
        self.stop.cancel();
        drop(self.events);
        self.task.await.expect("the session must not panic");
    }
}
