//! Checks `managedBy` and our annotations: their names, their values, and whether they have an
//! effect.

use std::collections::BTreeMap;

use epilogue_common::end_signal::EndSignal;
use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::job_option::{
    ALL, BACKOFF_BASE, BACKOFF_MAX, DISRUPTION_LIMIT, FORCE_FAIL_AFTER,
};
use epilogue_common::names::node::END_SIGNAL;
use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};
use serde_json::Value;

use super::finding::{Finding, Severity};
use super::manifest::Manifest;
use controller_core::go_duration::GoDuration;
use controller_core::job::{Options, Settings};
use controller_core::managed_by;
use controller_core::spelling::meant;

/// The prefix of our annotations.
const OURS: &str = "epilogue.dev/";

pub(super) fn findings(manifest: &Manifest<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = misspelled_managed_by(manifest).into_iter().collect();
    found.extend(on_the_cron_job(manifest));
    for (name, value) in ours(manifest.annotations()) {
        let path = format!("metadata.annotations[{name}]");
        found.extend(
            unknown(manifest, name, &path)
                .or_else(|| invalid(manifest, name, value, &path))
                .or_else(|| without_effect(manifest, name, &path)),
        );
    }
    found.extend(base_above_max(manifest));
    found.extend(end_signal(manifest));
    found
}

/// The options that these annotations give under the controller's default flags.
fn options(annotations: &BTreeMap<String, String>) -> Options {
    Options::of(annotations, Settings::default().min_job_pod_failure_backoff)
}

fn ours(annotations: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = annotations.as_object().into_iter().flatten();
    all.filter(|(name, _)| name.starts_with(OURS)).map(|(name, value)| (name.as_str(), value))
}

fn misspelled_managed_by(manifest: &Manifest<'_>) -> Option<Finding> {
    let value = manifest.spec()["managedBy"].as_str()?;
    if managed_by::is_known(value) {
        return None;
    }
    let meant = managed_by::meant(value)?;
    let problem = format!("unknown managedBy {value}; did you mean {meant}?");
    let rule = (Severity::Error, Code::ManagedByMisspelled);
    Some(manifest.found(rule, "spec.managedBy", problem, format!("write {meant}")))
}

/// The Jobs of a CronJob get the annotations of its jobTemplate only.
fn on_the_cron_job(manifest: &Manifest<'_>) -> Vec<Finding> {
    let annotations = manifest.outer_annotations().into_iter().flat_map(ours);
    annotations
        .map(|(name, _)| {
            let problem = "Jobs get the annotations of jobTemplate, not those of the CronJob";
            let remedy = "move it to spec.jobTemplate.metadata.annotations";
            let field = format!("metadata.annotations[{name}]");
            let rule = (Severity::Warning, Code::AnnotationWithoutEffect);
            manifest.found_outside(rule, field, problem, remedy)
        })
        .collect()
}

fn unknown(manifest: &Manifest<'_>, name: &str, path: &str) -> Option<Finding> {
    if ALL.contains(&name) {
        return None;
    }
    let (problem, remedy) = if name == END_SIGNAL {
        let problem = "pods ask by it, and do not get the annotations of their Job".to_owned();
        (problem, "move it to spec.template.metadata.annotations".to_owned())
    } else if let Some(near) = meant(name, ALL) {
        (format!("unknown annotation; did you mean {near}?"), format!("write {near}"))
    } else {
        let problem = "Epilogue has no such annotation on Jobs".to_owned();
        (problem, format!("remove it, or write one of {}", ALL.join(", ")))
    };
    Some(manifest.found((Severity::Error, Code::AnnotationUnknown), path, problem, remedy))
}

fn invalid(manifest: &Manifest<'_>, name: &str, value: &Value, path: &str) -> Option<Finding> {
    let rule = (Severity::Error, Code::AnnotationInvalid);
    let Some(text) = value.as_str() else {
        let problem = format!("the value {value} is not a string, and the API refuses it");
        return Some(manifest.found(rule, path, problem, format!("quote it: \"{value}\"")));
    };
    let problem = if name == FORCE_FAIL_AFTER {
        let expected = "a duration, such as 10m, or 0";
        let invalid = || format!("{text:?} is left out; give {expected}");
        text.parse::<GoDuration>().is_err().then(invalid)?
    } else {
        let alone = BTreeMap::from([(name.to_owned(), text.to_owned())]);
        let options = options(&alone);
        let rules = manifest.rules().count();
        let exceed = || options.rule_names.as_ref().and_then(|names| names.exceed(rules));
        let problem = options.problems.first().cloned().or_else(exceed)?;
        let prefix = format!("{name}: ");
        problem.strip_prefix(&prefix).unwrap_or(&problem).to_owned()
    };
    let (problem, remedy) = problem.rsplit_once("; ").unwrap_or((&problem, "correct the value"));
    Some(manifest.found(rule, path, problem, remedy))
}

/// The pods ask, by the annotations of their template.
fn end_signal(manifest: &Manifest<'_>) -> Option<Finding> {
    let asked = &manifest.spec()["template"]["metadata"]["annotations"][END_SIGNAL];
    let error = asked.as_str()?.parse::<EndSignal>().err()?.to_string();
    let rule = (Severity::Error, Code::AnnotationInvalid);
    let path = format!("spec.template.metadata.annotations[{END_SIGNAL}]");
    let remedy = "write for example USR1@90s; admission refuses the Job's pods otherwise";
    Some(manifest.found(rule, &path, error, remedy))
}

/// Each value alone is right, and together they are left out.
fn base_above_max(manifest: &Manifest<'_>) -> Option<Finding> {
    let both = ours(manifest.annotations())
        .filter(|(name, _)| *name == BACKOFF_BASE || *name == BACKOFF_MAX)
        .filter_map(|(name, value)| Some((name.to_owned(), value.as_str()?.to_owned())));
    let problems = options(&both.collect()).problems;
    let problem = problems.into_iter().find(|problem| problem.contains("longer than"))?;
    let field = format!("metadata.annotations[{BACKOFF_BASE}]");
    let remedy = format!("lower it, or raise {BACKOFF_MAX}");
    Some(manifest.found((Severity::Error, Code::AnnotationInvalid), &field, problem, remedy))
}

fn without_effect(manifest: &Manifest<'_>, name: &str, path: &str) -> Option<Finding> {
    let rule = (Severity::Warning, Code::AnnotationWithoutEffect);
    // Pod GC reads it on Jobs of any controller.
    if name == FORCE_FAIL_AFTER {
        return None;
    }
    if !manifest.is_ours {
        let (problem, remedy) = match manifest.spec()["managedBy"].as_str() {
            None | Some(RESERVED_MANAGED_BY) => (
                "kube-controller-manager runs the Job and does not know the annotation".to_owned(),
                format!(
                    "set managedBy: {MANAGED_BY}; or lint with --manage-all-jobs, if Epilogue \
                     runs all Jobs"
                ),
            ),
            Some(other) => (
                format!("the controller {other} runs the Job and does not know the annotation"),
                format!("remove it, or set managedBy: {MANAGED_BY}"),
            ),
        };
        return Some(manifest.found(rule, path, problem, remedy));
    }
    let ignores = manifest.rules().any(|rule| rule["action"] == "Ignore");
    (name == DISRUPTION_LIMIT && !ignores).then(|| {
        let problem = "it limits ignored failures, and podFailurePolicy ignores none";
        manifest.found(rule, path, problem, "add a rule with the action Ignore, or remove it")
    })
}
