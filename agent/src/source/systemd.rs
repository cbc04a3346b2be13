//! Talks to systemd over D-Bus: signals a unit, reads a unit's state, that of the system and the
//! time of this boot, and says which unit a process belongs to.

use agent_core::protocol::node::Unit;
use jiff::Timestamp;
use zbus::OwnedObjectPath;
use zbus::proxy::CacheProperties;

use crate::bus::{Answer, Bus, answer};

const SIGHUP: i32 = 1;
/// systemd's errors for a process that no unit has, and for one that does not exist.
const NO_UNIT: &str = "org.freedesktop.systemd1.NoUnitForPID";
const NO_PROCESS: &str = "org.freedesktop.DBus.Error.UnixProcessIdUnknown";

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;

    fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;

    #[zbus(name = "GetUnitByPID")]
    fn get_unit_by_pid(&self, pid: u32) -> zbus::Result<OwnedObjectPath>;

    #[zbus(property)]
    fn system_state(&self) -> zbus::Result<String>;

    #[zbus(property)]
    fn userspace_timestamp(&self) -> zbus::Result<u64>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Unit",
    default_service = "org.freedesktop.systemd1"
)]
trait Unit {
    #[zbus(property)]
    fn id(&self) -> zbus::Result<String>;

    #[zbus(property)]
    fn load_state(&self) -> zbus::Result<String>;

    #[zbus(property)]
    fn active_state(&self) -> zbus::Result<String>;

    #[zbus(property)]
    fn job(&self) -> zbus::Result<(u32, OwnedObjectPath)>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Service",
    default_service = "org.freedesktop.systemd1"
)]
trait Service {
    #[zbus(property, name = "MainPID")]
    fn main_pid(&self) -> zbus::Result<u32>;
}

/// systemd, behind its name on the bus.
#[derive(Clone, Debug)]
pub struct Systemd<'a> {
    bus: &'a Bus,
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// Whether it runs.
    pub unit: Unit,
    /// Its main process, if it has one now.
    pub main_pid: Option<u32>,
}

/// The state that `ActiveState` and a job in progress make.
fn unit_state(active: &str, job: bool) -> Unit {
    match active {
        "active" | "reloading" | "refreshing" => Unit::Active,
        "activating" | "deactivating" => Unit::Changing,
        _ if job => Unit::Changing,
        _ => Unit::Inactive,
    }
}

impl<'a> Systemd<'a> {
    /// systemd on this bus, whether its name has an owner or not.
    pub fn on(bus: &'a Bus) -> Self {
        Self { bus }
    }

    /// Sends SIGHUP to the main process of a unit: a daemon then reads its files again. Not to all
    /// processes: if systemd cannot signal the others in the unit's cgroup, it returns an error
    /// though the daemon got the signal.
    pub async fn hang_up(&self, unit: &str) -> Answer<()> {
        answer(self.manager().await?.kill_unit(unit, "main", SIGHUP).await)
    }

    /// The state of a unit; `None` if there is no such unit. Loads it: systemd unloads a unit that
    /// does not run, and the agent asks exactly whether it runs.
    pub async fn unit(&self, name: &str) -> Answer<Option<UnitState>> {
        let path = answer(self.manager().await?.load_unit(name).await)?;
        let bus = self.bus.connection();
        let unit = self.unit_at(path.clone()).await?;
        if answer(unit.load_state().await)? != "loaded" {
            return Ok(None);
        }
        let active = answer(unit.active_state().await)?;
        // A restart passes through "inactive"; its job is there all the time.
        let job = answer(unit.job().await).is_ok_and(|(number, _)| number != 0);
        let service = ServiceProxy::builder(bus).path(path).cache_properties(CacheProperties::No);
        let main_pid = answer(answer(service.build().await)?.main_pid().await)?;
        let unit = unit_state(&active, job);
        Ok(Some(UnitState { unit, main_pid: (main_pid != 0).then_some(main_pid) }))
    }

    /// The state of the first of these units that is loaded.
    pub async fn first_of(&self, names: &[String]) -> Answer<Option<UnitState>> {
        for name in names {
            if let Some(state) = self.unit(name).await? {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// Whether it stops the system.
    pub async fn stops(&self) -> Answer<bool> {
        answer(self.manager().await?.system_state().await).map(|state| state == "stopping")
    }

    /// What the node's clock showed when this boot's user space began, as recorded then; `None`
    /// without a record.
    pub async fn booted_at(&self) -> Answer<Option<Timestamp>> {
        let microseconds = answer(self.manager().await?.userspace_timestamp().await)?;
        let noted = i64::try_from(microseconds).ok().filter(|noted| *noted > 0);
        Ok(noted.and_then(|noted| Timestamp::from_microsecond(noted).ok()))
    }

    /// The name of the unit in whose cgroup the process is; `None` if it is in no unit's, or gone.
    pub async fn unit_of(&self, pid: u32) -> Answer<Option<String>> {
        let path = match answer(self.manager().await?.get_unit_by_pid(pid).await) {
            Ok(path) => path,
            Err(error) if error.name == NO_UNIT || error.name == NO_PROCESS => return Ok(None),
            Err(error) => return Err(error),
        };
        answer(self.unit_at(path).await?.id().await).map(Some)
    }

    async fn unit_at(&self, path: OwnedObjectPath) -> Answer<UnitProxy<'static>> {
        let unit = UnitProxy::builder(self.bus.connection()).path(path);
        answer(unit.cache_properties(CacheProperties::No).build().await)
    }

    async fn manager(&self) -> Answer<ManagerProxy<'static>> {
        answer(
            ManagerProxy::builder(self.bus.connection())
                .cache_properties(CacheProperties::No)
                .build()
                .await,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_systemd_is_about_to_start_is_not_inactive() {
        let table = [
            ("active", false, Unit::Active),
            ("reloading", false, Unit::Active),
            ("activating", false, Unit::Changing),
            ("deactivating", true, Unit::Changing),
            ("inactive", true, Unit::Changing),
            ("failed", true, Unit::Changing),
            ("inactive", false, Unit::Inactive),
            ("failed", false, Unit::Inactive),
            ("maintenance", false, Unit::Inactive),
        ];
        for (active, job, expected) in table {
            assert_eq!(unit_state(active, job), expected, "{active} {job}");
        }
    }
}
