//! Checks a Job's status against the API's validation before it is written. ([X5])

use std::collections::HashSet;

use epilogue_common::names::job_condition::{
    COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET, SUSPENDED,
};
use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};

use crate::index_set::IndexSet;
use crate::view::Job;

/// The rules by which the API would refuse this status; empty if it would take it.
pub fn violations(job: &Job, new: &JobStatus) -> Vec<String> {
    let change = Change { job, old: &job.status, new };
    let mut found = Vec::new();
    change.counters(&mut found);
    change.conditions(&mut found);
    change.terminal(&mut found);
    change.times(&mut found);
    change.indexes(&mut found);
    found.into_iter().map(str::to_owned).collect()
}

struct Change<'a> {
    job: &'a Job,
    old: &'a JobStatus,
    new: &'a JobStatus,
}

fn is_true(status: &JobStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|each| each.type_ == kind && each.status == "True")
}

fn is_finished(status: &JobStatus) -> bool {
    is_true(status, COMPLETE) || is_true(status, FAILED)
}

fn uncounted(status: &JobStatus) -> Vec<&String> {
    let none = const { &UncountedTerminatedPods { failed: None, succeeded: None } };
    let lists = status.uncounted_terminated_pods.as_ref().unwrap_or(none);
    lists.succeeded.iter().chain(&lists.failed).flatten().collect()
}

impl Change<'_> {
    fn both(&self, holds: impl Fn(&JobStatus) -> bool) -> (bool, bool) {
        (holds(self.old), holds(self.new))
    }

    fn changed<T: PartialEq>(&self, of: impl Fn(&JobStatus) -> T) -> bool {
        of(self.old) != of(self.new)
    }

    fn counters(&self, found: &mut Vec<&'static str>) {
        let new = self.new;
        let counters = [new.active, new.succeeded, new.failed, new.ready, new.terminating];
        if counters.into_iter().flatten().any(|count| count < 0) {
            found.push("a counter is negative");
        }
        let listed = uncounted(new);
        let distinct: HashSet<_> = listed.iter().collect();
        if distinct.len() != listed.len() || listed.iter().any(|uid| uid.is_empty()) {
            found.push("uncountedTerminatedPods has an empty or a repeated UID");
        }
        let number = |count: Option<i32>| count.unwrap_or(0);
        let readiness = self.changed(|it| it.ready) || self.changed(|it| number(it.active));
        if readiness && number(new.ready) > number(new.active) {
            found.push("ready is more than active");
        }
        if number(new.failed) < number(self.old.failed) {
            found.push("failed decreases");
        }
        let spec = &self.job.spec;
        let elastic = self.job.is_indexed() && spec.completions == Some(spec.parallelism);
        if !elastic && number(new.succeeded) < number(self.old.succeeded) {
            found.push("succeeded decreases");
        }
    }

    fn conditions(&self, found: &mut Vec<&'static str>) {
        let sticky = [FAILED, COMPLETE, FAILURE_TARGET, SUCCESS_CRITERIA_MET];
        if sticky.iter().any(|kind| self.both(|it| is_true(it, kind)) == (true, false)) {
            found.push("a condition that ends the Job is taken back");
        }
        let has = |kind| is_true(self.new, kind);
        let ends = self.changed(|it| (is_true(it, COMPLETE), is_true(it, FAILED)));
        if ends && has(COMPLETE) && has(FAILED) {
            found.push("both Complete and Failed");
        }
        let target = self.changed(|it| (is_true(it, COMPLETE), is_true(it, FAILURE_TARGET)));
        if target && has(COMPLETE) && has(FAILURE_TARGET) {
            found.push("both Complete and FailureTarget");
        }
        if has(SUCCESS_CRITERIA_MET) && (has(FAILED) || has(FAILURE_TARGET)) {
            found.push("SuccessCriteriaMet together with Failed or FailureTarget");
        }
        let late = self.both(|it| is_true(it, SUCCESS_CRITERIA_MET)) == (false, true);
        if late && is_true(self.old, COMPLETE) {
            found.push("SuccessCriteriaMet added to a Complete Job");
        }
        let success = self.changed(|it| (is_true(it, COMPLETE), is_true(it, SUCCESS_CRITERIA_MET)))
            || self.job.spec.success_policy.is_some();
        if success && has(COMPLETE) && !has(SUCCESS_CRITERIA_MET) {
            found.push("Complete without SuccessCriteriaMet");
        }
        let failure =
            self.changed(|it| is_true(it, FAILED)) || self.changed(|it| it.failed_indexes.clone());
        if failure && has(FAILED) && !has(FAILURE_TARGET) {
            found.push("Failed without FailureTarget");
        }
    }

    fn terminal(&self, found: &mut Vec<&'static str>) {
        if !is_finished(self.new) {
            return;
        }
        let new = self.new;
        let finishes = self.changed(is_finished);
        let number = |count: Option<i32>| count.unwrap_or(0);
        if (finishes || self.changed(|it| number(it.active))) && number(new.active) > 0 {
            found.push("finished with active pods");
        }
        if (finishes || self.changed(|it| it.terminating)) && number(new.terminating) > 0 {
            found.push("finished with terminating pods");
        }
        let lists = self.changed(|it| it.uncounted_terminated_pods.clone());
        if (finishes || lists) && !uncounted(new).is_empty() {
            found.push("finished with uncounted pods");
        }
        let exempt = self.job.spec.suspend && self.job.spec.completions == Some(0);
        let starts = finishes || self.changed(|it| it.start_time.clone());
        if starts && new.start_time.is_none() && !exempt {
            found.push("finished without startTime");
        }
    }

    fn times(&self, found: &mut Vec<&'static str>) {
        let new = self.new;
        let complete = is_true(new, COMPLETE);
        let completion = self.changed(|it| (is_true(it, COMPLETE), it.completion_time.clone()));
        if completion && complete != new.completion_time.is_some() {
            found.push("completionTime and Complete do not go together");
        }
        let either = self.changed(|it| (it.completion_time.clone(), it.start_time.clone()));
        if either && new.completion_time.is_some() && new.completion_time < new.start_time {
            found.push("completionTime is before startTime");
        }
        let set = self.old.completion_time.is_some();
        if set && self.changed(|it| it.completion_time.clone()) {
            found.push("completionTime is changed");
        }
        let resumes = self.both(|it| is_true(it, SUSPENDED)) == (true, false);
        let started = self.old.start_time.is_some() && !self.job.spec.suspend;
        if started && !resumes && self.changed(|it| it.start_time.clone()) {
            found.push("startTime is changed");
        }
    }

    fn indexes(&self, found: &mut Vec<&'static str>) {
        let new = self.new;
        let completed = new.completed_indexes.as_deref().unwrap_or_default();
        let failed = new.failed_indexes.as_deref().unwrap_or_default();
        let completed_changed = self.changed(|it| it.completed_indexes.clone());
        let failed_changed = self.changed(|it| it.failed_indexes.clone());
        let bound = self.job.index_bound();
        let is_canonical = |text: &str| IndexSet::parse(text, bound).to_string() == text;
        if completed_changed && self.job.is_indexed() && !is_canonical(completed) {
            found.push("completedIndexes does not parse");
        }
        if completed_changed && !self.job.is_indexed() && !completed.is_empty() {
            found.push("completedIndexes of a NonIndexed Job");
        }
        let per_index = self.job.spec.backoff_limit_per_index.is_some();
        if failed_changed && per_index && !is_canonical(failed) {
            found.push("failedIndexes does not parse");
        }
        if failed_changed && !per_index && new.failed_indexes.is_some() {
            found.push("failedIndexes without backoffLimitPerIndex");
        }
        let overlap =
            IndexSet::parse(completed, bound).intersection_size(&IndexSet::parse(failed, bound));
        if (completed_changed || failed_changed) && per_index && overlap > 0 {
            found.push("an index is both completed and failed");
        }
    }
}
