//! Tests the watch against a server with scripted answers.

use super::protobuf::{Peek, samples};
use super::wire::LIST_END;
use super::*;
use epilogue_common::outcome::{Failure, FailureKind};
use epilogue_common::watch_event::Rejected;
use futures::{StreamExt as _, poll};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

mod stalled;

/// Marks an answer that never comes.
const NEVER: u16 = 0;
/// Marks an answer that begins and never ends.
const OPEN: u16 = 1;

/// An API server that gives these answers in turn, and then never answers. It has come to the
/// newest version that anybody asks for.
fn server(answers: Vec<(u16, String)>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (client, asked, _) = restored_server(answers, vec![(200, u64::MAX)]);
    (client, asked)
}

/// What was asked of a server.
type Asked = Arc<Mutex<Vec<String>>>;

/// The same with its own answers to questions for its version, the last one for ever. Returns what
/// was asked, and these questions.
fn restored_server(
    answers: Vec<(u16, String)>,
    versions: Vec<(u16, u64)>,
) -> (Client, Asked, Asked) {
    let (asked, lookups) = (Asked::default(), Asked::default());
    let (log, lookup_log) = (Arc::clone(&asked), Arc::clone(&lookups));
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    let versions = Arc::new(Mutex::new(VecDeque::from(versions)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let answer = if uri.contains(LOOKUP) {
            lookup_log.lock().push(uri);
            let mut versions = versions.lock();
            let next = if versions.len() > 1 { versions.pop_front() } else { None };
            let (code, version) = next.or_else(|| versions.front().copied()).expect("one stays");
            let list = json!({"metadata": {"resourceVersion": version.to_string()}, "items": []});
            Some((code, list.to_string()))
        } else {
            log.lock().push(uri);
            answers.lock().pop_front()
        };
        async move {
            let Some((code, body)) = answer.filter(|(code, _)| *code != NEVER) else {
                return std::future::pending().await;
            };
            let frames = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(body)))]);
            let ends = code != OPEN;
            let frames = frames.chain(stream::pending().take_until(async move {
                if !ends {
                    std::future::pending::<()>().await;
                }
            }));
            let status = if ends { code } else { 200 };
            let status = StatusCode::from_u16(status).expect("must be a status");
            Response::builder().status(status).body(StreamBody::new(frames))
        }
    });
    (Client::new(service, "default"), asked, lookups)
}

fn pod(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()}})
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn bookmark(version: u64, ends_list: bool) -> String {
    let annotations = if ends_list { json!({LIST_END: "true"}) } else { json!({}) };
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    event("BOOKMARK", &json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}))
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason,
           "reason": reason, "code": code})
}

#[derive(Clone, Debug, Deserialize)]
struct Object {
    metadata: ObjectMeta,
}

/// What a watch has yielded, as text.
type Log = Arc<Mutex<Vec<String>>>;

/// Watches and logs until `end`.
async fn watch_until(
    client: Client,
    scope: Scope<Object>,
    log: &Log,
    end: impl Future<Output = ()>,
) {
    let logged = watch(client, scope).for_each(async |event| log.lock().push(words(&event)));
    tokio::select! {
        () = logged => panic!("a watch never ends"),
        () = end => {}
    }
}

fn scope(objects_max: usize) -> Scope<Object> {
    let pauses = Pauses {
        first: Duration::from_millis(500),
        max: Duration::from_secs(30),
        unconnected_max: Duration::from_secs(2),
        hurried_max: Duration::from_secs(30),
        hurry: None,
    };
    Scope {
        path: "/api/v1/pods".into(),
        names: "/api/v1/namespaces/default/pods".into(),
        selector: Some("spec.nodeName=n1".into()),
        read: Read { json: |text| serde_json::from_str(text), protobuf: None },
        newest: Newest::default(),
        signs: Signs::unread("pods"),
        relist: Relist::default(),
        version: |object| object.metadata.resource_version.as_deref().unwrap_or_default(),
        page_size: 500,
        objects_max,
        pauses,
        asks: false,
    }
}

fn words(event: &WatchEvent<Object>) -> String {
    let pod = |pod: &Object| pod.metadata.name.clone().unwrap_or_default();
    match event {
        WatchEvent::ListBegins => "list".to_owned(),
        WatchEvent::ListEnds(version) => format!("listed {version}"),
        WatchEvent::Shown(it) => format!("shown {}", pod(it)),
        WatchEvent::Gone(it) => format!("gone {}", pod(it)),
        WatchEvent::Unreadable(it) => format!("unreadable {}: {}", it.name, it.why),
        WatchEvent::UpTo(version) => format!("up to {version}"),
        WatchEvent::Restored => "restored".to_owned(),
    }
}

/// Returns events and requests until no answer is left.
async fn run(answers: Vec<(u16, String)>) -> (Vec<String>, Vec<String>) {
    let requests = answers.len() + 1;
    let (client, asked) = server(answers);
    let events = Log::default();
    let end = async {
        while asked.lock().len() < requests {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    watch_until(client, scope(2), &events, end).await;
    let (events, asked) = (events.lock().clone(), asked.lock().clone());
    (events, asked)
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_is_a_consistent_read_and_goes_on_as_a_watch() {
    let stream = [
        event("ADDED", &pod("a", 5)),
        bookmark(7, true),
        event("MODIFIED", &pod("a", 8)),
        event("DELETED", &pod("a", 9)),
        bookmark(12, false),
    ];
    let (events, asked) = run(vec![(200, stream.concat())]).await;
    let expected = ["list", "shown a", "listed 7", "shown a", "gone a", "up to 12"];
    assert_eq!(events, expected);
    assert!(asked[0].contains("resourceVersion=&"), "{}", asked[0]);
    assert!(asked[0].contains("sendInitialEvents=true"), "{}", asked[0]);
    assert!(asked[1].ends_with("&resourceVersion=12"), "{}", asked[1]);
}

/// The objects are their owners', who may fill each with a megabyte.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_large_is_asked_for_with_fewer_objects() {
    let page = |token: &str, name: &str, filling: usize| {
        let metadata = json!({"resourceVersion": "7", "continue": token});
        let mut pod = pod(name, 5);
        pod["metadata"]["annotations"] = json!({"a": "x".repeat(filling)});
        json!({"metadata": metadata, "items": [pod]}).to_string()
    };
    let refusal = status(422, "Invalid").to_string();
    let answers = vec![
        (422, refusal),
        (200, page("next", "a", 33 << 20)),
        (200, page("next", "a", 1 << 20)),
        (200, page("", "b", 0)),
    ];
    let (events, asked) = run(answers).await;
    assert_eq!(events, ["list", "shown a", "shown b", "listed 7"]);
    let limits = asked[1..4].iter().map(|uri| uri.split("&limit=").nth(1));
    let limits: Vec<_> = limits.map(Option::unwrap_or_default).collect();
    assert_eq!(limits, ["500", "50", "50&continue=next"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_stream_lists_is_read_in_pages() {
    let page = |token: &str, name: &str| {
        let metadata = json!({"resourceVersion": "7", "continue": token});
        json!({"metadata": metadata, "items": [pod(name, 5)]}).to_string()
    };
    let refusal = status(422, "Invalid").to_string();
    let answers = vec![(422, refusal), (200, page("next", "a")), (200, page("", "b"))];
    let (events, asked) = run(answers).await;
    assert_eq!(events, ["list", "shown a", "shown b", "listed 7"]);
    assert!(asked[1].ends_with("/pods?fieldSelector=spec.nodeName%3Dn1&limit=500"), "{}", asked[1]);
    assert!(asked[2].ends_with("&continue=next"), "{}", asked[2]);
    assert!(asked[3].ends_with("&resourceVersion=7"), "{}", asked[3]);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_position_leads_to_a_new_list_and_a_failure_does_not() {
    let list = [event("ADDED", &pod("a", 5)), bookmark(7, true)].concat();
    let expired = event("ERROR", &status(410, "Expired"));
    let broken = status(500, "InternalError").to_string();
    let answers = vec![(200, list.clone()), (500, broken), (200, expired), (200, list)];
    let (events, asked) = run(answers).await;
    assert_eq!(events, ["list", "shown a", "listed 7", "list", "shown a", "listed 7"]);
    assert!(asked[1].ends_with("&resourceVersion=7"), "{}", asked[1]);
    assert!(asked[2].ends_with("&resourceVersion=7"), "{}", asked[2]);
    assert!(asked[3].contains("sendInitialEvents=true"), "{}", asked[3]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_begins_anew() {
    let half = event("ADDED", &pod("a", 5));
    let whole = [event("ADDED", &pod("b", 6)), bookmark(7, true)].concat();
    let (events, _) = run(vec![(200, half), (200, whole)]).await;
    assert_eq!(events, ["list", "shown a", "list", "shown b", "listed 7"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_given_up_and_a_watch_is_none() {
    let three = |kind: &str| {
        let events = ["a", "b", "c"].map(|name| event(kind, &pod(name, 5)));
        events.concat()
    };
    let whole = [bookmark(7, true), three("ADDED")].concat();
    let (events, _) = run(vec![(200, three("ADDED")), (200, whole)]).await;
    let expected =
        ["list", "shown a", "shown b", "list", "listed 7", "shown a", "shown b", "shown c"];
    assert_eq!(events, expected);
}

/// The pauses after these rounds, in milliseconds.
fn pauses(rounds: &[(u64, bool, &WatchError)]) -> Vec<u128> {
    let (config, mut backoff) = (scope(2).pauses, Backoff::default());
    let next = |(seconds, watched, error): &(u64, bool, &WatchError)| {
        let round = Round { lasted: Duration::from_secs(*seconds), watched: *watched };
        backoff.next(&config, round, error).as_millis()
    };
    rounds.iter().map(next).collect()
}

#[test]
fn pauses_double_until_a_round_was_long() {
    let broken = WatchError::Broken("cut".into());
    let doubled = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
    for watched in [false, true] {
        assert_eq!(pauses(&[(0, watched, &broken); 8]), doubled);
    }
    let failures = [(0, false, &broken), (0, false, &broken), (0, false, &broken)];
    let (long, short) = ((2, true, &broken), (1, true, &broken));
    assert_eq!(pauses(&[&failures[..], &[long]].concat()), [500, 1_000, 2_000, 500]);
    assert_eq!(pauses(&[&failures[..], &[short]].concat()), [500, 1_000, 2_000, 4_000]);
    let listed = (29, false, &broken);
    assert_eq!(pauses(&[&failures[..], &[listed]].concat())[3], 4_000, "a list may be dear");
}

#[test]
fn a_list_after_an_expired_version_comes_soon_but_not_again_and_again() {
    let broken = WatchError::Broken("cut".into());
    let expired = (0, true, &WatchError::Expired);
    let failed = (0, false, &broken);
    assert_eq!(pauses(&[failed, failed, failed, expired]), [500, 1_000, 2_000, 500]);
    let again = pauses(&[failed, failed, expired, expired, expired, expired]);
    assert_eq!(again, [500, 1_000, 500, 2_000, 4_000, 8_000]);
}

#[test]
fn pauses_without_a_connection_stay_short() {
    let refused = Failure { unsent: true, ..Failure::new(FailureKind::Unknown, "refused") };
    let refused = WatchError::Failed(refused);
    let rounds = [(0, false, &refused); 5];
    assert_eq!(pauses(&rounds), [500, 1_000, 2_000, 2_000, 2_000]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_short_once_something_presses() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let mut pauses = Pauses {
        first: Duration::from_millis(1),
        max: Duration::from_secs(5),
        unconnected_max: Duration::from_secs(5),
        hurried_max: Duration::from_millis(500),
        hurry: Some(receiver),
    };
    let begun = Instant::now();
    pauses.pause(Duration::from_secs(5)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    sender.send_replace(true);
    let begun = Instant::now();
    pauses.pause(Duration::from_secs(5)).await;
    assert_eq!(begun.elapsed(), Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_holds_up_no_other() {
    // `labels` must be a map; the number makes the reader fail.
    let odd = json!({"metadata": {"name": "odd", "uid": "o", "labels": 5, "resourceVersion": "8"}});
    let stream = [
        event("ADDED", &pod("a", 5)),
        bookmark(7, true),
        event("MODIFIED", &odd),
        event("MODIFIED", &pod("a", 9)),
    ];
    let (events, asked) = run(vec![(200, stream.concat())]).await;
    assert_eq!(events[..3], ["list", "shown a", "listed 7"]);
    assert!(events[3].starts_with("unreadable odd: invalid type: integer `5`"), "{}", events[3]);
    assert_eq!(events[4..], ["shown a"]);
    assert!(asked[1].ends_with("&resourceVersion=9"), "{}", asked[1]);
}

#[tokio::test(start_paused = true)]
async fn a_page_with_an_object_that_cannot_be_read_gives_the_rest() {
    let odd = json!({"metadata": {"name": "odd", "labels": 5}});
    let page = json!({"metadata": {"resourceVersion": "7"}, "items": [odd, pod("b", 5)]});
    let answers = vec![(422, status(422, "Invalid").to_string()), (200, page.to_string())];
    let (events, _) = run(answers).await;
    assert!(events[1].starts_with("unreadable odd"), "{events:?}");
    assert_eq!(
        (events[0].as_str(), &events[2..]),
        ("list", &["shown b".into(), "listed 7".into()][..])
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_shows_nothing_is_replaced() {
    let (opened, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (times, log) = (Arc::clone(&opened), Arc::clone(&asked));
    let service = tower::service_fn(move |request: Request<Body>| {
        times.lock().push(Instant::now());
        log.lock().push(request.uri().to_string());
        // The server sends a list, then the connection stays open and silent.
        let list = [event("ADDED", &pod("a", 5)), bookmark(7, true)].concat();
        let frame = Ok::<_, std::io::Error>(list.into_bytes());
        let frames = stream::iter([frame]).chain(stream::pending());
        async move {
            let frames = frames.map_ok(|list| Frame::data(Bytes::from(list)));
            Response::builder().status(200).body(StreamBody::new(frames))
        }
    });
    let events = Log::default();
    let end = async {
        while opened.lock().len() < 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    watch_until(Client::new(service, "default"), scope(2), &events, end).await;
    let times = opened.lock().clone();
    let between = times[1] - times[0];
    assert!(between >= IDLE_MAX && between < IDLE_MAX + Duration::from_secs(2), "{between:?}");
    let asked = asked.lock();
    assert!(asked[1].ends_with("&resourceVersion=7"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_each_time_is_asked_for_less_and_less_often() {
    let half = || (200, event("ADDED", &pod("a", 5)) + "{\"type\":");
    let begun = Instant::now();
    let broken = || (200, event("ADDED", &pod("a", 5)) + "no JSON\n");
    let _ = run(vec![broken(), broken(), broken(), broken(), broken(), half()]).await;
    // Pauses of 0.5, 1, 2, 4 and 8 s after the five garbled answers.
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(15) && took < Duration::from_secs(18), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_on_demand_is_made_after_the_demand_also_where_the_watch_stands_still() {
    let list = |version| event("ADDED", &pod("a", 5)) + &bookmark(version, true);
    let (client, asked) = server(vec![(200, list(7)), (NEVER, String::new()), (200, list(9))]);
    let events = Log::default();
    let scope = scope(2);
    let relist = scope.relist.clone();
    let demand = async {
        while asked.lock().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The second request, from version 7, was sent and never answered.
        assert!(asked.lock()[1].ends_with("&resourceVersion=7"));
        relist.fresh().await;
    };
    watch_until(client, scope, &events, demand).await;
    assert_eq!(*events.lock(), ["list", "shown a", "listed 7", "list", "shown a", "listed 9"]);
    let asked = asked.lock();
    assert!(asked[2].contains("resourceVersion=&"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_on_demand_is_done_when_its_end_was_handled() {
    let list = |version| event("ADDED", &pod("a", 5)) + &bookmark(version, true);
    let (client, _) = server(vec![(200, list(7))]);
    let scope = scope(2);
    let relist = scope.relist.clone();
    let mut events = pin!(watch(client, scope));
    let mut fresh = pin!(relist.fresh());
    assert!(poll!(fresh.as_mut()).is_pending(), "asked, and not listed");
    for expected in ["list", "shown a", "listed 7"] {
        assert_eq!(events.next().await.map(|event| words(&event)).as_deref(), Some(expected));
        assert!(poll!(fresh.as_mut()).is_pending(), "the reader may still handle {expected}");
    }
    assert!(poll!(events.next()).is_pending());
    fresh.await;
}

/// Reads an object from a message that has only metadata.
fn decode(message: &[u8]) -> Result<Object, Rejected> {
    let peek = Peek::decode(message)
        .map_err(|error| Rejected { why: error.to_string(), ..Rejected::default() })?;
    let text = |bytes: Vec<u8>| Some(String::from_utf8_lossy(&bytes).into_owned());
    let metadata = peek.metadata.unwrap_or_default();
    let (name, resource_version) = (text(metadata.name), text(metadata.resource_version));
    Ok(Object { metadata: ObjectMeta { name, resource_version, ..ObjectMeta::default() } })
}

/// Like `run`, with a server that speaks protobuf and sends each answer in parts of 3 bytes.
async fn run_protobuf(answers: Vec<(u16, Vec<u8>)>) -> (Vec<String>, Vec<String>) {
    let (requests, asked) = (answers.len() + 1, Arc::new(Mutex::new(Vec::new())));
    let (log, answers) = (Arc::clone(&asked), Arc::new(Mutex::new(VecDeque::from(answers))));
    let service = tower::service_fn(move |request: Request<Body>| {
        let accept = request.headers()[header::ACCEPT].to_str().expect("must be text").to_owned();
        log.lock().push(format!("{accept} {}", request.uri()));
        let answer = answers.lock().pop_front();
        async move {
            let Some((code, body)) = answer else { return std::future::pending().await };
            let parts: Vec<Bytes> = body.chunks(3).map(Bytes::copy_from_slice).collect();
            let parts = stream::iter(parts).map(|part| Ok::<_, Infallible>(Frame::data(part)));
            Response::builder()
                .status(code)
                .header(header::CONTENT_TYPE, "application/vnd.kubernetes.protobuf;stream=watch")
                .body(StreamBody::new(parts))
        }
    });
    let mut scope = scope(3);
    scope.read.protobuf = Some(decode);
    let events = Log::default();
    let end = async {
        while asked.lock().len() < requests {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    watch_until(Client::new(service, "default"), scope, &events, end).await;
    let (events, asked) = (events.lock().clone(), asked.lock().clone());
    (events, asked)
}

#[tokio::test(start_paused = true)]
async fn protobuf_gives_the_same_events_as_json() {
    let object = |name: &str, version| samples::object(name, version, &[]);
    let stream = [
        samples::frame("ADDED", &object("a", 5)),
        samples::frame("BOOKMARK", &samples::object("", 7, &[LIST_END])),
        samples::frame("MODIFIED", &object("a", 8)),
        samples::frame("DELETED", &object("a", 9)),
        samples::frame("BOOKMARK", &object("", 12)),
        // A server that stops breaks off in the middle of a frame.
        samples::frame("ADDED", &object("cut", 13))[..9].to_vec(),
    ];
    let (events, asked) = run_protobuf(vec![(200, stream.concat())]).await;
    let expected = ["list", "shown a", "listed 7", "shown a", "gone a", "up to 12"];
    assert_eq!(events, expected);
    assert!(asked[0].starts_with("application/vnd.kubernetes.protobuf,application/json "));
    assert!(asked[1].ends_with("&resourceVersion=12"), "{}", asked[1]);
}

#[tokio::test(start_paused = true)]
async fn protobuf_refusals_and_pages_are_understood() {
    let refusal = samples::wrapped(&samples::status(422, "Invalid"));
    let objects = |name: &str| [samples::object(name, 5, &[])];
    let expired = samples::frame("ERROR", &samples::status(410, "Expired"));
    let answers = vec![
        (422, refusal),
        (200, samples::page(7, "next", &objects("a"))),
        (200, samples::page(7, "", &objects("b"))),
        (200, expired),
    ];
    let (events, asked) = run_protobuf(answers).await;
    assert_eq!(events, ["list", "shown a", "shown b", "listed 7", "list"]);
    assert!(asked[2].ends_with("&continue=next"), "{}", asked[2]);
    assert!(asked[3].ends_with("&resourceVersion=7"), "{}", asked[3]);
}

fn list(version: u64) -> String {
    event("ADDED", &pod("a", 5)) + &bookmark(version, true)
}

/// Returns events, requests and questions for the version until so many requests were made.
async fn run_restored(
    answers: Vec<(u16, String)>,
    versions: Vec<(u16, u64)>,
    requests: usize,
) -> (Vec<String>, Vec<String>, Vec<String>) {
    let (client, asked, lookups) = restored_server(answers, versions);
    let events = Log::default();
    let end = async {
        while asked.lock().len() < requests {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Whatever the last request brings.
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    watch_until(client, scope(2), &events, end).await;
    let (events, asked) = (events.lock().clone(), asked.lock().clone());
    let lookups = lookups.lock().clone();
    (events, asked, lookups)
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_that_the_api_has_not_reached_lists_again() {
    let begun = Instant::now();
    let old = list(50) + &event("MODIFIED", &pod("a", 60)) + "broken\n";
    let answers = vec![(200, old), (OPEN, String::new()), (OPEN, list(20))];
    let (events, asked, lookups) = run_restored(answers, vec![(200, 20)], 3).await;
    assert_eq!(
        events,
        ["list", "shown a", "listed 50", "shown a", "restored", "list", "shown a", "listed 20"]
    );
    assert!(asked[1].ends_with("&resourceVersion=60"), "{asked:?}");
    assert!(asked[2].contains("resourceVersion=&"), "{asked:?}");
    let lookup = "/api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Depilogue&limit=1";
    assert_eq!(lookups, [lookup]);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_while_the_api_goes_on_is_no_reason_for_a_list() {
    let answers = vec![
        (200, list(50) + "broken\n"),
        (500, status(500, "InternalError").to_string()),
        (OPEN, event("MODIFIED", &pod("a", 60))),
    ];
    // The API is ahead of every watch, or has just what the watch has.
    for version in [50, 7000] {
        let (events, _, lookups) = run_restored(answers.clone(), vec![(200, version)], 3).await;
        assert_eq!(events, ["list", "shown a", "listed 50", "shown a"]);
        assert_eq!(lookups.len(), 1, "once for each watch that opens");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_at_the_end_of_its_time_is_followed_by_another_without_a_question() {
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let first = if uri.contains("sendInitialEvents") { list(50) } else { bookmark(50, false) };
        log.lock().push(uri);
        async move {
            // The server ends the watch after 290 s.
            let later = stream::unfold(0, async |sent| {
                tokio::time::sleep(Duration::from_secs(58)).await;
                (sent < 4).then(|| (bookmark(50, false), sent + 1))
            });
            let texts = stream::iter([first]).chain(later);
            let frames = texts.map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
            Response::builder().status(200).body(StreamBody::new(frames))
        }
    });
    let events = Log::default();
    let end = tokio::time::sleep(Duration::from_secs(1000));
    watch_until(Client::new(service, "default"), scope(2), &events, end).await;
    let asked = asked.lock();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(!asked.iter().any(|uri| uri.contains(LOOKUP)), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_older_than_what_was_seen_leads_to_another() {
    let expired = event("ERROR", &status(410, "Expired"));
    let answers = vec![(200, list(50) + &expired), (200, list(20)), (OPEN, list(21))];
    let (events, ..) = run_restored(answers, vec![(200, 20)], 3).await;
    let expected = [
        "list",
        "shown a",
        "listed 50",
        "list",
        "shown a",
        "restored",
        "list",
        "shown a",
        "listed 21",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn events_do_not_wait_for_the_version_and_a_question_is_repeated() {
    let answers = vec![
        (200, list(50) + "broken\n"),
        (OPEN, event("MODIFIED", &pod("a", 60))),
        (OPEN, list(20)),
    ];
    let versions = vec![(500, 0), (NEVER, 0), (429, 0), (200, 20)];
    let (events, _, lookups) = run_restored(answers, versions, 3).await;
    let expected =
        ["list", "shown a", "listed 50", "shown a", "restored", "list", "shown a", "listed 20"];
    assert_eq!(events, expected);
    assert_eq!(lookups.len(), 4);
}

/// Like `run_restored`, while the program writes objects at version 90 once 50 is listed.
async fn run_written(answers: Vec<(u16, String)>, requests: usize) -> Vec<String> {
    let (client, asked, _) = restored_server(answers, vec![(200, 60)]);
    let (events, scope) = (Log::default(), scope(2));
    let newest = scope.newest.clone();
    let end = async {
        while !events.lock().iter().any(|event| event == "listed 50") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!newest.answered(newest.get(), 90));
        while asked.lock().len() < requests {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Whatever the last request brings.
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    watch_until(client, scope, &events, end).await;
    let events = events.lock().clone();
    assert_eq!(newest.get(), 60, "versions count on from there: {events:?}");
    events
}

/// The API has gone back to version 60: the watch had not come as far, and the program had.
#[tokio::test(start_paused = true)]
async fn a_watch_that_lags_behind_a_write_notices_that_the_write_is_undone() {
    let answers = vec![(200, list(50) + "broken\n"), (OPEN, String::new()), (OPEN, list(60))];
    let events = run_written(answers, 3).await;
    let relisted = ["list", "shown a", "listed 60"];
    assert_eq!(events, [&["list", "shown a", "listed 50", "restored"][..], &relisted].concat());

    let expired = event("ERROR", &status(410, "Expired"));
    let answers = vec![(200, list(50) + &expired), (200, list(60)), (OPEN, list(60))];
    let events = run_written(answers, 3).await;
    let first = ["list", "shown a", "listed 50", "list", "shown a", "restored"];
    assert_eq!(events, [&first[..], &relisted].concat());
}
