//! Reports kills by systemd-oomd, which kills whole cgroups before the kernel has to. It takes the
//! signal `Killed` only from the owner of oomd's name. Most nodes have no oomd; then it reports
//! nothing.

use std::convert::Infallible;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::OomdKill;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use zbus::{MatchRule, Message, MessageStream};

use super::session::{
    Owner, Pauses, Session, closed, is_signal, keep, owner_change, rule, signals, subscribe,
};
use super::tell;
use crate::bus::{Answer, Bus, BusAddress, CallError};
use crate::cgroups::{Cgroups, place};
use crate::host::Host;

/// The name that oomd owns on the bus.
const NAME: &str = "org.freedesktop.oom1";
const PATH: &str = "/org/freedesktop/oom1";
const MANAGER: &str = "org.freedesktop.oom1.Manager";
/// Maximum length. Paths and reasons are shorter; a signal may have any length.
const TEXT_BYTES_MAX: usize = 4096;

/// The pauses after lost connections.
pub const PAUSES: Pauses = Pauses { min: Duration::from_secs(1), max: Duration::from_mins(1) };

/// Reports kills.
pub async fn run(
    bus: impl Into<BusAddress>,
    host: Host,
    pauses: Pauses,
    events: mpsc::Sender<Event>,
) {
    keep(Kills { host, events }, &bus.into(), pauses).await;
}

/// The session with oomd.
struct Kills {
    host: Host,
    events: mpsc::Sender<Event>,
}

impl Session for Kills {
    async fn connected(&mut self, bus: &Bus, mut messages: MessageStream) -> Answer<Infallible> {
        let mut listener = Listener::default();
        let begin = subscribe(bus, NAME, [killed()]);
        tokio::pin!(begin);
        let mut begun = false;
        loop {
            tokio::select! {
                biased;
                owner = &mut begin, if !begun => {
                    begun = true;
                    listener.owner.found(owner?);
                }
                message = messages.next() => {
                    let Some(Ok(message)) = message else { return Err(closed()) };
                    if let Some(kill) = listener.hear(&message, &self.host) {
                        tell(&self.events, Event::OomdKilled(Box::new(kill))).await;
                    }
                }
            }
        }
    }

    async fn lost(&mut self, error: CallError) {
        tracing::debug!(error = error.message, "the session with systemd-oomd is over");
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
    fn hear(&mut self, message: &Message, host: &Host) -> Option<OomdKill> {
        if let Some(owner) = owner_change(message, NAME) {
            self.owner = owner;
            return None;
        }
        let header = message.header();
        if !is_signal(&header, MANAGER, "Killed") {
            return None;
        }
        if !self.owner.has_sent(&header) {
            self.warn_of(header.sender().map_or("", |name| name.as_str()));
            return None;
        }
        let (cgroup, reason) = message.body().deserialize::<(String, String)>().ok()?;
        Some(kill(cgroup, reason, host))
    }

    fn warn_of(&mut self, sender: &str) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(sender, "ignored Killed from a sender that does not own {NAME}");
        }
    }
}

fn kill(mut cgroup: String, mut reason: String, host: &Host) -> OomdKill {
    let is_pods = Cgroups::of(host).is_none_or(|cgroups| cgroups.may_be_pods(&cgroup));
    let place = place(&cgroup).filter(|_| is_pods);
    for text in [&mut cgroup, &mut reason] {
        text.retain(|letter| !letter.is_control());
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        text.truncate(end);
    }
    let (pod, container_id) =
        place.map_or((None, None), |place| (Some(place.pod), place.container_id));
    OomdKill { pod, container_id, cgroup, reason }
}
