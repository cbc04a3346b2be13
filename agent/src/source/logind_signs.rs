//! Keeps what logind's signals have said so far, as a state that each signal changes. A slow reader
//! sees the latest signal and how many there were, and misses no `false`. Nothing here waits.

use std::collections::HashMap;

use agent_core::protocol::ending::ShutdownKind;
use tokio::sync::watch;
use zbus::message::{Header, Type};
use zbus::{Message, OwnedVariant, Variant};

use super::logind::{NAME, PATH};
use super::session::{Owner, owner_change};

pub(crate) const MANAGER: &str = "org.freedesktop.login1.Manager";
pub(crate) const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Properties that change when a process takes or drops a lock.
const OF_LOCKS: [&str; 3] = ["NCurrentInhibitors", "DelayInhibited", "BlockInhibited"];

/// What has arrived since the connection began. The counters only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// The owner, whose signals count.
    pub(crate) owner: Owner,
    /// How often the owner has changed.
    pub(crate) owners: u64,
    /// How many `true` have arrived.
    pub(crate) announced: u64,
    /// How many `false` have arrived.
    pub(crate) cancelled: u64,
    /// The last value.
    pub(crate) going_down: bool,
    /// The kind of the last shutdown announced.
    pub(crate) kind: Option<ShutdownKind>,
    /// How often locks have come or gone.
    pub(crate) locks: u64,
    /// The first sender of `PrepareForShutdown` that was not logind.
    pub(crate) other_sender: Option<String>,
}

/// Takes in one message after the other.
#[derive(Debug)]
pub(crate) struct Listener<'a> {
    signs: &'a watch::Sender<Signs>,
    /// From the metadata signal, which comes right before the plain one.
    kind: Option<ShutdownKind>,
}

impl<'a> Listener<'a> {
    pub(crate) fn new(signs: &'a watch::Sender<Signs>) -> Self {
        Self { signs, kind: None }
    }

    /// Takes in any message.
    pub(crate) fn hear(&mut self, message: &Message) {
        let header = message.header();
        if header.message_type() != Type::Signal {
            return;
        }
        if let Some(owner) = owner_change(message, NAME) {
            return self.owner_changed(owner);
        }
        let interface = header.interface().map_or("", |name| name.as_str());
        let member = header.member().map_or("", |name| name.as_str());
        match (interface, member) {
            (MANAGER, "PrepareForShutdownWithMetadata") => self.metadata(&header, message),
            (MANAGER, "PrepareForShutdown") => self.prepare(&header, message),
            (PROPERTIES, "PropertiesChanged") => self.properties(&header, message),
            _ => {}
        }
    }

    fn owner_changed(&mut self, owner: Owner) {
        self.kind = None;
        self.signs.send_modify(|signs| {
            signs.owner = owner;
            signs.owners += 1;
            // A delayed shutdown ends with the logind that delayed it. ([LD7])
            signs.going_down = false;
        });
    }

    fn metadata(&mut self, header: &Header<'_>, message: &Message) {
        let body = message.body();
        if self.is_loginds(header)
            && let Ok((going_down, data)) =
                body.deserialize::<(bool, HashMap<String, OwnedVariant>)>()
        {
            let kind = data.get("type").and_then(text).map(ShutdownKind::named);
            self.kind = kind.filter(|_| going_down);
        }
    }

    fn prepare(&mut self, header: &Header<'_>, message: &Message) {
        let Ok(going_down) = message.body().deserialize::<bool>() else { return };
        if !self.is_loginds(header) {
            return;
        }
        let kind = self.kind.take();
        self.signs.send_modify(|signs| {
            signs.going_down = going_down;
            if going_down {
                signs.announced += 1;
                signs.kind = kind;
            } else {
                signs.cancelled += 1;
            }
        });
    }

    fn properties(&mut self, header: &Header<'_>, message: &Message) {
        let body = message.body();
        let changed = body.deserialize::<(String, HashMap<String, OwnedVariant>, Vec<String>)>();
        if let Ok((interface, changed, invalidated)) = changed
            && interface == MANAGER
            && changed.keys().chain(&invalidated).any(|name| OF_LOCKS.contains(&name.as_str()))
            && self.owner_has_sent(header)
        {
            self.signs.send_modify(|signs| signs.locks += 1);
        }
    }

    /// Whether the signal is logind's own; remembers a sender that only pretends. ([W9])
    ///
    /// DIVERGES(upstream): upstream accepts the signal from any sender on the bus.
    fn is_loginds(&self, header: &Header<'_>) -> bool {
        if header.path().is_none_or(|path| path.as_str() != PATH) {
            return false;
        }
        let known = self.signs.borrow().owner != Owner::Unknown;
        let loginds = self.owner_has_sent(header);
        if known && !loginds {
            let sender = header.sender().map_or("an unknown sender", |name| name.as_str());
            self.signs.send_if_modified(|signs| {
                let first = signs.other_sender.is_none();
                signs.other_sender.get_or_insert_with(|| sender.to_owned());
                first
            });
        }
        loginds
    }

    fn owner_has_sent(&self, header: &Header<'_>) -> bool {
        self.signs.borrow().owner.has_sent(header)
    }
}

fn text(value: &OwnedVariant) -> Option<&str> {
    match &**value {
        Variant::Str(text) => Some(text.as_str()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::BUS;
    use super::*;

    fn signal<B>(sender: &str, interface: &str, member: &str, body: &B) -> Message
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let path = if interface == BUS { "/org/freedesktop/DBus" } else { PATH };
        let built = Message::signal(path, interface, member).sender(sender).build(body);
        built.expect("must be a signal")
    }

    fn prepare(sender: &str, going_down: bool) -> Message {
        signal(sender, MANAGER, "PrepareForShutdown", &going_down)
    }

    fn metadata(sender: &str, going_down: bool, kind: &str) -> Message {
        let data = HashMap::from([("type", Variant::from(kind))]);
        signal(sender, MANAGER, "PrepareForShutdownWithMetadata", &(going_down, data))
    }

    fn owner(name: &str, new: &str) -> Message {
        signal(BUS, BUS, "NameOwnerChanged", &(name, ":1.1", new))
    }

    fn heard(messages: &[Message]) -> Signs {
        let first = Signs { owner: Owner::Name(":1.7".into()), ..Signs::default() };
        let signs = watch::Sender::new(first);
        let mut listener = Listener::new(&signs);
        for message in messages {
            listener.hear(message);
        }
        signs.borrow().clone()
    }

    #[test]
    fn the_kind_is_that_of_the_signal_right_before() {
        let signs = heard(&[metadata(":1.7", true, "reboot"), prepare(":1.7", true)]);
        assert_eq!((signs.announced, signs.going_down), (1, true));
        assert_eq!(signs.kind, Some(ShutdownKind::Reboot));
        let later = [
            metadata(":1.7", true, "kexec"),
            metadata(":1.7", false, "kexec"),
            prepare(":1.7", false),
            prepare(":1.7", true),
        ];
        let signs = heard(&later);
        assert_eq!((signs.announced, signs.cancelled, signs.kind), (1, 1, None));
        let unknown = heard(&[metadata(":1.7", true, &"x".repeat(100)), prepare(":1.7", true)]);
        assert_eq!(unknown.kind, Some(ShutdownKind::Other("x".repeat(64))));
    }

    #[test]
    fn a_signal_of_another_sender_is_not_believed() {
        let forged =
            [metadata(":1.9", true, "reboot"), prepare(":1.9", true), prepare(":1.8", false)];
        let signs = heard(&forged);
        assert_eq!((signs.announced, signs.cancelled), (0, 0));
        assert_eq!(signs.other_sender.as_deref(), Some(":1.9"));
        // Only the bus itself says who owns the name.
        let signs = heard(&[signal(":1.9", BUS, "NameOwnerChanged", &(NAME, ":1.7", ":1.9"))]);
        assert_eq!(signs.owner, Owner::Name(":1.7".into()));
    }

    #[test]
    fn the_signals_of_a_new_owner_count_from_its_arrival_on() {
        let signs = heard(&[
            prepare(":1.7", true),
            owner("org.example", ":1.3"),
            owner(NAME, ""),
            owner(NAME, ":1.9"),
            prepare(":1.7", false),
            prepare(":1.9", true),
        ]);
        assert_eq!((signs.announced, signs.cancelled, signs.owners), (2, 0, 2));
        let gone = heard(&[prepare(":1.7", true), owner(NAME, "")]);
        assert_eq!((gone.owner, gone.going_down), (Owner::Absent, false));
    }

    #[test]
    fn only_changes_of_locks_count() {
        let changed = |sender: &str, interface: &str, name: &str| {
            let changed = HashMap::from([(name, Variant::from(1_u64))]);
            let body = (interface, changed, Vec::<&str>::new());
            signal(sender, PROPERTIES, "PropertiesChanged", &body)
        };
        let locks = |message: Message| heard(&[message]).locks;
        assert_eq!(locks(changed(":1.7", MANAGER, "NCurrentInhibitors")), 1);
        assert_eq!(locks(changed(":1.7", MANAGER, "IdleHint")), 0);
        assert_eq!(locks(changed(":1.9", MANAGER, "NCurrentInhibitors")), 0);
        assert_eq!(locks(changed(":1.7", "org.example", "NCurrentInhibitors")), 0);
    }

    #[test]
    fn a_body_of_another_shape_is_nothing() {
        let signs = heard(&[
            signal(":1.7", MANAGER, "PrepareForShutdown", &"true"),
            signal(":1.7", MANAGER, "PrepareForShutdownWithMetadata", &7_u32),
            signal(":1.7", PROPERTIES, "PropertiesChanged", &7_u32),
            signal(BUS, BUS, "NameOwnerChanged", &NAME),
        ]);
        assert_eq!(signs, heard(&[]));
    }
}
