//! What the sessions with logind and systemd-oomd share: a connection that is made again after each
//! loss, subscriptions to signals, and the owner of a name, whose signals alone count.
//!
//! The signal streams of zbus also track a name's owner. They do not compare the sender of
//! `NameOwnerChanged`, so that any process on the bus could name itself the owner.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use zbus::fdo::DBusProxy;
use zbus::message::{Header, Type};
use zbus::names::UniqueName;
use zbus::{MatchRule, Message, MessageStream, match_rule};

use crate::bus::{Answer, Bus, BusAddress, CallError, answer};

/// The bus itself, as a sender and as an interface.
pub(super) const BUS: &str = "org.freedesktop.DBus";

/// Who owns a name on the bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Owner {
    /// The bus has not answered yet.
    #[default]
    Unknown,
    /// No connection.
    Absent,
    /// The connection with this unique name.
    Name(String),
}

impl Owner {
    fn of(name: Option<String>) -> Self {
        name.filter(|name| !name.is_empty()).map_or(Self::Absent, Self::Name)
    }

    /// Takes in the bus's answer. A change that arrived meanwhile is newer.
    pub(super) fn found(&mut self, owner: Self) {
        if *self == Self::Unknown {
            *self = owner;
        }
    }

    /// Whether the owner has sent the message.
    pub(super) fn has_sent(&self, header: &Header<'_>) -> bool {
        let sender = header.sender().map(UniqueName::as_str);
        matches!(self, Self::Name(owner) if Some(owner.as_str()) == sender)
    }
}

/// How long a session waits after a lost connection: each time twice as long. After a connection
/// that lasted longer than the longest pause, the pauses start small again.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The first pause.
    pub min: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Pauses {
    /// The pause after a connection that lasted so long, and the next one.
    fn after(self, next: Duration, lasted: Duration) -> (Duration, Duration) {
        let pause = if lasted > self.max { self.min } else { next };
        (pause, (pause * 2).min(self.max))
    }
}

/// A session, over connections that come and go.
pub(super) trait Session {
    /// One connection, until it is lost.
    fn connected(
        &mut self,
        bus: &Bus,
        messages: MessageStream,
    ) -> impl Future<Output = Answer<Infallible>> + Send;

    /// Reports that a connection is lost, or could not be made.
    fn lost(&mut self, error: CallError) -> impl Future<Output = ()> + Send;
}

/// Keeps a session.
pub(super) async fn keep(mut session: impl Session, address: &BusAddress, pauses: Pauses) {
    let mut next = pauses.min;
    loop {
        let begun = Instant::now();
        let ended = match Bus::connect(address).await {
            Ok(bus) => {
                // One stream for all messages in their order: a change of the owner must not
                // overtake its signals, nor they it. No descriptor arrives on this connection.
                let messages = MessageStream::from(bus.connection());
                let ended = session.connected(&bus, messages).await;
                bus.close().await;
                ended
            }
            Err(error) => Err(error),
        };
        let Err(error) = ended;
        let pause;
        (pause, next) = pauses.after(next, begun.elapsed());
        session.lost(error).await;
        sleep(pause).await;
    }
}

/// Why a connection is over.
pub(super) fn closed() -> CallError {
    CallError { name: String::new(), message: "the connection to the bus is closed".into() }
}

/// Subscribes, and only then asks who owns the name: so no change is missed in between. ([AP23])
pub(super) async fn subscribe(
    bus: &Bus,
    name: &'static str,
    rules: impl IntoIterator<Item = MatchRule<'static>>,
) -> Answer<Owner> {
    let proxy = answer(DBusProxy::new(bus.connection()).await)?;
    let owner = signals().sender(BUS).interface(BUS).member("NameOwnerChanged").add_arg(name);
    for rule in rules.into_iter().chain([rule(owner)]) {
        answer(proxy.add_match_rule(rule).await.map_err(Into::into))?;
    }
    bus.owner_of(name).await.map(Owner::of)
}

/// The beginning of a rule for signals.
pub(super) fn signals() -> match_rule::Builder<'static> {
    MatchRule::builder().msg_type(Type::Signal)
}

/// The rule, which literals have built.
pub(super) fn rule(builder: match_rule::Builder<'static>) -> MatchRule<'static> {
    builder.build().expect("a rule of literals must be valid")
}

/// Whether this is the signal of that name.
pub(super) fn is_signal(header: &Header<'_>, interface: &str, member: &str) -> bool {
    header.message_type() == Type::Signal
        && header.interface().is_some_and(|name| name.as_str() == interface)
        && header.member().is_some_and(|name| name.as_str() == member)
}

/// The name's new owner, if that is what the bus says.
pub(super) fn owner_change(message: &Message, name: &str) -> Option<Owner> {
    let header = message.header();
    let from_bus = header.sender().is_some_and(|sender| sender.as_str() == BUS);
    if !from_bus || !is_signal(&header, BUS, "NameOwnerChanged") {
        return None;
    }
    let (of, _, owner) = message.body().deserialize::<(String, String, String)>().ok()?;
    (of == name).then(|| Owner::of(Some(owner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_their_limit_and_start_anew_after_a_long_connection() {
        let seconds = Duration::from_secs;
        let pauses = Pauses { min: seconds(1), max: seconds(5) };
        let mut next = pauses.min;
        let waited = [0, 5, 0, 0, 6, 0].map(|lasted| {
            let pause;
            (pause, next) = pauses.after(next, seconds(lasted));
            pause.as_secs()
        });
        assert_eq!(waited, [1, 2, 4, 5, 1, 2]);
    }
}
