//! A world: the model of the API, the simulated kubelets, one or two controllers and maybe an agent
//! as they ship, and users who create Jobs. It runs in paused time, by seed.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use epilogue_controller::args::Args;
use epilogue_controller::environment::{Clients, Environment};
use epilogue_controller::run;
use epilogue_runtime::clock::Clock;
use epilogue_runtime::lease::Identity;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use lab::nodes::{self, Bind, SimulatedNodes};
use model_api::{Access, Kind, ModelApi};
use serde_json::json;
use simulation::controller::Random;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::backup::{Backups, Restore};
use super::brake;
use super::braked_jobs;
use super::early;
use super::ends_ledger;
use super::faults::{Drawn, Weather};
use super::gang_ledger;
use super::gangs;
use super::garbage;
use super::host::{AGENT, Host};
use super::ledger::{self, CONTROLLER, Verdict};
use super::memory::Kill;
use super::namespaces::{self, DOOMED};
use super::node_ledger::{self, Met};
use super::pace;
use super::plan_checks::PlanChecks;
use super::plots::{Exactness, Plot, condition};
use super::shortage::{self, Pressure, Shortage};
use super::shortage_ledger;
use super::shutdown::{Kubelet, Plan, Shutdown, Story};
use super::update_admission;
use super::wire::{Sabotage, Wire};

/// The namespace of all Jobs.
pub(super) const NAMESPACE: &str = "default";
/// The lease of the controllers, and its namespace.
pub(super) const LEASE: &str = "epilogue-controller";
pub(super) const LEASES: &str = "kube-system";
/// The node with an agent, which shuts down or runs short of memory.
const SHUT_DOWN: &str = "sim-0";
/// The finalizer of pods that are not counted yet.
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Jobs are created within this time, in ms.
const CREATED_WITHIN: u32 = 30_000;
/// Within this time all Jobs must end.
const ENDS_WITHIN: Duration = Duration::from_mins(40);
/// A broken controller need not end.
const BROKEN_WITHIN: Duration = Duration::from_mins(1);
/// The same where its pods have to wait.
const BRAKED_WITHIN: Duration = Duration::from_mins(10);
/// How long new faults begin.
const FAULTS_LAST: Duration = Duration::from_mins(2);
/// After this time nothing may be written any more, for as long again.
const RESTS_AFTER: Duration = Duration::from_mins(5);
/// The same where an agent measures its node each second, which takes time.
const MEASURED_RESTS_AFTER: Duration = Duration::from_mins(2);
/// The same for a broken controller.
const BROKEN_RESTS_AFTER: Duration = Duration::from_secs(90);
/// What a Job leaves is gone after this time.
const GARBAGE_GOES_WITHIN: Duration = Duration::from_mins(2);
/// A controller crashes while it was started again less often.
const CRASHES: u32 = 3;
/// The kubelet's wait before a container's first restart.
const RESTART_BACKOFF: Duration = Duration::from_secs(10);
/// The flag of a controller that lets a Job have no backoff.
const NO_BRAKE: &str = "--min-job-pod-failure-backoff=0s";
/// Of so many seeds one has gang scheduling.
const GANGS_OF: u64 = 3;
/// How soon a controller that ended is started again.
const RESTART: Duration = Duration::from_secs(5);

/// What a world has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    /// A second controller.
    pub(super) standby: bool,
    /// Faults of the API and of the network.
    pub(super) faults: bool,
    /// Amid the faults, backups of etcd are restored.
    pub(super) restores: bool,
    /// Amid the faults, admission of others changes and refuses writes.
    pub(super) admission: bool,
    /// From the start on, admission of others changes each update.
    pub(super) changes_updates: bool,
    /// A namespace is deleted while Jobs run in it.
    pub(super) dooms: bool,
    /// All Jobs have pods that fail more than six times before they succeed.
    pub(super) brakes: bool,
    /// A node is lost, and pod GC runs.
    pub(super) loses_node: bool,
    /// A node shuts down, with its agent.
    pub(super) shuts_down: bool,
    /// The kubelet fails before the shutdown, or amid it.
    pub(super) kubelet_fails: bool,
    /// The shutdown is cancelled.
    pub(super) cancels: bool,
    /// Notice is given of the shutdown, ahead of logind.
    pub(super) has_notice: bool,
    /// The API has gang scheduling, whatever the seed.
    pub(super) gangs: bool,
    /// A node runs short of memory, and its agent does this.
    pub(super) shortage: Option<Pressure>,
    pub(super) sabotage: Option<Sabotage>,
}

impl Options {
    /// What makes the numbers of a run less than exact.
    fn exactness(self) -> Exactness {
        match self {
            Options { shuts_down: true, restores: true, .. } => Exactness::ShutdownRestored,
            Options { shuts_down: true, .. } => Exactness::Shutdown,
            Options { shortage: Some(_), .. } => Exactness::Shortage,
            Options { restores: true, .. } => Exactness::Restored,
            Options { loses_node: true, .. } => Exactness::LostPods,
            Options { standby: false, faults: false, .. } => Exactness::Exact,
            _ => Exactness::MorePods,
        }
    }

    /// Draws so many Jobs.
    fn plots(self, seed: u64, count: usize, random: &mut Random) -> Vec<Plot> {
        let draw = if self.brakes { braked_jobs::draw } else { Plot::draw };
        let exactness = self.exactness();
        let mut plots: Vec<Plot> =
            (0..count).map(|number| draw(random, number, exactness)).collect();
        // Seeds without these draw as they did.
        if self.has_gangs(seed) {
            gangs::draw_all(&mut Random::new(seed), &mut plots);
        }
        if self.has_notice {
            early::ask(&mut Random::new(seed), &mut plots);
        }
        plots
    }

    /// Whether the API has gang scheduling. Worlds about a node have none: what happens there has
    /// nothing to do with groups.
    fn has_gangs(self, seed: u64) -> bool {
        let is_of_node = self.shuts_down || self.shortage.is_some();
        self.gangs || !is_of_node && seed.is_multiple_of(GANGS_OF)
    }
}

/// How a world went.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) violations: Vec<String>,
    pub(super) log: Vec<Access>,
    pub(super) drawn: Drawn,
    pub(super) restores: Vec<Restore>,
    /// What else the ledger found.
    pub(super) verdict: Verdict,
    /// What its brake met.
    pub(super) brake: brake::Verdict,
    /// How many controllers ended and were started again.
    pub(super) restarts: u32,
    /// The shutdown of the node, if it had one, and what the verdicts met.
    pub(super) story: Option<(Story, Met)>,
    /// What the verdicts met on a node that ran short of memory, if one did.
    pub(super) shortage: Option<shortage_ledger::Met>,
    /// How many events reported ends of pods, by cause.
    pub(super) reported: ends_ledger::Met,
    /// What the verdicts met about gangs, and excused; `None` where there were none.
    pub(super) gangs: Option<gang_ledger::Verdict>,
}

/// Runs a world to its end.
pub(super) fn run(seed: u64, options: Options) -> Report {
    // A shown log has a listener of its own.
    let checks = std::env::var_os("EPILOGUE_WORLD_LOG").is_none().then(PlanChecks::listen);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("must start");
    runtime.block_on(async {
        let mut world = World::begin(seed, options).await;
        world.play().await;
        let mut report = world.end().await;
        let broken = checks.iter().flat_map(PlanChecks::found);
        report.violations.extend(broken.map(|plan| format!("a plan breaks a rule: {plan}")));
        report
    })
}

struct World {
    random: Random,
    options: Options,
    exactness: Exactness,
    has_gangs: bool,
    api: ModelApi,
    nodes: SimulatedNodes,
    shutdown: Option<Shutdown>,
    story: Option<Story>,
    shortage: Option<Shortage>,
    /// How many pods the kernel has killed.
    kills: Vec<Kill>,
    stop: CancellationToken,
    controllers: Vec<JoinHandle<(u32, Vec<String>)>>,
    plots: Vec<Plot>,
    violations: Vec<String>,
    drawn: Drawn,
    restores: Vec<Restore>,
}

impl World {
    async fn begin(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let start: Timestamp = "2026-11-20T00:00:00Z".parse().expect("must be a time");
        let api = ModelApi::new(start);
        // Where it does not, the controller reads and writes JSON.
        api.set_speaks_protobuf((seed / 4).is_multiple_of(2));
        let has_gangs = options.has_gangs(seed);
        api.set_serves_gangs(has_gangs);
        if options.faults {
            // Every second server streams no lists, and all give small pages.
            api.set_streams_lists(seed % 2 == 1);
            api.set_page_max(Some(1 + (seed / 2 % 3) as usize));
        }
        let clock = Clock::of_tokio(api.now());
        let host = host(options, &api, clock);
        let of_nodes = match &host {
            None => nodes::Options { heartbeat: None, ..nodes::Options::default() },
            Some(host) => nodes::Options {
                bind: Bind::Untainted,
                observer: Some(host.observer()),
                ..nodes::Options::default()
            },
        };
        let remembers = options.restores;
        let restart_backoff = RESTART_BACKOFF;
        let of_nodes = nodes::Options { nodes: 3, clock, remembers, restart_backoff, ..of_nodes };
        let nodes = SimulatedNodes::start(api.client("kubelet/1"), of_nodes).await;
        let nodes = nodes.expect("the nodes must start");
        if options.changes_updates {
            update_admission::begin(&api);
        }
        let exactness = options.exactness();
        let count = if host.is_some() { 5 } else { 3 } + random.below(4);
        let plots = options.plots(seed, count, &mut random);
        if let Some(host) = &host {
            host.set_signaller(nodes.signaller());
        }
        let sabotage = options.sabotage.filter(|it| it.is_agents());
        let of_memory = |(host, pressure)| {
            let of = Random::new(random.below(1 << 30) as u64);
            let sabotage = options.sabotage.filter(|it| it.is_of_memory());
            Shortage::begin(host, &api, of, pressure, sabotage)
        };
        let shortage = host.clone().zip(options.shortage).map(of_memory);
        let shutdown = host.filter(|_| options.shuts_down).map(|host| {
            let of = Random::new(random.below(1 << 30) as u64);
            let fails = options.kubelet_fails;
            let of_seed = Kubelet::of_seed(seed, fails);
            let kubelet = if options.cancels { Kubelet::Plain } else { of_seed };
            let Options { faults: crashes, cancels, has_notice, .. } = options;
            let plan = Plan { kubelet, crashes, cancels, has_notice, sabotage };
            let mut shutdown = Shutdown::new(host, &api, of, plan);
            shutdown.start_agent();
            shutdown
        });
        let (stop, controllers) = (CancellationToken::new(), Vec::new());
        let (violations, drawn) = (Vec::new(), Drawn::default());
        let mut world = Self {
            random,
            options,
            exactness,
            has_gangs,
            api,
            nodes,
            shutdown,
            story: None,
            shortage,
            kills: Vec::new(),
            stop,
            controllers,
            plots,
            violations,
            drawn,
            restores: Vec::new(),
        };
        tokio::spawn(garbage::collect(world.api.clone()));
        if options.sabotage == Some(Sabotage::NeverRest) {
            tokio::spawn(never_rest(world.api.clone()));
        }
        if options.sabotage == Some(Sabotage::NeverPause) {
            tokio::spawn(never_pause(world.api.clone()));
        }
        let names = if options.standby { &["a", "b"][..] } else { &["a"] };
        for name in names {
            let is_controllers = |it: &Sabotage| !it.is_agents() && !it.is_of_memory();
            let sabotage = options.sabotage.filter(is_controllers);
            let wire = Wire::new(&world.api, &format!("{CONTROLLER}{name}"), sabotage);
            let may_end = options.faults || options.standby;
            let stop = world.stop.clone();
            let crashes = options.faults.then(|| Random::new(world.random.below(1 << 30) as u64));
            let replica = Replica { name, wire, clock, may_end, crashes, stop };
            world.controllers.push(tokio::spawn(replica.run()));
            sleep(world.random.millis(0, 3_000)).await;
        }
        world
    }

    /// Creates the Jobs amid the faults, and waits until all have ended.
    async fn play(&mut self) {
        let weather = self.options.faults.then(|| {
            let random = Random::new(self.random.below(usize::MAX) as u64);
            let (api, replicas) = (self.api.clone(), self.controllers.len());
            let both: &[&str] = &[CONTROLLER, AGENT];
            let has_agent = self.options.shuts_down || self.options.shortage.is_some();
            let agents = if has_agent { both } else { &[CONTROLLER] };
            let (drawn, on) = (Drawn::default(), Vec::new());
            let backups = self
                .options
                .restores
                .then(|| Backups::new(&self.api, &self.plots, Box::new(self.nodes.restarter())));
            let (gangs, admission) = (self.has_gangs, self.options.admission);
            // A dead kubelet's node shuts down late, and soon: a restore has to meet that.
            let (lasts, turns) = if has_agent && self.options.restores {
                (2 * FAULTS_LAST, 35)
            } else {
                (FAULTS_LAST, 12)
            };
            let weather = Weather {
                api,
                random,
                lasts,
                replicas,
                agents,
                drawn,
                backups,
                turns,
                gangs,
                admission,
                on,
            };
            tokio::spawn(weather.blow())
        });
        let doom = self.options.dooms.then(|| {
            let mut random = Random::new(self.random.below(usize::MAX) as u64);
            // Their numbers are none of the others'.
            let draw = |number: usize| Plot::draw(&mut random, 100 + number, Exactness::MorePods);
            let mut plots: Vec<Plot> = (0..6).map(draw).collect();
            if self.has_gangs {
                gangs::draw_all(&mut random, &mut plots);
            }
            tokio::spawn(namespaces::doom(self.api.clone(), random, plots, self.has_gangs))
        });
        let begun = Instant::now();
        let mut due: Vec<_> =
            self.plots.iter().map(|plot| (Duration::ZERO, plot.clone())).collect();
        for (at, _) in &mut due {
            *at = self.random.millis(0, CREATED_WITHIN);
        }
        due.sort_by_key(|(at, _)| *at);
        for (at, plot) in due {
            tokio::time::sleep_until(begun + at).await;
            gangs::create(&self.api, NAMESPACE, &plot.job).await;
        }
        if self.options.loses_node {
            self.lose_node().await;
        }
        if let Some(shutdown) = &mut self.shutdown {
            self.story = Some(shutdown.play(&self.nodes).await);
        }
        if self.options.faults
            && let Some(shortage) = &mut self.shortage
        {
            shortage.crash().await;
        }
        if let Some(doom) = doom {
            doom.await.expect("the namespace must be deleted");
        }
        if let Some(weather) = weather {
            (self.drawn, self.restores) = weather.await.expect("the faults must end");
        }
        // A restore would bring the Node back.
        if let Some(shutdown) = &mut self.shutdown
            && self.story.as_ref().is_some_and(|story| story.off.is_some())
        {
            shutdown.remove_node().await;
        }
        let limit = match self.options.sabotage {
            // An index fails for good only after many failures.
            Some(Sabotage::RetryFailedIndex) => BRAKED_WITHIN,
            Some(_) => BROKEN_WITHIN,
            None => ENDS_WITHIN,
        };
        while !self.have_ended() && begun.elapsed() < limit {
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// A machine is gone for good, and someone removes its Node.
    async fn lose_node(&mut self) {
        let name = self.nodes.names()[0].clone();
        self.nodes.vanish(&name).await.expect("must vanish");
        sleep(self.random.millis(0, 60_000)).await;
        let nodes: Api<Node> = Api::all(self.api.client("user/1"));
        nodes.delete(&name, &DeleteParams::default()).await.expect("must be deleted");
    }

    fn have_ended(&self) -> bool {
        let has_ended = |plot: &Plot| {
            let job = self.api.get(Kind::Job, NAMESPACE, &plot.name);
            job.map_or(plot.may_go(), |it| {
                ["Complete", "Failed"].iter().any(|kind| condition(&it, kind).is_some())
            })
        };
        let is_gone = self.api.get(Kind::Namespace, "", DOOMED).is_none();
        self.plots.iter().all(has_ended) && is_gone
    }

    /// Waits for rest, stops everything, and judges.
    async fn end(mut self) -> Report {
        let is_broken = self.options.sabotage.is_some();
        let time = match self.options.shortage {
            _ if is_broken => BROKEN_RESTS_AFTER,
            Some(_) => MEASURED_RESTS_AFTER,
            None => RESTS_AFTER,
        };
        sleep(time).await;
        let rests = self.api.now();
        sleep(time).await;
        let ended = self.api.now();
        self.stop.cancel();
        let mut restarts = 0;
        for controller in std::mem::take(&mut self.controllers) {
            match timeout(Duration::from_mins(1), controller).await {
                Ok(Ok((more, problems))) => {
                    restarts += more;
                    self.violations.extend(problems);
                }
                Ok(Err(error)) => self.violations.push(format!("a controller failed: {error}")),
                Err(_) => self.violations.push("a controller does not stop".to_owned()),
            }
        }
        if let Some(shutdown) = &mut self.shutdown {
            self.violations.extend(shutdown.stop().await);
        }
        let log = self.api.take_log();
        let story = self.judge_story(&log);
        let shortage = self.judge_shortage(&log).await;
        self.check_rest(&log, rests, ended);
        self.check_objects();
        let is_bounded = self.exactness == Exactness::Exact;
        let mut verdict = ledger::judge(&log, &self.restores, is_bounded);
        self.violations.append(&mut verdict.violations);
        self.violations.extend(pace::judge(&log));
        let mut reported = ends_ledger::Met::new();
        if !self.options.restores {
            let is_calm = is_bounded && restarts == 0;
            let (violations, met) = ends_ledger::judge(&log, is_calm);
            self.violations.extend(violations);
            reported = met;
        }
        if !self.options.restores {
            self.violations.extend(update_admission::judge(&log));
        }
        let is_judged = !self.options.restores && !self.options.standby;
        let judged = is_judged.then(|| brake::judge(&log));
        let mut brake = judged.unwrap_or_default();
        self.violations.append(&mut brake.violations);
        let gangs = if self.has_gangs { Some(self.judge_gangs(&log).await) } else { None };
        self.nodes.stop().await.expect("the nodes must stop");
        let Self { violations, drawn, restores, .. } = self;
        Report {
            violations,
            log,
            drawn,
            restores,
            verdict,
            brake,
            restarts,
            story,
            shortage,
            reported,
            gangs,
        }
    }

    /// Deletes all Jobs, with which their groups must go.
    async fn judge_gangs(&mut self, log: &[Access]) -> gang_ledger::Verdict {
        let jobs: Api<Job> = Api::namespaced(self.api.client("user/1"), NAMESPACE);
        for job in self.api.list(Kind::Job, NAMESPACE) {
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            let deleted = jobs.delete(name, &DeleteParams::background()).await;
            deleted.expect("a user's deletion must be taken");
        }
        sleep(GARBAGE_GOES_WITHIN).await;
        let all: Vec<Access> = log.iter().cloned().chain(self.api.take_log()).collect();
        let leaders = if self.options.standby { 2 } else { 1 };
        let mut verdict = gang_ledger::judge(&all, &self.restores, leaders);
        self.violations.append(&mut verdict.violations);
        verdict
    }

    async fn judge_shortage(&mut self, log: &[Access]) -> Option<shortage_ledger::Met> {
        let (wrong, story) = self.shortage.as_mut()?.stop().await;
        self.violations.extend(wrong);
        let (violations, met) = shortage_ledger::judge(&story, log, !self.options.faults);
        self.violations.extend(violations);
        self.kills = story.history.kills;
        Some(met)
    }

    fn judge_story(&mut self, log: &[Access]) -> Option<(Story, Met)> {
        let mut story = self.story.take()?;
        story.deeds = self.shutdown.as_ref()?.host.deeds();
        let is_calm = !self.options.faults;
        let (violations, met) = node_ledger::judge(&story, log, &self.restores, is_calm);
        self.violations.extend(violations);
        Some((story, met))
    }

    fn check_rest(&mut self, log: &[Access], rests: Timestamp, ended: Timestamp) {
        let is_late = |it: &&Access| it.at > rests && it.at < ended;
        let writes = |it: &&Access| it.verb.writes() && it.kind != Kind::Lease;
        let late: Vec<_> = log.iter().filter(is_late).filter(writes).collect();
        if let Some(first) = late.first() {
            let Access { at, agent, verb, kind, name, .. } = first;
            let count = late.len();
            self.violations.push(format!(
                "not at rest: {count} writes, the first at {at}: {agent} {verb:?} {kind:?} {name}"
            ));
        }
    }

    fn check_objects(&mut self) {
        for plot in &self.plots {
            match self.api.get(Kind::Job, NAMESPACE, &plot.name) {
                Some(job) => {
                    let prefix = format!("{}-", plot.name);
                    let killed = self.kills.iter().filter(|it| it.name.starts_with(&prefix));
                    let killed = killed.count() as i64;
                    self.violations.extend(plot.problems(&job, self.exactness, killed));
                }
                None if plot.may_go() => {}
                None => self.violations.push(format!("{} is gone", plot.name)),
            }
        }
        self.violations.extend(namespaces::remains(&self.api));
        for pod in self.api.list(Kind::Pod, NAMESPACE) {
            let metadata = &pod["metadata"];
            let mut finalizers = metadata["finalizers"].as_array().into_iter().flatten();
            if finalizers.any(|it| it == FINALIZER) {
                self.violations.push(format!("{} keeps its finalizer", metadata["name"]));
            }
        }
    }
}

/// The node with an agent, if there is one.
fn host(options: Options, api: &ModelApi, clock: Clock) -> Option<Arc<Host>> {
    if !options.shuts_down && options.shortage.is_none() {
        return None;
    }
    let host = Host::new(SHUT_DOWN, api, clock);
    let Some(pressure) = options.shortage else { return Some(Arc::new(host)) };
    let memory = shortage::memory(&host, options.sabotage);
    Some(Arc::new(host.with_memory(memory, pressure)))
}

/// Changes a Job as a controller would that finds something to do for ever.
async fn never_rest(api: ModelApi) {
    let jobs: Api<Job> = Api::namespaced(api.client(&format!("{CONTROLLER}a")), NAMESPACE);
    for number in 0_u64.. {
        sleep(Duration::from_secs(30)).await;
        let mark = Patch::Merge(json!({"metadata": {"annotations": {"n": number.to_string()}}}));
        for job in api.list(Kind::Job, NAMESPACE) {
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            jobs.patch(name, &PatchParams::default(), &mark).await.expect("must be taken");
        }
    }
}

/// Reads a Job that does not exist as a controller would that takes no answer.
async fn never_pause(api: ModelApi) {
    let jobs: Api<Job> = Api::namespaced(api.client(&format!("{CONTROLLER}a")), NAMESPACE);
    loop {
        sleep(Duration::from_millis(50)).await;
        let found = jobs.get_opt("none").await.expect("must be answered");
        assert!(found.is_none(), "no one creates it");
    }
}

/// A controller that is started again whenever it ends, as a Deployment does.
struct Replica {
    name: &'static str,
    wire: Wire,
    clock: Clock,
    /// Whether it may end before it is stopped.
    may_end: bool,
    /// When it crashes, if it does.
    crashes: Option<Random>,
    stop: CancellationToken,
}

impl Replica {
    /// Returns how often it was started again, and what was wrong.
    async fn run(mut self) -> (u32, Vec<String>) {
        let (mut restarts, mut problems) = (0, Vec::new());
        loop {
            let arguments = [
                "epilogue-controller",
                "--mode=enforce",
                "--manage-all-jobs",
                "--check-plans",
                "--metrics-bind-address=0",
                "--leader-elect-resource-namespace=kube-system",
            ];
            let arguments =
                arguments.into_iter().chain(self.wire.has_no_brake().then_some(NO_BRAKE));
            let args = Args::try_parse_from(arguments).expect("must be arguments");
            let config = args.config().expect("must be a configuration");
            let name = format!("{}-{restarts}", self.name);
            let identity = Identity { name, clock: self.clock };
            let clients = Clients::unlimited(self.wire.clone().client());
            let environment = Environment::new(clients, identity);
            let mut program = tokio::spawn(run::work(config, environment, self.stop.child_token()));
            let lives = match &mut self.crashes {
                Some(random) if restarts < CRASHES => random.millis(1_000, 90_000),
                _ => Duration::MAX,
            };
            let Ok(ended) = timeout(lives, &mut program).await else {
                // What it has sent arrives all the same.
                program.abort();
                drop(program.await);
                restarts += 1;
                sleep(RESTART).await;
                continue;
            };
            let is_over = self.stop.is_cancelled();
            match ended {
                Ok(Ok(())) if is_over => return (restarts, problems),
                Ok(Err(_)) if self.may_end && is_over => return (restarts, problems),
                Ok(Err(_)) if self.may_end => {}
                ended => {
                    problems.push(format!("controller {} ended: {ended:?}", self.name));
                    return (restarts, problems);
                }
            }
            restarts += 1;
            sleep(RESTART).await;
        }
    }
}
