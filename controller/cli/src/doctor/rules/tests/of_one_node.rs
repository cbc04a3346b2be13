//! Tests the report on one node.

use super::*;

fn agent_pod(is_ready: &str) -> Value {
    let mut agent = pod("epilogue-agent-x");
    agent["metadata"]["namespace"] = "epilogue-agents".into();
    agent["metadata"]["labels"] = json!({"app.kubernetes.io/name": "epilogue-agent"});
    agent["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet",
        "name": "epilogue-agent", "uid": "d", "controller": true}]);
    agent["status"]["conditions"] = json!([{"type": "Ready", "status": is_ready}]);
    agent
}

fn well() -> Vec<Value> {
    vec![
        ready("held", 40),
        agent_pod("True"),
        pod("p"),
        running_job(),
        lease("kube-node-lease", "n", "n", HOUR - 8),
    ]
}

fn ready(lock: &str, granted: u32) -> Value {
    let mut node = announces(node("n"), "idle");
    let text = format!("mode=replace;lock={lock};granted={granted};wanted=40");
    node["metadata"]["annotations"]["epilogue.dev/readiness"] = text.into();
    node
}

fn report(objects: Vec<Value>) -> NodeReport {
    node_report(&scene(objects), "n", now()).expect("must be there")
}

#[track_caller]
fn assert_check(report: &NodeReport, name: &str, verdict: NodeVerdict, words: &str) {
    let check = report.checks.iter().find(|check| check.name == name);
    let check = check.unwrap_or_else(|| panic!("{name} must be checked: {report:#?}"));
    assert_eq!(check.verdict, verdict, "{check:?}");
    let text = format!("{} {}", check.found, check.remedy.clone().unwrap_or_default());
    assert!(text.contains(words), "{words:?} must be in {text:?}");
    assert_eq!(check.remedy.is_none(), verdict == NodeVerdict::Ok, "{check:?}");
    assert_eq!(check.code.is_none(), verdict == NodeVerdict::Ok, "{check:?}");
}

#[test]
fn the_notice_of_an_end_is_said_with_its_time() {
    let mut objects = well();
    let text = &objects[0]["metadata"]["annotations"]["epilogue.dev/readiness"];
    let noticed = text.as_str().unwrap_or_default().to_owned() + ";notice=aws";
    for (end, words) in [
        ("", "wanted 40s; an end announced by aws"),
        (";ends=2026-11-21T14:05:06Z", "; an end announced by aws for 2026-11-21T14:05:06Z"),
    ] {
        let text = &mut objects[0]["metadata"]["annotations"]["epilogue.dev/readiness"];
        *text = format!("{noticed}{end}").into();
        assert_check(&report(objects.clone()), "shutdown", NodeVerdict::Ok, words);
    }
}

#[test]
fn a_node_that_is_well_says_so_and_where_to_ask_more() {
    let report = report(well());
    assert_eq!(report.verdict, NodeVerdict::Ok, "{report:#?}");
    assert_eq!(report.findings, []);
    assert_check(&report, "shutdown", NodeVerdict::Ok, "held; mode replace; delay granted 40s");
    assert_check(
        &report,
        "pods",
        NodeVerdict::Ok,
        "1 would be reported in a shutdown; 1 of DaemonSets",
    );
    assert_check(&report, "kubelet", NodeVerdict::Ok, "renewed 8 s ago");
    assert_check(&report, "agent", NodeVerdict::Ok, "epilogue-agent-x is ready");
    let command = "kubectl exec --namespace epilogue-agents epilogue-agent-x -- \
                   /epilogue-agent check --root=/host";
    assert_eq!(report.on_node, command);
    assert_eq!(node_report(&scene(well()), "m", now()), None);
}

#[test]
fn each_problem_is_reported_with_a_remedy() {
    use NodeVerdict::{Fail, Warn};
    let with = |index: usize, object: Value| {
        let mut objects = well();
        objects[index] = object;
        report(objects)
    };
    assert_check(&with(0, silent(node("n"))), "ready", Fail, "Kubelet stopped posting");
    let stale = lease("kube-node-lease", "n", "n", 0);
    assert_check(&with(4, stale), "kubelet", Fail, "renewed 3600 s ago");
    assert_check(&with(1, agent_pod("False")), "agent", Fail, "is not ready kubectl logs");
    assert_check(&with(1, pod("q")), "agent", Fail, "missing");
    assert_check(&with(0, node("n")), "announced", Warn, "no agent has written epilogue.dev/state");
    assert_check(&with(0, out_of_service(node("n"))), "taints", Fail, "out-of-service-");
    let mut bare = pod("bare");
    bare["metadata"]["ownerReferences"] = json!(null);
    assert_check(&with(2, bare), "pods", Warn, "without a controller: default/bare");
    assert_check(&with(0, ready("none", 40)), "shutdown", Fail, "no delay lock is held");
    assert_check(&with(0, ready("held", 5)), "shutdown", Fail, "granted 5s, wanted 40s");
    assert_check(&with(0, ready("off", 40)), "shutdown", Warn, "--logind=false");
    let unspoken = announces(node("n"), "idle");
    assert_check(&with(0, unspoken), "shutdown", Warn, "has not written epilogue.dev/readiness");
    let mut host = announces(node("n"), "idle");
    host["metadata"]["labels"] = json!({"epilogue.dev/agent": "host"});
    let mut objects = well();
    objects[0] = host;
    objects.remove(1);
    let report = report(objects);
    assert_check(&report, "agent", Warn, "systemctl status epilogue-agent");
    assert_eq!(report.on_node, "as root on n: epilogue-agent check");
}

#[test]
fn the_last_event_of_its_agent_is_shown() {
    let event = |reason: &str, reporter: &str, second: i64| {
        json!({"kind": "Event", "metadata": {"name": reason}, "reason": reason, "message": "m",
               "involvedObject": {"kind": "Node", "name": "n"}, "reportingComponent": reporter,
               "eventTime": at(second), "lastTimestamp": null})
    };
    let objects = [
        well(),
        vec![
            event("NodeShutdownStarted", "epilogue.dev/agent", 10),
            event("NodeShutdownIncomplete", "epilogue.dev/agent", 20),
            event("NodeNotReady", "node-controller", 30),
        ],
    ];
    let report = report(objects.concat());
    let words = "NodeShutdownIncomplete: m the section of";
    assert_check(&report, "event", NodeVerdict::Warn, words);
}
