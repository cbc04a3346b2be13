//! Tests of the model beneath a real client: faults, paused time, the log. What the API does
//! without faults is compared with the real one by the suite `model_api`.

use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _};
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Effect, Fault, Kind, Matcher, ModelApi, Refusal, Verb, Webhook};

const NS: &str = "default";

fn model() -> ModelApi {
    ModelApi::new("2026-11-20T00:00:00.5Z".parse::<Timestamp>().expect("must be a time"))
}

fn pod(name: &str) -> Pod {
    let pod = json!({"metadata": {"name": name, "labels": {"a": "1"}},
                     "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    serde_json::from_value(pod).expect("must be a pod")
}

fn pods(model: &ModelApi) -> Api<Pod> {
    Api::namespaced(model.client("test/1"), NS)
}

async fn create(model: &ModelApi, name: &str) -> Result<Pod, kube::Error> {
    pods(model).create(&PostParams::default(), &pod(name)).await
}

fn code<T: std::fmt::Debug>(answer: Result<T, kube::Error>) -> u16 {
    match answer.expect_err("must be refused") {
        kube::Error::Api(status) => status.code,
        error => panic!("{error:?}"),
    }
}

/// The events of a watch with these parameters, as `type name version`; `end` at its end, and
/// `broken` if its connection breaks.
fn watch(model: &ModelApi, parameters: &str) -> impl futures::Stream<Item = String> + use<> {
    let (client, path) = (model.client("test/1"), Kind::Pod.path(NS));
    let uri = format!("{path}?watch=true&{parameters}");
    let lines = async move {
        let request = Request::get(uri).body(Vec::new()).expect("must be a request");
        client.request_stream(request).await.expect("a watch").lines()
    };
    let lines = futures::stream::once(lines).flatten();
    let events = lines.map_ok(|line| {
        let event: Value = serde_json::from_str(&line).expect("must be an event");
        let (object, kind) = (&event["object"], event["type"].as_str().unwrap_or_default());
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match kind {
            "ERROR" => format!("ERROR {}", object["code"]),
            "BOOKMARK" => format!("BOOKMARK {}", object["metadata"]["resourceVersion"]),
            kind => format!("{kind} {name}"),
        }
    });
    let events = events.map(|event| event.unwrap_or_else(|_| "broken".to_owned()));
    events.chain(futures::stream::once(async { "end".to_owned() }))
}

#[tokio::test(start_paused = true)]
async fn a_typed_client_creates_changes_and_deletes() {
    let model = model();
    let created = create(&model, "p").await.expect("created");
    assert_eq!(created.metadata.generation, Some(1));
    assert_eq!(code(create(&model, "p").await), 409);
    let patch = json!({"status": {"phase": "Running"}});
    let params = PatchParams::default();
    let pods = pods(&model);
    pods.patch_status("p", &params, &Patch::Strategic(&patch)).await.expect("patched");
    let version = model.version();
    let same = pods.patch_status("p", &params, &Patch::Merge(&patch)).await.expect("patched");
    assert_eq!(model.version(), version, "a write without a change has no version");
    assert_eq!(same.metadata.resource_version, Some(version.to_string()));
    assert_eq!(code(pods.patch("p", &PatchParams::apply("x"), &Patch::Apply(&created)).await), 415);
    let deleted = pods.delete("p", &DeleteParams::default()).await.expect("deleted");
    let deleted = deleted.left().expect("the pod, not a Status");
    assert_eq!(deleted.metadata.deletion_grace_period_seconds, Some(30));
    let at = deleted.metadata.deletion_timestamp.expect("a time").0;
    assert_eq!(at.to_string(), "2026-11-20T00:00:30Z");
    tokio::time::sleep(Duration::from_secs(6)).await;
    let sooner = pods.delete("p", &DeleteParams::default().grace_period(5)).await;
    let sooner = sooner.expect("deleted").left().expect("the pod").metadata;
    assert_eq!(sooner.deletion_grace_period_seconds, Some(1), "5 s have passed");
    let at = sooner.deletion_timestamp.expect("a time").0;
    assert_eq!(at.to_string(), "2026-11-20T00:00:07Z");
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    assert_eq!(code(pods.get("p").await), 404);
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_changes_bookmarks_and_its_end() {
    let model = model();
    create(&model, "a").await.expect("created");
    let mut events = pin!(watch(
        &model,
        "allowWatchBookmarks=true&timeoutSeconds=90&sendInitialEvents=true\
         &resourceVersionMatch=NotOlderThan&labelSelector=a%3D1"
    ));
    let first = [events.next().await, events.next().await].map(Option::unwrap);
    let bookmark = format!("BOOKMARK \"{}\"", model.version());
    assert_eq!(first, ["ADDED a".to_owned(), bookmark.clone()]);
    create(&model, "b").await.expect("created");
    assert_eq!(events.next().await.as_deref(), Some("ADDED b"));
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {"a": "2"}}}));
    pods(&model).patch("b", &PatchParams::default(), &unlabelled).await.expect("patched");
    assert_eq!(events.next().await.as_deref(), Some("DELETED b"));
    let begun = Instant::now();
    let bookmark = format!("BOOKMARK \"{}\"", model.version());
    assert_eq!(events.next().await, Some(bookmark.clone()));
    assert_eq!(begun.elapsed().as_secs(), 60);
    assert_eq!(events.next().await, Some(bookmark));
    assert_eq!(events.next().await.as_deref(), Some("end"));
    assert_eq!(begun.elapsed().as_secs(), 90);
}

#[tokio::test(start_paused = true)]
async fn watches_can_be_cut_delayed_and_too_old() {
    let model = model();
    let old = model.version();
    let mut ended = pin!(watch(&model, ""));
    let mut broken = pin!(watch(&model, &format!("resourceVersion={old}")));
    create(&model, "a").await.expect("created");
    assert_eq!(ended.next().await.as_deref(), Some("ADDED a"));
    model.cut_watches(Kind::Job, true);
    model.cut_watches(Kind::Pod, false);
    assert_eq!(ended.next().await.as_deref(), Some("end"));
    assert_eq!(broken.next().await.as_deref(), Some("ADDED a"), "it opens after the cut");
    model.cut_watches(Kind::Pod, true);
    assert_eq!(broken.next().await.as_deref(), Some("broken"));
    model.forget_history();
    let mut expired = pin!(watch(&model, &format!("resourceVersion={old}")));
    assert_eq!(expired.next().await.as_deref(), Some("ERROR 410"));
    assert_eq!(expired.next().await.as_deref(), Some("end"));
    model.set_watch_lag(Kind::Pod, Duration::from_secs(7));
    let mut late = pin!(watch(&model, &format!("resourceVersion={}", model.version())));
    let begun = Instant::now();
    create(&model, "b").await.expect("created");
    assert_eq!(late.next().await.as_deref(), Some("ADDED b"));
    assert_eq!(begun.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn pages_are_of_one_version_and_expire() {
    let model = model();
    for name in ["a", "b", "c"] {
        create(&model, name).await.expect("created");
    }
    let pods = pods(&model);
    let first = pods.list(&ListParams::default().limit(1)).await.expect("a page");
    assert_eq!(first.metadata.remaining_item_count, Some(2));
    create(&model, "aa").await.expect("created");
    let token = first.metadata.continue_.expect("a token");
    let next = ListParams::default().limit(1).continue_token(&token);
    let second = pods.list(&next).await.expect("a page");
    assert_eq!(second.items[0].metadata.name.as_deref(), Some("b"));
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    model.forget_history();
    assert_eq!(code(pods.list(&next).await), 410);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_expires_between_two_pages_may_go_on_at_the_newest_version() {
    let model = model();
    for name in ["a", "b", "c", "d"] {
        create(&model, name).await.expect("created");
    }
    model.set_page_max(Some(2));
    model.inject(Fault::of(Matcher::default(), Effect::ExpireToken).times(1));
    let pods = pods(&model);
    let from = |token: &str| ListParams::default().limit(500).continue_token(token);
    let first = pods.list(&ListParams::default().limit(500)).await.expect("no token is too old");
    assert_eq!(first.items.len(), 2);
    let token = first.metadata.continue_.expect("a token");
    create(&model, "e").await.expect("created");
    let Err(kube::Error::Api(refused)) = pods.list(&from(&token)).await else {
        panic!("the token is too old")
    };
    assert_eq!((refused.code, refused.reason.as_str()), (410, "Expired"));
    let metadata = refused.metadata.expect("a Status has metadata");
    let token = metadata.continue_.expect("a token for the rest");
    let rest = pods.list(&from(&token)).await.expect("the fault concerns one call");
    let names = rest.items.iter().map(|pod| pod.metadata.name.clone().unwrap_or_default());
    assert_eq!(names.collect::<Vec<_>>(), ["c", "d"]);
    assert_eq!(rest.metadata.resource_version, Some(model.version().to_string()));
    assert!(rest.metadata.continue_.is_some(), "e was created since");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_streams_no_lists_says_so() {
    let model = model();
    model.set_streams_lists(false);
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let uri = format!("{}?watch=true&{initial}", Kind::Pod.path(NS));
    let request = || Request::get(&uri).body(Vec::new()).expect("must be a request");
    let client = model.client("test/1");
    assert_eq!(code(client.request::<Value>(request()).await), 422);
    model.set_streams_lists(true);
    client.request_stream(request()).await.expect("a watch");
}

#[tokio::test(start_paused = true)]
async fn faults_concern_the_calls_that_they_name() {
    let model = model();
    let creations = || Matcher::on(Verb::Create, Kind::Pod);
    let refusal = Refusal::too_many_requests(3);
    model.inject(Fault::of(creations(), Effect::Refuse(refusal)).times(1));
    assert_eq!(code(create(&model, "p").await), 429);
    assert!(create(&model, "p").await.is_ok(), "once is once");

    let lost = model.inject(Fault::of(creations(), Effect::LoseReply));
    assert!(matches!(create(&model, "q").await, Err(kube::Error::Service(_))));
    assert!(model.get(Kind::Pod, NS, "q").is_some(), "its work is done");
    model.lift(lost);
    let other = Matcher { agent: Some("other/".into()), ..Matcher::default() };
    model.inject(Fault::of(other, Effect::LoseRequest));
    assert!(create(&model, "r").await.is_ok(), "another caller");
    let others: Api<Pod> = Api::namespaced(model.client("other/2"), NS);
    assert!(others.get("r").await.is_err());

    let gets = Matcher::on(Verb::Get, Kind::Pod);
    model.inject(Fault::of(gets, Effect::Delay(Duration::from_secs(5))));
    let begun = Instant::now();
    pods(&model).get("r").await.expect("found");
    assert_eq!(begun.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn quotas_admission_and_namespaces_that_end_refuse() {
    let model = model();
    model.set_quota(Kind::Pod, NS, Some(1));
    create(&model, "a").await.expect("created");
    assert_eq!(code(create(&model, "b").await), 403);
    model.set_quota(Kind::Pod, NS, None);
    let creates = Matcher::on(Verb::Create, Kind::Pod);
    let not_b = Webhook::new(|pod, _| {
        let refuses = pod["metadata"]["name"] == "b" && pod["status"]["phase"] == "Pending";
        pod["metadata"]["labels"] = json!({"by": "validation"});
        if refuses { Err(Refusal::forbidden("not b")) } else { Ok(()) }
    });
    model.inject(Fault::of(creates.clone(), Effect::Validate(not_b)));
    let labels = Webhook::changing(|pod, old| {
        let is_first = old.is_none() && pod.get("status").is_none();
        pod["metadata"]["labels"] = json!({"first": is_first.to_string()});
    });
    model.inject(Fault::of(creates, Effect::Mutate(labels)).times(2));
    assert_eq!(code(create(&model, "b").await), 403);
    create(&model, "c").await.expect("created");
    create(&model, "later").await.expect("created");
    let labels = |name| model.get(Kind::Pod, NS, name).map(|it| it["metadata"]["labels"].clone());
    assert_eq!(labels("c"), Some(json!({"first": "true"})), "it sees what the caller sent");
    assert_eq!(labels("later"), Some(json!({"a": "1"})), "validation changes nothing");
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(model.client("test/1"));
    namespaces.delete(NS, &DeleteParams::default()).await.expect("begins");
    let refused = create(&model, "d").await.expect_err("is refused").to_string();
    assert!(refused.contains("being terminated"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_restored_backup_has_older_versions_and_breaks_watches() {
    let model = model();
    create(&model, "a").await.expect("created");
    let (snapshot, version) = (model.snapshot(), model.version());
    let mut events = pin!(watch(&model, &format!("resourceVersion={version}")));
    create(&model, "b").await.expect("created");
    assert_eq!(events.next().await.as_deref(), Some("ADDED b"));
    model.restore(&snapshot);
    assert_eq!(events.next().await.as_deref(), Some("broken"));
    assert_eq!(model.version(), version);
    assert!(model.get(Kind::Pod, NS, "b").is_none());
    let late = Effect::Delay(Duration::from_secs(5));
    model.inject(Fault::of(Matcher::on(Verb::Create, Kind::Pod), late).times(1));
    let (lost, ()) = tokio::join!(create(&model, "late"), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        model.restore(&snapshot);
    });
    assert!(matches!(lost, Err(kube::Error::Service(_))), "its server is gone");
    assert!(model.get(Kind::Pod, NS, "late").is_none());
    // A watch from a version that does not exist yet waits until it is passed.
    let mut ahead = pin!(watch(&model, &format!("resourceVersion={}", version + 1)));
    let (next, ()) = tokio::join!(ahead.next(), async {
        create(&model, "c").await.expect("created");
        create(&model, "d").await.expect("created");
    });
    assert_eq!(next.as_deref(), Some("ADDED d"));
}

#[tokio::test(start_paused = true)]
async fn the_log_has_each_call_with_its_answer() {
    let model = model();
    create(&model, "a").await.expect("created");
    assert_eq!(code(pods(&model).get("b").await), 404);
    let log = model.take_log();
    let lines: Vec<_> = log
        .iter()
        .map(|it| (it.agent.as_str(), it.verb, it.kind, it.name.as_str(), it.code, &*it.reason))
        .collect();
    let created = ("test/1", Verb::Create, Kind::Pod, "", 201, "");
    assert_eq!(lines, [created, ("test/1", Verb::Get, Kind::Pod, "b", 404, "NotFound")]);
    assert_eq!(log[0].answer["metadata"]["name"], "a");
    assert_eq!(log[0].version, model.version());
    assert!(model.log().is_empty());
}

/// The objects of a kind of gang scheduling.
fn of_gangs(model: &ModelApi, kind: &str) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.k8s.io", "v1beta1", kind));
    Api::namespaced_with(model.client("test/1"), NS, &resource)
}

async fn sent(of: &Api<DynamicObject>, name: &str, spec: Value) -> Result<Value, kube::Error> {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let object = serde_json::from_value(object).expect("must be an object");
    let created = of.create(&PostParams::default(), &object).await?;
    Ok(serde_json::to_value(created).expect("must be JSON"))
}

fn gang(size: i64) -> Value {
    json!({"gang": {"minCount": size}})
}

#[tokio::test(start_paused = true)]
async fn of_a_gang_only_the_size_may_change_and_its_group_waits_for_its_pods() {
    let model = model();
    let groups = of_gangs(&model, "PodGroup");
    assert_eq!(code(groups.list(&ListParams::default()).await), 404, "no gang scheduling yet");
    model.set_serves_gangs(true);
    let workloads = of_gangs(&model, "Workload");
    let of_workload = |policy: Value| {
        let template = json!({"name": "t", "schedulingPolicy": policy});
        json!({"controllerRef": {"kind": "Job", "name": "j"}, "podGroupTemplates": [template]})
    };
    for (policy, expected) in
        [(json!({}), 422), (gang(0), 422), (json!({"gang": {"minCount": 1}, "basic": {}}), 422)]
    {
        assert_eq!(code(sent(&workloads, "w", of_workload(policy)).await), expected);
    }
    let workload = sent(&workloads, "w", of_workload(gang(2))).await.expect("created");
    assert!(workload.get("status").is_none());
    let spec = json!({"schedulingPolicy": gang(2), "disruptionMode": {"single": {}},
                      "workloadRef": {"workloadName": "w", "templateName": "t"}});
    let group = sent(&groups, "g", spec).await.expect("created");
    let protection = json!(["scheduling.k8s.io/podgroup-protection"]);
    assert_eq!((&group["metadata"]["finalizers"], &group["status"]), (&protection, &json!({})));
    let params = PatchParams::default();
    let resized = |uid: &Value, from: i64, to: i64| {
        let path = "/spec/schedulingPolicy/gang/minCount";
        Patch::<()>::Json(
            serde_json::from_value(json!([
                {"op": "test", "path": "/metadata/uid", "value": uid},
                {"op": "test", "path": path, "value": from},
                {"op": "replace", "path": path, "value": to},
            ]))
            .expect("must be a patch"),
        )
    };
    let uid = &group["metadata"]["uid"];
    groups.patch("g", &params, &resized(uid, 2, 5)).await.expect("patched");
    let table = [(uid.clone(), 2, 5), (json!("of another"), 5, 2), (uid.clone(), 5, 0)];
    for (uid, from, to) in table {
        assert_eq!(code(groups.patch("g", &params, &resized(&uid, from, to)).await), 422);
    }
    let fixed =
        [json!({"disruptionMode": {"all": {}}}), json!({"schedulingPolicy": {"basic": {}}})];
    for spec in fixed {
        let patch = Patch::Merge(json!({"spec": spec}));
        assert_eq!(code(groups.patch("g", &params, &patch).await), 422);
    }
    workloads.delete("w", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(code(workloads.get("w").await), 404);
    groups.delete("g", &DeleteParams::default()).await.expect("deleted");
    let held = groups.get("g").await.expect("its finalizer holds it").metadata;
    assert!(held.deletion_timestamp.is_some());
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    groups.patch("g", &params, &free).await.expect("patched");
    assert_eq!(code(groups.get("g").await), 404);
}

#[tokio::test(start_paused = true)]
async fn jobs_and_pods_name_their_gangs_only_where_there_are_gangs() {
    let model = model();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("batch", "v1", "Job"));
    let jobs: Api<DynamicObject> = Api::namespaced_with(model.client("test/1"), NS, &resource);
    let spec = |size: i64, parallelism: i64| {
        let containers = json!([{"name": "c", "image": "i"}]);
        let template = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
        let scheduling = json!({"schedulingPolicy": gang(size)});
        json!({"parallelism": parallelism, "template": template, "scheduling": scheduling})
    };
    let without = sent(&jobs, "without", spec(5, 1)).await.expect("created");
    assert!(without["spec"].get("scheduling").is_none(), "the API does not keep it");
    model.set_serves_gangs(true);
    assert_eq!(code(sent(&jobs, "too-large", spec(3, 2)).await), 422);
    sent(&jobs, "j", spec(2, 2)).await.expect("created");
    let params = PatchParams::default();
    for (spec, is_taken) in [
        (json!({"parallelism": 1}), false),
        (json!({"parallelism": 4}), true),
        (json!({"scheduling": {"schedulingPolicy": gang(3)}}), true),
        (json!({"scheduling": {"schedulingPolicy": {"gang": null, "basic": {}}}}), false),
        (json!({"scheduling": {"disruptionMode": {"all": {}}}}), false),
        (json!({"scheduling": null}), false),
    ] {
        let patched = jobs.patch("j", &params, &Patch::Merge(json!({"spec": spec}))).await;
        assert_eq!(patched.is_ok(), is_taken, "{spec}");
    }
    for serves in [false, true] {
        model.set_serves_gangs(serves);
        let pods = Api::<DynamicObject>::namespaced_with(
            model.client("test/1"),
            NS,
            &ApiResource::erase::<Pod>(&()),
        );
        let spec = json!({"containers": [{"name": "c", "image": "i"}],
                          "schedulingGroup": {"podGroupName": "g"}});
        let pod = sent(&pods, &format!("pod-{serves}"), spec).await.expect("created");
        assert_eq!(pod["spec"].get("schedulingGroup").is_some(), serves);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_with_gangs_says_so_if_its_calls_are_not_lost() {
    let model = model();
    let client = model.client("test/1");
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Vec::new()).expect("must be a request");
        client.request::<Value>(request).await
    };
    let calls = [
        ("GET", "/apis/scheduling.k8s.io/v1beta1", "/resources/1/name"),
        (
            "GET",
            "/openapi/v3/apis/batch/v1",
            "/components/schemas/io.k8s.api.batch.v1.JobSpec/properties/scheduling",
        ),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/status/allowed"),
    ];
    for (method, path, field) in calls {
        model.set_serves_gangs(false);
        assert_eq!(code(ask(method, path).await), 404, "{path}");
        model.set_serves_gangs(true);
        let answer = ask(method, path).await.expect("an answer");
        assert!(answer.pointer(field).is_some(), "{path}: {answer}");
    }
    let of_pods = Fault::of(Matcher::on(Verb::List, Kind::Pod), Effect::LoseRequest);
    model.inject(of_pods);
    assert!(ask("GET", calls[0].1).await.is_ok(), "no call on pods");
    let outage = model.inject(Fault::of(Matcher::default(), Effect::LoseRequest));
    assert!(ask("GET", calls[0].1).await.is_err());
    model.lift(outage);
    assert!(ask("GET", calls[0].1).await.is_ok());
}
