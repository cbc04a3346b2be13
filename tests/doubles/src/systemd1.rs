//! Provides a double of systemd, as far as the agent asks: signals for units, a unit's state, and
//! the unit of a process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use zbus::connection::Builder;
use zbus::{Connection, DBusError, OwnedObjectPath, fdo};

const UNIT_PATH: &str = "/org/freedesktop/systemd1/unit/one";
const OTHER_PATH: &str = "/org/freedesktop/systemd1/unit/other";
const ABSENT_PATH: &str = "/org/freedesktop/systemd1/unit/absent";

/// The state of the double, which a test reads and changes.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The only unit that exists.
    pub unit: String,
    /// Its `ActiveState`.
    pub active: String,
    /// Whether a job of it is in progress.
    pub job: bool,
    /// Its `MainPID`.
    pub main_pid: u32,
    /// The other processes in its cgroup.
    pub children: Vec<u32>,
    /// A process of another unit, and that unit.
    pub other: Option<(u32, String)>,
    /// Its `SystemState`; `running` if empty.
    pub system: String,
    /// Its `UserspaceTimestamp`, in microseconds.
    pub booted_at: u64,
    /// Whether it refuses to signal units.
    pub denies: bool,
    /// Whether it returns an error after it has signalled a unit.
    pub stumbles: bool,
    /// The signals sent: unit, which of its processes, number.
    pub signals: Vec<(String, String, i32)>,
}

/// The double.
#[derive(Debug)]
pub struct Systemd1 {
    state: Arc<Mutex<State>>,
    _connection: Connection,
}

impl Systemd1 {
    /// Takes systemd's name; each signal to a unit calls `hup`.
    pub async fn start(
        address: &str,
        state: State,
        hup: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(Mutex::new(state));
        let connection = serve(Builder::address(address), &state, hup)
            .name("org.freedesktop.systemd1")
            .build()
            .await
            .expect("the private bus must take the double");
        Self { state, _connection: connection }
    }

    pub fn state(&self) -> State {
        of(&self.state)
    }

    pub fn turn(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Serves it on a connection.
pub fn serve<'a>(
    builder: Builder<'a>,
    state: &Arc<Mutex<State>>,
    hup: impl Fn() + Send + Sync + 'static,
) -> Builder<'a> {
    let manager = Manager { state: Arc::clone(state), hup: Box::new(hup) };
    builder
        .serve_at("/org/freedesktop/systemd1", manager)
        .serve_at(UNIT_PATH, Unit { state: Some(Arc::clone(state)) })
        .serve_at(OTHER_PATH, Other { state: Arc::clone(state) })
        .serve_at(UNIT_PATH, Service { state: Arc::clone(state) })
        .serve_at(ABSENT_PATH, Unit { state: None })
}

fn of(state: &Mutex<State>) -> State {
    state.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Manager {
    state: Arc<Mutex<State>>,
    hup: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Manager").finish_non_exhaustive()
    }
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn kill_unit(&self, name: String, whom: String, signal: i32) -> fdo::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.denies {
            return Err(fdo::Error::AccessDenied("Access denied".into()));
        }
        state.signals.push((name, whom, signal));
        let stumbles = state.stumbles;
        drop(state);
        (self.hup)();
        if stumbles {
            let words = "Failed to send signal SIGHUP to auxiliary processes: Input/output error";
            return Err(fdo::Error::IOError(words.into()));
        }
        Ok(())
    }

    #[zbus(property)]
    fn system_state(&self) -> String {
        let system = of(&self.state).system;
        if system.is_empty() { "running".to_owned() } else { system }
    }

    #[zbus(property)]
    fn userspace_timestamp(&self) -> u64 {
        of(&self.state).booted_at
    }

    #[zbus(name = "GetUnitByPID")]
    fn get_unit_by_pid(&self, pid: u32) -> Result<OwnedObjectPath, UnitError> {
        let state = of(&self.state);
        let path = if pid == state.main_pid || state.children.contains(&pid) {
            UNIT_PATH
        } else if state.other.is_some_and(|(other, _)| pid == other) {
            OTHER_PATH
        } else {
            let words = format!("PID {pid} does not belong to any loaded unit.");
            return Err(UnitError::NoUnitForPID(words));
        };
        Ok(OwnedObjectPath::try_from(path).expect("a literal path must be valid"))
    }

    fn load_unit(&self, name: &str) -> OwnedObjectPath {
        let path = if of(&self.state).unit == name { UNIT_PATH } else { ABSENT_PATH };
        OwnedObjectPath::try_from(path).expect("a literal path must be valid")
    }
}

/// systemd's own errors.
#[derive(Debug, DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
enum UnitError {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoUnitForPID(String),
}

/// A unit; without a state it does not exist.
struct Unit {
    state: Option<Arc<Mutex<State>>>,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl Unit {
    #[zbus(property)]
    fn id(&self) -> String {
        self.state.as_ref().map(|state| of(state).unit).unwrap_or_default()
    }

    #[zbus(property)]
    fn load_state(&self) -> &'static str {
        if self.state.is_some() { "loaded" } else { "not-found" }
    }

    #[zbus(property)]
    fn job(&self) -> (u32, OwnedObjectPath) {
        let number = self.state.as_ref().map_or(0, |state| u32::from(of(state).job));
        (number, OwnedObjectPath::try_from("/").expect("a literal path must be valid"))
    }

    #[zbus(property)]
    fn active_state(&self) -> String {
        self.state.as_ref().map_or_else(|| "inactive".into(), |state| of(state).active)
    }
}

/// The unit of another process.
struct Other {
    state: Arc<Mutex<State>>,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl Other {
    #[zbus(property)]
    fn id(&self) -> String {
        of(&self.state).other.map(|(_, unit)| unit).unwrap_or_default()
    }
}

struct Service {
    state: Arc<Mutex<State>>,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Service")]
impl Service {
    #[zbus(property, name = "MainPID")]
    fn main_pid(&self) -> u32 {
        of(&self.state).main_pid
    }
}
