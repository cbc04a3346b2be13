//! Tests `epilogue.dev/replace-early`.

use serde_json::json;

use super::builders::{Effects, JobBuilder, PodBuilder, api, job, pod, sync, uid};

const DISRUPTION_TARGET: &str = "DisruptionTarget";

fn early(job: JobBuilder) -> JobBuilder {
    job.with(|job| job["metadata"]["annotations"]["epilogue.dev/replace-early"] = "true".into())
}

fn runs(name: &str) -> PodBuilder {
    pod(name, "Running").on_node()
}

/// A pod that is about to end.
fn ending(name: &str) -> PodBuilder {
    runs(name).condition(DISRUPTION_TARGET)
}

fn done(job: JobBuilder, pods: Vec<PodBuilder>) -> Effects {
    sync(&mut api(job, pods))
}

#[test]
fn pod_that_is_about_to_end_is_replaced_while_it_runs_if_that_is_asked_for() {
    let created = |job: JobBuilder| {
        let effects = done(job, vec![ending("a"), runs("b")]);
        assert_eq!((effects.failed, effects.deleted), (0, Vec::<String>::new()));
        effects.created.len()
    };
    assert_eq!(created(early(job().size(2, 5))), 1);
    assert_eq!(created(early(job().size(2, None))), 1);
    assert_eq!(created(job().size(2, 5)), 0);
    let off = |job: JobBuilder| {
        job.with(|it| it["metadata"]["annotations"]["epilogue.dev/replace-early"] = "false".into())
    };
    assert_eq!(created(off(job().size(2, 5))), 0);
}

#[test]
fn no_more_than_parallelism_and_those_that_are_about_to_end() {
    let both = || vec![ending("a"), ending("b")];
    assert_eq!(done(early(job().size(2, 5)), both()).created.len(), 2);
    let with_successors = [both(), vec![runs("c"), pod("d", "Pending")]].concat();
    let effects = done(early(job().size(2, 5)), with_successors);
    assert_eq!((effects.created.len(), effects.deleted.len(), effects.active), (0, 0, 4));
    // What is left to do is less than parallelism.
    let mut last = early(job().size(2, 5)).status("succeeded", 4);
    last = last.status("startTime", super::builders::ago(100).to_string());
    let effects = done(last, vec![ending("a"), runs("b")]);
    assert_eq!((effects.created.len(), effects.deleted.len()), (0, 0));
}

#[test]
fn successor_has_the_same_index() {
    let pods = || vec![ending("a").index(0), runs("b").index(1)];
    let effects = done(early(job().size(2, 5).indexed()), pods());
    assert_eq!(effects.created_indexes(), [0]);
    let two = [pods(), vec![pod("c", "Pending").index(0)]].concat();
    let effects = done(early(job().size(2, 5).indexed()), two);
    assert_eq!((effects.created_indexes().len(), effects.deleted.len()), (0, 0), "both stay");
}

#[test]
fn successor_goes_where_the_disruption_is_called_off() {
    for is_indexed in [false, true] {
        let of = |pod: PodBuilder, index| if is_indexed { pod.index(index) } else { pod };
        let job = early(job().size(2, 5));
        let job = if is_indexed { job.indexed() } else { job };
        let pods = vec![of(runs("a"), 0), of(runs("b"), 1), of(runs("c").created(1), 0)];
        assert_eq!(done(job, pods).deleted, ["c"], "{is_indexed}");
    }
}

#[test]
fn successor_of_an_index_that_succeeds_after_all_goes_and_no_other_pod() {
    let indexed = || early(job().size(3, 5).indexed()).completed("0");
    // The successor is the oldest of them, and two more indexes are to be done.
    let pods = vec![
        runs("c").index(0).created(500),
        runs("b").index(1),
        pod("d", "Pending").index(2).created(1),
    ];
    assert_eq!(done(indexed(), pods).deleted, ["c"]);
}

#[test]
fn pod_whose_successor_has_done_its_work_goes() {
    let job = early(job().size(2, 5).indexed()).completed("0");
    let pods = vec![ending("a").index(0), runs("b").index(1), runs("c").index(2)];
    assert_eq!(done(job, pods).deleted, ["a"]);
    let last = early(job_of_one()).status("succeeded", 1);
    assert_eq!(done(last, vec![ending("a")]).deleted, ["a"]);
    let last = early(job_of_one().indexed()).completed("0");
    assert_eq!(done(last, vec![ending("a").index(0)]).deleted, ["a"]);
}

fn job_of_one() -> JobBuilder {
    job().size(1, 1)
}

#[test]
fn pod_that_fails_after_its_successor_began_counts_once_and_is_not_replaced_again() {
    let pods = vec![
        pod("a", "Failed").on_node().condition(DISRUPTION_TARGET),
        runs("b"),
        pod("c", "Pending"),
    ];
    let effects = done(early(job().size(2, 5)), pods);
    assert_eq!((effects.failed, effects.created.len(), effects.deleted.len()), (1, 0, 0));
}

#[test]
fn work_queue_that_has_succeeded_gets_no_more_pods() {
    let job = early(job().size(2, None)).status("succeeded", 1);
    assert_eq!(done(job, vec![ending("a"), runs("b")]).created.len(), 0);
}

#[test]
fn job_whose_spec_forbids_two_pods_of_a_place_keeps_to_that_and_says_so() {
    let rows: [(JobBuilder, &str); 3] = [
        (job().size(2, 5).replaces_failed(), "podReplacementPolicy is Failed"),
        (job().size(2, 5).failure_policy(json!([])), "podFailurePolicy"),
        (job().size(2, 5).indexed().spec("backoffLimitPerIndex", 1), "backoffLimitPerIndex"),
    ];
    for (job, why) in rows {
        let pods = vec![ending("a").index(0), runs("b").index(1)];
        let mut api = api(early(job), pods);
        let options = crate::job::Options::read(&api.job, &api.settings);
        assert!(options.problems.iter().any(|problem| problem.contains(why)), "{options:?}");
        assert_eq!(sync(&mut api).created.len(), 0, "{why}");
    }
}

#[test]
fn member_of_a_group_is_left_alone() {
    let grouped = |pod: PodBuilder| {
        pod.with(|pod| pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"}))
    };
    let pods = vec![grouped(ending("a")), grouped(runs("b"))];
    assert_eq!(done(early(job().size(2, 5)), pods).created.len(), 0);
}

/// What a sync does where notice was given of the end of these pods' nodes.
fn noticed(job: JobBuilder, pods: Vec<PodBuilder>, names: &[&str]) -> Effects {
    let mut api = api(job, pods);
    api.memory.noticed = names.iter().map(|name| uid(name)).collect();
    sync(&mut api)
}

#[test]
fn pod_on_a_node_that_ends_is_replaced_at_the_notice_if_that_is_asked_for() {
    let pods = || vec![runs("a"), runs("b")];
    let effects = noticed(early(job().size(2, 5)), pods(), &["a"]);
    assert_eq!((effects.created.len(), effects.deleted.len(), effects.failed), (1, 0, 0));
    assert_eq!(noticed(job().size(2, 5), pods(), &["a"]).created.len(), 0);
    let indexed = || vec![runs("a").index(0), runs("b").index(1)];
    let effects = noticed(early(job().size(2, 5).indexed()), indexed(), &["b"]);
    assert_eq!(effects.created_indexes(), [1]);
    // What has done its work, or is about to be deleted anyway, is not replaced.
    let effects = noticed(early(job().size(2, 5).indexed()).completed("1"), indexed(), &["b"]);
    assert_eq!((effects.created_indexes(), effects.deleted), (vec![], vec!["b".to_owned()]));
}

#[test]
fn successors_of_a_notice_are_at_most_parallelism() {
    let all = ["a", "b", "c", "d"];
    let with = |pods: Vec<PodBuilder>| noticed(early(job().size(2, 9)), pods, &all);
    // Each successor came to a node of which notice was given, too.
    let four = vec![runs("a"), runs("b"), runs("c").created(1), runs("d").created(1)];
    let effects = with(four.clone());
    assert_eq!((effects.created.len(), effects.deleted.len()), (0, 0));
    // What has its mark counts, and comes first.
    let mut marked = four;
    marked[2] = ending("c").created(1);
    marked[3] = ending("d").created(1);
    let effects = with(marked);
    assert_eq!((effects.created.len(), effects.deleted.len()), (0, 0));
}

#[test]
fn successor_goes_where_the_notice_is_withdrawn() {
    let pods = || vec![runs("a"), runs("b"), runs("c").created(1)];
    assert_eq!(noticed(early(job().size(2, 5)), pods(), &["a"]).deleted, Vec::<String>::new());
    assert_eq!(noticed(early(job().size(2, 5)), pods(), &[]).deleted, ["c"]);
}
