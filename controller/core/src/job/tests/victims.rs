//! Tests which pods go first when there are too many. ([P11], [P12])

use serde_json::json;

use super::builders::{PodBuilder, ago, api, job, pod, sync};

fn ready_for(pod: PodBuilder, seconds: Option<i64>) -> PodBuilder {
    pod.with(|pod| {
        let since = seconds.map(|seconds| ago(seconds).to_string());
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
    })
}

fn sidecar_restarts(pod: PodBuilder, count: u32) -> PodBuilder {
    pod.with(|pod| {
        pod["spec"]["initContainers"] = json!([{"name": "side", "restartPolicy": "Always"}]);
        pod["status"]["initContainerStatuses"] =
            json!([{"name": "side", "restartCount": count, "state": {}}]);
    })
}

fn victims(pods: Vec<PodBuilder>, parallelism: i32, indexed: bool) -> Vec<String> {
    let job = job().size(parallelism, 9);
    let job = if indexed { job.indexed() } else { job };
    sync(&mut api(job, pods)).deleted
}

/// Each rule, and that it comes before the next: the first pod of each pair goes.
#[test]
fn of_two_pods_the_less_valuable_one_goes() {
    let on = |name: &str| pod(name, "Running").on_node();
    let no_time =
        |pod: PodBuilder| pod.with(|pod| pod["metadata"]["creationTimestamp"] = json!(null));
    let pairs = [
        // 1: a node
        (pod("gone", "Running").ready(), pod("kept", "Pending").on_node()),
        // 2: phase
        (pod("gone", "Pending").on_node(), pod("kept", "Unknown").on_node()),
        (pod("gone", "Pending").on_node(), on("kept")),
        (pod("gone", "").on_node(), pod("kept", "Unknown").on_node()),
        (ready_for(pod("gone", "Unknown").on_node(), Some(90)), on("kept")),
        // 3: readiness
        (on("gone").created(500), ready_for(on("kept"), Some(1)).restarts(5)),
        // 4: how long it is ready
        (ready_for(on("gone"), Some(5)), ready_for(on("kept"), Some(6)).restarts(5)),
        (ready_for(on("gone"), None), ready_for(on("kept"), Some(1))),
        // 5: restarts, of regular containers first
        (on("gone").restarts(3).created(500), on("kept").restarts(2).created(5)),
        (on("gone").restarts(3), sidecar_restarts(on("kept"), 9)),
        (sidecar_restarts(on("gone"), 2).created(500), sidecar_restarts(on("kept"), 1).created(5)),
        // 6: age
        (on("gone").created(5), on("kept").created(6)),
        (no_time(on("gone")), on("kept").created(1)),
    ];
    for (row, (gone, kept)) in pairs.into_iter().enumerate() {
        for pods in [vec![gone.clone(), kept.clone()], vec![kept, gone]] {
            assert_eq!(victims(pods, 1, false), ["gone"], "row {row}");
        }
    }
}

/// Indexed: bad, repeated and out-of-range indexes first, whatever the excess.
#[test]
fn pods_out_of_place_go_first() {
    let on = |name: &str, created: i64| pod(name, "Running").on_node().created(created);
    let all = || {
        vec![
            on("bad", 900).index("x"),
            on("none", 900),
            on("far", 900).index(9),
            on("young-0", 5).index(0),
            on("old-0", 50).index(0),
            on("older-0", 60).index(0),
            on("young-1", 1).index(1),
            on("old-2", 70).index(2),
        ]
    };
    let mut gone = victims(all(), 8, true);
    gone.sort();
    assert_eq!(gone, ["bad", "far", "none", "old-0", "young-0"], "with no excess");
    let gone = victims(all(), 2, true);
    assert_eq!(gone.len(), 6);
    assert_eq!(gone.last().map(String::as_str), Some("young-1"), "then by value");
}

/// Exactly the excess goes: with none, one, as many, and one more. ([P3])
#[test]
fn exactly_the_excess_goes() {
    for (parallelism, gone) in [(4, 0), (3, 0), (2, 1), (0, 3)] {
        let pods = (0..3).map(|it| pod(&format!("p{it}"), "Running").created(it)).collect();
        assert_eq!(victims(pods, parallelism, false).len(), gone, "{parallelism}");
    }
}
