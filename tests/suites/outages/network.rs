//! Tests a controller with its own rights on a bad path to the API, while the nodes have a good one.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use lab::network::{Path, PathState};
use lab::{audit, kubeconfig};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::jobs::Account;
use super::stage::{Ground, Stage};

/// In each direction: a round trip of 200 ms.
const SLOW: PathState = PathState::Open(Duration::from_millis(100));
const GOOD: PathState = PathState::Open(Duration::ZERO);
/// How often a fault may come at a moment without work.
const TRIES_MAX: usize = 20;
/// Replies to writes that are lost at least.
const LOST_MIN: usize = 5;

/// Jobs of a controller whose path to the API can be degraded.
struct Degraded {
    stage: Stage,
    path: Path,
    /// The names of all pods that ever existed.
    seen: Arc<Mutex<HashSet<String>>>,
    _watch: AbortOnDropHandle<()>,
}

impl Degraded {
    /// Starts it with 24 Jobs.
    async fn start(state: PathState) -> Self {
        let ground = Ground::lay().await;
        let server = ground.control_plane.server();
        let address = server.strip_prefix("https://").expect("an address").parse();
        let path = Path::open(address.expect("an address"), state).await.expect("a path");
        let token = ground.controller_token(None).await;
        let config = kubeconfig::with_token(ground.kubeconfig(), &token);
        let config = kubeconfig::at(config, &format!("https://{}", path.address()));
        let flag = ground.write_kubeconfig(&config);
        let stage = ground.accepted().stage(0, &[&flag]).await;
        let seen = Arc::new(Mutex::default());
        let watch = AbortOnDropHandle::new(tokio::spawn(keep(stage.pods(), Arc::clone(&seen))));
        let mut degraded = Self { stage, path, seen, _watch: watch };
        degraded.stage.create_jobs(6).await;
        degraded
    }

    /// Brings a fault about amid work: pods end that the controller does not count. Ends it, and
    /// returns how many writes of the controller the API has accepted meanwhile.
    async fn fault(&mut self, begin: impl Fn(&Path), end: PathState) -> usize {
        for _ in 0..TRIES_MAX {
            self.stage.progress(rand::random_range(4..12)).await;
            begin(&self.path);
            let before = self.writes();
            let has_met_work = self.stage.stands_still().await;
            let written = self.writes() - before;
            self.path.set(end);
            if has_met_work {
                return written;
            }
        }
        panic!("the fault met no work {TRIES_MAX} times");
    }

    /// Waits until all is counted, and no pod was created that was not.
    async fn comes_to_rest(self) {
        let since = Instant::now();
        self.stage.all_are_exact_and_as_scripted().await;
        println!("at rest after {:?}", since.elapsed());
        let accounts = self.stage.accounts().await.expect("the API answers");
        let pods: BTreeMap<_, _> = accounts.iter().map(|(name, it)| (name, it.pods())).collect();
        let total: Option<usize> = accounts.values().map(Account::pods).sum();
        assert!(total.is_some(), "an index has succeeded twice: {pods:?}");
        let seen = self.seen.lock().expect("no holder panics").len();
        assert_eq!(Some(seen), total, "a pod was made that is gone: {pods:?}");
        self.stage.stop().await;
    }

    /// How many writes of the controller the API has accepted.
    fn writes(&self) -> usize {
        let entries = audit::entries(self.stage.control_plane.cluster());
        let is_write = |line: &&str| {
            ["create", "patch", "update", "delete"]
                .iter()
                .any(|verb| line.contains(&format!("\"verb\":\"{verb}\"")))
        };
        let is_done = |line: &&str| line.contains("\"code\":20");
        entries.lines().filter(is_write).filter(is_done).count()
    }
}

/// Keeps the name of each pod that the watch shows, however soon it goes again.
async fn keep(pods: Api<Pod>, seen: Arc<Mutex<HashSet<String>>>) {
    let events = watcher(pods, watcher::Config::default()).default_backoff().touched_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let Ok(pod) = event else { continue };
        let name = pod.metadata.name.expect("a pod has a name");
        seen.lock().expect("no holder panics").insert(name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_on_a_slow_path_that_is_cut() {
    let mut degraded = Degraded::start(SLOW).await;
    for _ in 0..3 {
        degraded.fault(|path| path.set(PathState::Cut), SLOW).await;
    }
    degraded.comes_to_rest().await;
}

/// The first silence ends, and what was held arrives. After the second the connections stay silent:
/// the controller has to notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_are_noticed_and_counts_are_exact() {
    let mut degraded = Degraded::start(GOOD).await;
    degraded.fault(|path| path.set(PathState::Silent), GOOD).await;
    degraded.fault(Path::forget_connections, GOOD).await;
    degraded.comes_to_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_when_replies_are_lost() {
    let mut degraded = Degraded::start(GOOD).await;
    let mut lost = 0;
    for fault in 0..TRIES_MAX {
        if fault >= 3 && lost >= LOST_MIN {
            break;
        }
        lost += degraded.fault(|path| path.set(PathState::RepliesLost), GOOD).await;
    }
    assert!(lost >= LOST_MIN, "only {lost} replies to writes were lost");
    println!("{lost} replies to writes were lost");
    degraded.comes_to_rest().await;
}
