//! What the controller gets from outside: its clients, its identity and the time.

use std::fmt;

use epilogue_runtime::client::{self, ClientError, ClientOptions};
use epilogue_runtime::clock::Clock;
use epilogue_runtime::lease::{self, Identity};
use epilogue_runtime::rate_limit::{Backlog, RateLimit};
use kube::Client;

use crate::args::Config;
use crate::planner::MANY_PODS;
use crate::wake_ups::CallsOnTheWay;

/// The part of `--kube-api-qps` that events may take beyond it.
const EVENTS_PART: f64 = 0.25;

/// One client for each limit of requests.
#[derive(Clone)]
pub struct Clients {
    /// Reads and writes Jobs and pods.
    pub(crate) jobs: Client,
    /// Calls of that client that wait for `--kube-api-qps`.
    pub(crate) backlog: Backlog,
    /// Where requests are limited, events have a limit of their own, so that no pod and no status
    /// waits behind an event.
    pub(crate) events: Client,
    /// Unlimited, so that the rate limit of Jobs cannot delay a renewal.
    pub(crate) lease: Client,
    /// Limited on its own, so that bursts of pod GC never delay Jobs.
    pub(crate) pod_gc: Client,
}

/// All that a run of the controller gets from outside besides its configuration.
#[derive(Clone, Debug)]
pub struct Environment {
    pub(crate) clients: Clients,
    /// Name of this process in the lease and in events, and its clock.
    pub(crate) identity: Identity,
    pub(crate) calls: CallsOnTheWay,
    /// From this number of pods on, a plan is made on another thread.
    pub(crate) many_pods: usize,
}

impl Clients {
    /// Clients of the cluster that the configuration names. Sends nothing yet.
    pub async fn connect(config: &Config) -> Result<Self, ClientError> {
        let limited = async |bucket| {
            let mut options = config.client.clone();
            options.rate_limit.bucket = bucket;
            client::connect(&options).await
        };
        let (jobs, backlog) = client::connect_limited(&config.client).await?;
        let events = match config.client.rate_limit.bucket {
            Some((rate, burst)) => limited(Some((rate * EVENTS_PART, burst))).await?,
            None => jobs.clone(),
        };
        // A renewal may wait in its request: nothing else needs its client.
        let options = ClientOptions { rate_limit: RateLimit::default(), ..config.client.clone() };
        let lease = client::connect(&options).await?;
        let pod_gc = limited(Some(config.pod_gc.bucket)).await?;
        Ok(Self { jobs, backlog, events, lease, pod_gc })
    }

    /// This client for everything, without limits.
    pub fn unlimited(client: Client) -> Self {
        Self {
            jobs: client.clone(),
            backlog: Backlog::default(),
            events: client.clone(),
            lease: client.clone(),
            pod_gc: client,
        }
    }
}

impl Environment {
    /// A process with this identity and clock, and with one thread alone: its order is the same in
    /// each run.
    pub fn new(clients: Clients, identity: Identity) -> Self {
        Self { clients, identity, calls: CallsOnTheWay::default(), many_pods: usize::MAX }
    }

    /// This process: its name is the host's name and a random number.
    pub(crate) async fn of_process(
        config: &Config,
        calls: CallsOnTheWay,
    ) -> Result<Self, ClientError> {
        let clients = Clients::connect(config).await?;
        let identity = Identity { name: lease::unique_name(), clock: Clock::MACHINE };
        Ok(Self { clients, identity, calls, many_pods: MANY_PODS })
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Clients").finish_non_exhaustive()
    }
}
