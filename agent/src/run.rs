//! Implements `epilogue-agent run`: builds the parts, starts them, and ends when the driver does.

use std::sync::Arc;
use std::time::Duration;

use agent_core::agent::{Agent, Enforcement, Settings, Status};
use agent_core::finding::readiness;
use agent_core::protocol::event::Event;
use agent_core::shutdown::priority_groups::CRITICAL_PRIORITY;
use anyhow::Context as _;
use epilogue_runtime::admin::Admin;
use epilogue_runtime::health::{Checks, Flag};
use epilogue_runtime::process;
use epilogue_runtime::signals::Signals;
use epilogue_runtime::tasks::TaskGroup;
use epilogue_runtime::watch::{Newest, Signs, Watches};
use jiff::Timestamp;
use prometheus::Registry;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::args::Config;
use crate::bus::{Bus, BusAddress};
use crate::cgroups::Cgroups;
use crate::driver::{Driver, Parts, Shown};
use crate::environment::Environment;
use crate::host::Host;
use crate::memory_lock;
use crate::metrics::{Metrics, StatusCollector, TokenCollector};
use crate::sink::AllSinks;
use crate::sink::api::{ApiSink, NewestVersions};
use crate::sink::events::EventSink;
use crate::sink::journal::JournalSink;
use crate::sink::logind::LogindSink;
use crate::sink::measure::MeasureSink;
use crate::source::kubelet::{Access, KubeletSettings, KubeletSource, PERIOD};
use crate::source::lease::LeaseAge;
use crate::source::logind::OurLock;
use crate::source::logind_session::LogindSession;
use crate::source::pressure::psi;
use crate::source::systemd::Systemd;
use crate::source::watch::Watch;
use crate::source::{lease, logind_conf, node, notices, oom, oomd, pods, policies, stop};

/// Maximum number of facts in the core's queue; more wait at their source.
const EVENTS_MAX: usize = 1024;
/// Maximum number of open connections to the admin server: a kubelet and a scraper need two.
const CONNECTIONS_MAX: usize = 16;
/// Maximum number of concurrent API calls: what a server lets one of many clients do.
const IN_FLIGHT_MAX: usize = 32;
/// How long tasks may take to end after the driver has.
const END_MAX: Duration = Duration::from_secs(3);
/// How long the start waits for the time of this boot.
const BOOT_ASKED_MAX: Duration = Duration::from_secs(1);
/// Threads for blocking work: the journal, files of the host, name lookups.
const BLOCKING_THREADS_MAX: usize = 4;
/// How long an idle one of them stays: for good. Where processes run out, no new thread can be
/// made, and the runtime panics if it has none.
const BLOCKING_THREADS_LIVE: Duration = Duration::from_hours(365 * 24);
/// The revision of the build, if the build knows it.
const REVISION: &str = match option_env!("EPILOGUE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// State that tasks share.
struct Shared {
    config: Config,
    host: Host,
    environment: Environment,
    words: OurLock,
    registry: Registry,
    metrics: Metrics,
    /// Whether the watches of pods and of the node are alive, and whether they have to hurry.
    signs: [Signs; 2],
    status: watch::Receiver<Status>,
    hurry: [watch::Receiver<bool>; 2],
    newest: NewestVersions,
    events: mpsc::Sender<Event>,
}

/// What the driver takes over at the start.
struct Started {
    agent: Agent,
    journal: JournalSink,
}

/// Runs the agent until it receives SIGTERM or SIGINT.
pub fn run(config: Config) -> anyhow::Result<()> {
    block_on(async {
        let signals = Signals::install()?;
        let stop = CancellationToken::new();
        let program = async {
            let environment = Environment::of_process(&config).await?;
            work(config, environment, stop.clone()).await
        };
        Box::pin(signals.guard(&stop, program)).await
    })
}

/// Runs a subcommand. One thread suffices for little work, and needs less memory.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_keep_alive(BLOCKING_THREADS_LIVE)
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(work)
}

/// Runs the agent until `stop` is cancelled and nothing is left to finish, or a part fails.
pub async fn work(
    config: Config,
    environment: Environment,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let host = environment.host.clone();
    let boot_id = host.boot_id().context("the kernel does not say which boot this is")?;
    let journal = JournalSink::open(host.clone(), &config.state_dir).await;
    // An agent that observes keeps no journal, and may not be able to open one.
    for note in journal.notes.iter().filter(|_| config.enforce) {
        tracing::warn!(dir = %config.state_dir.display(), note, "of the journal");
    }
    let shown = Shown { status: watch::Sender::default(), hurry: Default::default() };
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let shared = Shared::new(config, host, environment, &shown, sender)?;
    let config = &shared.config;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        revision = REVISION,
        node = config.node,
        enforce = config.enforce,
        journal = journal.records.len(),
        "starting"
    );
    for doubt in &config.doubts {
        tracing::warn!(doubt, "of the flags");
    }
    if config.enforce {
        memory_lock::keep(config.features.pressure);
    } else {
        let remedy = "set --mode=enforce, or EPILOGUE_MODE=enforce in the environment";
        tracing::warn!(remedy, "only observes: writes events, and acts on no pod and no node");
    }
    warn_of_cgroup_v1(&shared);
    let settings = Settings {
        boot_id,
        booted_at: booted_at(&shared.environment.bus).await,
        own_pod: config.own_pod.clone(),
        priority_groups: config.priority_groups.clone(),
        priority_groups_given: config.priority_groups_given,
        priority_max: CRITICAL_PRIORITY,
        bare_pods: config.bare_pods,
        runtime: shared.environment.runtime.is_some(),
        logind: config.logind,
        notices: notices::found(&config.notices, &shared.host),
        raise_delay: config.raise_delay,
        enforce: config.enforce,
        tries_policies: true,
        in_flight_max: IN_FLIGHT_MAX,
        features: config.features.clone(),
    };
    let agent = Agent::new(settings, &journal.records, shared.environment.clock.now());
    let mut group = TaskGroup::new(CancellationToken::new());
    let reachable = Flag::failing("not asked yet");
    shared.serve(&reachable, &mut group).await?;
    let started = Started { agent, journal: journal.sink };
    shared.drive(started, events, shown, stop, &mut group);
    shared.listen(reachable, &mut group);
    let ended = group.run(END_MAX).await;
    tracing::info!("ended");
    Ok(ended?)
}

/// Says at the start what the agent cannot do on a host without cgroup v2.
fn warn_of_cgroup_v1(shared: &Shared) {
    let features = &shared.config.features;
    let wants = features.pressure != Enforcement::Off || features.oom_causes;
    if wants && Cgroups::of(&shared.host).is_none() {
        tracing::warn!(
            "the host has no cgroup v2, as Kubernetes 1.35 and later requires: neither a shortage \
             of memory nor stalls of pods are seen, and only the kernel's log shows OOM kills; \
             shutdowns are handled as ever"
        );
    }
}

impl Shared {
    fn new(
        config: Config,
        host: Host,
        environment: Environment,
        shown: &Shown,
        events: mpsc::Sender<Event>,
    ) -> anyhow::Result<Self> {
        let registry = Registry::new();
        process::register(&registry, env!("CARGO_PKG_VERSION"), REVISION)?;
        let metrics = Metrics::new(&registry)?;
        registry.register(Box::new(StatusCollector::new(shown.status.subscribe())?))?;
        if let Some(file) = &environment.token_file {
            registry.register(Box::new(TokenCollector::new(file)?))?;
        }
        let watches = Watches::new(&registry)?;
        Ok(Self {
            signs: ["pods", "nodes"].map(|kind| watches.of(kind)),
            host,
            words: OurLock::new(environment.clock.now().boot),
            environment,
            registry,
            metrics,
            status: shown.status.subscribe(),
            hurry: shown.hurry.each_ref().map(watch::Sender::subscribe),
            newest: NewestVersions::default(),
            events,
            config,
        })
    }

    async fn serve(&self, reachable: &Flag, group: &mut TaskGroup) -> anyhow::Result<()> {
        let live = Checks::new().with("ping", || Ok(()));
        let [pods, node] = self.signs.clone();
        let ready = ready(&self.status, self.config.enforce, self.config.logind)
            .with_flag("api", reachable)
            .with("watch-pods", move || pods.check())
            .with("watch-nodes", move || node.check());
        let admin = Admin::bind(&self.config.bind, live, ready, self.registry.clone()).await?;
        let scrape = &self.config.scrape;
        let client = self.environment.reads.clone();
        let admin = admin.connections(CONNECTIONS_MAX);
        let admin = admin.scraped(&scrape.bind, &scrape.certificate, client).await?;
        if let Some(address) = admin.scrape_addr() {
            tracing::info!(%address, "serving /metrics over HTTPS to bearers with the right");
        }
        if let Some(address) = admin.local_addr() {
            tracing::info!(%address, "serving /livez, /readyz and, to the loopback, /metrics");
        }
        group.spawn("admin", admin.serve(group.token()));
        Ok(())
    }

    /// Starts the driver. When it ends, everything ends.
    fn drive(
        &self,
        started: Started,
        events: mpsc::Receiver<Event>,
        shown: Shown,
        stop: CancellationToken,
        group: &mut TaskGroup,
    ) {
        let Started { agent, journal } = started;
        let node = self.config.node.clone();
        let metrics = self.metrics.clone();
        let Environment { reads, writes, bus, runtime, clock, .. } = &self.environment;
        let notices = EventSink::new(reads.clone(), node.clone(), metrics.clone());
        let logind = LogindSink::new(bus.clone(), self.host.clone(), self.words.clone());
        let (dir, runtime) = (&self.config.kubelet.dir, runtime.clone());
        let measure = MeasureSink::new(self.host.clone(), dir, clock.clone(), runtime.clone());
        let newest = self.newest.clone();
        let sinks = AllSinks {
            api: ApiSink::new(writes.clone(), node.clone(), metrics.clone(), newest),
            notices,
            clock: clock.clone(),
            logind: Arc::new(logind),
            journal,
            runtime,
            measure,
        };
        let clock = clock.clone();
        let clock = Box::new(move || clock.now());
        let driver = Driver::new(Parts { agent, node, clock, events, sinks, metrics, shown });
        let stop = stop::requested(stop, bus.clone(), self.host.clone());
        let token = group.token();
        group.spawn("driver", async move {
            let ended = driver.run(stop).await;
            if ended.is_ok() {
                token.cancel();
            }
            ended
        });
    }

    /// Starts the sources of facts and the keepers of connections.
    fn listen(&self, reachable: Flag, group: &mut TaskGroup) {
        let (config, host, events) = (&self.config, &self.host, &self.events);
        let Environment { reads, writes, links, bus, clock, .. } = &self.environment;
        for (name, linked) in links {
            group.spawn_until_stopped(format!("connection for {name}"), linked.clone().keep());
        }
        let sources = notices::found(&config.notices, host);
        notices::start(&sources, host, clock, events, group);
        let session = LogindSession::new(bus.clone(), self.words.clone()).clocked(clock.clone());
        let changes = session.changes();
        if config.logind {
            group.spawn_until_stopped("logind", session.run(events.clone()));
        } else {
            let lost = "shutdowns are not detected, and pods that one terminates are not reported";
            tracing::warn!(lost, "the node has no logind, as --logind=false says");
        }
        if config.logind && config.enforce && config.raise_delay {
            let drop_ins = logind_conf::run(host.clone(), events.clone());
            group.spawn_until_stopped("drop-ins of logind", drop_ins);
        }
        if config.features.pressure != Enforcement::Off {
            group.spawn_until_stopped("stalls", psi::run(host.clone(), events.clone()));
        }
        if config.features.oom_causes {
            let kills = oom::run(host.clone(), clock.clone(), events.clone());
            group.spawn_until_stopped("OOM kills", kills);
            let oomd = oomd::run(bus.clone(), host.clone(), oomd::PAUSES, events.clone());
            group.spawn_until_stopped("systemd-oomd", oomd);
        }
        let age = LeaseAge::default();
        let kubelet = self.kubelet(age.clone()).run(changes, events.clone());
        group.spawn_until_stopped("kubelet", kubelet);
        let node = config.node.clone();
        let lease = lease::run(writes.clone(), node, age, reachable, clock.clone());
        group.spawn_until_stopped("lease", lease);
        if config.enforce {
            let policies = policies::run(reads.clone(), config.node.clone(), events.clone());
            group.spawn_until_stopped("policies", policies);
        }
        let NewestVersions { pods, nodes } = self.newest.clone();
        let [pods, node] = [self.watch(0, pods), self.watch(1, nodes)];
        let pods = pods::run(reads.clone(), pods, events.clone());
        group.spawn_until_stopped("watch of pods", pods);
        let node = node::run(reads.clone(), node, events.clone());
        group.spawn_until_stopped("watch of the node", node);
    }

    fn watch(&self, number: usize, newest: Newest) -> Watch {
        let (signs, hurry) = (self.signs[number].clone(), self.hurry[number].clone());
        Watch { node: self.config.node.clone(), signs, hurry, newest }
    }

    fn kubelet(&self, age: LeaseAge) -> KubeletSource {
        let period = PERIOD.min(self.config.features.stuck_times.dead);
        let Environment { token_file, authorities, bus, .. } = &self.environment;
        let access = token_file.clone().map(|token| Access {
            token,
            node: self.config.node.clone(),
            authorities: authorities.clone(),
        });
        let settings = KubeletSettings { place: self.config.kubelet.clone(), access, period };
        let source = KubeletSource::new(settings, bus.clone(), self.host.clone(), age);
        source.naming(self.environment.runtime.clone())
    }
}

/// The checks of readiness.
fn ready(status: &watch::Receiver<Status>, enforce: bool, logind: bool) -> Checks {
    readiness(enforce, logind).fold(Checks::new(), |checks, (name, find)| {
        let status = status.clone();
        checks.with(name, move || find(&status.borrow()).map_or(Ok(()), |it| Err(it.text())))
    })
}

/// What the node's clock showed when this boot began. The agent works without it.
async fn booted_at(bus: &BusAddress) -> Option<Timestamp> {
    let asking = async {
        let bus = Bus::connect(bus).await?;
        let noted = Systemd::on(&bus).booted_at().await;
        bus.close().await;
        noted
    };
    match tokio::time::timeout(BOOT_ASKED_MAX, asking).await {
        Ok(Ok(noted)) => noted,
        Ok(Err(error)) => {
            tracing::info!(error = error.message, "systemd does not say when this boot began");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::agent::LockState;
    use agent_core::finding::Finding;

    #[test]
    fn an_observing_agent_is_ready_without_a_lock() {
        let status = watch::Sender::new(Status::default());
        let is_ready = |enforce| ready(&status.subscribe(), enforce, true).run().is_ok();
        assert!(!is_ready(true) && !is_ready(false));
        status.send_modify(|status| status.pods_listed = true);
        assert!(ready(&status.subscribe(), true, false).run().is_ok(), "there is no logind");
        status.send_modify(|status| status.logind = true);
        assert!(!is_ready(true) && is_ready(false));
        let health = ready(&status.subscribe(), true, true).run();
        assert!(format!("{health:?}").contains(&Finding::LockNotHeld.text()), "{health:?}");
        status.send_modify(|status| status.lock = LockState::Held);
        assert!(is_ready(true));
    }
}
