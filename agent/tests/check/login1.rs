//! Provides a double of logind, as far as `check` asks: its properties, its list of locks, and
//! locks. A lock lives as long as any copy of its descriptor. ([LD13])

use std::io::Read as _;
use std::os::fd::OwnedFd as StdFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use zbus::fdo::{self, DBusProxy};
use zbus::message::Header;
use zbus::names::BusName;
use zbus::{BoxDBusError, Connection, DBusError, OwnedFd};

/// What, who, why, mode, uid, pid.
pub(crate) type Lock = (String, String, String, String, u32, u32);

/// How the double answers.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    /// `InhibitDelayMaxUSec`.
    pub(crate) delay_us_max: u64,
    /// `PreparingForShutdown`.
    pub(crate) preparing: bool,
    /// `ScheduledShutdown`.
    pub(crate) scheduled: (String, u64),
    /// Locks that others hold.
    pub(crate) locks: Vec<Lock>,
    /// Whether the caller may take locks.
    pub(crate) access: Access,
    /// Whether the double refuses to show the shutdown's state and the locks.
    pub(crate) mute: bool,
}

/// Whether the caller may take locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Allowed, as for root.
    Granted,
    /// Denied, as for a user without polkit's permission.
    Denied,
}

impl Default for Behaviour {
    /// systemd's own default: 5 s, and no shutdown in progress.
    fn default() -> Self {
        Self {
            delay_us_max: 5_000_000,
            preparing: false,
            scheduled: (String::new(), 0),
            locks: Vec::new(),
            access: Access::Granted,
            mute: false,
        }
    }
}

/// A running double.
#[derive(Debug)]
pub(crate) struct Login1 {
    locks: Arc<Mutex<Vec<(u64, Lock)>>>,
    taken: Arc<Mutex<u64>>,
    _connection: Connection,
}

impl Login1 {
    /// Takes logind's name on the bus.
    pub(crate) async fn start(address: &str, behaviour: Behaviour) -> Self {
        let seeded = behaviour.locks.iter().cloned().map(|lock| (0, lock)).collect();
        let locks = Arc::new(Mutex::new(seeded));
        let taken = Arc::new(Mutex::new(0));
        let manager = Manager { behaviour, locks: Arc::clone(&locks), taken: Arc::clone(&taken) };
        let connection = zbus::connection::Builder::address(address)
            .serve_at("/org/freedesktop/login1", manager)
            .name("org.freedesktop.login1")
            .build()
            .await
            .expect("the private bus must take the double");
        Self { locks, taken, _connection: connection }
    }

    /// How many locks were ever granted.
    pub(crate) fn taken(&self) -> u64 {
        *held(&self.taken)
    }

    /// The locks of others and those still held.
    pub(crate) fn locks(&self) -> Vec<Lock> {
        held(&self.locks).iter().map(|(_, lock)| lock.clone()).collect()
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Manager {
    behaviour: Behaviour,
    locks: Arc<Mutex<Vec<(u64, Lock)>>>,
    taken: Arc<Mutex<u64>>,
}

#[derive(Debug, DBusError)]
#[zbus(prefix = "org.freedesktop.login1")]
enum Refusal {
    #[zbus(error)]
    ZBus(zbus::Error),
    OperationInProgress(String),
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Manager {
    async fn inhibit(
        &self,
        what: String,
        who: String,
        why: String,
        mode: String,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedFd, BoxDBusError> {
        // Delay locks exist for shutdown and sleep alone. ([LD6])
        let delayable = what.split(':').all(|what| what == "shutdown" || what == "sleep");
        if mode != "delay" || !delayable {
            return Err(fdo::Error::InvalidArgs("Invalid mode specification".into()).into());
        }
        // No new lock during a shutdown. ([LD5])
        if self.behaviour.preparing {
            let words = "The operation inhibition has been requested for is already running";
            return Err(Box::new(Refusal::OperationInProgress(words.into())));
        }
        // The bus policy or polkit refuses. ([LD10])
        if self.behaviour.access == Access::Denied {
            return Err(fdo::Error::AccessDenied("Permission denied".into()).into());
        }
        let (uid, pid) = caller(&header, connection).await?;
        Ok(self.hold((what, who, why, mode, uid, pid))?.into())
    }

    fn list_inhibitors(&self) -> fdo::Result<Vec<Lock>> {
        self.speaks()?;
        Ok(held(&self.locks).iter().map(|(_, lock)| lock.clone()).collect())
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        self.behaviour.delay_us_max
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> fdo::Result<bool> {
        self.speaks()?;
        Ok(self.behaviour.preparing)
    }

    #[zbus(property)]
    fn scheduled_shutdown(&self) -> (String, u64) {
        self.behaviour.scheduled.clone()
    }
}

impl Manager {
    fn speaks(&self) -> fdo::Result<()> {
        if self.behaviour.mute { Err(fdo::Error::NoReply("mute".into())) } else { Ok(()) }
    }

    /// Lists the lock until every copy of the descriptor that it returns is closed.
    fn hold(&self, lock: Lock) -> Result<StdFd, fdo::Error> {
        let (mut reader, writer) =
            std::io::pipe().map_err(|error| fdo::Error::IOError(error.to_string()))?;
        let mut taken = held(&self.taken);
        *taken += 1;
        let id = *taken;
        held(&self.locks).push((id, lock));
        let locks = Arc::clone(&self.locks);
        thread::spawn(move || {
            // The other end never writes: this returns when its last copy is closed.
            let _ = reader.read(&mut [0]);
            held(&locks).retain(|(held_id, _)| *held_id != id);
        });
        Ok(writer.into())
    }
}

async fn caller(header: &Header<'_>, connection: &Connection) -> Result<(u32, u32), fdo::Error> {
    let sender = header.sender().ok_or_else(|| fdo::Error::Failed("no sender".into()))?;
    let bus = DBusProxy::new(connection).await?;
    let name = BusName::from(sender.to_owned());
    let credentials = bus.get_connection_credentials(name).await?;
    let uid = credentials.unix_user_id().unwrap_or(u32::MAX);
    Ok((uid, credentials.process_id().unwrap_or(0)))
}
