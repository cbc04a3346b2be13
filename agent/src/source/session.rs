//! What the sessions with logind and systemd-oomd share: a connection that is made again after each
//! loss, subscriptions to signals, and the owner of a name, whose signals alone count.

use std::time::Duration;

use zbus::fdo::DBusProxy;
use zbus::message::{Header, Type};
use zbus::{MatchRule, Message, match_rule};

use crate::bus::{Answer, Bus, answer};

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
}

/// The pauses after lost connections. Each is twice as long as the last; after a connection that
/// lasted longer than the longest, they start small again.
#[derive(Debug)]
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The pause after a connection that lasted so long.
    pub(super) fn after(&mut self, lasted: Duration) -> Duration {
        let pause = if lasted > self.max { self.min } else { self.next };
        self.next = (pause * 2).min(self.max);
        pause
    }
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
        let mut backoff = Backoff::new(seconds(1), seconds(5));
        let pauses = [0, 5, 0, 0, 6, 0].map(|lasted| backoff.after(seconds(lasted)).as_secs());
        assert_eq!(pauses, [1, 2, 4, 5, 1, 2]);
    }
}
