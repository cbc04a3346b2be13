//! Observes the kubelet on this node: its lock, its unit, its health, its configuration. Each of
//! them alone misleads; the core decides what they mean together.

use std::time::Duration;

use agent_core::check::facts::Inhibitor;
use agent_core::protocol::event::Event;
use agent_core::protocol::node::{Healthz, KubeletFacts, MainPort, Unit};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::sleep;

use super::kubelet_config::KubeletConfig;
use super::kubelet_http::{ANSWER_TIME_MAX, Main, healthz};
use super::lease::LeaseAge;
use super::logind::{Logind, NAME};
use super::logind_session::Changes;
use super::systemd::{Systemd, UnitState};
use super::tell;
use crate::args::KubeletPlace;
use crate::bus::{Bus, BusAddress};
use crate::cri::Runtime;
use crate::host::Host;

/// How often the kubelet is checked while nothing changes.
pub const PERIOD: Duration = Duration::from_mins(1);
/// The same during a shutdown, where the agent must notice in time that the kubelet dies.
const PERIOD_GOING_DOWN: Duration = Duration::from_secs(2);
/// The same while its unit does not run.
const PERIOD_ABSENT: Duration = Duration::from_secs(5);
/// How long a port may take to answer in a shutdown, where silence is proof: a kubelet under load
/// must not look like one that is stopped.
const ANSWER_TIME_GOING_DOWN: Duration = Duration::from_secs(2);
/// Minimum time between two checks. Locks come and go in bursts; one check covers a burst.
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// Maximum number of locks of the kubelet's name whose process is looked up.
const LOCKS_MAX: usize = 8;

/// How to check the kubelet.
#[derive(Clone, Debug)]
pub struct KubeletSettings {
    /// Where it is.
    pub place: KubeletPlace,
    /// What the kubelet's main port is asked with. Without it, the port is not asked.
    pub access: Option<Access>,
    /// Time between two checks while nothing happens.
    pub period: Duration,
}

/// What the kubelet's main port is asked with, and how it is recognised.
#[derive(Clone, Debug)]
pub struct Access {
    /// The token's file; its bearer needs `get` on `nodes/configz` and `nodes/healthz`.
    pub token: String,
    /// The node's name.
    pub node: String,
    /// The cluster's certificate authorities, in DER.
    pub authorities: Vec<Vec<u8>>,
}

/// Checks the kubelet.
#[derive(Debug)]
pub struct KubeletSource {
    settings: KubeletSettings,
    bus: BusAddress,
    host: Host,
    lease_age: LeaseAge,
    /// Whom to tell which runtime the kubelet uses.
    runtime: Option<Runtime>,
    /// The last answer of `/configz`, and the process that gave it: it is fixed at the kubelet's
    /// start.
    configured: Mutex<Option<(u32, KubeletConfig)>>,
}

impl KubeletSource {
    /// A source that asks logind and systemd over the bus.
    pub fn new(
        settings: KubeletSettings,
        bus: impl Into<BusAddress>,
        host: Host,
        lease_age: LeaseAge,
    ) -> Self {
        let (bus, configured) = (bus.into(), Mutex::default());
        Self { settings, bus, host, lease_age, runtime: None, configured }
    }

    /// The same source, which tells the runtime's client of the socket that the kubelet names.
    #[must_use]
    pub fn naming(self, runtime: Option<Runtime>) -> Self {
        Self { runtime, ..self }
    }

    /// Asks all sources at once, now. Takes a second, or a few if the bus does not answer.
    pub async fn ask(&self) -> KubeletFacts {
        self.ask_within(ANSWER_TIME_MAX).await
    }

    /// The same; each port may take this long.
    async fn ask_within(&self, within: Duration) -> KubeletFacts {
        let health = async {
            match self.settings.place.healthz {
                Some(address) => healthz(address, within, &self.host).await,
                None => None,
            }
        };
        let main_port = async {
            match self.main() {
                Some(main) => main.healthz(within).await,
                None => None,
            }
        };
        let of_bus = async {
            let (unit, lock_armed) = self.ask_bus().await;
            let config = self.config(unit).await;
            (unit, lock_armed, config)
        };
        let (healthy, main_port, of_bus) = tokio::join!(health, main_port, of_bus);
        let (unit, lock_armed, config) = of_bus;
        let main_pid = unit.and_then(|unit| unit.main_pid);
        KubeletFacts {
            lock_armed,
            shutdown_groups: config.as_ref().and_then(|config| config.shutdown_groups.clone()),
            main_pid,
            unit: unit.map(|unit| unit.unit),
            healthy,
            main_port,
            lease_age: self.lease_age.get(),
            eviction: config.map(|config| config.eviction),
        }
    }

    /// Reports the kubelet's state once in a period and after each change.
    pub async fn run(self, mut changes: watch::Receiver<Changes>, events: mpsc::Sender<Event>) {
        loop {
            let going_down = changes.borrow_and_update().going_down;
            let (period, within) = if going_down {
                (PERIOD_GOING_DOWN, ANSWER_TIME_GOING_DOWN)
            } else {
                (self.settings.period, ANSWER_TIME_MAX)
            };
            let facts = self.ask_within(within).await;
            // One that starts, as at a boot, is not dead for a minute.
            let absent = facts.unit.is_some_and(|unit| unit != Unit::Active);
            let period = if absent { period.min(PERIOD_ABSENT) } else { period };
            // A second question decides what silence means.
            let again = going_down && is_silent(&facts);
            tell(&events, Event::KubeletSeen(facts)).await;
            sleep(PAUSE_MIN).await;
            if again {
                continue;
            }
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => {}
                () = sleep(period) => {}
            }
        }
    }

    /// The unit, and whether the kubelet holds its lock, as far as there are answers.
    async fn ask_bus(&self) -> (Option<UnitState>, Option<bool>) {
        let bus = match Bus::connect(&self.bus).await {
            Ok(bus) => bus,
            Err(error) => {
                tracing::debug!(error = error.message, "nothing is known of the kubelet's unit");
                return (None, None);
            }
        };
        let locks = async {
            // Asks no service that the bus would have to start.
            bus.owner_of(NAME).await.ok()??;
            Logind::on(&bus).await.ok()?.inhibitors().await.ok()
        };
        let systemd = Systemd::on(&bus);
        let unit = async {
            match systemd.first_of(&self.settings.place.units).await {
                Ok(unit) => unit,
                Err(error) => {
                    tracing::debug!(error = error.message, "systemd says nothing of the unit");
                    None
                }
            }
        };
        let (unit, locks) = tokio::join!(unit, locks);
        let armed = match &locks {
            Some(locks) => Some(self.is_armed(locks, unit, &systemd).await),
            None => None,
        };
        bus.close().await;
        (unit, armed)
    }

    /// Whether the kubelet's lock is in the list: held by root and, where systemd has the kubelet's
    /// unit, by a process of that unit. Any process can use the name `kubelet`. The main process of
    /// the unit may be a supervisor or a shell, and the kubelet its child. ([SD24])
    async fn is_armed(
        &self,
        locks: &[Inhibitor],
        unit: Option<UnitState>,
        systemd: &Systemd<'_>,
    ) -> bool {
        for lock in locks.iter().filter(|lock| is_named_kubelet(lock)).take(LOCKS_MAX) {
            let Some(unit) = unit else { return true };
            // A kubelet may put itself into a cgroup outside of its unit's. (`kubeletCgroups`)
            if unit.main_pid == Some(lock.pid) {
                return true;
            }
            match systemd.unit_of(lock.pid).await {
                Ok(Some(unit)) if self.settings.place.units.contains(&unit) => return true,
                Ok(_) => {}
                Err(error) => {
                    let error = error.message;
                    tracing::debug!(error, "systemd says no unit of the lock's process");
                    return true;
                }
            }
        }
        false
    }

    /// Its main port, if it can be asked.
    fn main(&self) -> Option<Main<'_>> {
        let KubeletSettings { place, access, .. } = &self.settings;
        let (address, access) = (place.configz?, access.as_ref()?);
        Some(Main { address, access, directory: &place.dir, host: &self.host })
    }

    /// The configuration, read once per process of the kubelet.
    async fn config(&self, unit: Option<UnitState>) -> Option<KubeletConfig> {
        let main = self.main()?;
        let pid = unit.and_then(|unit| unit.main_pid);
        let mut configured = self.configured.lock().await;
        if let (Some(pid), Some((asked, config))) = (pid, configured.as_ref())
            && pid == *asked
        {
            return Some(config.clone());
        }
        match main.configuration().await {
            Ok(config) => {
                if let (Some(runtime), Some(named)) = (&self.runtime, &config.runtime_endpoint) {
                    runtime.kubelet_names(named);
                }
                *configured = pid.map(|pid| (pid, config.clone()));
                Some(config)
            }
            Err(error) => {
                tracing::debug!(error, "the kubelet's configuration is not known");
                None
            }
        }
    }
}

/// Whether no port has answered, and one took the connection.
fn is_silent(facts: &KubeletFacts) -> bool {
    let answers = (facts.healthy, facts.main_port);
    matches!(
        answers,
        (Some(Healthz::Silent), Some(MainPort::Silent | MainPort::Refused) | None)
            | (None, Some(MainPort::Silent))
    )
}

fn is_named_kubelet(lock: &Inhibitor) -> bool {
    lock.is_kubelets() && lock.uid == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_delay_lock_of_roots_that_says_kubelet_can_be_the_kubelets() {
        let lock = |who: &str, mode: &str, uid| Inhibitor {
            what: "shutdown".into(),
            who: who.into(),
            why: String::new(),
            mode: mode.into(),
            uid,
            pid: 7,
        };
        assert!(is_named_kubelet(&lock("kubelet", "delay", 0)));
        assert!(!is_named_kubelet(&lock("kubelet", "delay", 1000)));
        assert!(!is_named_kubelet(&lock("kubelet", "block", 0)));
        assert!(!is_named_kubelet(&lock("kubelet-like", "delay", 0)));
    }
}
