//! Keeps a session with logind: connects, subscribes, reads, for as long as the agent runs. A
//! reader takes in every signal at once. A reporter passes events on at the pace of their receiver.

use std::convert::Infallible;
use std::time::Duration;

use agent_core::protocol::ending::{Ending, Source};
use agent_core::protocol::event::Event;
use futures::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use zbus::fdo::DBusProxy;
use zbus::{MatchRule, MessageStream};

use super::logind::{Logind, NAME, OurLock, PATH, granted};
use super::logind_signs::{Listener, MANAGER, PROPERTIES, Signs};
use super::session::{Owner, Pauses, Session, closed, keep, rule, signals, subscribe};
use super::tell;
use crate::bus::{Answer, Bus, BusAddress, CallError};
use crate::clock::Clock;

/// Maximum time of a question at the signal: the delay is running out.
const AT_SIGNAL_MAX: Duration = Duration::from_millis(100);

/// How often the session asks and retries.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between two reads of the properties: neither the scheduled shutdown nor the delay
    /// announces a change. ([LD12])
    pub poll: Duration,
    /// The same during a shutdown: an action can vanish without a signal. [LD7]
    pub poll_going_down: Duration,
    /// The pauses after lost connections.
    pub pauses: Pauses,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(10),
            poll_going_down: Duration::from_secs(1),
            pauses: Pauses { min: Duration::from_secs(1), max: Duration::from_secs(30) },
        }
    }
}

/// The session, before it runs.
#[derive(Debug)]
pub struct LogindSession {
    address: BusAddress,
    lock: OurLock,
    pace: Pace,
    /// Tells the API's time of what logind schedules by this machine's.
    clock: Option<Clock>,
    changes: watch::Sender<Changes>,
}

/// Says when to check the kubelet again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Grows when a lock came or went, logind changed, or a shutdown was announced or cancelled.
    pub count: u64,
    /// Whether logind goes down, by its last signal or by the property, whichever came later. Its
    /// loss of the bus changes nothing; its end does.
    pub going_down: bool,
}

/// A session that runs.
struct Running {
    session: LogindSession,
    events: mpsc::Sender<Event>,
}

impl LogindSession {
    /// A session over the bus at `address`, which recognises the agent's lock by its reason.
    pub fn new(address: impl Into<BusAddress>, lock: OurLock) -> Self {
        let address = address.into();
        Self {
            address,
            lock,
            pace: Pace::default(),
            clock: None,
            changes: watch::Sender::default(),
        }
    }

    /// The same session at another pace.
    #[must_use]
    pub fn at_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// The same session, on a machine whose clock may differ from the API's.
    #[must_use]
    pub fn clocked(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Signals when to check the kubelet again.
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.changes.subscribe()
    }

    /// Keeps the session.
    pub async fn run(self, events: mpsc::Sender<Event>) {
        let (address, pauses) = (self.address.clone(), self.pace.pauses);
        keep(Running { session: self, events }, &address, pauses).await;
    }
}

impl Session for Running {
    async fn connected(&mut self, bus: &Bus, messages: MessageStream) -> Answer<Infallible> {
        let signs = watch::Sender::new(Signs::default());
        let mut reporter = Reporter {
            session: &self.session,
            bus,
            signs: signs.subscribe(),
            reported: Signs::default(),
            events: &self.events,
        };
        let report = async {
            let owner = subscribe(bus, NAME, rules()).await?;
            signs.send_modify(|signs| signs.owner.found(owner));
            reporter.report(&Logind::on(bus).await?).await
        };
        tokio::select! {
            biased;
            () = listen(messages, &signs) => Err(closed()),
            ended = report => ended,
        }
    }

    async fn lost(&mut self, error: CallError) {
        tracing::warn!(error = error.message, "the session with logind is over");
        tell(&self.events, Event::LogindLost(error.message)).await;
    }
}

/// Reads messages until the connection ends. Never waits for anything else: all replies on the
/// connection queue behind an unread message.
async fn listen(mut stream: MessageStream, signs: &watch::Sender<Signs>) {
    let mut listener = Listener::new(signs);
    while let Some(message) = stream.next().await {
        match message {
            Ok(message) => listener.hear(&message),
            Err(_) => return,
        }
    }
}

/// Reports what the signs say.
struct Reporter<'a> {
    session: &'a LogindSession,
    bus: &'a Bus,
    signs: watch::Receiver<Signs>,
    /// What was already reported.
    reported: Signs,
    events: &'a mpsc::Sender<Event>,
}

impl Reporter<'_> {
    async fn report(&mut self, logind: &Logind) -> Answer<Infallible> {
        let mut due = Instant::now() + self.period();
        loop {
            self.catch_up(logind).await;
            due = due.min(Instant::now() + self.period());
            let mut signs = self.signs.clone();
            let check = async {
                sleep_until(due).await;
                self.seen(logind).await;
            };
            // A signal does not wait for the answers of a periodic read.
            tokio::select! {
                biased;
                changed = signs.changed() => if changed.is_err() {
                    return Err(closed());
                },
                () = check => due = Instant::now() + self.period(),
            }
        }
    }

    fn period(&self) -> Duration {
        let pace = &self.session.pace;
        let going_down = self.session.changes.borrow().going_down;
        if going_down { pace.poll_going_down } else { pace.poll }
    }

    /// Reports the difference between the last report and now. Never skips a `false`; skips a
    /// `true` that is already over.
    async fn catch_up(&mut self, logind: &Logind) {
        let now = self.signs.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.reported, now.clone());
        self.warn_of_other_sender(&before, &now).await;
        if (&before.owner, before.owners) != (&now.owner, now.owners) {
            self.seen(logind).await;
        }
        if before.cancelled != now.cancelled {
            self.goes_down(false);
            tell(self.events, Event::EndingSeen(Source::Logind, None)).await;
        }
        if before.announced != now.announced && now.going_down {
            self.announce(logind, &now).await;
        }
        // A session that has just found logind counts as a change too.
        if before != now {
            self.report_change();
        }
    }

    fn report_change(&self) {
        self.session.changes.send_modify(|changes| changes.count += 1);
    }

    /// Notes whether logind goes down. The place outlives this connection and this logind.
    fn goes_down(&self, goes_down: bool) {
        self.session.changes.send_if_modified(|changes| {
            std::mem::replace(&mut changes.going_down, goes_down) != goes_down
        });
    }

    /// Reports `true`, unless logind denies it when asked: then the shutdown is over, or never was.
    /// Without an answer the signal counts, because time runs out.
    async fn announce(&mut self, logind: &Logind, now: &Signs) {
        let (preparing, delay) = tokio::join!(
            timeout(AT_SIGNAL_MAX, logind.preparing()),
            timeout(AT_SIGNAL_MAX, logind.delay())
        );
        if let Ok(Ok(false)) = preparing {
            tracing::warn!(
                "PrepareForShutdown said true and the property PreparingForShutdown says false: \
                 the signal is not believed"
            );
            return;
        }
        let granted = delay.ok().and_then(Result::ok).map(granted);
        let kind = now.kind.clone();
        self.goes_down(true);
        let ending = Ending::certain(granted, kind);
        tell(self.events, Event::EndingSeen(Source::Logind, Some(ending))).await;
    }

    /// Reads all properties and reports them.
    async fn seen(&mut self, logind: &Logind) {
        let event = match &self.reported.owner {
            Owner::Name(owner) => match logind.state(owner.clone(), &self.session.lock).await {
                Ok(mut state) => {
                    let scheduled = state.scheduled.as_mut();
                    if let Some(((_, at), clock)) = scheduled.zip(self.session.clock.as_ref()) {
                        *at = clock.to_api(*at);
                    }
                    self.goes_down(state.preparing);
                    Event::LogindSeen(state)
                }
                Err(error) => {
                    let words = format!("logind does not answer: {}", error.message);
                    Event::LogindLost(words)
                }
            },
            Owner::Unknown | Owner::Absent => {
                // A delayed shutdown ends with the logind that delayed it. ([LD7])
                self.goes_down(false);
                Event::LogindLost(format!("{NAME} has no owner on the bus"))
            }
        };
        tell(self.events, event).await;
    }

    /// Warns once, and stops listening to other senders.
    async fn warn_of_other_sender(&self, before: &Signs, now: &Signs) {
        let (None, Some(other_sender)) = (&before.other_sender, &now.other_sender) else { return };
        tracing::warn!(
            sender = other_sender,
            "ignored PrepareForShutdown from a sender that does not own {NAME}; a simulation has \
             to be done through logind itself"
        );
        let bus = DBusProxy::new(self.bus.connection()).await;
        if let Ok(bus) = bus {
            // If this fails, further signals arrive and are ignored.
            let _ = bus.remove_match_rule(of_any_sender()).await;
        }
    }
}

/// The subscriptions. The rule without a sender lets the agent tell people why a signal of their
/// own has no effect. It goes after the first warning.
fn rules() -> [MatchRule<'static>; 3] {
    let shutdown = signals().sender(NAME).path(PATH).interface(MANAGER);
    let locks = signals().sender(NAME).path(PATH).interface(PROPERTIES).arg(0, MANAGER);
    [rule(shutdown), rule(locks), of_any_sender()]
}

fn of_any_sender() -> MatchRule<'static> {
    rule(signals().path(PATH).interface(MANAGER).member("PrepareForShutdown"))
}
