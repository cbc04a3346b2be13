//! systemd over D-Bus: signals a unit, asks how it is, and when this boot began.

use agent_core::check::facts::Answer;
use jiff::Timestamp;
use zbus::OwnedObjectPath;
use zbus::fdo::PropertiesProxy;
use zbus::names::InterfaceName;
use zbus::proxy::CacheProperties;

use crate::bus::{Bus, answer};

const NAME: &str = "org.freedesktop.systemd1";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const SIGHUP: i32 = 1;

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;

    fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;

    #[zbus(property)]
    fn userspace_timestamp(&self) -> zbus::Result<u64>;
}

/// systemd, behind its name on the bus.
#[derive(Clone, Debug)]
pub struct Systemd<'a> {
    bus: &'a Bus,
}

/// How a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// Whether it runs.
    pub active: bool,
    /// The process that it is about, if it has one now.
    pub main_pid: Option<u32>,
}

impl<'a> Systemd<'a> {
    /// systemd on this bus, whether somebody owns its name or not.
    pub fn on(bus: &'a Bus) -> Self {
        Self { bus }
    }

    /// Has the main process of a unit hang up: a daemon reads its files again. Not all processes:
    /// where systemd cannot signal what else is in the unit's cgroup, it says that it failed
    /// though the daemon was told.
    pub async fn hang_up(&self, unit: &str) -> Answer<()> {
        answer(self.manager().await?.kill_unit(unit, "main", SIGHUP).await)
    }

    /// How a unit is; none if there is no such unit. Loads it, because systemd forgets a unit
    /// that does not run, and that it does not run is what is asked.
    pub async fn unit(&self, name: &str) -> Answer<Option<UnitState>> {
        let path = answer(self.manager().await?.load_unit(name).await)?;
        let properties = PropertiesProxy::builder(self.bus.connection())
            .destination(NAME)
            .path(path)
            .cache_properties(CacheProperties::No)
            .build()
            .await;
        let properties = answer(properties)?;
        let text = async |name| answer(get::<String>(&properties, UNIT, name).await);
        if text("LoadState").await? != "loaded" {
            return Ok(None);
        }
        let active = matches!(text("ActiveState").await?.as_str(), "active" | "reloading");
        let main_pid = answer(get::<u32>(&properties, SERVICE, "MainPID").await)?;
        Ok(Some(UnitState { active, main_pid: (main_pid != 0).then_some(main_pid) }))
    }

    /// How the first of these units is that is loaded.
    pub async fn first_of(&self, names: &[String]) -> Answer<Option<UnitState>> {
        for name in names {
            if let Some(state) = self.unit(name).await? {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// What the node's clock showed when this boot's user space began, as it was noted then;
    /// none where it was not.
    pub async fn booted_at(&self) -> Answer<Option<Timestamp>> {
        let microseconds = answer(self.manager().await?.userspace_timestamp().await)?;
        let noted = i64::try_from(microseconds).ok().filter(|noted| *noted > 0);
        Ok(noted.and_then(|noted| Timestamp::from_microsecond(noted).ok()))
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

async fn get<T>(
    properties: &PropertiesProxy<'_>,
    interface: &'static str,
    name: &str,
) -> zbus::Result<T>
where
    T: TryFrom<zbus::OwnedVariant>,
    T::Error: Into<zbus::Error>,
{
    let interface = InterfaceName::try_from(interface).expect("a literal name must be valid");
    let value = properties.get(interface, name).await?;
    T::try_from(value).map_err(Into::into)
}
