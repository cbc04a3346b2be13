//! Finds out whether the API serves Workloads and PodGroups to this controller, and watches them
//! while it does.
//!
//! The answer needs no flag: it follows from what the API serves and from what the account may do.
//! Where one of them is missing, nothing is watched and no request is refused.

use std::sync::Arc;
use std::time::Duration;

use epilogue_common::gang_scheduling::{GangScheduling, OffReason};
use epilogue_common::names::lease::GANG_SCHEDULING;
use epilogue_common::names::media_type::JSON;
use epilogue_common::outcome::{FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::lease::Annotations;
use epilogue_runtime::reply;
use epilogue_runtime::watch::Watches;
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatch;
use crate::informers::{self, HasSynced};

/// The API group of both kinds.
pub(crate) const GROUP: &str = "scheduling.k8s.io";
/// The path of the version that has both kinds.
pub(crate) const SCHEDULING: &str = "/apis/scheduling.k8s.io/v1beta1";
/// The plural names of both kinds.
pub(crate) const WORKLOADS: &str = "workloads";
pub(crate) const POD_GROUPS: &str = "podgroups";
/// Where the API describes Jobs.
const OF_JOBS: &str = "/openapi/v3/apis/batch/v1";
/// The schema of `spec` of a Job, and the field that asks for a group.
const FIELD: &str = "/components/schemas/io.k8s.api.batch.v1.JobSpec/properties/scheduling";
/// Where a client asks what it may do.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// What this controller does with both kinds.
const VERBS: [&str; 5] = ["get", "list", "watch", "create", "patch"];
/// How often the question is asked again, as an upgrade of the control plane changes the answer.
const PERIOD: Duration = Duration::from_mins(5);
/// The wait before it is asked again when there was no answer, or a Job asks for a group.
const SOON: Duration = Duration::from_secs(10);
/// The first waits without an answer: until there is one, no Job is synced.
const FIRST: Duration = Duration::from_secs(1);
/// After so many of them Jobs go on without groups: they must not wait for ever for an answer that
/// most clusters do not need.
const FIRST_MAX: usize = 30;

/// Watches Workloads and PodGroups while the API serves them.
pub(crate) struct SchedulingApi {
    pub(crate) client: Client,
    /// The only namespace to watch; `None` means all.
    pub(crate) namespace: Option<String>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) watches: Watches,
    /// Where others read the answer, if there is a lease.
    pub(crate) annotations: Option<Annotations>,
}

impl SchedulingApi {
    /// Asks, and watches what is served, until the token is cancelled.
    pub(crate) async fn run(self, token: CancellationToken) {
        let working = async {
            let mut served = self.first_answer().await;
            loop {
                self.say(&served);
                self.dispatch.serve_groups(served == GangScheduling::On);
                served = match served {
                    GangScheduling::On => Box::pin(self.watch()).await,
                    GangScheduling::Off(_) => self.wait(&served).await,
                };
            }
        };
        Box::pin(token.run_until_cancelled(working)).await;
    }

    async fn first_answer(&self) -> GangScheduling {
        let mut unanswered = 0;
        loop {
            unanswered += 1;
            match self.ask().await {
                Ok(served) => return served,
                Err(failure) if unanswered == FIRST_MAX => {
                    let why = format!("the API server does not say what it serves: {failure}");
                    return GangScheduling::Off(OffReason::Other(why));
                }
                Err(failure) => {
                    let why = "cannot find out which scheduling API there is";
                    tracing::warn!(error = %failure, "{why}");
                    tokio::time::sleep(FIRST).await;
                }
            }
        }
    }

    /// Watches until the answer is another one.
    async fn watch(&self) -> GangScheduling {
        let watching = CancellationToken::new();
        let synced = [WORKLOADS, POD_GROUPS].map(|kind| HasSynced::new(self.watches.of(kind)));
        self.dispatch.set_group_watches(synced.each_ref().map(HasSynced::relist));
        let [workloads, pod_groups] = synced;
        let (client, namespace) = (|| self.client.clone(), self.namespace.as_deref());
        let dispatch = || Arc::clone(&self.dispatch);
        let handles = (watching.clone(), workloads);
        let workloads = informers::workloads(client(), namespace, dispatch(), handles);
        let handles = (watching.clone(), pod_groups);
        let pod_groups = informers::pod_groups(client(), namespace, dispatch(), handles);
        let served = tokio::select! {
            served = self.wait(&GangScheduling::On) => served,
            ((), ()) = async { tokio::join!(workloads, pod_groups) } => GangScheduling::On,
        };
        for kind in [WORKLOADS, POD_GROUPS] {
            self.watches.forget(kind);
        }
        served
    }

    /// Waits until the answer is another one. That the API ceases to serve groups it has to say
    /// twice: a server that starts may not know them yet, and Jobs would start outside of groups.
    async fn wait(&self, known: &GangScheduling) -> GangScheduling {
        let (mut pause, mut said) = (PERIOD, None);
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.dispatch.asks_for_groups.notified() => tokio::time::sleep(SOON).await,
            }
            pause = match self.ask().await {
                Ok(served) if served == *known => {
                    said = None;
                    PERIOD
                }
                Ok(served) if *known != GangScheduling::On || said.as_ref() == Some(&served) => {
                    return served;
                }
                Ok(served) => {
                    said = Some(served);
                    SOON
                }
                Err(failure) => {
                    tracing::debug!(error = %failure, "no answer which scheduling API there is");
                    SOON
                }
            };
        }
    }

    /// Says which answer there is.
    fn say(&self, served: &GangScheduling) {
        match served {
            GangScheduling::On => {
                tracing::info!("gang scheduling is on: Jobs get Workloads and PodGroups");
            }
            GangScheduling::Off(why) => tracing::info!(%why, "gang scheduling is off"),
        }
        if let Some(annotations) = &self.annotations {
            annotations.set(GANG_SCHEDULING, Some(served.to_string()));
        }
    }

    /// Whether the API serves both kinds, its Jobs can ask for them, and we may write them.
    async fn ask(&self) -> Outcome<GangScheduling> {
        let off = |why| Ok(GangScheduling::Off(why));
        let Some(resources) = self.get(SCHEDULING).await? else {
            return off(OffReason::NotServed);
        };
        let resources = resources["resources"].as_array();
        let serves = |kind: &str| resources.into_iter().flatten().any(|it| it["name"] == kind);
        if !serves(WORKLOADS) || !serves(POD_GROUPS) {
            return off(OffReason::NotServed);
        }
        let schema = self.get(OF_JOBS).await?;
        if schema.is_none_or(|schema| schema.pointer(FIELD).is_none()) {
            return off(OffReason::NoField);
        }
        for (kind, verb) in
            [WORKLOADS, POD_GROUPS].into_iter().flat_map(|it| VERBS.map(|v| (it, v)))
        {
            if !self.may(kind, verb).await? {
                tracing::debug!(verb, kind, "the account lacks a right");
                return off(OffReason::NoRight);
            }
        }
        Ok(GangScheduling::On)
    }

    /// What the API has at this path; `None` if there is nothing to be read there.
    async fn get(&self, path: &str) -> Outcome<Option<Value>> {
        let request = Request::get(path).header(header::ACCEPT, JSON).body(Vec::new());
        match self.send(request).await {
            Ok(value) => Ok(Some(value)),
            Err(failure)
                if matches!(failure.kind, FailureKind::NotFound | FailureKind::Forbidden) =>
            {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn may(&self, kind: &str, verb: &str) -> Outcome<bool> {
        let mut attributes = json!({"group": GROUP, "resource": kind, "verb": verb});
        if let Some(namespace) = &self.namespace {
            attributes["namespace"] = namespace.as_str().into();
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let request = Request::post(REVIEWS)
            .header(header::CONTENT_TYPE, JSON)
            .header(header::ACCEPT, JSON)
            .body(review.to_string().into_bytes());
        let review = self.send(request).await?;
        Ok(review["status"]["allowed"] == true)
    }

    async fn send(&self, request: http::Result<Request<Vec<u8>>>) -> Outcome<Value> {
        let request = request.map_err(|error| classify(kube::Error::HttpError(error)))?;
        reply::read(&self.client, request).await.map_err(classify)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use http::Response;
    use kube::client::Body;
    use prometheus::Registry;
    use tokio::time::Instant;

    const KINDS: Option<&[&str]> = Some(&["priorityclasses", "workloads", "podgroups"]);
    const SERVED: Has = Has { kinds: KINDS, field: true, refused: "" };

    /// What an API is like: its kinds, whether Jobs have the field, and what the account may not.
    #[derive(Clone, Copy)]
    struct Has {
        kinds: Option<&'static [&'static str]>,
        field: bool,
        refused: &'static str,
    }

    fn reply(has: Has, path: &str, sent: &Value) -> Option<Value> {
        let attributes = &sent["spec"]["resourceAttributes"];
        match path {
            SCHEDULING => {
                let kinds = has.kinds?.iter().map(|name| json!({"name": name}));
                Some(json!({"resources": kinds.collect::<Vec<_>>()}))
            }
            OF_JOBS => {
                let field = if has.field { json!({"scheduling": {}}) } else { json!({}) };
                let spec = json!({"properties": field});
                let schemas = json!({"io.k8s.api.batch.v1.JobSpec": spec});
                Some(json!({"components": {"schemas": schemas}}))
            }
            REVIEWS => {
                let asked = format!(
                    "{} {}",
                    attributes["verb"].as_str().unwrap_or_default(),
                    attributes["resource"].as_str().unwrap_or_default()
                );
                Some(json!({"status": {"allowed": asked != has.refused}}))
            }
            _ => None,
        }
    }

    fn status(code: u16, reason: &str) -> Value {
        json!({"kind": "Status", "code": code, "reason": reason, "status": "Failure",
               "message": "no"})
    }

    fn api(has: Has) -> SchedulingApi {
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            async move {
                let sent = request.into_body().collect_bytes().await.expect("must be there");
                let sent: Value = serde_json::from_slice(&sent).unwrap_or_default();
                let (code, body) = match reply(has, &path, &sent) {
                    Some(body) => (200, body),
                    None => (404, status(404, "NotFound")),
                };
                Response::builder().status(code).body(Body::from(body.to_string().into_bytes()))
            }
        });
        SchedulingApi {
            client: Client::new(service, "default"),
            namespace: None,
            dispatch: Arc::new(Dispatch::for_tests(None)),
            watches: Watches::new(&Registry::new()).expect("must register"),
            annotations: Some(Annotations::default()),
        }
    }

    /// An API whose answers change: served, or not, and then no answer at all.
    fn changing(answers: &'static [Option<bool>]) -> SchedulingApi {
        let asked = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let number = match &*path {
                SCHEDULING => asked.fetch_add(1, Ordering::Relaxed),
                _ => asked.load(Ordering::Relaxed) - 1,
            };
            let served = answers.get(number).copied().flatten();
            async move {
                let has = Has { kinds: KINDS.filter(|_| served == Some(true)), ..SERVED };
                let (code, body) = match reply(has, &path, &json!({})) {
                    _ if served.is_none() => (503, status(503, "ServiceUnavailable")),
                    Some(body) => (200, body),
                    None => (404, status(404, "NotFound")),
                };
                Response::builder().status(code).body(Body::from(body.to_string().into_bytes()))
            }
        });
        SchedulingApi { client: Client::new(service, "default"), ..api(SERVED) }
    }

    #[tokio::test(start_paused = true)]
    async fn that_the_api_ceases_to_serve_groups_it_has_to_say_twice() {
        let begun = Instant::now();
        let api = changing(&[Some(true), Some(false), Some(true), Some(false), Some(false)]);
        assert_eq!(api.first_answer().await, GangScheduling::On);
        let served = api.wait(&GangScheduling::On).await;
        assert_eq!(served, GangScheduling::Off(OffReason::NotServed));
        let took = begun.elapsed();
        assert_eq!(took.as_secs(), (2 * (PERIOD + SOON)).as_secs(), "one answer changes nothing");
        let api = changing(&[Some(false), None, Some(true)]);
        let off = api.first_answer().await;
        assert_eq!(off, GangScheduling::Off(OffReason::NotServed));
        assert_eq!(api.wait(&off).await, GangScheduling::On);
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_jobs_go_on_after_a_while() {
        let begun = Instant::now();
        let GangScheduling::Off(OffReason::Other(why)) = changing(&[]).first_answer().await else {
            panic!("there is no answer");
        };
        assert!(why.starts_with("the API server does not say what it serves: "), "{why}");
        assert_eq!(begun.elapsed().as_secs(), (29 * FIRST).as_secs());
    }

    #[tokio::test]
    async fn the_answer_names_what_is_missing() {
        let rows = [
            (Has { kinds: KINDS, field: true, refused: "" }, None),
            (Has { kinds: None, field: true, refused: "" }, Some(OffReason::NotServed)),
            (
                Has { kinds: Some(&["priorityclasses"]), field: true, refused: "" },
                Some(OffReason::NotServed),
            ),
            (Has { kinds: KINDS, field: false, refused: "" }, Some(OffReason::NoField)),
            (
                Has { kinds: KINDS, field: true, refused: "patch podgroups" },
                Some(OffReason::NoRight),
            ),
        ];
        for (has, why) in rows {
            let api = api(has);
            let served = api.ask().await.expect("an answer");
            let expected = why.map_or(GangScheduling::On, GangScheduling::Off);
            assert_eq!(served, expected);
            api.say(&served);
            let said = api.annotations.as_ref().and_then(|it| it.get(GANG_SCHEDULING));
            assert_eq!(said, Some(expected.to_string()));
        }
    }
}
