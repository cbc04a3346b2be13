//! Admission of other writers: webhooks and policies that change the controllers' writes, or refuse
//! them, for a time.

use model_api::{Access, Effect, Fault, Kind, Matcher, ModelApi, Refusal, Verb, Webhook};
use serde_json::{Value, json};
use simulation::controller::Random;

use super::ledger::CONTROLLER;
use super::world::NAMESPACE;

/// The webhook, or the policy.
const NAME: &str = "admit.example.com";
/// What it labels and annotates pods with.
const MARK: &str = "admit.example.com/mark";
/// What a webhook says that refuses the pods of one Job.
const OF_ONE_JOB: &str = "this Job may have no pods";
/// Progress of an Indexed Job.
const INDEXES: [&str; 2] = ["completedIndexes", "succeeded"];

/// The next admission.
pub(super) fn draw(random: &mut Random, api: &ModelApi) -> Fault {
    match random.below(7) {
        0 => Fault::of(pods(), Effect::Mutate(Webhook::changing(decorate))),
        1 => Fault::of(pods(), Effect::Validate(Webhook::refusing(refusal(random, Kind::Pod)))),
        2 => Fault::of(pods(), Effect::Validate(one_job(random, api))),
        3 => Fault::of(statuses(), Effect::Mutate(Webhook::changing(drop_lists))),
        4 => Fault::of(statuses(), Effect::Mutate(Webhook::changing(drop_first))),
        5 => Fault::of(statuses(), Effect::Mutate(Webhook::changing(drop_progress))),
        _ => Fault::of(statuses(), Effect::Validate(Webhook::refusing(refusal(random, Kind::Job)))),
    }
}

fn pods() -> Matcher {
    let agent = Some(CONTROLLER.to_owned());
    Matcher { agent, ..Matcher::on(Verb::Create, Kind::Pod) }
}

fn statuses() -> Matcher {
    let (agent, subresource) = (Some(CONTROLLER.to_owned()), Some("status".to_owned()));
    Matcher { agent, subresource, ..Matcher::on(Verb::Update, Kind::Job) }
}

fn refusal(random: &mut Random, kind: Kind) -> Refusal {
    match random.below(4) {
        0 => Refusal::denied_by_webhook(NAME, 403, "Forbidden", "not now"),
        1 => Refusal::denied_by_webhook(NAME, 400, "", "without a code"),
        2 => Refusal::unreachable_webhook(NAME, "connect: connection refused"),
        _ => Refusal::denied_by_policy(kind, "", NAME, "not now"),
    }
}

/// Refuses the pods of a Job that is there now.
fn one_job(random: &mut Random, api: &ModelApi) -> Webhook {
    let jobs = api.list(Kind::Job, NAMESPACE);
    let name = match jobs.len() {
        0 => Value::Null,
        count => jobs[random.below(count)]["metadata"]["name"].clone(),
    };
    Webhook::new(move |pod, _| {
        let is_its = pod["metadata"]["ownerReferences"][0]["name"] == name;
        let refusal =
            is_its.then(|| Refusal::denied_by_webhook(NAME, 403, "Forbidden", OF_ONE_JOB));
        refusal.map_or(Ok(()), Err)
    })
}

fn decorate(pod: &mut Value, _: Option<&Value>) {
    for field in ["labels", "annotations"] {
        pod["metadata"][field][MARK] = "true".into();
    }
    let toleration = json!({"key": MARK, "operator": "Exists"});
    match pod["spec"]["tolerations"].as_array_mut() {
        Some(tolerations) => tolerations.push(toleration),
        None => pod["spec"]["tolerations"] = json!([toleration]),
    }
}

/// A webhook whose type of a Job is older than these fields.
fn drop_lists(job: &mut Value, _: Option<&Value>) {
    if let Some(status) = job["status"].as_object_mut() {
        status.retain(|field, _| {
            !["uncountedTerminatedPods", "ready", "terminating"].contains(&&**field)
        });
    }
}

/// A webhook that loses one UID of each list.
fn drop_first(job: &mut Value, _: Option<&Value>) {
    for field in ["succeeded", "failed"] {
        let list = job["status"]["uncountedTerminatedPods"].get_mut(field);
        if let Some(list) = list.and_then(Value::as_array_mut).filter(|list| !list.is_empty()) {
            list.remove(0);
        }
    }
}

/// A webhook that puts back the progress of an Indexed Job, as long as that has not ended.
fn drop_progress(job: &mut Value, old: Option<&Value>) {
    let is_conditioned = job["status"]["conditions"].as_array().is_some_and(|it| !it.is_empty());
    let is_indexed = |old: &&Value| old["spec"]["completionMode"] == "Indexed";
    let Some(old) = old.filter(is_indexed).filter(|_| !is_conditioned) else { return };
    for field in INDEXES {
        job["status"][field] = old["status"][field].clone();
    }
}

/// Whether admission answered, and not the API: its refusals say nothing of the write.
pub(super) fn has_refused(access: &Access) -> bool {
    let message = access.answer["message"].as_str().unwrap_or_default();
    access.code >= 400 && message.contains(NAME)
}

/// How often each kind of admission was met.
pub(super) fn met(log: &[Access]) -> Vec<(&'static str, usize)> {
    let count = |is: &dyn Fn(&Access) -> bool| log.iter().filter(|access| is(access)).count();
    let refused = |kind, code| count(&|it| it.kind == kind && it.code == code && has_refused(it));
    let stored = |it: &Access, field: &str| {
        let status = |object: &Value| object["status"].get(field).cloned().unwrap_or_default();
        let is_write = it.agent.starts_with(CONTROLLER) && it.subresource == "status";
        is_write && it.code == 200 && status(&it.body) != status(&it.answer)
    };
    let says = |it: &Access, text: &str| it.answer["message"].as_str() == Some(text);
    let of_one = format!("admission webhook {NAME:?} denied the request: {OF_ONE_JOB}");
    vec![
        (
            "pods changed",
            count(&|it| it.answer["metadata"]["labels"][MARK] == "true" && it.verb == Verb::Create),
        ),
        ("pods of one Job refused", count(&|it| says(it, &of_one))),
        ("pods refused, 400", refused(Kind::Pod, 400)),
        ("pods refused, 403", refused(Kind::Pod, 403)),
        ("pods refused, 422", refused(Kind::Pod, 422)),
        ("pods refused, 500", refused(Kind::Pod, 500)),
        ("statuses refused, 400", refused(Kind::Job, 400)),
        ("statuses refused, 403", refused(Kind::Job, 403)),
        ("statuses refused, 422", refused(Kind::Job, 422)),
        ("statuses refused, 500", refused(Kind::Job, 500)),
        ("lists changed", count(&|it| stored(it, "uncountedTerminatedPods"))),
        ("indexes changed", count(&|it| stored(it, "completedIndexes"))),
        (
            "StatusAltered",
            count(&|it| it.kind == Kind::Event && it.body["reason"] == "StatusAltered"),
        ),
    ]
}
