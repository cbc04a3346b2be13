//! Provides a double of logind that behaves as the real one at a shutdown. Locks live as long as
//! any copy of their descriptor, with one common timer. It has signals, a cancelled action, and a
//! restart that forgets the action and keeps the locks.
//!
//! The suite `worlds` serves it without a bus.

mod state;

use std::collections::HashMap;
use std::io::{self, ErrorKind, PipeReader, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd as StdFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::Uid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use zbus::connection::Builder;
use zbus::fdo::{self, DBusProxy};
use zbus::message::Header;
use zbus::names::BusName;
use zbus::{BoxDBusError, Connection, DBusError, Message, OwnedFd, Variant};

use super::WITHIN;
pub use state::{Candour, Down, Lock, State};

/// logind's name.
pub const NAME: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// The double.
#[derive(Debug)]
pub struct Login1 {
    address: String,
    root: PathBuf,
    shared: Shared,
    connection: Option<Connection>,
}

/// Its unique name where there is no bus.
pub const OWNER: &str = ":1.1";
/// How often it looks for released locks where there is no bus, during a shutdown and outside: in
/// paused time it must not wait for the kernel.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_IDLE: Duration = Duration::from_secs(1);

/// The state, with the tasks that wait for its changes.
#[derive(Clone, Debug)]
struct Shared {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    /// The connections that send signals: one to the bus, or without one as many as listen. None
    /// while the double is away.
    voices: Arc<Mutex<Vec<Connection>>>,
}

impl Login1 {
    /// Takes logind's name, with a delay of this many seconds.
    pub async fn start(address: &str, root: &Path, delay_seconds: u64) -> Self {
        let mut double = Self::without_bus(root, delay_seconds);
        double.address = address.to_owned();
        double.come().await;
        double
    }

    /// One without a bus, for connections that `serve` makes.
    pub fn without_bus(root: &Path, delay_seconds: u64) -> Self {
        let state = State {
            delay_us_max: delay_seconds * 1_000_000,
            inhibitors_max: 8192,
            scheduled: (String::new(), 0),
            denies: false,
            hangs: false,
            hung: 0,
            candour: Candour::Honest,
            metadata: true,
            locks: Vec::new(),
            pipes: Vec::new(),
            history: Vec::new(),
            pending: None,
            down: None,
            taken: 0,
        };
        let shared = Shared {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(0),
            voices: Arc::default(),
        };
        Self { address: String::new(), root: root.to_owned(), shared, connection: None }
    }

    /// Serves it on a connection without a bus.
    pub fn serve<'a>(&self, builder: Builder<'a>) -> Builder<'a> {
        builder.serve_at(PATH, Manager { shared: self.shared.clone() })
    }

    /// Sends signals to this connection without a bus, too.
    pub fn subscribe(&self, connection: &Connection) {
        held(&self.shared.voices).push(connection.clone());
    }

    pub fn state(&self) -> State {
        self.shared.lock().clone()
    }

    pub fn turn(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.changed();
    }

    /// Its unique name on the bus.
    pub fn owner(&self) -> String {
        let connection = self.connection.as_ref().expect("the double must be there");
        connection.unique_name().expect("a bus must have named it").to_string()
    }

    /// Releases the name, as a stop does. Locks stay; an action in progress is forgotten. ([LD7])
    pub async fn go(&mut self) {
        held(&self.shared.voices).clear();
        self.turn(|state| state.pending = None);
        if let Some(connection) = self.connection.take() {
            connection.close().await.expect("the connection must be closable");
        }
    }

    /// Takes the name with a new connection.
    pub async fn come(&mut self) {
        let manager = Manager { shared: self.shared.clone() };
        let connection = Builder::address(self.address.as_str())
            .serve_at(PATH, manager)
            .name(NAME)
            .build()
            .await
            .expect("the private bus must take the double");
        *held(&self.shared.voices) = vec![connection.clone()];
        self.connection = Some(connection);
    }

    /// Begins a shutdown as `Reboot` and similar methods do. The real one sends its signals and
    /// records the action without serving a request in between. So the double records it first.
    /// ([LD1], [LD2])
    pub async fn shut_down(&self, kind: &str) {
        let end = {
            let mut state = self.shared.lock();
            let delay = Duration::from_micros(state.delay_us_max);
            let armed = state.is_held() && !delay.is_zero();
            state.pending = armed.then(|| Instant::now() + delay);
            state.down = (!armed).then_some(Down::AtOnce);
            state.pending
        };
        self.shared.say(true, kind).await;
        self.shared.changed();
        let Some(end) = end else { return };
        let shared = self.shared.clone();
        tokio::spawn(async move {
            sleep_until(end).await;
            shared.run_if(|state| state.pending == Some(end), Down::TimedOut);
        });
    }

    /// Cancels the shutdown: the action's job is removed. ([LD4])
    pub async fn cancel(&self) {
        self.turn(|state| state.pending = None);
        self.shared.say(false, "reboot").await;
    }

    /// Releases a lock by its number, as its holder does.
    pub async fn release(&self, number: u64) {
        if self.state().locks.iter().any(|(held, _)| *held == number) {
            self.shared.released(number).await;
        }
    }

    /// Sends the signal alone, without an action.
    pub async fn say(&self, going_down: bool) {
        self.shared.say(going_down, "poweroff").await;
    }

    /// Reads its drop-ins, as SIGHUP makes it do. ([LD8])
    pub fn hang_up(&self) {
        hang_up(&self.root, &self.shared);
    }

    /// What SIGHUP does, for the double of systemd.
    pub fn hup(&self) -> impl Fn() + Send + Sync + 'static {
        let (root, shared) = (self.root.clone(), self.shared.clone());
        move || hang_up(&root, &shared)
    }

    /// Waits until `done` accepts the state.
    pub async fn until(&self, what: &str, done: impl Fn(&State) -> bool) -> State {
        let mut changed = self.shared.changed.subscribe();
        let waiting = async {
            while !done(&self.state()) {
                changed.changed().await.expect("the double must be there");
            }
        };
        let in_time = timeout(WITHIN, waiting).await.is_ok();
        assert!(in_time, "not {what} in {WITHIN:?}: {:?}", self.state());
        self.state()
    }
}

fn hang_up(root: &Path, shared: &Shared) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join("etc/systemd/logind.conf.d"))
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    let mut seconds = None;
    for file in files.iter().filter(|file| file.extension().is_some_and(|it| it == "conf")) {
        let text = std::fs::read_to_string(file).expect("a drop-in must be readable");
        let values = text.lines().filter_map(|line| line.strip_prefix("InhibitDelayMaxSec="));
        seconds = values.filter_map(|value| value.parse::<u64>().ok()).next_back().or(seconds);
    }
    shared.lock().delay_us_max = seconds.unwrap_or(5) * 1_000_000;
    shared.changed();
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    fn changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn run_if(&self, due: impl FnOnce(&State) -> bool, why: Down) {
        let mut state = self.lock();
        if due(&state) {
            state.pending = None;
            state.down = Some(why);
        }
        drop(state);
        self.changed();
    }

    async fn say(&self, going_down: bool, kind: &str) {
        let voices = held(&self.voices).clone();
        if self.lock().metadata {
            let data = HashMap::from([("type", Variant::from(kind))]);
            let body = (going_down, data);
            emit(&voices, MANAGER, "PrepareForShutdownWithMetadata", &body).await;
        }
        emit(&voices, MANAGER, "PrepareForShutdown", &going_down).await;
    }

    async fn report_locks(&self) {
        let voices = held(&self.voices).clone();
        let count = self.lock().locks.len() as u64;
        let changed = HashMap::from([("NCurrentInhibitors", Variant::from(count))]);
        let body = (MANAGER, changed, Vec::<&str>::new());
        emit(&voices, "org.freedesktop.DBus.Properties", "PropertiesChanged", &body).await;
    }

    /// Returns when the last copy of the other end is closed, which never writes.
    fn release_of(
        &self,
        mut reader: PipeReader,
        has_bus: bool,
    ) -> io::Result<BoxFuture<'static, ()>> {
        if has_bus {
            let mut reader = pipe::Receiver::from_owned_fd(reader.into())?;
            return Ok(Box::pin(async move { drop(reader.read(&mut [0]).await) }));
        }
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let shared = self.clone();
        Ok(Box::pin(async move {
            let mut changed = shared.changed.subscribe();
            while reader.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                let is_idle = shared.lock().pending.is_none();
                let pause = if is_idle { LOOK_IDLE } else { LOOK };
                let _ = timeout(pause, changed.changed()).await;
            }
        }))
    }

    async fn released(&self, id: u64) {
        {
            let mut state = self.lock();
            state.locks.retain(|(held_id, _)| *held_id != id);
            state.history.push(-1);
        }
        // The shutdown target starts when the last lock goes. ([LD3])
        self.run_if(|state| state.pending.is_some() && !state.is_held(), Down::Released);
        self.report_locks().await;
    }
}

async fn emit<B>(voices: &[Connection], interface: &str, member: &str, body: &B)
where
    B: serde::Serialize + zbus::DynamicType,
{
    for voice in voices {
        if voice.is_bus() {
            let no_one = None::<BusName<'_>>;
            let emitted = voice.emit_signal(no_one, PATH, interface, member, body).await;
            emitted.expect("the bus must take the signal");
        } else {
            let signal = Message::signal(PATH, interface, member).sender(OWNER).build(body);
            // Who has gone hears nothing.
            let _ = voice.send(&signal.expect("must be a signal")).await;
        }
    }
}

/// Sends the signal as any process may; to one connection if `destination` names it.
pub async fn forge(address: &str, destination: Option<&str>) -> Connection {
    let forger = Builder::address(address).build().await;
    let forger = forger.expect("the private bus must take the forger");
    let sent = forger.emit_signal(destination, PATH, MANAGER, "PrepareForShutdown", &true).await;
    sent.expect("the bus must take the signal");
    forger
}

struct Manager {
    shared: Shared,
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
        let state = self.shared.lock().clone();
        if state.hangs {
            self.shared.lock().hung += 1;
            self.shared.changed();
            std::future::pending::<()>().await;
        }
        // No new lock during a shutdown. ([LD5])
        if state.preparing() {
            let words = "The operation inhibition has been requested for is already running";
            return Err(Box::new(Refusal::OperationInProgress(words.into())));
        }
        // The bus policy or polkit refuses. ([LD10])
        if state.denies {
            return Err(fdo::Error::AccessDenied("Permission denied".into()).into());
        }
        if state.locks.len() >= state.inhibitors_max {
            let words = format!(
                "Maximum number of inhibitors ({}) reached, refusing further inhibitors.",
                state.inhibitors_max
            );
            return Err(fdo::Error::LimitsExceeded(words).into());
        }
        let (uid, pid) = caller(&header, connection).await?;
        let lock = self.hold((what, who, why, mode, uid, pid), connection.is_bus())?;
        self.shared.report_locks().await;
        Ok(lock.into())
    }

    fn list_inhibitors(&self) -> fdo::Result<Vec<Lock>> {
        let state = self.shared.lock();
        state.speaks()?;
        Ok(state.locks.iter().map(|(_, lock)| lock.clone()).collect())
    }

    #[zbus(property(emits_changed_signal = "const"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        self.shared.lock().delay_us_max
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn preparing_for_shutdown(&self) -> fdo::Result<bool> {
        let (candour, preparing) = {
            let state = self.shared.lock();
            state.speaks()?;
            (state.candour, state.preparing())
        };
        match candour {
            Candour::Honest | Candour::Refusing => Ok(preparing),
            Candour::Denying => Ok(false),
            Candour::Mute => std::future::pending().await,
        }
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn scheduled_shutdown(&self) -> (String, u64) {
        self.shared.lock().scheduled.clone()
    }
}

impl Manager {
    /// Lists the lock until every copy of the descriptor that it returns is closed.
    fn hold(&self, lock: Lock, has_bus: bool) -> Result<StdFd, fdo::Error> {
        let failed = |error: io::Error| fdo::Error::IOError(error.to_string());
        let (reader, writer) = io::pipe().map_err(failed)?;
        let number = reader.as_raw_fd();
        let pipe = std::fs::read_link(format!("/proc/self/fd/{number}")).map_err(failed)?;
        let released = self.shared.release_of(reader, has_bus).map_err(failed)?;
        let id = {
            let mut state = self.shared.lock();
            state.taken += 1;
            state.history.push(1);
            state.pipes.push(pipe.display().to_string());
            let id = state.taken;
            state.locks.push((id, lock));
            id
        };
        self.shared.changed();
        let shared = self.shared.clone();
        tokio::spawn(async move {
            released.await;
            shared.released(id).await;
        });
        Ok(writer.into())
    }
}

async fn caller(header: &Header<'_>, connection: &Connection) -> Result<(u32, u32), fdo::Error> {
    if !connection.is_bus() {
        return Ok((Uid::effective().as_raw(), std::process::id()));
    }
    let sender = header.sender().ok_or_else(|| fdo::Error::Failed("no sender".into()))?;
    let bus = DBusProxy::new(connection).await?;
    let name = BusName::from(sender.to_owned());
    let credentials = bus.get_connection_credentials(name).await?;
    let uid = credentials.unix_user_id().unwrap_or(u32::MAX);
    Ok((uid, credentials.process_id().unwrap_or(0)))
}
