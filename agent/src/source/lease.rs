//! Reads the kubelet's lease on the node: a sign of life of the kubelet. The read uses the
//! connection for writes, so it also checks the way to the API. It keeps route, token and
//! authorization warm, and brings the server's clock.

use std::sync::Arc;
use std::time::Duration;

use epilogue_common::outcome::{FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::health::Flag;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use crate::calls::{request, within};
use crate::clock::Clock;

/// Time between two reads.
const PERIOD: Duration = Duration::from_secs(15);
/// How long one read may take.
const READ_MAX: Duration = Duration::from_secs(5);
/// Maximum age of a read: an older one says nothing about now.
const SEEN_AGE_MAX: Duration = Duration::from_secs(40);

/// The age of the lease at the last read, and the time of that read.
#[derive(Clone, Debug, Default)]
pub struct LeaseAge(Arc<Mutex<Option<(Duration, Instant)>>>);

impl LeaseAge {
    /// Takes in what a read found just now; `None` if the lease has no time, or is not there.
    pub fn found(&self, age: Option<Duration>) {
        *self.0.lock() = age.map(|age| (age, Instant::now()));
    }

    /// How long ago the lease was renewed at the last read. `None` if the last read is too old:
    /// without the API, the age would only seem to grow.
    pub fn get(&self) -> Option<Duration> {
        let (age, seen) = (*self.0.lock())?;
        (seen.elapsed() <= SEEN_AGE_MAX).then_some(age)
    }
}

/// Reads the node's lease periodically; sets `reachable` to whether the API answers.
pub async fn run(client: Client, node: String, age: LeaseAge, reachable: Flag, clock: Clock) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match within(READ_MAX, read(&client, &path)).await {
            Ok(renewed) => {
                reachable.pass();
                age.found(renewed.map(|at| since(at, &clock)));
            }
            Err(failure) => reachable.fail(failure.message),
        }
    }
}

/// When the lease was renewed, by the kubelet's clock, which is also this machine's. A server that
/// refuses to show the lease is reachable, too.
async fn read(client: &Client, path: &str) -> Outcome<Option<Timestamp>> {
    let request = request(Method::GET, path, None)?;
    let lease: Outcome<Lease> = client.request(request).await.map_err(classify);
    match lease {
        Ok(lease) => Ok(lease.spec.and_then(|spec| spec.renew_time).map(|time| time.0)),
        Err(failure) => match failure.kind {
            FailureKind::NotFound | FailureKind::Forbidden => Ok(None),
            _ => Err(failure),
        },
    }
}

fn since(at: Timestamp, clock: &Clock) -> Duration {
    Duration::try_from(clock.system().duration_since(at)).unwrap_or(Duration::ZERO)
}
