//! Judges manifests for `kubectl epilogue lint`: what a Job or CronJob says that the API refuses,
//! that can never happen, or that its author probably did not mean.

mod annotations;
mod exit_codes;
mod facts;
mod failure_policy;
mod finding;
mod gang;
mod limits;
mod manifest;
mod pod_template;
mod quantity;
mod quota;
mod shadowed;
#[cfg(test)]
mod tests;
mod value_type;

pub(crate) use facts::Facts;
pub(crate) use finding::Finding;

use serde_json::Value;

use manifest::Manifest;
use quota::Quotas;

/// The findings, and how many objects were judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Jobs and CronJobs that were judged.
    pub(crate) judged: usize,
    /// In the order of the objects.
    pub(crate) findings: Vec<Finding>,
}

/// Judges all Jobs and CronJobs among the objects, with the ResourceQuotas among them. Finished
/// Jobs and those of a CronJob that is among the objects are left out: nothing of them can change.
pub(crate) fn lint(objects: &[Value], facts: Facts) -> Report {
    let quotas = Quotas::read(objects);
    let all = objects.iter().enumerate().filter_map(|each| Manifest::read(each, facts));
    let cron_jobs = manifest::cron_jobs(objects);
    let mut report = Report::default();
    for manifest in all.filter(|manifest| !manifest.is_covered(&cron_jobs)) {
        report.judged += 1;
        report.findings.extend(value_type::findings(&manifest));
        report.findings.extend(annotations::findings(&manifest));
        report.findings.extend(failure_policy::findings(&manifest));
        report.findings.extend(shadowed::findings(&manifest));
        report.findings.extend(limits::findings(&manifest));
        report.findings.extend(pod_template::findings(&manifest));
        report.findings.extend(gang::findings(&manifest));
        report.findings.extend(quota::findings(&manifest, &quotas));
    }
    report
}
