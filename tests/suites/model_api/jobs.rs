//! Draws requests on Jobs.

use model_api::Kind;
use rand::Rng as _;
use serde_json::{Value, json};

use super::generator::{Generator, MERGE, STRATEGIC, changed, patch, step};
use super::side::Step;

const NAMES: [&str; 3] = ["j0", "j1", "j2"];
const HELD: &str = "example.com/held";
const STARTED: &str = "2020-01-01T00:00:00Z";
const COMPLETED: &str = "2020-01-01T00:01:00Z";

impl Generator {
    pub(super) fn job(&mut self) -> Step {
        match self.random.random_range(0..20) {
            0..5 => self.new_job(),
            5..9 => self.job_spec(),
            9..17 => self.job_status(),
            17..19 => self.delete_job(),
            _ => step("GET", self.path(Kind::Job, &NAMES), Value::Null),
        }
    }

    fn new_job(&mut self) -> Step {
        let mut meta = json!({"name": self.one(&NAMES)});
        // No other controller acts on it.
        let mut spec = json!({"managedBy": "example.com/none", "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
        if self.rarely(3) {
            meta["finalizers"] = json!([HELD]);
        }
        if self.rarely(2) {
            spec["completionMode"] = "Indexed".into();
            spec["completions"] = self.one(&[2, 3]).into();
            spec["parallelism"] = 2.into();
        }
        match self.random.random_range(0..10) {
            0 => spec["template"]["metadata"]["labels"] = json!({"a": "1"}),
            1 => {
                let policy = self.one(&["Always", "OnFailure"]);
                spec["template"]["spec"]["restartPolicy"] = policy.into();
            }
            2 => spec["parallelism"] = (-1).into(),
            3 => drop(spec.as_object_mut().map(|it| it.remove("completions"))),
            4 => spec["suspend"] = true.into(),
            5 if spec["completionMode"] == "Indexed" => spec["backoffLimitPerIndex"] = 1.into(),
            6 => {
                spec["podFailurePolicy"] = json!({"rules": [{"action": "Ignore",
                    "onExitCodes": {"operator": "In", "values": [3]}}]});
            }
            7 => meta["labels"] = json!({"l": "1"}),
            _ => {}
        }
        step("POST", Kind::Job.path(self.namespace()), json!({"metadata": meta, "spec": spec}))
    }

    fn job_spec(&mut self) -> Step {
        let path = self.path(Kind::Job, &NAMES);
        let changes = [
            json!({"spec": {"parallelism": self.one(&[2, 3, 4])}}),
            json!({"spec": {"completions": 3, "parallelism": 3}}),
            json!({"spec": {"suspend": self.one(&[true, false])}}),
            json!({"spec": {"backoffLimit": 4}}),
            json!({"spec": {"backoffLimit": -4}}),
            json!({"spec": {"activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 5}}),
            json!({"spec": {"completionMode": "Indexed"}}),
            json!({"spec": {"managedBy": "example.com/another"}}),
            json!({"spec": {"template": {"metadata": {"labels": {"z": "1"}}}}}),
            json!({"metadata": {"labels": {"a": self.one(&["0", "1"])}}}),
            json!({"metadata": {"finalizers": null}}),
            json!({"metadata": {"finalizers": [HELD]}}),
            json!({"status": {"active": 5}}),
            json!({}),
        ];
        let change = self.one(&changes);
        match self.random.random_range(0..3) {
            0 => {
                let body = changed(&path, self.back(), &change);
                step("PUT", path, body)
            }
            1 => patch(path, MERGE, change),
            _ => patch(path, STRATEGIC, change),
        }
    }

    fn job_status(&mut self) -> Step {
        let path = self.path(Kind::Job, &NAMES);
        let condition = |kind: &str, value: &str| {
            json!({"type": kind, "status": value, "lastTransitionTime": STARTED,
                   "lastProbeTime": STARTED})
        };
        let target = self.one(&["SuccessCriteriaMet", "FailureTarget"]);
        let end = self.one(&["Complete", "Failed", "Suspended"]);
        let count = self.one(&[0, 1, 2]);
        let both = json!([condition(target, "True"), condition(end, "True")]);
        let statuses = [
            json!({"active": count, "ready": self.one(&[0, 1])}),
            json!({"startTime": STARTED, "active": 1}),
            json!({"startTime": COMPLETED}),
            json!({"startTime": null}),
            json!({"succeeded": count}),
            json!({"failed": count}),
            json!({"terminating": count}),
            json!({"active": -1}),
            json!({"uncountedTerminatedPods": {"succeeded": ["a", "b"], "failed": ["c"]}}),
            json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["a"]}}),
            json!({"uncountedTerminatedPods": {}}),
            json!({"uncountedTerminatedPods": null}),
            json!({"conditions": [condition(target, "True")]}),
            json!({"conditions": [condition(target, "False")]}),
            json!({"conditions": [condition(end, "True")]}),
            json!({"conditions": both}),
            json!({"conditions": both, "active": 0, "ready": 0, "terminating": 0,
                   "uncountedTerminatedPods": null, "startTime": STARTED,
                   "completionTime": if end == "Complete" { json!(COMPLETED) } else { json!(null) }}),
            json!({"completionTime": COMPLETED}),
            json!({"completedIndexes": self.one(&["0", "0,1", "1-x"]), "succeeded": count}),
            json!({"failedIndexes": self.one(&["1", "0"])}),
        ];
        let mut body = json!({"status": self.one(&statuses)});
        if self.rarely(6) {
            body["spec"] = json!({"parallelism": 9});
            body["metadata"] = json!({"labels": {"s": "1"}});
        }
        if self.rarely(2) {
            let body = changed(&path, self.back(), &body);
            return step("PUT", format!("{path}/status"), body);
        }
        patch(format!("{path}/status"), self.one(&[MERGE, STRATEGIC]), body)
    }

    fn delete_job(&mut self) -> Step {
        let path = self.path(Kind::Job, &NAMES);
        let uid = self.one(&[format!("@uid {path}"), "another".to_owned()]);
        // Other policies are those of the garbage collector.
        let options = json!({"propagationPolicy": "Background", "preconditions": {"uid": uid}});
        step("DELETE", path, options)
    }
}
