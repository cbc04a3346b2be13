//! Tests the pods made from the template.

use serde_json::{Value, json};

use super::builders::{JobBuilder, api, job, sync};
use crate::job::{PodDraft, pod_body};

const TRACKING: &str = "batch.kubernetes.io/job-tracking";

fn body(job: JobBuilder, index: Option<u32>) -> Value {
    let body = pod_body(&job.build(), &PodDraft { index, ..PodDraft::default() });
    serde_json::from_str(body.json().expect("must be JSON")).expect("must be JSON")
}

fn template(change: impl FnOnce(&mut Value)) -> JobBuilder {
    job().with(|job| change(&mut job["spec"]["template"]))
}

/// A pod is its template with an owner reference and the finalizer. ([B1], [B2], [B3], [B7])
#[test]
fn a_pod_is_the_template_with_owner_and_finalizer() {
    let pod = body(
        template(|template| {
            template["metadata"] = json!({
                "name": "mine", "namespace": "elsewhere", "labels": {"a": "1"},
                "annotations": {"b": "2"}, "finalizers": ["example.com/mine"],
                "ownerReferences": [{"kind": "Other"}], "generateName": "x-",
            });
            template["spec"]["schedulingGroup"] = json!({"podGroupName": "new field"});
        }),
        None,
    );
    assert_eq!(
        pod["metadata"],
        json!({
            "generateName": "j-", "labels": {"a": "1"}, "annotations": {"b": "2"},
            "finalizers": ["example.com/mine", TRACKING],
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid",
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    );
    assert_eq!(pod["spec"]["schedulingGroup"]["podGroupName"], "new field");
    assert!(pod["spec"].get("hostname").is_none());
    let own = template(|template| template["metadata"]["finalizers"] = json!([TRACKING, "z"]));
    assert_eq!(body(own, None)["metadata"]["finalizers"], json!([TRACKING, "z"]));
}

/// Fields that Kubernetes 1.37 added reach the pod, also next to those that we change. ([B1])
#[test]
fn fields_of_a_later_version_reach_the_pod() {
    let spec = json!({
        "evictionResponders": [{"name": "example.com/responder", "priority": 100}],
        "volumes": [{"name": "scratch", "emptyDir": {"mode": 448}}],
        "containers": [{
            "name": "main", "image": "i",
            "volumeMounts": [{"name": "scratch", "mountPath": "/s", "bindMountOptions": ["ro"]}],
            "readinessProbe": {"grpc": {"port": 1, "mode": "TLS"}},
        }],
    });
    let job = template(|template| template["spec"] = spec.clone());
    assert_eq!(body(job.clone(), None)["spec"], spec);
    let mut indexed = body(job, Some(3))["spec"].take();
    for field in ["env", "hostname"] {
        let of = if field == "env" { &mut indexed["containers"][0] } else { &mut indexed };
        assert!(of.as_object_mut().and_then(|it| it.remove(field)).is_some(), "{field}");
    }
    assert_eq!(indexed, spec);
}

/// A long name is cut so that the index stays. ([B4], [B5])
#[test]
fn names_keep_the_index_whatever_the_length_of_the_job() {
    for (length, index, expected) in [
        (1, None, 2),
        (252, None, 253),
        (253, None, 253),
        (54, Some(7), 57),
        (55, Some(7), 58),
        (56, Some(7), 58),
        (250, Some(99_999), 58),
    ] {
        let name = "n".repeat(length);
        let pod = body(job().meta("name", name.clone()), index);
        let prefix = pod["metadata"]["generateName"].as_str().expect("a generateName");
        assert_eq!(prefix.len(), expected, "{length} {index:?}");
        match index {
            Some(index) => assert!(prefix.ends_with(&format!("n-{index}-")), "{prefix}"),
            None => assert_eq!(prefix.ends_with('-'), length < 253),
        }
    }
}

/// A pod of an index has it as annotation, label, host name and variable. ([B6])
#[test]
fn a_pod_of_an_index_knows_it() {
    let pod = body(
        template(|template| {
            template["spec"]["hostname"] = "theirs".into();
            template["spec"]["containers"] = json!([
                {"name": "a"}, {"name": "b", "env": [{"name": "X", "value": "1"}]},
                {"name": "c", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "own"}]},
            ]);
            template["spec"]["initContainers"] = json!([{"name": "i"}]);
        })
        .indexed(),
        Some(3),
    );
    let index = "batch.kubernetes.io/job-completion-index";
    assert_eq!(pod["metadata"]["annotations"][index], "3");
    assert_eq!(pod["metadata"]["labels"], json!({"job": "j", index: "3"}));
    assert_eq!(pod["spec"]["hostname"], "j-3");
    let variable = json!({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {
        "fieldPath": format!("metadata.labels['{index}']")}}});
    let containers = &pod["spec"]["containers"];
    assert_eq!(containers[0]["env"], json!([variable]));
    assert_eq!(containers[1]["env"], json!([variable, {"name": "X", "value": "1"}]));
    assert_eq!(containers[2]["env"], json!([{"name": "JOB_COMPLETION_INDEX", "value": "own"}]));
    assert_eq!(pod["spec"]["initContainers"][0]["env"], json!([variable]));
}

/// The kubelet expands `$(JOB_COMPLETION_INDEX)` only in variables that come later. ([B6])
#[test]
fn the_index_variable_stands_before_those_that_use_it() {
    let shard = json!({"name": "SHARD", "value": "part-$(JOB_COMPLETION_INDEX)"});
    let own = json!({"name": "JOB_COMPLETION_INDEX", "value": "own"});
    let pod = body(
        template(|template| {
            template["spec"]["containers"] = json!([
                {"name": "a", "env": [shard]}, {"name": "b", "env": [shard, own]}, {"name": "c"},
            ]);
            template["spec"]["initContainers"] = json!([
                {"name": "i", "env": [shard]},
                {"name": "s", "restartPolicy": "Always", "env": [shard]},
            ]);
        })
        .indexed(),
        Some(3),
    );
    let names = |list: &str, at: usize| -> Vec<String> {
        let env = pod["spec"][list][at]["env"].as_array().cloned().unwrap_or_default();
        env.iter().filter_map(|each| each["name"].as_str().map(str::to_owned)).collect()
    };
    for (list, at, expected) in [
        ("containers", 0, vec!["JOB_COMPLETION_INDEX", "SHARD"]),
        ("containers", 1, vec!["SHARD", "JOB_COMPLETION_INDEX"]),
        ("containers", 2, vec!["JOB_COMPLETION_INDEX"]),
        ("initContainers", 0, vec!["JOB_COMPLETION_INDEX", "SHARD"]),
        ("initContainers", 1, vec!["JOB_COMPLETION_INDEX", "SHARD"]),
    ] {
        assert_eq!(names(list, at), expected, "{list}[{at}]");
    }
}

/// A template without labels is refused before any call. ([B8])
#[test]
fn a_template_without_labels_makes_no_pods() {
    for labels in [Value::Null, json!({})] {
        let bare = template(|template| template["metadata"] = json!({"labels": labels}));
        let effects = sync(&mut api(bare, vec![]));
        assert_eq!((effects.create_calls, effects.is_err), (0, true));
        assert!(effects.events()[0].starts_with("FailedCreate: Error creating: "));
        assert!(!effects.writes.is_empty(), "the status is written all the same");
    }
}

/// Templates that the API never lets through still make a pod, without a panic.
#[test]
fn odd_templates_do_no_harm() {
    for template in [Value::Null, json!({}), json!({"spec": null}), json!({"metadata": null})] {
        let odd = job().indexed().spec("template", template);
        let pod = body(odd, Some(0));
        assert_eq!(pod["metadata"]["finalizers"], json!([TRACKING]));
    }
    let lists = template(|template| {
        template["metadata"]["finalizers"] = json!("text");
        template["metadata"]["annotations"] = json!([1]);
        template["spec"]["containers"] = json!([{"env": "text"}, 5]);
    });
    assert_eq!(body(lists, Some(0))["metadata"]["finalizers"], json!([TRACKING]));
}
