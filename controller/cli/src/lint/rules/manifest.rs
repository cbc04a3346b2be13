//! Reads the parts of a Job or CronJob that lint judges, and names them in findings.

use std::collections::BTreeSet;

use epilogue_common::finding_code::FindingCode;
use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};
use serde_json::Value;

use super::facts::{Facts, items};
use super::finding::{Finding, Severity};

/// A Job, or the Jobs that a CronJob makes.
pub(super) struct Manifest<'a> {
    object: &'a Value,
    /// Which of the objects it is.
    index: usize,
    subject: String,
    /// Where the Job's `metadata` and `spec` are: in the object, or in its `jobTemplate`.
    job: &'a Value,
    prefix: &'static str,
    /// Whether our controller runs the Job.
    pub(super) is_ours: bool,
}

/// Namespace and name.
type Name<'a> = (Option<&'a str>, &'a str);

impl<'a> Manifest<'a> {
    /// `None` for another kind. Other projects have kinds of these names, too. A cluster lists
    /// objects without a version.
    pub(super) fn read((index, object): (usize, &'a Value), facts: Facts) -> Option<Self> {
        if object["apiVersion"].as_str().is_some_and(|it| !it.starts_with("batch/")) {
            return None;
        }
        let (kind, job, prefix) = match object["kind"].as_str()? {
            "Job" => ("job", object, ""),
            "CronJob" => ("cronjob", &object["spec"]["jobTemplate"], "spec.jobTemplate."),
            _ => return None,
        };
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().map(str::to_owned);
        let generated = || metadata["generateName"].as_str().map(|name| format!("{name}*"));
        let name = name.or_else(generated).unwrap_or_else(|| "?".to_owned());
        let subject = match metadata["namespace"].as_str() {
            Some(namespace) => format!("{kind}/{namespace}/{name}"),
            None => format!("{kind}/{name}"),
        };
        let is_ours = match job["spec"]["managedBy"].as_str() {
            None | Some(RESERVED_MANAGED_BY) => facts.manage_all_jobs,
            Some(value) => value == MANAGED_BY,
        };
        Some(Self { object, index, subject, job, prefix, is_ours })
    }

    /// The Job, or the template of Jobs.
    pub(super) fn job(&self) -> &'a Value {
        self.job
    }

    /// Kind and name of the controller that the Job has, or will have.
    pub(super) fn controller(&self) -> Option<(&'a str, &'a str)> {
        let text = |value: &'a Value| value.as_str().unwrap_or("?");
        let metadata = &self.object["metadata"];
        if !self.prefix.is_empty() {
            return Some(("CronJob", text(&metadata["name"])));
        }
        let mut owners = items(&metadata["ownerReferences"]);
        let owner = owners.find(|owner| owner["controller"] == true)?;
        Some((text(&owner["kind"]), text(&owner["name"])))
    }

    /// The Job's spec.
    pub(super) fn spec(&self) -> &'a Value {
        &self.job["spec"]
    }

    /// The spec of the Job's pods.
    pub(super) fn pod(&self) -> &'a Value {
        &self.job["spec"]["template"]["spec"]
    }

    /// The Job's annotations.
    pub(super) fn annotations(&self) -> &'a Value {
        &self.job["metadata"]["annotations"]
    }

    /// The annotations of the CronJob itself, which its Jobs do not get.
    pub(super) fn outer_annotations(&self) -> Option<&'a Value> {
        (!self.prefix.is_empty()).then(|| &self.object["metadata"]["annotations"])
    }

    pub(super) fn namespace(&self) -> Option<&'a str> {
        self.object["metadata"]["namespace"].as_str()
    }

    /// The rules of the podFailurePolicy.
    pub(super) fn rules(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        items(&self.spec()["podFailurePolicy"]["rules"])
    }

    /// Whether nothing of this Job can change: it has finished, or one of these CronJobs made it.
    pub(super) fn is_covered(&self, cron_jobs: &BTreeSet<Name<'_>>) -> bool {
        let has_finished = items(&self.object["status"]["conditions"]).any(|each| {
            each["status"] == "True" && (each["type"] == "Complete" || each["type"] == "Failed")
        });
        let mut owners = items(&self.object["metadata"]["ownerReferences"]);
        let is_made = owners.any(|owner| {
            let name = owner["name"].as_str().unwrap_or_default();
            owner["kind"] == "CronJob" && cron_jobs.contains(&(self.namespace(), name))
        });
        has_finished || is_made
    }

    /// A finding about a field of the Job.
    pub(super) fn found(
        &self,
        (severity, code): (Severity, FindingCode),
        field: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        let field = format!("{}{field}", self.prefix);
        self.found_outside((severity, code), field, problem, remedy)
    }

    /// A finding about a field of the object.
    pub(super) fn found_outside(
        &self,
        (severity, code): (Severity, FindingCode),
        field: String,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            code,
            subject: self.subject.clone(),
            field,
            problem: problem.into(),
            remedy: remedy.into(),
            file: None,
            line: None,
            object: self.index,
        }
    }
}

/// The CronJobs among the objects.
pub(super) fn cron_jobs(objects: &[Value]) -> BTreeSet<Name<'_>> {
    let all = objects.iter().filter(|object| object["kind"] == "CronJob");
    let names = all.filter_map(|object| {
        let metadata = &object["metadata"];
        Some((metadata["namespace"].as_str(), metadata["name"].as_str()?))
    });
    names.collect()
}
