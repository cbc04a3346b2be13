//! Tests that each end of a pod is counted once, whoever tells it.

use super::of_jobs::job;
use super::*;

/// An event on the Job `j`: this many ends alike, the last ones of these pods at these seconds.
fn ends(cause: &str, counted: &str, count: u64, pods: &[(&str, i64)]) -> Value {
    let list: Vec<Value> = pods
        .iter()
        .map(|(pod, second)| {
            json!({"pod": pod, "node": "n", "at": at(*second), "says": format!("pod {pod} ended")})
        })
        .collect();
    let own = ["ExitCode", "ContainerOOM", "StartFailed"];
    let reason = if own.contains(&cause) { "PodFailed" } else { "PodDisrupted" };
    let last = pods.iter().map(|pod| pod.1).max().unwrap_or(0) + 1;
    json!({"kind": "Event", "reason": reason, "count": count, "message": "pod p ended",
           "metadata": {"namespace": "default", "name": format!("j.{cause}.{counted}"),
                        "annotations": {
               "epilogue.dev/cause": cause, "epilogue.dev/counted": counted,
               "epilogue.dev/ends": json!(list).to_string(),
               "epilogue.dev/nodes": json!({"n": count}).to_string()}},
           "involvedObject": {"kind": "Job", "namespace": "default", "name": "j", "uid": "j"},
           "source": {"component": "job-controller"},
           "firstTimestamp": at(60), "lastTimestamp": at(last)})
}

fn drained(count: u64, pods: &[(&str, i64)]) -> Value {
    ends("EvictionByEvictionAPI", "Ignored", count, pods)
}

fn ten() -> Vec<(String, i64)> {
    (0..10).map(|number| (format!("j-aaaa{number}"), 1_000 + number)).collect()
}

/// An event with ten described ends, and this many in all.
fn many(cause: &str, counted: &str, count: u64) -> Value {
    let pods = ten();
    let pods: Vec<(&str, i64)> = pods.iter().map(|(pod, at)| (pod.as_str(), *at)).collect();
    ends(cause, counted, count, &pods)
}

/// Ends of two hours, some of which have no hour.
pub(super) fn with_a_rest() -> Value {
    let mut event = many("ExitCode", "Failed", 50);
    event["firstTimestamp"] = at(-5_000).into();
    event
}

/// An evicted pod of `j` in the API.
fn evicted(name: &str, second: i64) -> Value {
    target(failed(name, 143, "Error", second), "True", "EvictionByEvictionAPI", second)
}

/// The ends in all, the disruptions among them, and the figure of pods with their true cause.
fn sums(found: &Report) -> (u64, u64, u64) {
    let reported = found.figures.iter().filter(|it| it.name == "disruption-reported");
    let reported = reported.map(|it| it.seen + it.estimated).sum();
    (found.ends.total, found.ends.disruptions, reported)
}

fn causes(found: &Report) -> Vec<String> {
    found.ends.by_cause.iter().map(|it| format!("{} {}", it.ends, it.cause)).collect()
}

#[test]
fn a_pod_that_is_gone_is_known_by_its_job_s_event() {
    let failures = ends("ExitCode", "Failed", 2, &[("j-bbbbb", 100), ("j-ccccc", 110)]);
    let found = reported(vec![node("n"), drained(1, &[("j-aaaaa", 100)]), failures]);
    assert_eq!(sums(&found), (3, 1, 1));
    assert_eq!(causes(&found), ["1 EvictionByEvictionAPI", "2 ExitCode"]);
    assert_eq!(found.ends.by_cause[1].counted, [("Failed", 2)].into());
    let pods: Vec<String> = found.pods.iter().map(line).collect();
    assert_eq!(pods, ["j-aaaaa: disruption-reported drain seen not-needed estimated"]);
    let pod = &found.pods[0];
    assert_eq!((pod.node.as_deref(), pod.job.as_deref()), (Some("n"), Some("j")));
    assert_eq!(pod.how, "event PodDisrupted of Job j: pod j-aaaaa ended");
    let jobs: Vec<_> = found.ends.by_job.iter().map(|it| (&*it.name, it.ends)).collect();
    assert_eq!(jobs, [("j", 3)]);
    let nodes: Vec<_> =
        found.ends.by_node.iter().map(|it| (it.node.as_deref(), it.disruptions, it.ends)).collect();
    assert_eq!(nodes, [(Some("n"), 1, 3)]);
}

#[test]
fn a_pod_in_the_api_and_in_an_event_is_one_end() {
    let event = drained(1, &[("j-aaaaa", 100)]);
    let pod = evicted("j-aaaaa", 100);
    let found = reported(vec![node("n"), pod.clone(), event.clone()]);
    assert_eq!(sums(&found), (1, 1, 1));
    // Without the event, the pod's own status says the same.
    let alone = reported(vec![node("n"), pod]);
    assert_eq!(sums(&alone), (1, 1, 1));
    assert_eq!(causes(&alone), causes(&found));
    // Two events that describe it, too.
    let mut again = event.clone();
    again["metadata"]["name"] = "again".into();
    assert_eq!(sums(&reported(vec![node("n"), event, again])), (1, 1, 1));
}

#[test]
fn a_pod_of_an_agent_s_event_and_of_its_job_s_is_one_end() {
    let stopped = of_agent("j-aaaaa", "PodStopped", 90);
    let event = ends("TerminationByKubelet", "Ignored", 1, &[("j-aaaaa", 100)]);
    let found = reported(vec![node("n"), stopped, event]);
    assert_eq!(sums(&found), (1, 1, 1));
    let pods: Vec<String> = found.pods.iter().map(line).collect();
    assert_eq!(pods, ["j-aaaaa: disruption-reported node-shutdown seen acted seen"]);
    assert_eq!(found.pods[0].job.as_deref(), Some("j"));
    // Its last status is known by its Job's event: it failed without DisruptionTarget.
    let would = of_agent("j-aaaaa", "PodWouldBeDisrupted", 90);
    let event = ends("ExitCode", "Failed", 1, &[("j-aaaaa", 100)]);
    let found = reported(vec![node("n"), would, event]);
    assert_eq!((found.ends.total, causes(&found)), (1, vec!["1 ExitCode".to_owned()]));
    let pods: Vec<String> = found.pods.iter().map(line).collect();
    let expected = "failure-without-disruption-target node-shutdown seen would-have-acted seen";
    assert_eq!(pods, [format!("j-aaaaa: {expected}")]);
}

#[test]
fn pods_that_others_tell_are_among_those_that_an_event_only_counts() {
    let event = many("EvictionByEvictionAPI", "Ignored", 13);
    let with = |more: Vec<Value>| {
        let all = [vec![node("n"), event.clone()], more].concat();
        sums(&reported(all))
    };
    let pod = |number: i64| evicted(&format!("j-bbbb{number}"), 500 + number);
    assert_eq!(with(vec![]), (13, 13, 13));
    assert_eq!(with(vec![pod(0), pod(1)]), (13, 13, 13));
    // Five do not fit into three.
    assert_eq!(with((0..5).map(pod).collect()), (15, 15, 15));
    // An event about a pod does not name its Job, but the pod's name does.
    let preempted = |name: &str| event_of_scheduler(name, 500);
    assert_eq!(with(vec![preempted("j-bbbbb"), preempted("j-0-bbbbb")]), (13, 13, 13));
    assert_eq!(with(vec![preempted("k-bbbbb")]), (14, 14, 14));
    // It ended after all of the rest did.
    assert_eq!(with(vec![evicted("j-late1", 3_000)]), (14, 14, 14));
}

fn event_of_scheduler(pod: &str, second: i64) -> Value {
    event("default-scheduler", "Pod", pod, "Preempted", second)
}

#[test]
fn ends_are_in_the_hour_in_which_they_are_known_to_be() {
    let hours = |found: &Report| {
        let all = found.ends.by_hour.iter();
        all.map(|it| format!("{} {}", it.at.strftime("%H"), it.ends)).collect::<Vec<_>>()
    };
    // The rest is between 12:01 and 12:16.
    let found = reported(vec![node("n"), many("ExitCode", "Failed", 50)]);
    assert_eq!((hours(&found), found.ends.between.len()), (vec!["12 50".to_owned()], 0));
    let mut event = with_a_rest();
    let found = reported(vec![node("n"), event.clone()]);
    assert_eq!(hours(&found), ["12 10"]);
    let between = &found.ends.between[0];
    assert_eq!((between.from.to_string(), between.to.to_string()), (at(-5_000), at(1_000)));
    assert_eq!((between.ends, found.ends.total), (40, 50));
    // It began before the report does: which of the rest belong to it is not known.
    event["firstTimestamp"] = at(-90_000).into();
    let found = reported(vec![node("n"), event]);
    assert_eq!((found.ends.total, found.ends.by_node[0].ends), (10, 10));
    let texts: Vec<&str> = found.not_known.iter().map(|it| it.text.as_str()).collect();
    assert!(texts.iter().any(|text| text.contains("40 further ends")), "{texts:?}");
    let old = ends("ExitCode", "Failed", 1, &[("j-aaaaa", -90_000)]);
    assert_eq!(reported(vec![node("n"), old]).ends.total, 0);
}

#[test]
fn events_of_others_tell_no_ends() {
    let mut of_other = drained(1, &[("j-aaaaa", 100)]);
    of_other["source"]["component"] = "kubelet".into();
    let mut without = drained(1, &[("j-aaaaa", 100)]);
    without["metadata"]["annotations"] = Value::Null;
    let found = reported(vec![node("n"), of_other, without]);
    assert_eq!(sums(&found), (0, 0, 0));
    // Without the right to list pods, events tell what they can.
    let mut only = input(vec![drained(1, &[("j-aaaaa", 100)])]);
    only.read.retain(|kind| *kind != Kind::Pod);
    assert_eq!(sums(&report(&only).expect("must be readable")), (1, 1, 1));
}

/// The Job `j` that failed with this reason and message, and no pod that is left.
fn failed_job(failures: u64, reason: &str, message: &str) -> Value {
    let condition = json!({"type": "Failed", "status": "True", "reason": reason,
                           "message": message, "lastTransitionTime": at(800)});
    job("j", failures, &json!([condition]))
}

#[track_caller]
fn assert_failed(job: Value, events: Vec<Value>, expected: Option<&str>) {
    let mut objects = vec![node("n"), job];
    objects.extend(events);
    let found = reported(objects).jobs;
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let found: Vec<String> =
        found.iter().map(|it| format!("{} {}", it.disruptions, word(json!(it.basis)))).collect();
    assert_eq!(found, Vec::from_iter(expected));
}

#[test]
fn a_job_that_failed_by_pods_that_are_gone_is_found() {
    let exceeded = |failures| failed_job(failures, "BackoffLimitExceeded", "");
    let evicted = |counted: &str, count| {
        ends("EvictionByEvictionAPI", counted, count, &[("j-aaaaa", 100), ("j-bbbbb", 110)])
    };
    assert_failed(exceeded(2), vec![evicted("Failed", 2)], Some("2 seen"));
    // Those that are only counted count, too: backoffLimit is 1.
    assert_failed(exceeded(5), vec![evicted("Failed", 4)], Some("4 seen"));
    assert_failed(exceeded(5), vec![evicted("Failed", 3)], None);
    assert_failed(exceeded(2), vec![evicted("Ignored", 2)], None);
    let own = ends("ExitCode", "Failed", 2, &[("j-aaaaa", 100)]);
    assert_failed(exceeded(2), vec![own], None);
    // Of an earlier Job of the same name.
    let mut earlier = evicted("Failed", 2);
    earlier["involvedObject"]["uid"] = "earlier".into();
    assert_failed(exceeded(2), vec![earlier], None);
    let by_rule = failed_job(1, "PodFailurePolicy", "Pod default/x matches");
    assert_failed(by_rule.clone(), vec![evicted("JobFailed", 1)], Some("2 seen"));
    assert_failed(by_rule, vec![evicted("Failed", 1)], None);
}

#[test]
fn a_condition_s_message_is_enough_when_pods_and_events_are_gone() {
    let says = |failures, rest: &str| {
        let message = format!("Job has reached the specified backoff limit{rest}");
        failed_job(failures, "BackoffLimitExceeded", &message)
    };
    let one = ": 1 failure of 0 allowed; pod j-aaaaa on n was disrupted (EvictionByEvictionAPI)";
    let mut job = says(1, one);
    job["spec"]["backoffLimit"] = 0.into();
    assert_failed(job.clone(), Vec::new(), Some("1 seen"));
    // The event tells the same end.
    let event = ends("EvictionByEvictionAPI", "Failed", 1, &[("j-aaaaa", 100)]);
    assert_failed(job, vec![event], Some("1 seen"));
    let most = ": 3 failures of 1 allowed (2 NodeGone, 1 ExitCode); the last: pod j-aaaaa";
    assert_failed(says(3, most), Vec::new(), Some("2 seen"));
    let few = ": 3 failures of 1 allowed (2 ExitCode, 1 NodeGone); the last: pod j-aaaaa";
    assert_failed(says(3, few), Vec::new(), None);
    let limit = "Job exceeded its disruption limit: 3 disruptions of 2 allowed (3 NodeGone)";
    assert_failed(failed_job(0, "DisruptionLimitExceeded", limit), Vec::new(), Some("3 seen"));
}
