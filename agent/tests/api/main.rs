//! Tests what the agent sends to the API, against an API whose answers each test scripts. Tests its
//! connection against a server whose connections become silent.

mod golden;
mod link;
mod server;

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::action::{Action, Notice, PodRef, Purpose};
use agent_core::protocol::event::ActionResult;
use epilogue_agent::metrics::Metrics;
use epilogue_agent::sink::api::{ApiSink, NewestVersions};
use epilogue_agent::sink::events::EventSink;
use epilogue_common::outcome::{FailureKind, Outcome};
use jiff::Timestamp;
use prometheus::Registry;
use serde_json::{Value, json};

use server::{Answer, Server};

const POD: &str = "/api/v1/namespaces/jobs/pods/a-0";
const NODE: &str = "/api/v1/nodes/n1";

fn pod() -> PodRef {
    PodRef { namespace: "jobs".into(), name: "a-0".into(), uid: PodUid("u".into()) }
}

async fn carried_out(action: Action, answers: Vec<Answer>) -> (ActionResult, Vec<server::Asked>) {
    let (client, server) = Server::client(answers);
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).expect("must register");
    let sink = ApiSink::new(client, "n1".to_owned(), metrics, NewestVersions::default());
    let result = sink.carry_out(action).await;
    assert_ne!(label(&registry, "api_calls_total"), "none", "each call has a name in metrics");
    (result, server.asked())
}

/// The value of the first label of the one metric whose name ends so.
fn label(registry: &Registry, name: &str) -> String {
    let counted = registry.gather().into_iter().find(|it| it.name().ends_with(name));
    let counted = counted.expect("it must be counted");
    counted.get_metric()[0].get_label()[0].value().to_owned()
}

fn kind(result: &ActionResult) -> Option<FailureKind> {
    match result {
        ActionResult::Done(Err(failure))
        | ActionResult::Patched(Err(failure))
        | ActionResult::Pod(Err(failure)) => Some(failure.kind),
        _ => None,
    }
}

#[tokio::test]
async fn a_mark_is_one_strategic_merge_patch_of_the_status() {
    let body = json!({"metadata": {"uid": "u"}, "status": {"conditions": []}});
    let action = Action::PatchStatus { pod: pod(), purpose: Purpose::Mark, body: body.clone() };
    let answer = json!({"kind": "PartialObjectMetadata", "metadata": {"resourceVersion": "8"}});
    let (result, asked) = carried_out(action.clone(), vec![Answer::ok(answer)]).await;
    assert_eq!(result, ActionResult::Patched(Ok(Some("8".into()))));
    let (strange, _) = carried_out(action, vec![Answer::ok(json!({"kind": "Pod"}))]).await;
    assert_eq!(strange, ActionResult::Patched(Ok(None)), "it was applied, at an unknown version");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].line, format!("PATCH {POD}/status?fieldManager=epilogue-agent"));
    assert_eq!(asked[0].content_type, "application/strategic-merge-patch+json");
    assert_eq!(asked[0].body, body);
}

#[tokio::test]
async fn a_deletion_names_the_uid_the_version_and_at_least_a_second_of_grace() {
    let action = Action::DeletePod { pod: pod(), version: "7".into(), grace_seconds: 0 };
    let (result, asked) = carried_out(action, vec![Answer::ok(json!({}))]).await;
    assert_eq!(result, ActionResult::Done(Ok(())));
    assert_eq!(asked[0].line, format!("DELETE {POD}"));
    assert_eq!(asked[0].body["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
    assert_eq!(asked[0].body["gracePeriodSeconds"], 1);
}

#[tokio::test]
async fn refusals_come_back_as_they_are_and_nothing_is_tried_again() {
    let table = [
        (404, "NotFound", FailureKind::NotFound),
        (409, "Conflict", FailureKind::Conflict),
        (422, "Invalid", FailureKind::Invalid),
        (403, "Forbidden", FailureKind::Forbidden),
        (429, "TooManyRequests", FailureKind::TooManyRequests),
        (500, "InternalError", FailureKind::ServerError),
    ];
    for (code, reason, expected) in table {
        let action = Action::DeletePod { pod: pod(), version: "7".into(), grace_seconds: 5 };
        let (result, asked) = carried_out(action, vec![Answer::refusal(code, reason)]).await;
        assert_eq!(kind(&result), Some(expected), "{code}");
        assert_eq!(asked.len(), 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_ends_after_a_second_and_may_have_been_carried_out() {
    let begun = tokio::time::Instant::now();
    let action = Action::Announce("idle".to_owned());
    let (result, asked) = carried_out(action, vec![Answer::Never]).await;
    assert_eq!(kind(&result), Some(FailureKind::Unknown));
    assert_eq!(asked[0].body["metadata"]["annotations"]["epilogue.dev/state"], "idle");
    assert_eq!(begun.elapsed().as_secs(), 1);
}

fn failure(result: Outcome<()>) -> Option<FailureKind> {
    result.err().map(|failure| failure.kind)
}

/// The result of an event, and what `/metrics` counts of it.
async fn emitted(answer: Answer) -> (Outcome<()>, Vec<server::Asked>, String) {
    let (client, server) = Server::client(vec![answer]);
    let registry = Registry::new();
    let metrics = Metrics::new(&registry).expect("must register");
    let sink = EventSink::new(client, "n1".to_owned(), metrics);
    let (message, annotations) = ("why".to_owned(), Vec::new());
    let notice =
        Notice { pod: Some(pod()), warning: true, reason: "PodLost", message, annotations };
    let result = sink.emit(&notice, Timestamp::now()).await;
    (result, server.asked(), label(&registry, "events_total"))
}

#[tokio::test(start_paused = true)]
async fn an_event_is_one_attempt_whose_result_goes_back_to_the_core() {
    let (result, asked, counted) = emitted(Answer::ok(json!({}))).await;
    assert_eq!((result, counted.as_str()), (Ok(()), "written"));
    assert_eq!(asked[0].line, "POST /apis/events.k8s.io/v1/namespaces/jobs/events");
    assert_eq!((&asked[0].body["reason"], asked.len()), (&json!("PodLost"), 1));

    let (result, asked, counted) = emitted(Answer::refusal(403, "Forbidden")).await;
    assert_eq!((failure(result), counted.as_str()), (Some(FailureKind::Forbidden), "failed"));
    assert_eq!(asked.len(), 1);

    let begun = tokio::time::Instant::now();
    let (result, _, counted) = emitted(Answer::Never).await;
    assert_eq!((failure(result), counted.as_str()), (Some(FailureKind::Unknown), "failed"));
    assert_eq!(begun.elapsed().as_secs(), 2);
}

#[tokio::test]
async fn a_namesake_is_not_the_pod() {
    let show = |uid: &str| Answer::ok(json!({"metadata": {"uid": uid, "name": "a-0"}}));
    let (result, _) = carried_out(Action::ReadPod(pod()), vec![show("other")]).await;
    assert_eq!(result, ActionResult::Pod(Ok(None)));
    let gone = Answer::refusal(404, "NotFound");
    let (result, _) = carried_out(Action::ReadPod(pod()), vec![gone]).await;
    assert_eq!(result, ActionResult::Pod(Ok(None)));
    let (result, asked) = carried_out(Action::ReadPod(pod()), vec![show("u")]).await;
    assert_eq!(asked[0].line, format!("GET {POD}"));
    let ActionResult::Pod(Ok(Some(view))) = result else { panic!("{result:?}") };
    assert_eq!(view.uid, PodUid("u".into()));
}

fn node(taints: &Value) -> Answer {
    Answer::ok(json!({"metadata": {"resourceVersion": "77"}, "spec": {"taints": taints}}))
}

#[tokio::test]
async fn our_taint_goes_alongside_those_of_others_and_only_onto_the_node_as_it_was_read() {
    let theirs = json!({"key": "x", "effect": "NoExecute", "timeAdded": "2026-11-21T14:00:00Z"});
    let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
    let answers = vec![node(&json!([theirs])), Answer::ok(json!({}))];
    let (result, asked) = carried_out(Action::Taint { present: true }, answers).await;
    assert_eq!(result, ActionResult::Done(Ok(())));
    assert_eq!(asked[0].line, format!("GET {NODE}"));
    assert_eq!(asked[1].content_type, "application/merge-patch+json");
    let expected =
        json!({"metadata": {"resourceVersion": "77"}, "spec": {"taints": [theirs, ours]}});
    assert_eq!(asked[1].body, expected);

    let answers = vec![node(&json!([ours, theirs])), Answer::refusal(409, "Conflict")];
    let (result, asked) = carried_out(Action::Taint { present: false }, answers).await;
    assert_eq!(kind(&result), Some(FailureKind::Conflict));
    assert_eq!(asked[1].body["spec"]["taints"], json!([theirs]));
}

#[tokio::test]
async fn a_taint_that_is_as_it_should_be_is_not_written() {
    let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
    for (present, taints) in [(true, json!([ours])), (false, json!([])), (false, json!(null))] {
        let taints = if taints.is_null() { json!([]) } else { taints };
        let (result, asked) = carried_out(Action::Taint { present }, vec![node(&taints)]).await;
        assert_eq!(result, ActionResult::Done(Ok(())));
        assert_eq!(asked.len(), 1);
    }
}

/// Maximum wait for what normally takes a moment: the machine may be slow.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);
