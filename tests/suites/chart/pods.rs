//! What a cluster asks of pods: where they run, which labels and environment they have, which ports
//! they open, how they are replaced. Both programs have the same values, and a pool its own.

use serde_json::{Value, json};

use super::helm::{hooks, hooks_of, refused, rendered};
use crate::platforms::named;

const AGENT: &str = "DaemonSet/epilogue-agents/epilogue-agent";
const CONTROLLER: &str = "Deployment/epilogue-system/epilogue-controller";
const PROGRAMS: [(&str, &str); 2] = [("agent", AGENT), ("controller", CONTROLLER)];

fn the<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let found = objects.iter().find(|object| named(object) == name);
    found.unwrap_or_else(|| panic!("no {name}"))
}

fn template<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    &the(objects, name)["spec"]["template"]
}

#[tokio::test]
async fn pods_need_a_node_that_runs_the_image_and_a_value_opens_it() {
    let linux = json!({"kubernetes.io/os": "linux"});
    let with = |more: &Value| {
        let mut all = linux.clone();
        all.as_object_mut().expect("a map").extend(more.as_object().cloned().expect("a map"));
        all
    };
    let amd64 = with(&json!({"kubernetes.io/arch": "amd64"}));
    let table = [
        (json!({}), &amd64, &amd64),
        (json!({"image": {"architecture": ""}}), &linux, &linux),
        (
            json!({"image": {"architecture": "arm64"}}),
            &with(&json!({"kubernetes.io/arch": "arm64"})),
            &with(&json!({"kubernetes.io/arch": "arm64"})),
        ),
        (
            json!({"agent": {"nodeSelector": {"a": "1"}},
                   "controller": {"nodeSelector": {"b": "2"}}}),
            &with(&json!({"kubernetes.io/arch": "amd64", "a": "1"})),
            &with(&json!({"kubernetes.io/arch": "amd64", "b": "2"})),
        ),
    ];
    for (values, agent, controller) in table {
        let objects = rendered(&values).await;
        assert_eq!(template(&objects, AGENT)["spec"]["nodeSelector"], *agent, "{values}");
        assert_eq!(template(&objects, CONTROLLER)["spec"]["nodeSelector"], *controller, "{values}");
        let hooks = hooks_of("pre-delete", &values).await;
        let waits = hooks.iter().find(|it| it["kind"] == "Pod").expect("the hook's pod");
        let expected = if values["image"].is_null() { &amd64 } else { agent };
        assert_eq!(waits["spec"]["nodeSelector"], *expected, "{values}");
    }
}

#[tokio::test]
async fn both_programs_have_labels_annotations_environment_and_a_priority_of_the_values() {
    let zone = json!([{"name": "ZONE", "value": "eu"}]);
    for (program, workload) in PROGRAMS {
        let values = json!({
            "commonLabels": {"team": "batch"}, "commonAnnotations": {"cost": "1"},
            program: {"podLabels": {"mesh": "off"}, "podAnnotations": {"log": "json"},
                      "extraEnv": zone, "priorityClassName": "mine"},
        });
        let (objects, plain) = (rendered(&values).await, rendered(&json!({})).await);
        let (found, before) = (template(&objects, workload), template(&plain, workload));
        let mut labels = before["metadata"]["labels"].clone();
        labels["team"] = json!("batch");
        labels["mesh"] = json!("off");
        assert_eq!(found["metadata"]["labels"], labels);
        assert_eq!(found["metadata"]["annotations"], json!({"cost": "1", "log": "json"}));
        let env = |pod: &Value| {
            let list = &pod["spec"]["containers"][0]["env"];
            list.as_array().cloned().unwrap_or_default()
        };
        let expected = [env(before), zone.as_array().cloned().expect("a list")].concat();
        assert_eq!(env(found), expected);
        assert_eq!(found["spec"]["priorityClassName"], "mine");
        let selector = |objects: &[Value]| the(objects, workload)["spec"]["selector"].clone();
        assert_eq!(selector(&objects), selector(&plain), "it is immutable");
    }
}

#[tokio::test]
async fn common_labels_and_annotations_are_on_every_object_and_hook() {
    let common = json!({"commonLabels": {"team": "batch"}, "commonAnnotations": {"cost": "1"}});
    let mut values = json!({
        "scraping": {"enabled": true}, "monitor": {"kind": "ServiceMonitor"},
        "alerts": {"enabled": true}, "dashboards": {"enabled": true},
        "networkPolicy": {"enabled": true}, "optIn": {"enabled": true},
        "gangScheduling": {"enabled": true},
    });
    let more = common.as_object().cloned().expect("a map");
    values.as_object_mut().expect("a map").extend(more);
    let (objects, hooks) = (rendered(&values).await, hooks(&common).await);
    assert!(objects.len() > 60 && hooks.len() == 18, "{}", hooks.len());
    values["mode"] = json!("enforce");
    let acting = rendered(&values).await;
    for object in objects.iter().chain(&acting).chain(&hooks) {
        let metadata = &object["metadata"];
        assert_eq!(metadata["labels"]["team"], "batch", "{}", named(object));
        assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "epilogue");
        assert_eq!(metadata["annotations"]["cost"], "1", "{}", named(object));
    }
}

#[tokio::test]
async fn the_controller_is_scheduled_as_its_values_say() {
    let near = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}});
    let tolerations = json!([{"key": "infra", "operator": "Exists"}]);
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"a": "b"}}}]);
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}});
    let values = json!({"controller": {"affinity": near, "tolerations": tolerations,
        "topologySpreadConstraints": spread, "strategy": strategy}});
    let objects = rendered(&values).await;
    let pod = &template(&objects, CONTROLLER)["spec"];
    assert_eq!((&pod["affinity"], &pod["tolerations"]), (&near, &tolerations));
    assert_eq!(the(&objects, CONTROLLER)["spec"]["strategy"], strategy);
    let mut spread = spread;
    let own = json!({"matchLabels": {"app.kubernetes.io/name": "epilogue-controller"}});
    spread[0]["labelSelector"] = own;
    assert_eq!(pod["topologySpreadConstraints"], spread);
    let hooks = hooks_of("pre-delete", &values).await;
    let waits = hooks.iter().find(|it| it["kind"] == "Pod").expect("the hook's pod");
    let found = waits["spec"]["tolerations"].as_array().expect("a list");
    assert!(
        found.contains(&tolerations[0]),
        "the pod that waits can run where the controller does"
    );
}

#[tokio::test]
async fn each_port_is_a_value_and_everything_that_names_it_follows() {
    let values = json!({
        "scraping": {"enabled": true}, "service": {"enabled": true},
        "agent": {"ports": {"admin": 19465, "metrics": 19466}},
        "controller": {"ports": {"admin": 18080, "probes": 18081, "metrics": 19466}},
    });
    let text = |objects: &[Value]| -> String {
        let kinds = ["DaemonSet", "Deployment", "Service"];
        let with_ports = objects.iter().filter(|it| kinds.iter().any(|kind| it["kind"] == *kind));
        with_ports.map(Value::to_string).collect()
    };
    let objects = rendered(&values).await;
    let mut moved = text(
        &rendered(&json!({
            "scraping": {"enabled": true}, "service": {"enabled": true},
        }))
        .await,
    );
    for (old, new) in [("9465", "19465"), ("9466", "19466"), ("8080", "18080"), ("8081", "18081")] {
        assert!(moved.matches(old).count() >= if old == "8080" { 1 } else { 2 }, "{old}");
        moved = moved.replace(old, new);
    }
    assert_eq!(text(&objects), moved);
}

#[tokio::test]
async fn a_pool_s_values_stand_in_place_of_those_of_all_agents() {
    let own = json!({
        "name": "a", "nodeSelector": {"pool": "a"}, "tolerations": [], "priorityClassName": "",
        "resources": {"limits": {"memory": "128Mi"}}, "podLabels": {"x": "a"},
        "podAnnotations": {"y": "a"}, "extraEnv": [{"name": "Z", "value": "a"}],
        "updateStrategy": {"type": "OnDelete"},
    });
    let values = json!({"agent": {
        "pools": [own, {"name": "b", "nodeSelector": {"pool": "b"}}],
        "podLabels": {"x": "all"}, "podAnnotations": {"y": "all"},
        "extraEnv": [{"name": "Z", "value": "all"}],
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": 3}},
    }});
    let objects = rendered(&values).await;
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 3}});
    let all = json!([{"operator": "Exists"}]);
    let critical = json!("system-node-critical");
    let (none, memory) = (Value::Null, "64Mi");
    for (name, value, tolerations, priority, strategy, memory) in [
        (AGENT.to_owned(), "all", &all, &critical, &rolling, memory),
        (format!("{AGENT}-b"), "all", &all, &critical, &rolling, memory),
        (format!("{AGENT}-a"), "a", &json!([]), &none, &own["updateStrategy"], "128Mi"),
    ] {
        let (template, set) = (template(&objects, &name), the(&objects, &name));
        let (pod, metadata) = (&template["spec"], &template["metadata"]);
        assert_eq!(
            (&metadata["labels"]["x"], &metadata["annotations"]["y"]),
            (&json!(value), &json!(value))
        );
        let env = pod["containers"][0]["env"].as_array().expect("a list");
        assert_eq!(env.last(), Some(&json!({"name": "Z", "value": value})));
        assert_eq!((&pod["tolerations"], &pod["priorityClassName"]), (tolerations, priority));
        assert_eq!(set["spec"]["updateStrategy"], *strategy, "{name}");
        assert_eq!(pod["containers"][0]["resources"]["limits"]["memory"], memory);
    }
}

#[tokio::test]
async fn what_cannot_work_in_a_pod_is_refused_with_the_reason() {
    let pool = |more: Value| {
        let mut pool = json!({"name": "a", "nodeSelector": {"pool": "a"}});
        pool.as_object_mut().expect("a map").extend(more.as_object().cloned().expect("a map"));
        json!({"agent": {"pools": [pool]}})
    };
    let surge = json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
    let table: Vec<(Value, &[&str])> = vec![
        (
            json!({"agent": {"nodeSelector": {"kubernetes.io/os": "windows"}}}),
            &["'/agent/nodeSelector/kubernetes.io~1os'", "'linux'"],
        ),
        (json!({"agent": {"affinity": [{"key": "a"}]}}), &["'/agent/affinity'", "want object"]),
        (
            json!({"agent": surge}),
            &["agent.updateStrategy: maxSurge: expected maxUnavailable", "the same ports"],
        ),
        (pool(surge), &["agent.pools[0].updateStrategy: maxSurge"]),
        (
            json!({"commonLabels": {"app.kubernetes.io/name": "a"}}),
            &["commonLabels: app.kubernetes.io/name: expected another key"],
        ),
        (
            json!({"commonAnnotations": {"helm.sh/hook": "test"}}),
            &["commonAnnotations: helm.sh/hook: expected another key"],
        ),
        (
            pool(json!({"podLabels": {"epilogue.dev/pool": "b"}})),
            &["agent.pools[0].podLabels: epilogue.dev/pool: expected another key"],
        ),
        (
            json!({"agent": {"extraEnv": [{"name": "NODE_NAME", "value": "a"}]}}),
            &["agent.extraEnv: NODE_NAME: expected another name"],
        ),
        (
            json!({"controller": {"extraEnv": [{"value": "a"}]}}),
            &["'/controller/extraEnv/0'", "'name'"],
        ),
        (json!({"controller": {"ports": {"probes": 8080}}}), &["controller.ports: two are equal"]),
        (json!({"agent": {"ports": {"metrics": 0}}}), &["'/agent/ports/metrics'"]),
        (json!({"controller": {"podLabel": {}}}), &["'/controller'", "'podLabel' not allowed"]),
        (json!({"image": {"architecture": "x86"}}), &["'/image/architecture'", "'amd64'"]),
        (
            pool(json!({"serviceAccount": {}})),
            &["'/agent/pools/0'", "'serviceAccount' not allowed"],
        ),
    ];
    for (values, words) in table {
        let error = refused(&values).await;
        assert!(words.iter().all(|word| error.contains(word)), "{values}: {error}");
    }
}
