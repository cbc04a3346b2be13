//! logind over D-Bus: asks, and hands on what was said. (spec/node-agent.md §1.1)

use std::time::Duration;

use agent_core::check::facts::{
    Answer, CallError, Inhibitor, LogindFacts, ScheduledShutdown, Trial, kubelets_lock,
};
use agent_core::time_span::TimeSpan;
use tokio::time::{Instant, sleep, timeout};
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;
use zbus::names::BusName;
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError as _, OwnedFd};

use crate::host::Host;

const NAME: &str = "org.freedesktop.login1";
const CALL_TIME_MAX: Duration = Duration::from_secs(5);
/// logind hears of a closed descriptor in its event loop, after what is queued there.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(2);
const RELEASE_POLL: Duration = Duration::from_millis(50);

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Manager {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    #[allow(clippy::type_complexity, reason = "the wire's own shape")]
    fn list_inhibitors(&self) -> zbus::Result<Vec<(String, String, String, String, u32, u32)>>;

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;

    #[zbus(property)]
    fn scheduled_shutdown(&self) -> zbus::Result<(String, u64)>;
}

/// A connection to the bus.
#[derive(Debug)]
pub struct Bus {
    connection: Connection,
}

/// logind, behind its name on the bus.
#[derive(Debug)]
pub struct Logind {
    owner: String,
    manager: ManagerProxy<'static>,
}

impl Bus {
    /// Connects; no call on the connection waits for its reply without end.
    pub async fn connect(address: &str) -> Answer<Self> {
        let connecting = Builder::address(address).method_timeout(CALL_TIME_MAX).build();
        match timeout(CALL_TIME_MAX, connecting).await {
            Ok(result) => {
                result.map(|connection| Self { connection }).map_err(|error| failure(&error))
            }
            Err(_) => Err(no_reply()),
        }
    }

    /// logind, if somebody owns its name. Asks the bus, because a call to logind itself would
    /// start it where the bus may.
    pub async fn logind(&self) -> Answer<Option<Logind>> {
        let name = BusName::try_from(NAME).expect("a literal name must be valid");
        let bus = DBusProxy::new(&self.connection).await.map_err(|error| failure(&error))?;
        let owner = match bus.get_name_owner(name).await {
            Ok(owner) => owner.to_string(),
            Err(zbus::fdo::Error::NameHasNoOwner(_)) => return Ok(None),
            Err(error) => return Err(failure(&error.into())),
        };
        // The delay is declared constant and is not; the other two never announce a change.
        // (§1.1)
        let manager = ManagerProxy::builder(&self.connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await
            .map_err(|error| failure(&error))?;
        Ok(Some(Logind { owner, manager }))
    }
}

impl Logind {
    /// Asks everything that a check needs, and tries a lock.
    pub async fn facts(&self, host: &Host) -> LogindFacts {
        let inhibitors = self.inhibitors().await;
        let kubelet = inhibitors.as_ref().ok().and_then(|list| kubelets_lock(list));
        let kubelet_process = kubelet.and_then(|lock| host.process_name(lock.pid));
        LogindFacts {
            owner: self.owner.clone(),
            delay: self.delay().await,
            preparing: answer(self.manager.preparing_for_shutdown().await),
            scheduled: self.scheduled().await,
            inhibitors,
            kubelet_process,
            trial: self.trial().await,
        }
    }

    async fn delay(&self) -> Answer<TimeSpan> {
        answer(self.manager.inhibit_delay_max_usec().await).map(TimeSpan::from_micros)
    }

    async fn scheduled(&self) -> Answer<Option<ScheduledShutdown>> {
        let (kind, at_micros) = answer(self.manager.scheduled_shutdown().await)?;
        Ok((!kind.is_empty()).then_some(ScheduledShutdown { kind, at_micros }))
    }

    async fn inhibitors(&self) -> Answer<Vec<Inhibitor>> {
        let list = answer(self.manager.list_inhibitors().await)?;
        let inhibitor =
            |(what, who, why, mode, uid, pid)| Inhibitor { what, who, why, mode, uid, pid };
        Ok(list.into_iter().map(inhibitor).collect())
    }

    async fn trial(&self) -> Trial {
        let why = self.why();
        let lock = match self.manager.inhibit("shutdown", "epilogue-agent", &why, "delay").await {
            Ok(lock) => lock,
            Err(error) => return Trial::Refused(failure(&error)),
        };
        let listed = self.is_listed(&why).await;
        drop(lock);
        Trial::Taken { listed, released: self.is_released(&why).await }
    }

    /// Names the connection, by which our lock is found again: in a pod our pid is not the one
    /// that logind sees.
    fn why(&self) -> String {
        let connection = self.manager.inner().connection();
        let name = connection.unique_name().map_or("unnamed", |name| name.as_str());
        format!("Tries whether a shutdown can be delayed (connection {name})")
    }

    async fn is_listed(&self, why: &str) -> Answer<bool> {
        Ok(self.inhibitors().await?.iter().any(|lock| lock.why == why))
    }

    async fn is_released(&self, why: &str) -> Answer<bool> {
        let end = Instant::now() + RELEASE_TIME_MAX;
        loop {
            if !self.is_listed(why).await? {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            sleep(RELEASE_POLL).await;
        }
    }
}

fn answer<T>(result: zbus::Result<T>) -> Answer<T> {
    result.map_err(|error| failure(&error))
}

fn failure(error: &zbus::Error) -> CallError {
    let text = |words: Option<&str>, name: &str| words.unwrap_or(name).to_owned();
    match error {
        zbus::Error::MethodError(name, words, _) => {
            CallError { name: name.to_string(), message: text(words.as_deref(), name) }
        }
        zbus::Error::FDO(inner) => {
            let name = inner.name().to_string();
            CallError { message: text(inner.description(), &name), name }
        }
        zbus::Error::InputOutput(inner) if inner.kind() == std::io::ErrorKind::TimedOut => {
            no_reply()
        }
        // Its own words repeat the address.
        zbus::Error::Connection(inner, _) => {
            CallError { name: String::new(), message: inner.to_string() }
        }
        _ => CallError { name: String::new(), message: error.to_string() },
    }
}

fn no_reply() -> CallError {
    let message = format!("no reply within {}s", CALL_TIME_MAX.as_secs());
    CallError { name: "org.freedesktop.DBus.Error.NoReply".to_owned(), message }
}
