//! Talks to logind over D-Bus: asks it, and returns its answers.

use std::time::Duration;

use agent_core::check::facts::{
    Inhibitor, LogindFacts, OUR_HOLDER, ScheduledShutdown, Trial, kubelets_lock,
};
use agent_core::protocol::event::LogindState;
use agent_core::time_span::TimeSpan;
use jiff::Timestamp;
use nix::unistd::Uid;
use tokio::time::{Instant, sleep};
use zbus::OwnedFd;
use zbus::proxy::CacheProperties;

use crate::bus::{Answer, Bus, CallError, answer, refusal};
use crate::host::Host;

/// The name that logind owns on the bus.
pub const NAME: &str = "org.freedesktop.login1";
/// Its unit in systemd.
pub(crate) const UNIT: &str = "systemd-logind.service";
/// The object path of its manager.
pub(crate) const PATH: &str = "/org/freedesktop/login1";

/// logind sees a closed descriptor in its event loop, after what is queued there.
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

/// The reason that the agent's own lock gives. It distinguishes the lock from those of other
/// processes: in a pod, the agent's pid is not the one that logind sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OurLock {
    why: String,
}

impl OurLock {
    /// The reason of the process that started at `boot`, on CLOCK_BOOTTIME.
    pub fn new(boot: Duration) -> Self {
        let mark = u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX);
        let why = format!("Waits until the termination of this node's pods is reported ({mark:x})");
        Self { why }
    }

    /// The reason.
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// logind, behind its name on the bus.
#[derive(Clone, Debug)]
pub struct Logind {
    manager: ManagerProxy<'static>,
}

impl Logind {
    /// logind on this bus, whether its name has an owner or not.
    pub async fn on(bus: &Bus) -> Answer<Self> {
        // No cache: the delay is declared constant and is not; the other two never announce a
        // change. ([LD12])
        let proxy = ManagerProxy::builder(bus.connection())
            .cache_properties(CacheProperties::No)
            .build()
            .await;
        answer(proxy).map(|manager| Self { manager })
    }

    /// Asks everything that `check` needs, and tries a lock.
    pub async fn facts(&self, owner: String, host: &Host) -> LogindFacts {
        let inhibitors = self.inhibitors().await.map_err(message);
        let kubelet = inhibitors.as_ref().ok().and_then(|list| kubelets_lock(list));
        let kubelet_process = kubelet.and_then(|lock| host.process_name(lock.pid));
        LogindFacts {
            owner,
            delay: self.delay().await.map_err(message),
            preparing: self.preparing().await.map_err(message),
            scheduled: self.scheduled().await.map_err(message),
            inhibitors,
            kubelet_process,
            trial: self.trial().await,
        }
    }

    /// Reads the properties, and whether the agent's lock is held. Fails if it cannot learn whether
    /// a shutdown is in progress; the rest has defaults.
    pub async fn state(&self, owner: String, lock: &OurLock) -> Answer<LogindState> {
        let (preparing, delay, scheduled, listed) = tokio::join!(
            self.preparing(),
            self.delay(),
            self.scheduled(),
            self.is_listed(lock.why())
        );
        Ok(LogindState {
            owner,
            delay: delay.ok().map(granted),
            preparing: preparing?,
            scheduled: scheduled.ok().flatten().map(at_time),
            lock_listed: listed.ok(),
        })
    }

    /// Takes a delay lock on shutdown. It lasts as long as any copy of the descriptor is open.
    pub async fn inhibit(&self, why: &str) -> Answer<std::os::fd::OwnedFd> {
        answer(self.manager.inhibit("shutdown", OUR_HOLDER, why, "delay").await).map(Into::into)
    }

    /// `InhibitDelayMaxUSec`.
    pub async fn delay(&self) -> Answer<TimeSpan> {
        answer(self.manager.inhibit_delay_max_usec().await).map(TimeSpan::from_micros)
    }

    /// `PreparingForShutdown`.
    pub async fn preparing(&self) -> Answer<bool> {
        answer(self.manager.preparing_for_shutdown().await)
    }

    async fn scheduled(&self) -> Answer<Option<ScheduledShutdown>> {
        let (kind, at_micros) = answer(self.manager.scheduled_shutdown().await)?;
        Ok((!kind.is_empty()).then_some(ScheduledShutdown { kind, at_micros }))
    }

    /// The locks of all processes.
    pub async fn inhibitors(&self) -> Answer<Vec<Inhibitor>> {
        let list = answer(self.manager.list_inhibitors().await)?;
        let inhibitor =
            |(what, who, why, mode, uid, pid)| Inhibitor { what, who, why, mode, uid, pid };
        Ok(list.into_iter().map(inhibitor).collect())
    }

    async fn trial(&self) -> Trial {
        let why = self.trial_why();
        let lock = match self.inhibit(&why).await {
            Ok(lock) => lock,
            Err(error) => {
                return Trial::Refused { why: refusal(&error), message: error.message };
            }
        };
        let listed = self.is_listed(&why).await.map_err(message);
        drop(lock);
        Trial::Taken { listed, released: self.is_released(&why).await.map_err(message) }
    }

    fn trial_why(&self) -> String {
        let connection = self.manager.inner().connection();
        let name = connection.unique_name().map_or("unnamed", |name| name.as_str());
        format!("Tries whether a shutdown can be delayed (connection {name})")
    }

    /// Whether the agent's user holds a lock with this reason: any process can give the same
    /// reason.
    pub async fn is_listed(&self, why: &str) -> Answer<bool> {
        let list = self.inhibitors().await?;
        let us = Uid::effective().as_raw();
        let ours = |lock: &Inhibitor| lock.why == why && lock.uid == us;
        Ok(list.iter().any(|lock| ours(lock) && lock.holds_shutdown("delay")))
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

fn message(error: CallError) -> String {
    error.message
}

/// The delay as a duration that sums do not overflow: an infinite one becomes some 500,000 years.
pub(crate) fn granted(delay: TimeSpan) -> Duration {
    delay.duration().min(Duration::from_micros(u64::MAX))
}

fn at_time(scheduled: ScheduledShutdown) -> (String, Timestamp) {
    let micros = i64::try_from(scheduled.at_micros).ok();
    let at = micros.and_then(|micros| Timestamp::from_microsecond(micros).ok());
    (scheduled.kind, at.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_s_lock_has_words_of_its_own() {
        let (first, second) = (OurLock::new(Duration::ZERO), OurLock::new(Duration::from_nanos(1)));
        assert_ne!(first.why(), second.why());
    }

    #[test]
    fn no_number_of_loginds_is_out_of_bounds() {
        assert_eq!(granted(TimeSpan::from_secs(5)), Duration::from_secs(5));
        assert!(granted(TimeSpan::INFINITY).checked_add(Duration::from_hours(1)).is_some());
        let at = |at_micros| at_time(ScheduledShutdown { kind: "reboot".into(), at_micros }).1;
        assert_eq!(at(1_000_000), Timestamp::from_second(1).expect("must be a time"));
        assert_eq!(at(u64::MAX), Timestamp::MAX);
        assert_eq!(at(i64::MAX as u64), Timestamp::MAX);
    }
}
