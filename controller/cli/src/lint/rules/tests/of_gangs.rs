//! Tests the checks of gangs.

use super::*;

const GANG: &str = "spec.scheduling.schedulingPolicy.gang";

/// A policy that asks for a gang, with these fields.
fn gang(fields: &Value) -> Value {
    json!({"schedulingPolicy": {"gang": fields}})
}

/// A Job of ours with this `spec.scheduling` and this parallelism.
fn scheduled(scheduling: Value, parallelism: Value) -> Value {
    let mut job = job(json!({"activeDeadlineSeconds": 3600}));
    job["spec"]["scheduling"] = scheduling;
    job["spec"]["parallelism"] = parallelism;
    job
}

fn owned(mut job: Value, kind: &str, controller: bool) -> Value {
    job["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "x/v1", "kind": kind, "name": "parent", "controller": controller}]);
    job
}

fn delegated(job: Value) -> Value {
    annotated(job, json!({"scheduling.k8s.io/group-template-name": "workers"}))
}

fn cron_job(job: &Value) -> Value {
    json!({
        "kind": "CronJob", "metadata": {"name": "nightly"},
        "spec": {"jobTemplate": {"metadata": job["metadata"], "spec": job["spec"]}},
    })
}

#[test]
fn a_job_with_a_controller_needs_the_annotation_for_its_gang() {
    let job = || scheduled(gang(&json!({"minCount": 2})), json!(2));
    let found = one(owned(job(), "JobSet", true), Code::GangNotMade, Severity::Warning, GANG);
    assert!(found.problem.starts_with("JobSet parent controls the Job"), "{found:?}");
    assert!(found.remedy.contains("scheduling.k8s.io/group-template-name"), "{found:?}");
    clean(job());
    clean(owned(job(), "JobSet", false));
    clean(owned(delegated(job()), "JobSet", true));
    let basic = json!({"schedulingPolicy": {"basic": {}}});
    clean(owned(scheduled(basic, json!(2)), "JobSet", true));
    clean(owned(scheduled(json!({}), json!(2)), "JobSet", true));
}

#[test]
fn a_cron_job_makes_no_gang() {
    let template = scheduled(gang(&json!({})), json!(2));
    let field = "spec.jobTemplate.spec.scheduling.schedulingPolicy.gang";
    let found = one(cron_job(&template), Code::GangNotMade, Severity::Warning, field);
    assert!(found.problem.starts_with("a CronJob makes no Workload"), "{found:?}");
    assert!(found.remedy.contains("spec.controllerRef"), "{found:?}");
    clean(cron_job(&delegated(template)));
    // One that its CronJob has made, in a list without the CronJob.
    let made = owned(scheduled(gang(&json!({})), json!(2)), "CronJob", true);
    one(made, Code::GangNotMade, Severity::Warning, GANG);
}

#[test]
fn a_group_of_the_template_wins() {
    let grouped = |mut job: Value| {
        job["spec"]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        job
    };
    for scheduling in [gang(&json!({})), json!({"disruptionMode": {"all": {}}})] {
        let job = grouped(scheduled(scheduling, json!(2)));
        let code = Code::SchedulingWithoutEffect;
        one(owned(job.clone(), "JobSet", true), code, Severity::Warning, "spec.scheduling");
        one(job, code, Severity::Warning, "spec.scheduling");
    }
    clean(grouped(scheduled(json!(null), json!(2))));
}

#[test]
fn a_gang_is_not_larger_than_the_parallelism() {
    let field = "spec.scheduling.schedulingPolicy.gang.minCount";
    let table = [(json!(2), 3, "parallelism (2)"), (json!(null), 2, "(1)"), (json!(0), 1, "(0)")];
    for (parallelism, count, words) in table {
        let job = scheduled(gang(&json!({"minCount": count})), parallelism);
        let found = one(job, Code::MinCountOverParallelism, Severity::Error, field);
        assert!(found.problem.contains(words) && found.problem.contains("refuses"), "{found:?}");
    }
    clean(scheduled(gang(&json!({"minCount": 2})), json!(2)));
    clean(scheduled(gang(&json!({"minCount": 1})), json!(null)));
}

#[test]
fn a_gang_is_not_larger_than_the_completions() {
    let sized = |fields: Value, parallelism: i32, completions: Value| {
        let mut job = scheduled(gang(&fields), json!(parallelism));
        job["spec"]["completions"] = completions;
        job
    };
    let code = Code::MinCountOverCompletions;
    let given = sized(json!({"minCount": 3}), 3, json!(2));
    let found = one(given, code, Severity::Error, &format!("{GANG}.minCount"));
    assert!(found.problem.starts_with("3 is greater than completions (2)"), "{found:?}");
    let found = one(sized(json!({}), 3, json!(2)), code, Severity::Error, GANG);
    assert!(found.problem.starts_with("minCount is parallelism (3)"), "{found:?}");
    // A root has its own gang, whatever its annotation says.
    one(delegated(sized(json!({}), 3, json!(2))), code, Severity::Error, GANG);
    for completions in [json!(3), json!(4), json!(0), json!(null)] {
        clean(sized(json!({}), 3, completions));
    }
    clean(sized(json!({"minCount": 2}), 3, json!(2)));
    // Where the Job's own gang is not made, or the API refuses it, that is the finding.
    let small = || sized(json!({}), 3, json!(2));
    clean(owned(delegated(small()), "JobSet", true));
    one(owned(small(), "JobSet", true), Code::GangNotMade, Severity::Warning, GANG);
    let refused = sized(json!({"minCount": 4}), 3, json!(2));
    let field = format!("{GANG}.minCount");
    one(refused, Code::MinCountOverParallelism, Severity::Error, &field);
    let mut grouped = small();
    grouped["spec"]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
    one(grouped, Code::SchedulingWithoutEffect, Severity::Warning, "spec.scheduling");
}
