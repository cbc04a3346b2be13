//! Reports kills by systemd-oomd, which kills whole cgroups before the kernel has to. It takes the
//! signal `Killed` only from the owner of oomd's name. Most nodes have no oomd; then it reports
//! nothing.

use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::OomdKill;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use zbus::{MatchRule, Message, MessageStream};

use super::session::{Backoff, Owner, is_signal, owner_change, rule, signals, subscribe};
use crate::bus::Bus;
use crate::cgroups::place;

/// The name that oomd owns on the bus.
const NAME: &str = "org.freedesktop.oom1";
const PATH: &str = "/org/freedesktop/oom1";
const MANAGER: &str = "org.freedesktop.oom1.Manager";
/// Maximum length. Paths and reasons are shorter; a signal may have any length.
const TEXT_BYTES_MAX: usize = 4096;

/// How often a lost connection is retried.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The first pause; doubles with each further failure.
    pub pause_min: Duration,
    /// The longest pause. After a connection that lasted longer, pauses start small again.
    pub pause_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause_min: Duration::from_secs(1), pause_max: Duration::from_mins(1) }
    }
}

/// Reports kills until `stop` is cancelled or the receiver of events is gone.
pub async fn run(
    bus_address: String,
    pace: Pace,
    events: mpsc::Sender<Event>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(pace.pause_min, pace.pause_max);
    loop {
        let begun = Instant::now();
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = connection(&bus_address, &events) => ended,
        };
        match ended {
            Ok(()) => return,
            Err(error) => tracing::debug!(error, "the session with systemd-oomd is over"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(backoff.after(begun.elapsed())) => {}
        }
    }
}

/// One connection, from its beginning to its end. `Ok`: the receiver of events is gone.
async fn connection(address: &str, events: &mpsc::Sender<Event>) -> Result<(), String> {
    let bus = Bus::connect(address).await.map_err(|error| error.message)?;
    // One stream for all messages in their order: a change of the owner must not overtake its
    // signals.
    let stream = MessageStream::from(bus.connection());
    let ended = listen(&bus, stream, events).await;
    bus.close().await;
    ended
}

async fn listen(
    bus: &Bus,
    mut stream: MessageStream,
    events: &mpsc::Sender<Event>,
) -> Result<(), String> {
    let mut listener = Listener::default();
    let begin = subscribe(bus, NAME, [killed()]);
    tokio::pin!(begin);
    let mut begun = false;
    loop {
        tokio::select! {
            biased;
            owner = &mut begin, if !begun => match owner {
                Ok(owner) => {
                    begun = true;
                    listener.found(owner);
                }
                Err(error) => return Err(error.message),
            },
            message = stream.next() => {
                let Some(Ok(message)) = message else {
                    return Err("the connection to the bus is closed".to_owned());
                };
                if let Some(kill) = listener.hear(&message)
                    && events.send(Event::OomdKilled(Box::new(kill))).await.is_err()
                {
                    return Ok(());
                }
            }
        }
    }
}

fn killed() -> MatchRule<'static> {
    rule(signals().sender(NAME).path(PATH).interface(MANAGER).member("Killed"))
}

/// Takes in one message after the other.
#[derive(Debug, Default)]
struct Listener {
    owner: Owner,
    /// Signals of other senders are logged once.
    warned: bool,
}

impl Listener {
    /// Takes in the bus's answer. A change that arrived meanwhile is newer.
    fn found(&mut self, owner: Owner) {
        if self.owner == Owner::Unknown {
            self.owner = owner;
        }
    }

    fn hear(&mut self, message: &Message) -> Option<OomdKill> {
        if let Some(owner) = owner_change(message, NAME) {
            self.owner = owner;
            return None;
        }
        let header = message.header();
        if !is_signal(&header, MANAGER, "Killed") {
            return None;
        }
        let sender = header.sender().map_or("", |name| name.as_str());
        if self.owner != Owner::Name(sender.to_owned()) {
            self.warn_of(sender);
            return None;
        }
        let (cgroup, reason) = message.body().deserialize::<(String, String)>().ok()?;
        Some(kill(cgroup, reason))
    }

    fn warn_of(&mut self, sender: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(sender, "ignored Killed from a sender that does not own {NAME}");
        }
    }
}

fn kill(mut cgroup: String, mut reason: String) -> OomdKill {
    let place = place(&cgroup);
    for text in [&mut cgroup, &mut reason] {
        text.retain(|letter| !letter.is_control());
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        text.truncate(end);
    }
    let (pod, container_id) =
        place.map_or((None, None), |place| (Some(place.pod), place.container_id));
    OomdKill { pod, container_id, cgroup, reason }
}
