//! A double of logind for simulated machines, on a bus of its own, with delay locks that are real
//! descriptors. It announces a shutdown and reports when the last lock is released. `vm::Logind`
//! and the doubles of the agent's own tests cover the rest of logind.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::task::JoinSet;
use zbus::Connection;
use zbus::fdo::{self, DBusProxy};
use zbus::message::Header;
use zbus::object_server::SignalEmitter;

use crate::error::LabError;
use crate::eventually::observe_until;
use crate::process::{Process, Program};

/// The delay that it grants.
const DELAY: Duration = Duration::from_mins(1);
const UP_WITHIN: Duration = Duration::from_secs(10);
const PATH: &str = "/org/freedesktop/login1";

/// What, who, why, mode, uid, pid.
type Lock = (String, String, String, String, u32, u32);

/// Why the double failed.
#[derive(Debug, thiserror::Error)]
pub enum Login1Error {
    /// The bus did not start.
    #[error("start a message bus")]
    Bus(#[source] LabError),
    /// The bus refused a request.
    #[error("{0} on the private bus")]
    Call(&'static str, #[source] zbus::Error),
    /// It does not listen in time.
    #[error("the private bus was not there within {UP_WITHIN:?}: {0}")]
    Late(String),
    /// Its locks were not released in time.
    #[error("the shutdown is still delayed by {0:?}")]
    Held(Vec<String>),
}

/// A running logind.
#[derive(Debug)]
pub struct Login1 {
    address: String,
    connection: Connection,
    locks: watch::Receiver<Vec<Lock>>,
    _bus: Process,
}

impl Login1 {
    /// Starts it on the system bus of the host whose files are under `root`.
    pub async fn start(root: &Path) -> Result<Self, Login1Error> {
        let dir = root.join("run/dbus");
        std::fs::create_dir_all(&dir)
            .map_err(|error| Login1Error::Bus(LabError::file("create", &dir)(error)))?;
        let bus = start_bus(&dir).map_err(Login1Error::Bus)?;
        let address = format!("unix:path={}/system_bus_socket", dir.display());
        let (sender, locks) = watch::channel(Vec::new());
        let manager = Manager {
            delay_us_max: u64::try_from(DELAY.as_micros()).unwrap_or(u64::MAX),
            scheduled: (String::new(), 0),
            preparing: Arc::default(),
            locks: Arc::new(sender),
            waits: Mutex::new(JoinSet::new()),
        };
        let connection = connect(&address).await?;
        let served = connection.object_server().at(PATH, manager).await;
        served.map_err(|source| Login1Error::Call("serve logind", source))?;
        let named = connection.request_name("org.freedesktop.login1").await;
        named.map_err(|source| Login1Error::Call("take logind's name", source))?;
        Ok(Self { address, connection, locks, _bus: bus })
    }

    /// The address of its bus.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The holders of locks.
    pub fn holders(&self) -> Vec<String> {
        self.locks.borrow().iter().map(|lock| lock.1.clone()).collect()
    }

    /// Announces a shutdown, as a power-off does, and waits until no lock delays it any more.
    pub async fn shut_down(&self) -> Result<(), Login1Error> {
        let failed = |source| Login1Error::Call("announce the shutdown", source);
        let server = self.connection.object_server();
        let manager = server.interface::<_, Manager>(PATH).await.map_err(failed)?;
        *lock(&manager.get().await.preparing) = true;
        let emitter = manager.signal_emitter();
        Manager::prepare_for_shutdown(emitter, true).await.map_err(failed)?;
        let mut locks = self.locks.clone();
        let released = locks.wait_for(Vec::is_empty);
        match tokio::time::timeout(DELAY, released).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Login1Error::Held(self.holders())),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start_bus(dir: &Path) -> Result<Process, LabError> {
    let text = format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>custom</type>
  <listen>unix:path={}/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"#,
        dir.display()
    );
    let config = dir.join("bus.conf");
    std::fs::write(&config, text).map_err(LabError::file("write", &config))?;
    let config = format!("--config-file={}", config.display());
    let args = [&*config, "--nofork", "--nopidfile", "--nosyslog"];
    let log = dir.join("dbus-daemon.log");
    Process::spawn_program(&Program::new("dbus-daemon", Path::new("dbus-daemon"), args, &log))
}

async fn connect(address: &str) -> Result<Connection, Login1Error> {
    let attempt = async || zbus::connection::Builder::address(address).build().await;
    match observe_until(UP_WITHIN, attempt, Result::is_ok).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) | Err(Err(error)) => Err(Login1Error::Late(error.to_string())),
        Err(Ok(_)) => unreachable!("a connection ends the wait"),
    }
}

struct Manager {
    delay_us_max: u64,
    /// Type and time in µs; no client schedules one.
    scheduled: (String, u64),
    preparing: Arc<Mutex<bool>>,
    /// The held locks, in the order of taking.
    locks: Arc<watch::Sender<Vec<Lock>>>,
    /// One per lock, until its last descriptor is closed.
    waits: Mutex<JoinSet<()>>,
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
    ) -> fdo::Result<zbus::OwnedFd> {
        if mode != "delay" {
            return Err(fdo::Error::InvalidArgs("only delay locks".to_owned()));
        }
        if *lock(&self.preparing) {
            return Err(fdo::Error::Failed("a shutdown goes on".to_owned()));
        }
        let failed = |error: std::io::Error| fdo::Error::IOError(error.to_string());
        let sender = header.sender().ok_or_else(|| fdo::Error::Failed("no sender".to_owned()))?;
        let bus = DBusProxy::new(connection).await?;
        let caller = bus.get_connection_credentials(sender.to_owned().into()).await?;
        let (uid, pid) = (caller.unix_user_id(), caller.process_id());
        let taken: Lock = (what, who, why, mode, uid.unwrap_or(u32::MAX), pid.unwrap_or(0));
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let reader = Receiver::from_owned_fd(OwnedFd::from(reader)).map_err(failed)?;
        self.locks.send_modify(|locks| locks.push(taken.clone()));
        let locks = Arc::clone(&self.locks);
        lock(&self.waits).spawn(async move {
            closed(&reader).await;
            locks.send_modify(|locks| {
                if let Some(index) = locks.iter().position(|lock| *lock == taken) {
                    locks.remove(index);
                }
            });
        });
        Ok(OwnedFd::from(writer).into())
    }

    fn list_inhibitors(&self) -> Vec<Lock> {
        self.locks.borrow().clone()
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        self.delay_us_max
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        *lock(&self.preparing)
    }

    #[zbus(property)]
    fn scheduled_shutdown(&self) -> (String, u64) {
        self.scheduled.clone()
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

/// Waits until every copy of the other end is closed; no data is ever written.
async fn closed(reader: &Receiver) {
    loop {
        if reader.readable().await.is_err() {
            return;
        }
        match reader.try_read(&mut [0; 16]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
