//! Draws faults of the API and of the network, one after the other, by seed.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use model_api::{Effect, Fault, FaultId, Kind, Matcher, ModelApi, Refusal, Verb};
use serde_json::json;
use simulation::controller::Random;
use tokio::time::{Instant, sleep};

use super::admission;
use super::backup::{Backups, Restore};
use super::gangs;
use super::host::AGENT;
use super::ledger::CONTROLLER;
use super::plots::{DELETED, REMOVED, SUSPENDED};
use super::update_admission;
use super::world::{LEASE, LEASES, NAMESPACE};

/// Calls of some verbs, of one kind or of all.
type Writes = (&'static [Verb], Option<Kind>);

const CREATIONS: Writes = (&[Verb::Create], Some(Kind::Pod));
/// The writes that faults concern; the first ones are only the controller's.
const WRITES: [Writes; 5] = [
    CREATIONS,
    (&[Verb::Update], Some(Kind::Job)),
    (&[Verb::Patch], Some(Kind::Pod)),
    (&[Verb::Delete], Some(Kind::Pod)),
    (&[Verb::Create, Verb::Patch, Verb::Delete, Verb::Update], None),
];

/// The same where Jobs have gangs.
const WRITES_OF_GANGS: [Writes; 8] = [
    CREATIONS,
    (&[Verb::Update], Some(Kind::Job)),
    (&[Verb::Patch], Some(Kind::Pod)),
    (&[Verb::Delete], Some(Kind::Pod)),
    (&[Verb::Create, Verb::Patch, Verb::Delete, Verb::Update], None),
    (&[Verb::Create], Some(Kind::Workload)),
    (&[Verb::Create], Some(Kind::PodGroup)),
    (&[Verb::Patch], Some(Kind::PodGroup)),
];
/// The kinds whose watches have faults.
const WATCHED: [Kind; 4] = [Kind::Pod, Kind::Job, Kind::Workload, Kind::PodGroup];

/// How often each kind of fault was drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) losses: u32,
    pub(super) delays: u32,
    pub(super) refusals: u32,
    pub(super) cuts: u32,
    pub(super) expiries: u32,
    pub(super) expired_pages: u32,
    pub(super) lags: u32,
    pub(super) outages: u32,
    pub(super) meddlings: u32,
    pub(super) isolations: u32,
    pub(super) thefts: u32,
    pub(super) removals: u32,
    pub(super) suspensions: u32,
    pub(super) deletions: u32,
}

/// Makes faults for some minutes, and ends them all.
pub(super) struct Weather {
    pub(super) api: ModelApi,
    pub(super) random: Random,
    /// How long new faults begin.
    pub(super) lasts: Duration,
    /// How many controllers there are.
    pub(super) replicas: usize,
    /// How the user agents begin whose calls have faults.
    pub(super) agents: &'static [&'static str],
    pub(super) drawn: Drawn,
    /// Backups of etcd that are taken and restored, if any are.
    pub(super) backups: Option<Backups>,
    /// How often one is taken or restored in place of a fault, in percent.
    pub(super) turns: u32,
    /// Whether the Jobs have gangs.
    pub(super) gangs: bool,
    /// Whether admission of others changes and refuses writes.
    pub(super) admission: bool,
    /// Faults that end at a time.
    pub(super) on: Vec<(Instant, FaultId)>,
}

impl Weather {
    /// Returns what was drawn, and the restores of etcd.
    pub(super) async fn blow(mut self) -> (Drawn, Vec<Restore>) {
        let ends = Instant::now() + self.lasts;
        while Instant::now() < ends {
            sleep(self.random.millis(100, 5_000)).await;
            self.lift(Instant::now());
            if self.gangs && self.random.percent(25) {
                self.lose_groups();
            }
            if let Some(backups) = &mut self.backups
                && self.random.percent(self.turns)
            {
                backups.turn().await;
                continue;
            }
            if self.admission && self.random.percent(40) {
                let fault = self.api.inject(admission::draw(&mut self.random, &self.api));
                self.on.push((Instant::now() + self.random.millis(2_000, 25_000), fault));
                let policy = self.random.pick(&update_admission::all()).clone();
                let policy = self.api.inject(policy);
                self.on.push((Instant::now() + self.random.millis(2_000, 25_000), policy));
                continue;
            }
            let kinds = if self.replicas > 1 { 11 } else { 9 };
            match self.random.below(kinds) {
                0 => self.lose(),
                1 => self.delay(),
                2 => self.refuse(),
                3 => self.cut(),
                4 => self.expire(),
                5 => self.lag(),
                6 => self.outage(),
                7 => self.meddle().await,
                8 => self.expire_pages(),
                9 => self.isolate(),
                _ => self.steal().await,
            }
        }
        self.lift(ends + 2 * self.lasts);
        self.resume_all().await;
        for kind in WATCHED {
            self.api.set_watch_lag(kind, Duration::ZERO);
        }
        (self.drawn, self.backups.map_or_else(Vec::new, |it| it.restores))
    }

    fn lift(&mut self, now: Instant) {
        for (_, fault) in self.on.extract_if(.., |(ends, _)| *ends <= now) {
            self.api.lift(fault);
        }
    }

    /// Whose calls the next fault concerns.
    fn agent(&mut self) -> &'static str {
        match self.agents {
            [one] => one,
            several => self.random.pick::<&str>(several),
        }
    }

    /// Lets this happen to some of the next writes of a kind.
    fn write(&mut self, effect: Effect) {
        let (agent, writes) = self.writes();
        self.write_of(agent, writes, effect);
    }

    /// Whose writes, and which ones.
    fn writes(&mut self) -> (&'static str, Writes) {
        let agent = self.agent();
        let writes = match agent {
            AGENT => &WRITES[2..],
            _ if self.gangs => &WRITES_OF_GANGS,
            _ => &WRITES,
        };
        (agent, *self.random.pick(writes))
    }

    fn write_of(&mut self, agent: &str, (verbs, kind): Writes, effect: Effect) {
        let (verbs, agent) = (verbs.to_vec(), Some(agent.to_owned()));
        let matcher = Matcher { verbs, kind, agent, ..Matcher::default() };
        let times = self.random.between(1, 4) as u32;
        let fault = self.api.inject(Fault::of(matcher, effect).times(times));
        self.on.push((Instant::now() + Duration::from_secs(20), fault));
    }

    fn lose(&mut self) {
        self.drawn.losses += 1;
        let effect = if self.random.percent(70) { Effect::LoseReply } else { Effect::LoseRequest };
        self.write(effect);
    }

    /// Replies to the creation of Workloads or PodGroups are lost, and the watch shows these late.
    fn lose_groups(&mut self) {
        let kind = *self.random.pick(&WATCHED[2..]);
        self.write_of(CONTROLLER, (&[Verb::Create], Some(kind)), Effect::LoseReply);
        let lag = self.random.millis(0, 8_000);
        self.api.set_watch_lag(kind, lag);
    }

    fn delay(&mut self) {
        self.drawn.delays += 1;
        let time = self.random.millis(50, 20_000);
        let is_reply = self.random.percent(50);
        self.write(if is_reply { Effect::DelayReply(time) } else { Effect::Delay(time) });
    }

    fn refuse(&mut self) {
        self.drawn.refusals += 1;
        let refusal = self.random.below(5);
        let (agent, writes) = self.writes();
        // Quota is for creations.
        let (writes, refusal) = match refusal {
            0 => (writes, Refusal::too_many_requests(1)),
            1 => (writes, Refusal::internal("a fault of the model")),
            2 if agent != AGENT => (CREATIONS, Refusal::exceeded_quota(Kind::Pod)),
            3 => (writes, Refusal::new(409, "Conflict", "a fault of the model")),
            _ => (writes, Refusal::new(503, "ServiceUnavailable", "a fault of the model")),
        };
        self.write_of(agent, writes, Effect::Refuse(refusal));
    }

    /// The kinds whose watches have faults here.
    fn watched(&self) -> &'static [Kind] {
        if self.gangs { &WATCHED } else { &WATCHED[..2] }
    }

    fn cut(&mut self) {
        self.drawn.cuts += 1;
        let kind = *self.random.pick(self.watched());
        self.api.cut_watches(kind, self.random.percent(70));
    }

    /// The server forgets what watches have not seen yet.
    fn expire(&mut self) {
        self.drawn.expiries += 1;
        self.forget();
    }

    fn forget(&self) {
        self.api.forget_history();
        for kind in self.watched() {
            self.api.cut_watches(*kind, true);
        }
    }

    /// The server forgets between two pages what the first one showed, and not only once.
    fn expire_pages(&mut self) {
        self.drawn.expired_pages += 1;
        let (verbs, agent) = (vec![Verb::List], Some(self.agent().to_owned()));
        let matcher = Matcher { verbs, agent, ..Matcher::default() };
        let times = self.random.between(1, 4) as u32;
        let fault = self.api.inject(Fault::of(matcher, Effect::ExpireToken).times(times));
        self.on.push((Instant::now() + Duration::from_secs(30), fault));
        self.forget();
    }

    /// Watches show changes late, until another lag is drawn.
    fn lag(&mut self) {
        self.drawn.lags += 1;
        let kind = *self.random.pick(self.watched());
        let lag =
            if self.random.percent(40) { Duration::ZERO } else { self.random.millis(1, 8_000) };
        self.api.set_watch_lag(kind, lag);
    }

    /// The API server restarts, or its path breaks: for some seconds it takes no calls.
    fn outage(&mut self) {
        self.drawn.outages += 1;
        let agent = self.agent();
        self.all_calls(agent, Effect::LoseRequest, (1_000, 12_000));
        for kind in Kind::ALL {
            self.api.cut_watches(kind, true);
        }
    }

    /// The calls of one controller are lost or arrive late, until it has lost the lease.
    fn isolate(&mut self) {
        self.drawn.isolations += 1;
        let agent = format!("{CONTROLLER}{}", self.random.pick(&["a", "b"]));
        let effect = match self.random.below(3) {
            0 => Effect::LoseRequest,
            1 => Effect::LoseReply,
            _ => Effect::Delay(self.random.millis(8_000, 30_000)),
        };
        self.all_calls(&agent, effect, (8_000, 25_000));
    }

    fn all_calls(&mut self, agent: &str, effect: Effect, (min, max): (u32, u32)) {
        let matcher = Matcher { agent: Some(agent.to_owned()), ..Matcher::default() };
        let fault = self.api.inject(Fault::of(matcher, effect));
        self.on.push((Instant::now() + self.random.millis(min, max), fault));
    }

    /// Someone frees the lease while its holder cannot see it, so that two controllers lead.
    async fn steal(&mut self) {
        self.drawn.thefts += 1;
        let kind = Some(Kind::Lease);
        let Some(lease) = self.api.get(Kind::Lease, LEASES, LEASE) else { return };
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let agent = Some(format!("{CONTROLLER}{}", holder.get(..1).unwrap_or_default()));
        let matcher = Matcher { agent, kind, ..Matcher::default() };
        let fault = self.api.inject(Fault::of(matcher, Effect::LoseRequest));
        self.on.push((Instant::now() + Duration::from_secs(15), fault));
        let leases: Api<Lease> = Api::namespaced(self.api.client("user/1"), LEASES);
        let freed = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        let patched = leases.patch(LEASE, &PatchParams::default(), &freed).await;
        patched.expect("a user's patch must be taken");
    }

    /// A user suspends a Job, or resumes it; one that has ended stays as it is.
    async fn suspend(&self, name: &str, suspends: bool) {
        let jobs: Api<Job> = Api::namespaced(self.api.client("user/1"), NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"suspend": suspends}}));
        jobs.patch(name, &PatchParams::default(), &patch).await.expect("must be taken");
    }

    async fn resume_all(&self) {
        for job in self.api.list(Kind::Job, NAMESPACE) {
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            if job["spec"]["suspend"] == true {
                self.suspend(name, false).await;
            }
        }
    }

    /// Users change Jobs and pods, so that writes of the controller conflict, suspend, resume and
    /// delete Jobs, and delete pods.
    async fn meddle(&mut self) {
        self.drawn.meddlings += 1;
        let client = self.api.client("user/1");
        let mark = Patch::Merge(json!({"metadata": {"annotations": {
            "user.example.com/mark": self.drawn.meddlings.to_string(),
        }}}));
        let params = PatchParams::default();
        let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
        for job in self.api.list(Kind::Job, NAMESPACE) {
            let name = job["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(resized) = gangs::resize(&mut self.random, &job) {
                let resized = jobs.patch(name, &params, &Patch::Merge(resized)).await;
                resized.expect("a user's patch must be taken");
            }
            if name.starts_with(REMOVED) && self.random.percent(30) {
                self.drawn.removals += 1;
                let deleted = jobs.delete(name, &DeleteParams::background()).await;
                deleted.expect("a user's deletion must be taken");
            } else if name.starts_with(SUSPENDED) && self.random.percent(60) {
                self.drawn.suspensions += 1;
                let suspends = job["spec"]["suspend"] != true;
                self.suspend(name, suspends).await;
            } else if self.random.percent(50) {
                jobs.patch(name, &params, &mark).await.expect("a user's patch must be taken");
            }
        }
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        for pod in self.api.list(Kind::Pod, NAMESPACE) {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            // The pod may go at any moment.
            if self.random.percent(20) {
                drop(pods.patch(name, &params, &mark).await);
            } else if self.random.percent(25) && name.starts_with(DELETED) {
                self.drawn.deletions += 1;
                drop(pods.delete(name, &DeleteParams::default()).await);
            }
        }
    }
}
