//! The system bus of a node, in memory: each connection to it is one of two peers, whose other end
//! answers as the bus, as logind and as systemd.

use std::sync::{Arc, Mutex};

use doubles::login1::{Login1, OWNER};
use doubles::systemd1;
use epilogue_agent::bus::BusAddress;
use futures::StreamExt as _;
use zbus::connection::Builder;
use zbus::connection::socket::Channel;
use zbus::{Connection, MessageStream, fdo};

/// Any will do: no one compares it.
const GUID: &str = "00112233445566778899aabbccddeeff";

/// The bus with its services.
#[derive(Clone, Debug)]
pub(super) struct Bus {
    pub(super) login1: Arc<Login1>,
    pub(super) systemd: Arc<Mutex<systemd1::State>>,
}

impl Bus {
    /// How an agent reaches it.
    pub(super) fn address(&self) -> BusAddress {
        let bus = self.clone();
        BusAddress::new(move || {
            let (near, far) = Channel::pair();
            tokio::spawn(bus.clone().serve(far));
            Builder::authenticated_socket(near, GUID)
        })
    }

    /// Serves one connection until its other end is closed.
    async fn serve(self, socket: Channel) {
        let builder = Builder::authenticated_socket(socket, GUID).p2p();
        let builder = self.login1.serve(builder);
        let builder = systemd1::serve(builder, &self.systemd, self.login1.hup());
        let daemon = Daemon { login1: Arc::clone(&self.login1) };
        let built = builder.serve_at("/org/freedesktop/DBus", daemon).build().await;
        let mut messages = MessageStream::from(built.expect("must be served"));
        while messages.next().await.is_some_and(|message| message.is_ok()) {}
    }
}

/// The bus itself, as far as the agent asks.
struct Daemon {
    login1: Arc<Login1>,
}

#[zbus::interface(name = "org.freedesktop.DBus")]
#[expect(clippy::unused_self, reason = "the interface is an object's")]
impl Daemon {
    /// All signals are logind's: whoever subscribes to one gets all.
    fn add_match(&self, rule: &str, #[zbus(connection)] connection: &Connection) {
        if rule.contains("PrepareForShutdown") {
            self.login1.subscribe(connection);
        }
    }

    fn get_name_owner(&self, name: &str) -> fdo::Result<String> {
        match name {
            "org.freedesktop.login1" => Ok(OWNER.to_owned()),
            _ => Err(fdo::Error::NameHasNoOwner(name.to_owned())),
        }
    }
}
