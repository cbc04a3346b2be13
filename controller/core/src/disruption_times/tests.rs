//! Shows pods of a Job one change at a time, and reads what was measured.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::event_handlers::samples::{job, pod};

const SHUTDOWN: &str = "Pod was terminated in response to imminent node shutdown.";

/// A time so many milliseconds after the beginning of every test.
fn at(millis: i64) -> Timestamp {
    let begin = Timestamp::from_second(1_700_000_000).expect("a time in range");
    begin + SignedDuration::from_millis(millis)
}

/// A pod of a Job: Running, unless it is changed.
#[derive(Clone)]
struct Shape(Value);

fn shape(name: &str) -> Shape {
    Shape(json!({
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": {},
                     "creationTimestamp": at(-100_000).to_string()},
        "status": {"phase": "Running", "conditions": [], "containerStatuses": [
            {"name": "main", "state": {"running": {"startedAt": at(-90_000).to_string()}}}]},
    }))
}

impl Shape {
    fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.0);
        self
    }

    fn phase(self, phase: &str) -> Self {
        self.with(|pod| pod["status"]["phase"] = phase.into())
    }

    fn pending(self) -> Self {
        self.phase("Pending").with(|pod| pod["status"]["containerStatuses"] = json!([]))
    }

    fn index(self, index: u32) -> Self {
        self.with(|pod| {
            let name = "batch.kubernetes.io/job-completion-index";
            pod["metadata"]["annotations"][name] = index.to_string().into();
        })
    }

    fn marked_by(self, reason: &str, message: &str) -> Self {
        self.with(|pod| {
            pod["status"]["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": reason,
                "message": message, "lastTransitionTime": at(-5_000).to_string()}]);
        })
    }

    fn marked(self) -> Self {
        self.marked_by("TerminationByKubelet", SHUTDOWN)
    }

    fn ends_at(self, millis: i64) -> Self {
        self.with(|pod| {
            pod["metadata"]["annotations"]["epilogue.dev/ends-at"] = at(millis).to_string().into();
        })
    }

    fn deleting(self) -> Self {
        self.with(|pod| pod["metadata"]["deletionTimestamp"] = at(30_000).to_string().into())
    }

    /// Ended by its status at this time.
    fn failed(self, millis: i64) -> Self {
        self.phase("Failed").with(|pod| {
            pod["status"]["containerStatuses"] = json!([{"name": "main", "state": {"terminated": {
                "exitCode": 143, "startedAt": at(-90_000).to_string(),
                "finishedAt": at(millis).to_string()}}}]);
        })
    }
}

/// Shows changes of pods of one Job.
struct World {
    times: DisruptionTimes,
    job: Job,
    pods: BTreeMap<String, Pod>,
    node_sign: Option<Timestamp>,
    is_listed: bool,
}

fn world(mode: &str) -> World {
    let job = job(json!({"metadata": {"name": "a", "uid": "job"},
                         "spec": {"completionMode": mode, "completions": 9}}));
    let (times, pods) = (DisruptionTimes::default(), BTreeMap::new());
    World { times, job, pods, node_sign: None, is_listed: false }
}

/// One disruption of the pod `old`, from its mark to a new pod that runs.
fn whole(world: &mut World) -> Vec<String> {
    world.show(-9_000, &shape("old"));
    let mut all = world.show(0, &shape("old").marked());
    all.extend(world.show(2_000, &shape("old").marked().failed(1_500)));
    all.extend(world.show(2_500, &shape("new").pending()));
    all.extend(world.show(4_000, &shape("new")));
    all
}

impl World {
    fn see(&mut self, name: &str, after: Option<Pod>, millis: i64) -> Vec<String> {
        let before = self.pods.remove(name);
        let sight = Sight {
            before: before.as_ref(),
            after: after.as_ref(),
            job: &self.job,
            node_sign: self.node_sign,
            is_listed: self.is_listed,
        };
        let is_known = before.as_ref().or(after.as_ref()).is_some_and(|it| self.times.concerns(it));
        let is_new = after.as_ref().is_some_and(|it| self.times.concerns(it));
        let seen = if is_known || is_new {
            self.times.see(&sight, at(millis))
        } else {
            Observations::default()
        };
        assert!(self.times.0.is_sound());
        self.pods.extend(after.map(|pod| (name.to_owned(), pod)));
        let seconds = |it: Duration| format!("{}", it.as_secs_f64());
        let phases = seen
            .phases
            .iter()
            .map(|it| format!("{} {} {}", it.source.label(), it.phase.label(), seconds(it.after)));
        let lost = seen.lost_work.iter();
        let lost = lost.map(|(of, work)| format!("{} lost {}", of.label(), seconds(*work)));
        let gaps = seen.gaps.iter();
        let gaps = gaps.map(|(of, gap)| format!("{} gap {}", of.label(), seconds(*gap)));
        phases.chain(lost).chain(gaps).collect()
    }

    fn show(&mut self, millis: i64, shape: &Shape) -> Vec<String> {
        let pod = pod(shape.0.clone());
        let name = Arc::clone(&pod.name);
        self.see(&name, Some(pod), millis)
    }

    fn lose(&mut self, millis: i64, name: &str) -> Vec<String> {
        self.see(name, None, millis)
    }
}

fn nothing() -> Vec<String> {
    Vec::new()
}

#[test]
fn each_phase_is_measured_from_the_mark() {
    let mut world = world("NonIndexed");
    assert_eq!(
        whole(&mut world),
        [
            "shutdown marked 0",
            "shutdown ended 1.5",
            "shutdown reported 2",
            "shutdown lost 91.5",
            "shutdown replaced 2.5",
            "shutdown running 4",
            "shutdown gap 2.5",
        ]
    );
    assert!(world.times.is_empty());
}

/// The announcement of the node comes before the marks of its pods.
#[test]
fn the_first_sign_is_the_announcement_of_the_node() {
    let mut world = world("NonIndexed");
    world.node_sign = Some(at(-750));
    world.show(-9_000, &shape("old"));
    let marked = world.show(0, &shape("old").marked().ends_at(119_250));
    assert_eq!(marked, ["shutdown marked 0.75", "shutdown notice 120"]);
    assert_eq!(world.show(10, &shape("old").marked().ends_at(200_000)), nothing());
    // Pressure has nothing to do with it, nor had a pod that was not there.
    world.show(0, &shape("low"));
    let low = shape("low").marked_by("TerminationByKubelet", "The node was low on resource: pids.");
    assert_eq!(world.show(1, &low), ["pressure marked 0"]);
    let young = shape("young").with(|pod| {
        pod["metadata"]["creationTimestamp"] = at(-500).to_string().into();
    });
    world.show(0, &young);
    assert_eq!(world.show(500, &young.marked()), ["shutdown marked 1"]);
}

#[test]
fn each_source_has_its_label() {
    let kubelet = "TerminationByKubelet";
    for (reason, message, source) in [
        (kubelet, SHUTDOWN, "shutdown"),
        (kubelet, "The node was low on resource: memory. Threshold quantity: 2Gi", "pressure"),
        (kubelet, "The node had condition: [DiskPressure]. ", "pressure"),
        (kubelet, "Pod was preempted by Kubelet to accommodate a critical pod.", "preemption"),
        (kubelet, "Pod was lost when its node went down without notice.", "lost-node"),
        (kubelet, "", "other"),
        ("EvictionByEvictionAPI", "Eviction API: evicting", "drain"),
        ("PreemptionByScheduler", "", "preemption"),
        ("DeletionByTaintManager", "", "taint"),
        ("DeletionByPodGC", "PodGC: node no longer exists", "pod-gc"),
        ("LostByNode", "", "lost-node"),
        ("ByACloud", SHUTDOWN, "other"),
    ] {
        let mut world = world("NonIndexed");
        world.show(0, &shape("old"));
        let marked = world.show(10, &shape("old").marked_by(reason, message));
        assert_eq!(marked, [format!("{source} marked 0")], "{reason} {message}");
    }
    let gone = shape("old").marked_by("DeletionByPodGC", "").with(|pod| {
        let ended = json!({"type": "epilogue.dev/Ended", "status": "True", "reason": "NodeGone"});
        pod["status"]["conditions"].as_array_mut().expect("a list").push(ended);
    });
    assert_eq!(Source::of(&pod(gone.0)), Source::LostNode);
    let labels: Vec<_> = Source::ALL.iter().map(|source| source.label()).collect();
    assert!(["shutdown", "lost-node", "other"].iter().all(|label| labels.contains(label)));
}

/// The pod of the same index takes the place, in whichever order they come.
#[test]
fn an_index_is_replaced_by_its_own_pod() {
    let mut world = world("Indexed");
    for (index, name) in ["a", "b"].iter().enumerate() {
        let pod = shape(name).index(u32::try_from(index).expect("a small number"));
        world.show(-9_000, &pod);
        world.show(0, &pod.clone().marked());
        world.show(1_000, &pod.marked().failed(1_000));
    }
    assert_eq!(world.show(2_000, &shape("c").pending().index(2)), nothing());
    let second = shape("new-b").pending().index(1);
    assert_eq!(world.show(3_000, &second), ["shutdown replaced 3"]);
    assert_eq!(world.show(4_000, &shape("new-a").pending().index(0)), ["shutdown replaced 4"]);
    assert_eq!(world.show(5_000, &shape("other-a").pending().index(0)), nothing());
    assert_eq!(
        world.show(6_000, &shape("new-b").index(1)),
        ["shutdown running 6", "shutdown gap 5"]
    );
    assert_eq!(world.times.len(), 1);
}

#[test]
fn without_indexes_the_first_one_is_replaced_first() {
    let mut world = world("NonIndexed");
    for (name, millis) in [("a", 0), ("b", 1_000), ("c", 2_000)] {
        // An index means nothing here.
        world.show(-9_000, &shape(name).index(7));
        world.show(millis, &shape(name).index(7).marked());
    }
    // No place is free yet: it is for another reason that this pod comes.
    assert_eq!(world.show(2_500, &shape("more").pending()), nothing());
    for name in ["b", "a"] {
        world.show(3_000, &shape(name).marked().failed(3_000));
    }
    assert_eq!(world.show(4_000, &shape("new-1").pending()), ["shutdown replaced 4"]);
    assert_eq!(world.show(4_000, &shape("new-2").pending()), ["shutdown replaced 3"]);
    assert_eq!(world.show(4_000, &shape("new-3").pending()), nothing());
    assert_eq!(world.show(9_000, &shape("new-2")), ["shutdown running 8", "shutdown gap 6"]);
    assert_eq!(world.show(9_500, &shape("new-2").phase("Succeeded")), nothing());
}

/// By default a pod is replaced as soon as it is deleted.
#[test]
fn a_pod_that_terminates_may_be_replaced_before_it_has_ended() {
    let mut world = world("NonIndexed");
    let drained = shape("old").marked_by("EvictionByEvictionAPI", "");
    world.show(-9_000, &shape("old"));
    assert_eq!(world.show(0, &drained), ["drain marked 0"]);
    assert_eq!(world.show(100, &drained.clone().deleting()), nothing());
    assert_eq!(world.show(200, &shape("new").pending()), ["drain replaced 0.2"]);
    assert_eq!(world.show(1_000, &shape("new")), ["drain running 1"]);
    assert_eq!(
        world.show(30_000, &drained.deleting().failed(29_000)),
        ["drain ended 29", "drain reported 30", "drain lost 119", "drain gap 0"]
    );
    assert!(world.times.is_empty());
}

/// A Job that has its pods replaced early, and its pod, of whose node's end notice is given.
fn early() -> World {
    let mut world = world("NonIndexed");
    world.job.annotations.insert("epilogue.dev/replace-early".to_owned(), "true".to_owned());
    world.show(-9_000, &shape("old"));
    world
}

impl World {
    fn notice(&mut self, name: &str, millis: i64) {
        self.times.notice(&self.pods[name], &self.job, at(millis));
    }
}

#[test]
fn a_notice_is_the_first_sign_where_pods_are_replaced_by_it() {
    let mut world = early();
    world.notice("old", 0);
    assert_eq!(world.show(20, &shape("new").pending()), ["shutdown replaced 0.02"]);
    assert_eq!(world.show(5_000, &shape("new")), ["shutdown running 5"]);
    assert_eq!(world.show(90_000, &shape("old")), nothing(), "this withdraws nothing");
    let marked = shape("old").marked().ends_at(120_000);
    assert_eq!(world.show(95_000, &marked), ["shutdown marked 95", "shutdown notice 120"]);
    assert_eq!(
        world.show(117_000, &marked.failed(116_000)),
        ["shutdown ended 116", "shutdown reported 117", "shutdown lost 206", "shutdown gap 0"]
    );
    assert!(world.times.is_empty());
}

#[test]
fn a_notice_that_comes_to_nothing_is_no_disruption() {
    let mut world = early();
    world.notice("old", 0);
    world.notice("old", 1_000);
    assert_eq!(world.times.len(), 1);
    world.times.withdraw(&pod(shape("old").0).uid);
    assert!(world.times.is_empty());
    // The pod ends before its node does.
    world.notice("old", 2_000);
    world.show(2_020, &shape("new").pending());
    assert_eq!(world.show(3_000, &shape("old").failed(3_000)), nothing());
    assert!(world.times.is_empty());
    // A mark outlives the notice.
    world.show(-9_000, &shape("third"));
    world.notice("third", 4_000);
    assert_eq!(world.show(5_000, &shape("third").marked()), ["shutdown marked 1"]);
    world.times.withdraw(&pod(shape("third").0).uid);
    assert_eq!(world.times.len(), 1);
}

#[test]
fn a_pod_that_is_replaced_at_its_mark_has_its_place_taken_at_once() {
    let mut world = early();
    assert_eq!(world.show(0, &shape("old").marked()), ["shutdown marked 0"]);
    assert_eq!(world.show(30, &shape("new").pending()), ["shutdown replaced 0.03"]);
}

#[test]
fn a_pod_that_is_gone_is_reported_by_that() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("old"));
    world.show(0, &shape("old").marked());
    assert_eq!(world.lose(7_000, "old"), ["shutdown reported 7", "shutdown lost 97"]);
    assert_eq!(world.show(8_000, &shape("new").pending()), ["shutdown replaced 8"]);
    // Gone after its phase: that says nothing more.
    assert_eq!(world.lose(9_000, "new"), nothing());
    assert_eq!(world.times.len(), 1);
}

/// The kubelet marks a pod in the write that fails it.
#[test]
fn mark_and_end_may_come_in_one_write() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("old"));
    // The status names whole seconds, so the end may seem to come before the sign.
    let seen = world.show(500, &shape("old").marked().failed(0));
    let all = ["shutdown marked 0", "shutdown ended 0", "shutdown reported 0", "shutdown lost 90"];
    assert_eq!(seen, all);
    // Without any container's end, the phase is the end.
    world.show(-9_000, &shape("bare"));
    let bare = world.show(700, &shape("bare").pending().marked().phase("Failed"));
    assert_eq!(bare, ["shutdown marked 0", "shutdown ended 0", "shutdown reported 0"]);
}

#[test]
fn what_succeeds_needs_no_replacement_and_lost_nothing() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("old"));
    world.show(0, &shape("old").marked());
    let done = shape("old").marked().failed(1_000).phase("Succeeded");
    assert_eq!(world.show(2_000, &done), ["shutdown ended 1", "shutdown reported 2"]);
    assert!(world.times.is_empty());
}

#[test]
fn a_mark_that_is_taken_back_ends_the_disruption() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("old"));
    world.show(0, &shape("old").marked());
    let taken = shape("old").marked().with(|pod| {
        pod["status"]["conditions"][0]["status"] = "False".into();
    });
    assert_eq!(world.show(1_000, &taken), nothing());
    assert!(world.times.is_empty());
    assert_eq!(world.show(2_000, &shape("old").marked()), ["shutdown marked 0"]);
}

/// A pod that is rejected where it lands is no end of the wait.
#[test]
fn a_replacement_that_fails_before_it_runs_is_followed_by_the_next() {
    let mut world = world("NonIndexed");
    let _ = whole(&mut world);
    world.show(9_000, &shape("b").marked());
    assert_eq!(world.times.len(), 1, "a pod that is first seen with its mark, and is active");
    world.show(10_000, &shape("b").marked().failed(10_000));
    assert_eq!(world.show(11_000, &shape("c").pending()), ["shutdown replaced 2"]);
    assert_eq!(world.show(12_000, &shape("c").pending().phase("Failed")), nothing());
    assert_eq!(world.show(13_000, &shape("d").pending()), nothing());
    assert_eq!(world.show(14_000, &shape("d")), ["shutdown running 5", "shutdown gap 4"]);
    assert!(world.times.is_empty());
}

#[test]
fn a_replacement_that_is_disrupted_itself_is_a_disruption_of_its_own() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("a"));
    world.show(0, &shape("a").marked());
    world.show(1_000, &shape("a").marked().failed(1_000));
    world.show(2_000, &shape("b").pending());
    assert_eq!(world.show(3_000, &shape("b").pending().marked()), ["shutdown marked 0"]);
    assert_eq!(world.times.len(), 1);
    world.show(4_000, &shape("b").pending().marked().phase("Failed"));
    assert_eq!(world.show(5_000, &shape("c").pending()), ["shutdown replaced 2"]);
}

/// A list may come long after what it shows.
#[test]
fn what_a_list_shows_was_marked_when_its_condition_says_so() {
    let mut world = world("NonIndexed");
    world.is_listed = true;
    assert_eq!(world.show(0, &shape("first").marked()), ["shutdown marked 0"]);
    world.show(0, &shape("again"));
    let seen = world.show(3_000, &shape("again").marked().failed(1_000));
    let all = ["shutdown marked 0", "shutdown ended 6", "shutdown reported 8", "shutdown lost 91"];
    assert_eq!(seen, all);
    // What had ended before is no news, nor what may be replaced already.
    assert_eq!(world.show(0, &shape("ended").marked().failed(0)), nothing());
    assert_eq!(world.show(0, &shape("deleted").marked().deleting()), nothing());
    world.is_listed = false;
    assert_eq!(
        world.show(4_000, &shape("first").marked().failed(4_000)),
        ["shutdown ended 9", "shutdown reported 9", "shutdown lost 94"]
    );
}

#[test]
fn a_pod_that_ended_before_its_mark_was_not_disrupted() {
    let mut world = world("NonIndexed");
    world.show(0, &shape("old").failed(0));
    assert_eq!(world.show(1_000, &shape("old").marked().failed(0)), nothing());
    assert!(world.times.is_empty());
}

#[test]
fn a_job_that_rests_replaces_nothing() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("a"));
    world.show(-9_000, &shape("b"));
    world.show(0, &shape("a").marked().failed(0));
    world.show(0, &shape("b").marked().failed(0));
    world.show(1_000, &shape("new").pending());
    assert_eq!(world.times.len(), 2);
    world.times.job_rests(&world.job.clone());
    assert!(world.times.is_empty() && world.times.0.is_sound());
    assert_eq!(world.show(2_000, &shape("new")), nothing());
    world.job = job(json!({"metadata": {"name": "a", "uid": "job"},
        "status": {"conditions": [{"type": "Failed", "status": "True"}]}}));
    world.show(0, &shape("c"));
    assert_eq!(world.show(1_000, &shape("c").marked()), nothing());
}

#[test]
fn after_an_hour_a_disruption_is_forgotten() {
    let mut world = world("NonIndexed");
    world.show(-9_000, &shape("old"));
    world.show(0, &shape("old").marked());
    world.show(0, &shape("later"));
    world.show(1_000, &shape("later").marked());
    assert_eq!(world.show(3_600_500, &shape("later").marked().failed(0)).len(), 3);
    assert_eq!(world.times.len(), 1);
    // It is not opened again.
    assert_eq!(world.show(3_600_600, &shape("old").marked().failed(0)), nothing());
}

#[test]
fn no_more_are_kept_than_the_limit() {
    let mut world = world("NonIndexed");
    let (unmarked, marked) = (pod(shape("x").0), pod(shape("x").marked().0));
    let named = |pod: &Pod, number: usize| Pod { uid: format!("{number}").into(), ..pod.clone() };
    for number in 0..DisruptionTimes::OPEN_MAX + 10 {
        let (before, after) = (named(&unmarked, number), named(&marked, number));
        let (before, after) = (Some(&before), Some(&after));
        let job = &world.job;
        let sight = Sight { before, after, job, node_sign: None, is_listed: false };
        assert_eq!(world.times.see(&sight, at(0)).phases.len(), 1);
    }
    assert_eq!(world.times.len(), DisruptionTimes::OPEN_MAX);
    assert!(world.times.0.is_sound());
    let mut end = |number: usize| {
        let (before, job) = (named(&marked, number), &world.job);
        let sight =
            Sight { before: Some(&before), after: None, job, node_sign: None, is_listed: false };
        world.times.see(&sight, at(1)).is_empty()
    };
    assert!(end(9), "the oldest are forgotten");
    assert!(!end(10));
}

/// Clocks of nodes and of the controller may differ by hours.
#[test]
fn no_time_is_negative_or_too_large() {
    let mut world = world("NonIndexed");
    world.node_sign = Some(Timestamp::MAX);
    world.show(0, &shape("old"));
    let more = shape("more").with(|pod| pod["metadata"]["creationTimestamp"] = Value::Null);
    world.show(0, &more);
    let ends = shape("old").marked().with(|pod| {
        pod["metadata"]["annotations"]["epilogue.dev/ends-at"] = "1970-01-01T00:00:00Z".into();
    });
    assert_eq!(world.show(10, &ends), ["shutdown marked 0", "shutdown notice 0"]);
    let failed = shape("old").marked().failed(9_999_999);
    assert_eq!(
        world.show(1_010, &failed),
        ["shutdown ended 1", "shutdown reported 1", "shutdown lost 91.01"]
    );
    world.node_sign = Some(Timestamp::MIN);
    assert_eq!(world.show(10, &more.marked()).len(), 1);
    assert_eq!(world.times.len(), 2);
}
