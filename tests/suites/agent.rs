//! Tests the agent on the real API: the program with its installed rights and policies, a double of
//! logind, and a simulated node. Each test has a node of its own. The kubelet's graceful shutdown
//! is off in the shutdowns here.

#[allow(dead_code, reason = "the agent's own tests use all of it")]
#[path = "../../agent/tests/host/configz.rs"]
mod configz;
mod notices;
mod oom;
mod pressure;
mod refusals;
mod stuck;
mod token;
#[allow(dead_code, reason = "the agent's own tests use all of it")]
#[path = "../../agent/tests/pressure/tree.rs"]
mod tree;
mod volumes;

use std::time::Duration;

use lab::agent::{Setup, Site, Way};
use lab::network::PathState;
use lab::{Cluster, eventually};

const SUITE: &str = "agent";
const PODS: usize = 110;
const SOON: Duration = Duration::from_mins(1);
const TAINT: &str = "epilogue.dev/shutting-down";

fn cluster() -> Cluster {
    Cluster::of_tests(SUITE).expect("the suite's cluster")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pods_of_a_node_that_shuts_down_end_as_failed_and_disrupted() {
    let site = Site::start(&cluster(), Setup { pods: PODS, ..Setup::default() }).await;
    let (taints, said) = site.node().await;
    assert!(taints.is_empty(), "{taints:?}");
    assert!(said.is_none_or(|said| said == "idle"));
    site.shut_down().await;
    site.released().await;
    let ends = site.until("all have ended", |ends| ends.ended == PODS).await;
    assert_eq!((ends.disrupted, ends.ended_unmarked, ends.deleted), (PODS, 0, PODS));
    assert_eq!(ends.reasons, ["TerminationByKubelet"]);
    site.until_metric("shutdown_unreported_pods", 0.0).await;
    let (taints, said) = site.node().await;
    assert_eq!(taints, [TAINT]);
    assert!(said.is_some_and(|said| said != "idle"));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_exit_by_themselves_keep_their_result() {
    let setup = Setup { script: "on-term=0", ..Setup::default() };
    let site = Site::start(&cluster(), setup).await;
    // A condition that stands stays as it is. ([AP7])
    let preempted = serde_json::json!({"conditions": [{"type": "DisruptionTarget", "status": "True",
        "reason": "PreemptionByScheduler", "message": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    site.change_status("work-000", &preempted).await;
    site.until("one has a condition", |ends| ends.disrupted == 1).await;
    site.shut_down().await;
    site.released().await;
    let ends = site.until("all have ended", |ends| ends.ended == 12).await;
    assert_eq!((ends.disrupted, ends.ended_unmarked), (12, 0));
    assert_eq!(ends.reasons, ["PreemptionByScheduler", "TerminationByKubelet"]);
    let pod = site.pod("work-000").await;
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    let target = conditions.into_iter().find(|each| each.type_ == "DisruptionTarget");
    let since = target.and_then(|target| target.last_transition_time).expect("a time").0;
    assert_eq!(since.to_string(), "2026-01-01T00:00:00Z");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bare_pods_are_marked_where_they_cannot_restart_and_end_where_that_is_asked_for() {
    // ([AP26])
    for (flags, goes) in [(&[][..], false), (&["--bare-pods=delete"], true)] {
        let arguments = flags.iter().map(|&flag: &&str| flag.to_owned()).collect();
        let setup = Setup { pods: 2, arguments, ..Setup::default() };
        let site = Site::start(&cluster(), setup).await;
        for policy in ["Never", "Always"] {
            let bare = serde_json::json!({
                "metadata": {"ownerReferences": []}, "spec": {"restartPolicy": policy}});
            let name = policy.to_lowercase();
            site.create(&name, "on-term=143", &bare).await;
            site.until_phase(&name, "Running").await;
        }
        let see = async || site.metric("pods").await;
        eventually("the agent sees them", SOON, see, |pods| *pods == Some(4.0)).await;
        site.shut_down().await;
        site.released().await;
        site.until("the Job's have ended", |ends| ends.ended >= 2).await;
        for (name, can_restart) in [("never", false), ("always", true)] {
            let states = site.record.states(name).await;
            let last = states.last().expect("a state");
            assert_eq!(last.deleting, goes, "{name}: {states:?}");
            let is_marked = last.conditions.contains_key("DisruptionTarget");
            assert_eq!(is_marked, goes || !can_restart, "{name}: {states:?}");
        }
        site.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed_in_the_middle_goes_on() {
    // The new agent gets no lock, and the old one's is gone with it. ([LD5])
    let setup = Setup { pods: 40, script: "on-term=143 after=6s", ..Setup::default() };
    let mut site = Site::start(&cluster(), setup).await;
    site.shut_down().await;
    site.until("some have DisruptionTarget", |ends| ends.disrupted > 0).await;
    site.kill_and_restart().await;
    let ends = site.until("all have ended", |ends| ends.ended == 40).await;
    assert_eq!((ends.disrupted, ends.ended_unmarked), (40, 0));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_the_system_that_logind_does_not_announce_leaves_marks() {
    let site = Site::start(&cluster(), Setup { pods: PODS, ..Setup::default() }).await;
    let _systemd = site.system_stops().await;
    let ends = site.until("all have DisruptionTarget", |ends| ends.disrupted == PODS).await;
    assert_eq!((ends.ended, ends.deleted), (0, 0));
    let see = async || std::fs::read_to_string(site.log()).expect("the agent's log");
    eventually("the agent exits", SOON, see, |log| log.contains("ended")).await;
    let (taints, said) = site.node().await;
    assert!(taints.is_empty(), "{taints:?}");
    assert!(said.is_some_and(|said| said.starts_with("shutting-down")));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_shutdown_leaves_no_trace_on_those_that_live() {
    // Pods of the second priority group are marked; the agent would delete them when the first
    // group has ended.
    let setup = Setup { script: "on-term=ignore", ..Setup::default() };
    let site = Site::start(&cluster(), setup).await;
    site.shut_down().await;
    site.until("all have DisruptionTarget", |ends| ends.disrupted == 12).await;
    site.cancel().await;
    site.locked().await;
    let see = async || site.node().await;
    let restored = |(taints, said): &(Vec<String>, Option<String>)| {
        taints.is_empty() && said.as_deref().is_none_or(|said| said == "idle")
    };
    eventually("the node is as before", SOON, see, restored).await;
    // A deleted pod stays deleted, and keeps its condition; the others lose theirs.
    let ends = site.until("the others are cleared", |ends| ends.disrupted == ends.deleted);
    ends.await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_and_comes_back_costs_only_time() {
    let setup = Setup { pods: 40, script: "on-term=143 after=2s", ..Setup::default() };
    let site = Site::start(&cluster(), setup).await;
    site.shut_down().await;
    site.until("some have DisruptionTarget", |ends| ends.disrupted > 0).await;
    site.set_path(PathState::Cut);
    tokio::time::sleep(Duration::from_secs(3)).await;
    site.set_path(PathState::Open(Duration::ZERO));
    site.released().await;
    let ends = site.until("all have ended", |ends| ends.ended == 40).await;
    assert_eq!((ends.disrupted, ends.ended_unmarked), (40, 0));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_replaced_by_a_new_one() {
    let site = Site::start(&cluster(), Setup::default()).await;
    site.set_path(PathState::Silent);
    site.shut_down().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    site.set_path(PathState::Open(Duration::ZERO));
    site.released().await;
    let ends = site.until("all have ended", |ends| ends.ended == 12).await;
    assert_eq!((ends.disrupted, ends.ended_unmarked), (12, 0));
    site.until_metric("shutdown_unreported_pods", 0.0).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_and_a_throttling_server_still_let_all_reports_through() {
    let ways = [Way::RoundTrip(Duration::from_millis(200)), Way::PerSecond(20.0)];
    for way in ways {
        let site = Site::start(&cluster(), Setup { way, ..Setup::default() }).await;
        site.shut_down().await;
        site.released().await;
        let ends = site.until("all have ended", |ends| ends.ended == 12).await;
        assert_eq!((ends.disrupted, ends.ended_unmarked), (12, 0), "{way:?}");
        site.stop().await;
    }
}
