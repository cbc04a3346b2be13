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
use zbus::fdo::DBusProxy;
use zbus::message::Type;
use zbus::{MatchRule, Message, MessageStream};

use super::logind_signs::{BUS, Owner};
use crate::bus::{Answer, Bus, answer};
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
    let mut pause = pace.pause_min;
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
        if begun.elapsed() > pace.pause_max {
            pause = pace.pause_min;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
        }
        pause = (pause * 2).min(pace.pause_max);
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
    let begin = begin(bus);
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

/// Subscribes, and only then asks who oomd is: so no change is missed in between.
async fn begin(bus: &Bus) -> Answer<Option<String>> {
    let proxy = answer(DBusProxy::new(bus.connection()).await)?;
    for rule in rules() {
        answer(proxy.add_match_rule(rule).await.map_err(Into::into))?;
    }
    bus.owner_of(NAME).await
}

fn rules() -> [MatchRule<'static>; 2] {
    let signals = || MatchRule::builder().msg_type(Type::Signal);
    let owner = signals().sender(BUS).interface(BUS).member("NameOwnerChanged").add_arg(NAME);
    let killed = signals().sender(NAME).path(PATH).interface(MANAGER).member("Killed");
    [rule(owner), rule(killed)]
}

fn rule(builder: zbus::match_rule::Builder<'static>) -> MatchRule<'static> {
    builder.build().expect("a rule of literals must be valid")
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
    fn found(&mut self, owner: Option<String>) {
        if self.owner == Owner::Unknown {
            self.owner = Owner::of(owner);
        }
    }

    fn hear(&mut self, message: &Message) -> Option<OomdKill> {
        let header = message.header();
        if header.message_type() != Type::Signal {
            return None;
        }
        let interface = header.interface().map_or("", |name| name.as_str());
        let member = header.member().map_or("", |name| name.as_str());
        let sender = header.sender().map_or("", |name| name.as_str());
        let body = message.body();
        match (interface, member) {
            (BUS, "NameOwnerChanged") if sender == BUS => {
                let (name, _, owner) = body.deserialize::<(String, String, String)>().ok()?;
                if name == NAME {
                    self.owner = Owner::of(Some(owner));
                }
                None
            }
            (MANAGER, "Killed") => {
                if self.owner != Owner::Name(sender.to_owned()) {
                    self.warn_of(sender);
                    return None;
                }
                let (cgroup, reason) = body.deserialize::<(String, String)>().ok()?;
                Some(kill(cgroup, reason))
            }
            _ => None,
        }
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
