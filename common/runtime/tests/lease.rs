//! Tests the election of candidates against a failing API, in paused time.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use epilogue_runtime::clock::Clock;
use epilogue_runtime::lease::{
    Identity, Leadership, LeaseError, LeaseOptions, Loss, acquire, try_acquire,
};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

fn identity(name: &str) -> Identity {
    Identity { name: name.to_owned(), clock: Clock::MACHINE }
}

const NAME: &str = "epilogue-controller";
const SECOND: Duration = Duration::from_secs(1);

/// What the API does with the requests of one candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// Refuses the connection.
    Down,
    /// Never answers, and does not carry out the request.
    Hangs,
    /// Carries out the next write without a reply.
    LosesOneReply,
}

/// One lease as the API stores it.
#[derive(Debug, Default)]
struct Store {
    lease: Option<Value>,
    version: u64,
    writes: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Server(Arc<Mutex<Store>>);

#[derive(Clone, Debug, Default)]
struct Wire(Arc<Mutex<Fault>>);

impl Wire {
    fn set(&self, fault: Fault) {
        *self.0.lock().expect("must not be poisoned") = fault;
    }

    fn fault(&self) -> Fault {
        *self.0.lock().expect("must not be poisoned")
    }
}

impl Server {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().expect("must not be poisoned")
    }

    fn spec(&self) -> Value {
        self.store().lease.as_ref().expect("must have a lease")["spec"].clone()
    }

    fn holder(&self) -> String {
        self.spec()["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    /// Overwrites the lease, as a person with kubectl would.
    fn overwrite(&self, holder: &str) {
        let mut store = self.store();
        store.version += 1;
        let version = store.version.to_string();
        let lease = store.lease.as_mut().expect("must have a lease");
        lease["spec"]["holderIdentity"] = json!(holder);
        lease["metadata"]["resourceVersion"] = json!(version);
    }

    fn handle(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let collection = "/apis/coordination.k8s.io/v1/namespaces/epilogue-system/leases";
        let mut store = self.store();
        let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
        let current = store.lease.as_ref().map(|lease| &lease["metadata"]["resourceVersion"]);
        match (method.as_str(), path.strip_prefix(collection), current) {
            ("GET", Some("/epilogue-controller"), Some(_)) => {
                return (200, store.lease.clone().unwrap_or_default());
            }
            ("POST", Some(""), Some(_)) => return status(409, "AlreadyExists"),
            ("PUT", Some("/epilogue-controller"), Some(current)) => {
                let version = &sent["metadata"]["resourceVersion"];
                assert!(version.is_string(), "every update must carry a resourceVersion");
                if version != current {
                    return status(409, "Conflict");
                }
            }
            ("POST", Some(""), None) => {}
            ("GET" | "PUT", Some("/epilogue-controller"), None) => return status(404, "NotFound"),
            other => panic!("unexpected request {other:?}"),
        }
        store.version += 1;
        sent["metadata"]["resourceVersion"] = json!(store.version.to_string());
        store.writes.push(sent["spec"]["holderIdentity"].as_str().unwrap_or("?").to_owned());
        store.lease = Some(sent.clone());
        (200, sent)
    }

    /// Builds a client of its own, with a wire that can fail.
    fn client(&self) -> (Client, Wire) {
        let (server, wire) = (self.clone(), Wire::default());
        let faults = wire.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (server, wire) = (server.clone(), faults.clone());
            async move { server.answer(&wire, request).await }
        });
        (Client::new(service, "default"), wire)
    }

    async fn answer(
        &self,
        wire: &Wire,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        match wire.fault() {
            Fault::Down => return Err("connection refused".into()),
            Fault::Hangs => return pending().await,
            Fault::None | Fault::LosesOneReply => {}
        }
        let (code, reply) = self.handle(&parts.method, parts.uri.path(), &body);
        if wire.fault() == Fault::LosesOneReply && parts.method != Method::GET {
            wire.set(Fault::None);
            return pending().await;
        }
        Ok(Response::builder().status(code).body(Body::from(reply.to_string().into_bytes()))?)
    }
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason,
                  "message": reason}),
    )
}

fn options() -> LeaseOptions {
    LeaseOptions::new("epilogue-system", NAME)
}

async fn lead(client: Client, me: &str) -> Leadership {
    let token = CancellationToken::new();
    acquire(client, &options(), identity(me), &token).await.expect("must lead")
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_renews_and_the_second_waits_for_the_release() {
    let server = Server::default();
    let first = lead(server.client().0, "first").await;
    assert_eq!(server.spec()["leaseTransitions"], 0);
    assert_eq!(server.spec()["leaseDurationSeconds"], 15);
    let second = tokio::spawn(lead(server.client().0, "second"));

    assert!(timeout(100 * SECOND, first.lost()).await.is_err());
    assert_eq!(server.holder(), "first");
    let renewals = server.store().writes.len();
    assert!((49..=52).contains(&renewals), "one write each 2 s, not {renewals}");

    let released = Instant::now();
    first.release().await.expect("must release");
    assert_eq!(server.holder(), "");
    let second = second.await.expect("must lead");
    assert!(released.elapsed() <= 5 * SECOND, "{:?}", released.elapsed());
    assert_eq!(
        (server.holder().as_str(), &server.spec()["leaseTransitions"]),
        ("second", &json!(1))
    );
    second.release().await.expect("must release");
}

#[tokio::test(start_paused = true)]
async fn the_leader_s_annotations_come_with_its_writes_and_are_repaired() {
    let server = Server::default();
    let kept = [("example.com/version", Some("2".to_owned())), ("example.com/former", None)];
    let options = LeaseOptions { annotations: kept.into(), ..options() };
    let attempt = try_acquire(server.client().0, &options, identity("first")).await;
    let leader = attempt.expect("must have good options").expect("must lead");
    let annotations = || {
        let store = server.store();
        store.lease.as_ref().expect("must have a lease")["metadata"]["annotations"].clone()
    };
    assert_eq!(annotations(), json!({"example.com/version": "2"}));
    assert_eq!(server.store().writes.len(), 1, "no write of its own");
    let others = json!({"example.com/former": "1", "example.com/of-others": "stays"});
    {
        let mut store = server.store();
        store.version += 1;
        let version = store.version.to_string();
        let lease = store.lease.as_mut().expect("must have a lease");
        lease["metadata"]["annotations"] = others;
        lease["metadata"]["resourceVersion"] = json!(version);
    }
    assert!(timeout(5 * SECOND, leader.lost()).await.is_err());
    let repaired = json!({"example.com/of-others": "stays", "example.com/version": "2"});
    assert_eq!(annotations(), repaired);
    leader.release().await.expect("must release");
    assert_eq!(annotations(), repaired, "they say how the last leader ran");
}

#[tokio::test(start_paused = true)]
async fn one_attempt_takes_only_a_lease_that_is_free_and_keeps_it() {
    let server = Server::default();
    let attempt = async |client: Client, me: &str| {
        try_acquire(client, &options(), identity(me)).await.expect("must have good options")
    };
    let first = attempt(server.client().0, "first").await.expect("must lead");
    assert!(attempt(server.client().0, "second").await.is_none());
    assert!(timeout(60 * SECOND, first.lost()).await.is_err(), "it must be renewed");
    assert_eq!(server.holder(), "first");
    first.release().await.expect("must release");
    for fault in [Fault::Down, Fault::Hangs] {
        let (client, wire) = server.client();
        wire.set(fault);
        let begun = Instant::now();
        assert!(attempt(client, "third").await.is_none(), "{fault:?}");
        assert!(begun.elapsed() <= 5 * SECOND, "{fault:?}");
    }
    assert!(attempt(server.client().0, "fourth").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_is_replaced_after_the_lease_s_duration() {
    let server = Server::default();
    let first = lead(server.client().0, "first").await;
    let second = tokio::spawn(lead(server.client().0, "second"));
    assert!(timeout(10 * SECOND, first.lost()).await.is_err());
    drop(first);
    let died = Instant::now();
    second.await.expect("must lead");
    let passed = died.elapsed();
    assert!((13 * SECOND..22 * SECOND).contains(&passed), "{passed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_another_one_starts() {
    for fault in [Fault::Down, Fault::Hangs] {
        let server = Server::default();
        let (client, wire) = server.client();
        let first = lead(client, "first").await;
        let second =
            tokio::spawn(async move { (lead(server.client().0, "second").await, Instant::now()) });
        assert!(timeout(10 * SECOND, first.lost()).await.is_err());
        wire.set(fault);
        assert_eq!(first.lost().await, Loss::NotRenewed { after: 10 * SECOND }, "{fault:?}");
        assert!(first.token().is_cancelled());
        let stopped = Instant::now();
        let (_second, started) = second.await.expect("must lead");
        assert!(started > stopped + 3 * SECOND, "{:?}", started - stopped);
        first.release().await.expect("must have nothing to release");
    }
}

#[tokio::test(start_paused = true)]
async fn the_fence_is_open_from_the_lease_to_the_renew_deadline_or_the_release() {
    let server = Server::default();
    let (client, wire) = server.client();
    let first = lead(client, "first").await;
    let fence = first.fence();
    assert!(timeout(100 * SECOND, first.lost()).await.is_err());
    assert!(fence.is_open(), "each renewal keeps it open");
    wire.set(Fault::Hangs);
    tokio::time::sleep(7 * SECOND).await;
    assert!(fence.is_open(), "the renewal before was at most 2 s ago");
    tokio::time::sleep(3 * SECOND).await;
    assert!(!fence.is_open());

    let second = lead(Server::default().client().0, "second").await;
    let fence = second.fence();
    assert!(fence.is_open());
    second.release().await.expect("must release");
    assert!(!fence.is_open(), "a lease that was given back allows no write");
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_and_a_lost_reply_do_not_end_the_term() {
    let server = Server::default();
    let (client, wire) = server.client();
    let leadership = lead(client, "first").await;
    for fault in [Fault::Down, Fault::Hangs, Fault::LosesOneReply] {
        wire.set(fault);
        assert!(timeout(4 * SECOND, leadership.lost()).await.is_err(), "{fault:?}");
        wire.set(Fault::None);
        assert!(timeout(30 * SECOND, leadership.lost()).await.is_err(), "{fault:?}");
    }
    assert_eq!(server.spec()["leaseTransitions"], 0);
    wire.set(Fault::LosesOneReply);
    assert!(timeout(3 * SECOND, leadership.lost()).await.is_err());
    leadership.release().await.expect("must release");
    assert_eq!(server.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_names_another_holder_ends_the_term_at_the_next_renewal() {
    let server = Server::default();
    let leadership = lead(server.client().0, "first").await;
    server.overwrite("thief");
    let lost = timeout(5 * SECOND, leadership.lost()).await.expect("must be lost soon");
    assert_eq!(lost, Loss::Taken { holder: "thief".to_owned() });
    leadership.release().await.expect("must have nothing to release");
    assert_eq!(server.holder(), "thief");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_in_our_name_ends_the_term() {
    let server = Server::default();
    let leadership = lead(server.client().0, "first").await;
    server.overwrite("");
    let lost = timeout(5 * SECOND, leadership.lost()).await.expect("must be lost soon");
    assert_eq!(lost, Loss::Taken { holder: String::new() });
}

#[tokio::test(start_paused = true)]
async fn a_reply_lost_while_acquiring_does_not_cost_the_lease() {
    let server = Server::default();
    let (client, wire) = server.client();
    wire.set(Fault::LosesOneReply);
    let leadership = lead(client, "first").await;
    assert_eq!(
        (server.holder().as_str(), &server.spec()["leaseTransitions"]),
        ("first", &json!(0))
    );
    leadership.release().await.expect("must release");
}

#[tokio::test(start_paused = true)]
async fn of_many_candidates_one_leads() {
    let server = Server::default();
    let mut candidates = tokio::task::JoinSet::new();
    for index in 0..10 {
        let client = server.client().0;
        candidates.spawn(async move { lead(client, &format!("c{index}")).await });
    }
    for turn in 0..10 {
        let leader = candidates.join_next().await.expect("must be left").expect("must lead");
        assert!(candidates.try_join_next().is_none());
        assert_eq!(server.spec()["leaseTransitions"], turn);
        leader.release().await.expect("must release");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_asked_to_and_bad_options_are_refused() {
    let server = Server::default();
    let _leader = lead(server.client().0, "first").await;
    let token = CancellationToken::new();
    let options = options();
    let waiting = acquire(server.client().0, &options, identity("second"), &token);
    let cancel = async {
        tokio::time::sleep(5 * SECOND).await;
        token.cancel();
    };
    let (waited, ()) = tokio::join!(waiting, cancel);
    assert!(matches!(waited, Err(LeaseError::Cancelled)));

    let bad = LeaseOptions { retry_period: Duration::ZERO, ..options };
    let refused = acquire(server.client().0, &bad, identity("third"), &token).await;
    assert!(matches!(refused, Err(LeaseError::Options(_))));
}

/// What each version writes to the lease, the newest last.
fn golden() -> Vec<Value> {
    let files = [include_str!("../../golden/lease-1.json")];
    files.into_iter().map(|text| serde_json::from_str(text).expect("must be JSON")).collect()
}

/// A standby of another version waits for what a leader writes, and takes what it releases.
#[tokio::test(start_paused = true)]
async fn the_lease_is_written_as_in_the_newest_golden_file() {
    let start = "2026-11-21T14:05:06.987654Z".parse().expect("must be a time");
    let server = Server::default();
    let me = Identity { name: "first".to_owned(), clock: Clock::of_tokio(start) };
    let token = CancellationToken::new();
    let leadership = acquire(server.client().0, &options(), me, &token).await.expect("must lead");
    let golden = golden().pop().expect("there must be one");
    let changed = "the lease has changed: keep the former file, and add a new one";
    assert_eq!(server.spec(), golden["held"], "{changed}");
    let metadata = server.store().lease.as_ref().expect("must be there")["metadata"].clone();
    assert_eq!(metadata, json!({"name": NAME, "resourceVersion": "1"}), "{changed}");
    leadership.release().await.expect("must release");
    assert_eq!(server.spec(), golden["released"], "{changed}");
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_each_former_version_is_read() {
    for golden in golden() {
        for (name, within) in
            [("held", 14 * SECOND..22 * SECOND), ("released", Duration::ZERO..SECOND)]
        {
            let server = Server::default();
            let lease = json!({"metadata": {"name": NAME, "resourceVersion": "1"},
                               "spec": golden[name]});
            server.store().lease = Some(lease);
            let begun = Instant::now();
            let second = lead(server.client().0, "second").await;
            assert!(within.contains(&begun.elapsed()), "{name}: {:?}", begun.elapsed());
            assert_eq!(server.spec()["leaseTransitions"], 1, "{name}");
            second.release().await.expect("must release");
            // The former holder, at this version: the lease is still its own.
            let lease = json!({"metadata": {"name": NAME, "resourceVersion": "9"},
                               "spec": golden["held"]});
            server.store().lease = Some(lease);
            server.store().version = 9;
            let first = lead(server.client().0, "first").await;
            assert_eq!(server.spec()["acquireTime"], golden["held"]["acquireTime"]);
            first.release().await.expect("must release");
        }
    }
}
