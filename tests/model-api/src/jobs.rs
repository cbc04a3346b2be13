//! The API's rules about Jobs.

use controller_core::checks::status_rules;
use controller_core::view::WireJob;
use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::{Value, json};

use crate::refusal::Refusal;
use crate::{gangs, pods};

/// `backoffLimit` of a Job with a limit per index.
const NO_LIMIT: i32 = i32::MAX;

/// Fields of a Job's spec that an update may change, besides those with rules of their own.
const FIXED: [&str; 5] =
    ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy"];

/// Fills in a new Job.
pub(crate) fn prepare_new(job: &mut Value) {
    let (name, uid) = (job["metadata"]["name"].clone(), job["metadata"]["uid"].clone());
    let Some(spec) = job["spec"].as_object_mut() else { return };
    if !spec.contains_key("parallelism") && !spec.contains_key("completions") {
        spec.insert("completions".into(), 1.into());
    }
    let limit = if spec.contains_key("backoffLimitPerIndex") { NO_LIMIT } else { 6 };
    let failed =
        if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    for (field, value) in [
        ("parallelism", json!(1)),
        ("backoffLimit", json!(limit)),
        ("completionMode", json!("NonIndexed")),
        ("suspend", json!(false)),
        ("podReplacementPolicy", json!(failed)),
    ] {
        spec.entry(field).or_insert(value);
    }
    let template = spec.entry("template").or_insert(json!({}));
    pods::set_defaults(&mut template["spec"]);
    if spec.get("manualSelector") != Some(&Value::Bool(true)) {
        let labels = &mut spec["template"]["metadata"]["labels"];
        for (label, value) in [
            ("batch.kubernetes.io/controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
            ("controller-uid", &uid),
            ("job-name", &name),
        ] {
            labels[label] = value.clone();
        }
        if !spec.contains_key("selector") {
            let labels = json!({"batch.kubernetes.io/controller-uid": uid});
            spec.insert("selector".into(), json!({"matchLabels": labels}));
        }
    }
    // Both are one map in the server, which adds the labels above.
    let labels = job["spec"]["template"]["metadata"]["labels"].clone();
    if labels.is_object() && job["metadata"].get("labels").is_none() {
        job["metadata"]["labels"] = labels;
    }
    job["status"] = json!({});
}

/// Checks a Job that is created.
pub(crate) fn check_new(job: &Value) -> Result<(), Refusal> {
    let spec = &job["spec"];
    check_numbers(spec)?;
    gangs::check_job(spec)?;
    pods::check_new(&spec["template"]["spec"], "spec.template.spec")?;
    if spec["template"]["spec"]["restartPolicy"] == "Always" {
        let field = "spec.template.spec.restartPolicy";
        let problem = "Unsupported value: \"Always\": supported values: \"OnFailure\", \"Never\"";
        return Err(Refusal::invalid(field, "FieldValueNotSupported", problem));
    }
    if spec["completionMode"] == "Indexed" && spec.get("completions").is_none() {
        let problem = "when completion mode is Indexed";
        return Err(Refusal::invalid("spec.completions", "FieldValueRequired", problem));
    }
    Ok(())
}

fn check_numbers(spec: &Value) -> Result<(), Refusal> {
    for field in [
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
    ] {
        if spec[field].as_i64().is_some_and(|it| it < 0) {
            let field = format!("spec.{field}");
            let problem = "must be greater than or equal to 0";
            return Err(Refusal::invalid(&field, "FieldValueInvalid", problem));
        }
    }
    Ok(())
}

/// Checks an update of the spec.
pub(crate) fn check_update(new: &Value, old: &Value) -> Result<(), Refusal> {
    let (spec, before) = (&new["spec"], &old["spec"]);
    check_numbers(spec)?;
    gangs::check_job(spec)?;
    gangs::check_job_update(spec, before)?;
    if let Some(field) = FIXED.iter().find(|field| spec.get(**field) != before.get(**field)) {
        return Err(Refusal::immutable(&format!("spec.{field}")));
    }
    let is_elastic =
        spec["completionMode"] == "Indexed" && spec["completions"] == spec["parallelism"];
    if spec.get("completions") != before.get("completions") && !is_elastic {
        return Err(Refusal::immutable("spec.completions"));
    }
    if spec["template"] != before["template"] && !rests(old) {
        return Err(Refusal::immutable("spec.template"));
    }
    Ok(())
}

/// Whether a Job is suspended and has no pods, so that its template may change.
fn rests(job: &Value) -> bool {
    let status = &job["status"];
    let has_started = status.get("startTime").is_some();
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let stopped = conditions.any(|it| it["type"] == "Suspended" && it["status"] == "True");
    let is_active = status["active"].as_i64().is_some_and(|count| count != 0);
    job["spec"]["suspend"] == true && (!has_started || stopped) && !is_active
}

/// Checks a status update.
pub(crate) fn check_status(new: &Value, old: &Value) -> Result<(), Refusal> {
    let unreadable = |error: &dyn std::fmt::Display| Refusal::bad_request(error.to_string());
    let text = old.to_string();
    let job = WireJob::read(&text).and_then(WireJob::view).map_err(|it| unreadable(&it))?;
    let status: JobStatus =
        serde_json::from_value(new["status"].clone()).map_err(|error| unreadable(&error))?;
    let violations = status_rules::violations(&job, &status);
    if violations.is_empty() {
        return Ok(());
    }
    Err(Refusal::invalid("status", "FieldValueInvalid", &violations.join("; ")))
}
