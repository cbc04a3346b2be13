//! Draws requests on pods.

use model_api::Kind;
use rand::Rng as _;
use serde_json::{Value, json};

use super::generator::{Generator, JSON, MERGE, STRATEGIC, changed, patch, step};
use super::side::Step;

const NAMES: [&str; 4] = ["p0", "p1", "p2", "p3"];
const HELD: &str = "example.com/held";
const TRACKED: &str = "batch.kubernetes.io/job-tracking";
/// Earlier than the times of servers.
const TIME: &str = "2020-01-01T00:00:00Z";

impl Generator {
    pub(super) fn pod(&mut self) -> Step {
        match self.random.random_range(0..24) {
            0..7 => self.new_pod(),
            7..10 => self.put_pod(),
            10..14 => self.patch_pod(),
            14..18 => self.pod_status(),
            18 => self.binding(),
            19..23 => self.delete_pod(),
            _ => {
                let path = self.path(Kind::Pod, &NAMES);
                let path = self.one(&[path.clone(), format!("{path}/status")]);
                step("GET", path, Value::Null)
            }
        }
    }

    fn new_pod(&mut self) -> Step {
        let path = Kind::Pod.path(self.namespace());
        let label = self.one(&["0", "1"]);
        let mut meta = json!({"name": self.one(&NAMES), "labels": {"a": label}});
        let mut spec = json!({
            "schedulerName": "none", "restartPolicy": self.one(&["Never", "OnFailure", "Always"]),
            "containers": [{"name": "c", "image": "i"}],
        });
        if self.rarely(3) {
            meta["finalizers"] = json!([HELD]);
        }
        if self.rarely(2) {
            spec["nodeName"] = self.node(self.count_name()).into();
        }
        match self.random.random_range(0..14) {
            0 => {
                meta = json!({"generateName": format!("g{}-", self.count), "labels": {"a": label}});
            }
            1 => meta["resourceVersion"] = "5".into(),
            2 => spec["containers"] = json!([]),
            3 => meta["name"] = "Upper".into(),
            4 => drop(meta.as_object_mut().map(|it| it.remove("name"))),
            5 => meta["namespace"] = "other".into(),
            6 => {
                let resources = json!({"limits": {"cpu": "1", "memory": "1Mi"},
                                       "requests": {"cpu": "1", "memory": "1Mi"}});
                spec["containers"][0]["resources"] = resources;
            }
            7 => {
                meta["uid"] = "mine".into();
                meta["deletionTimestamp"] = TIME.into();
                meta["generation"] = 7.into();
            }
            8 => spec["terminationGracePeriodSeconds"] = self.one(&[0, 3600]).into(),
            9 => spec["activeDeadlineSeconds"] = 50.into(),
            10 | 11 => spec["terminationGracePeriodSeconds"] = 3600.into(),
            _ => {}
        }
        step("POST", path, json!({"metadata": meta, "spec": spec, "status": {"phase": "Failed"}}))
    }

    fn count_name(&self) -> &'static str {
        if self.count.is_multiple_of(2) { "n0" } else { "n1" }
    }

    fn put_pod(&mut self) -> Step {
        let path = self.path(Kind::Pod, &NAMES);
        let (back, label) = (self.back(), self.one(&["0", "1"]));
        let changes = [
            json!({}),
            json!({"metadata": {"labels": {"a": label}}}),
            json!({"metadata": {"labels": {"a": label}, "resourceVersion": null}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"finalizers": [HELD, TRACKED]}}),
            json!({"metadata": {"uid": "another"}}),
            json!({"metadata": {"uid": null, "labels": {"a": label}}}),
            json!({"metadata": {"name": "another"}}),
            json!({"spec": {"restartPolicy": label}}),
            json!({"spec": {"activeDeadlineSeconds": 20}}),
            json!({"status": {"phase": "Failed"}, "metadata": {"labels": {"b": label}}}),
        ];
        let change = self.one(&changes);
        let target = self.one(&[path.clone(), path.clone(), format!("{path}/status")]);
        let body = changed(&path, back, &change);
        step("PUT", target, body)
    }

    fn patch_pod(&mut self) -> Step {
        let path = self.path(Kind::Pod, &NAMES);
        let uid = format!("@uid {path}");
        let version = format!("@version {path} {}", self.back());
        let node = format!("{}/{}", Kind::Node.path(""), self.node("n0"));
        let name = self.node("n0");
        let owner = |controller: bool| {
            json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": format!("@uid {node}"),
                   "controller": controller})
        };
        let strategic = [
            json!({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [TRACKED]}}),
            json!({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [HELD]}}),
            json!({"metadata": {"uid": uid, "resourceVersion": version, "finalizers": [TRACKED]}}),
            json!({"metadata": {"uid": "another", "finalizers": [TRACKED]}}),
            json!({"metadata": {"ownerReferences": [{"$patch": "delete",
                                                     "uid": format!("@uid {node}")}]}}),
            json!({"metadata": {"annotations": {"k": "v"}, "labels": {"a": null}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "c": "1"}}}),
            json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}),
            json!({"spec": {"containers": [{"name": "d", "image": "j"}]}}),
            json!({"spec": {"activeDeadlineSeconds": 10}}),
            json!({"spec": {"nodeName": "another"}}),
            json!({"status": {"phase": "Failed"}}),
            json!({"metadata": {"labels": {"$patch": "unknown"}}}),
        ];
        let merge = [
            json!({"metadata": {"labels": {"a": self.one(&["0", "1"])}}}),
            json!({"metadata": {"labels": {"a": self.one(&["0", "1"])}, "resourceVersion": version}}),
            json!({"metadata": {"finalizers": []}}),
            json!({"metadata": {"uid": "another"}}),
            json!({"metadata": {"name": "another"}}),
            json!({"metadata": {"ownerReferences": [owner(true)]}}),
            json!({"metadata": {"annotations": {}}}),
            json!({"spec": {"priority": 5}}),
            json!({}),
        ];
        if self.rarely(20) {
            return patch(path, JSON, json!({}));
        }
        if self.rarely(2) {
            patch(path, STRATEGIC, self.one(&strategic))
        } else {
            patch(path, MERGE, self.one(&merge))
        }
    }

    fn pod_status(&mut self) -> Step {
        let path = self.path(Kind::Pod, &NAMES);
        let version = format!("@version {path} {}", self.back());
        let condition = json!({"type": self.one(&["Ready", "DisruptionTarget", "example.com/x"]),
                               "status": self.one(&["True", "False"]), "reason": null,
                               "lastTransitionTime": TIME});
        let container = |state: Value| {
            json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": state}])
        };
        let exit_code = self.one(&[0, 1]);
        let over = container(json!({"terminated": {"exitCode": exit_code, "finishedAt": TIME}}));
        let runs = container(json!({"running": {"startedAt": TIME}}));
        let bodies = [
            json!({"status": {"phase": self.one(&["Running", "Running", "Succeeded", "Failed"])}}),
            json!({"status": {"conditions": [condition]}}),
            json!({"status": {"phase": "Running", "containerStatuses": runs}}),
            json!({"status": {"containerStatuses": over}}),
            json!({"status": {"reason": "R", "message": "M"}, "spec": {"priority": 9},
                   "metadata": {"annotations": {"s": "1"}, "labels": {"a": "1"}}}),
            json!({"metadata": {"uid": format!("@uid {path}"), "resourceVersion": version},
                   "status": {"phase": "Failed", "conditions": [condition]}}),
            json!({"metadata": {"uid": "another"}, "status": {"phase": "Failed"}}),
            json!({"status": {"qosClass": "Burstable"}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"ownerReferences": null}}),
        ];
        let body = self.one(&bodies);
        patch(format!("{path}/status"), self.one(&[STRATEGIC, STRATEGIC, MERGE]), body)
    }

    fn binding(&mut self) -> Step {
        let path = self.path(Kind::Pod, &NAMES);
        let name = path.rsplit('/').next().unwrap_or_default();
        let targets = [json!({"kind": "Node", "name": self.node("n1")}), json!({"name": ""})];
        let body = json!({"metadata": {"name": name}, "target": self.one(&targets)});
        step("POST", format!("{path}/binding"), body)
    }

    fn delete_pod(&mut self) -> Step {
        let path = self.path(Kind::Pod, &NAMES);
        if self.rarely(12) {
            let query = "labelSelector=a%3D0".to_owned();
            let collection = Kind::Pod.path(self.namespace());
            return Step { query, ..step("DELETE", collection, Value::Null) };
        }
        let (uid, back) = (format!("@uid {path}"), self.back());
        let version = format!("@version {path} {back}");
        let options = [
            Value::Null,
            json!({"gracePeriodSeconds": 0}),
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}),
            // Longer than a run: what has passed of it depends on the clock.
            json!({"gracePeriodSeconds": 600, "preconditions": {"uid": uid}}),
            json!({"gracePeriodSeconds": -1}),
            json!({"preconditions": {"uid": "another"}}),
            json!({"preconditions": {"uid": uid, "resourceVersion": version}}),
            json!({"propagationPolicy": "Background"}),
            json!({"propagationPolicy": "Sideways"}),
        ];
        let options = self.one(&options);
        step("DELETE", path, options)
    }
}
