//! Draws the requests of a seed: those on Leases, events, nodes and namespaces, and lists.

use model_api::{Kind, PROTOBUF};
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};

use super::side::Step;

/// How the names of the objects that end a run end.
pub(crate) const LAST: &str = "zz-last";
pub(crate) const JSON: &str = "application/json";
/// Lists without what is not metadata.
const BRIEF: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Draws requests.
#[derive(Debug)]
pub(crate) struct Generator {
    namespace: String,
    pub(super) random: StdRng,
    /// How many were drawn.
    pub(super) count: u64,
}

/// The watches of a run: the path and the parameters of each. None begins at a version of which the
/// API may or may not have the history still.
pub(crate) fn watches(namespace: &str) -> Vec<(String, String)> {
    let pods = Kind::Pod.path(namespace);
    let from = "resourceVersion=@begin";
    vec![
        (pods.clone(), from.to_owned()),
        (pods.clone(), format!("{from}&labelSelector=a%3D1")),
        (pods.clone(), format!("{from}&fieldSelector=spec.nodeName%3D{namespace}-n0")),
        (pods.clone(), format!("{from}&fieldSelector=status.phase%3DRunning")),
        (pods, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned()),
        (Kind::Job.path(namespace), from.to_owned()),
        (Kind::Lease.path(namespace), from.to_owned()),
        (Kind::Event.path(namespace), from.to_owned()),
        (Kind::Node.path(""), format!("{from}&labelSelector=run%3D{namespace}")),
    ]
}

pub(crate) fn step(method: &'static str, path: impl Into<String>, body: Value) -> Step {
    Step { method, path: path.into(), query: String::new(), content: JSON, accept: JSON, body }
}

pub(crate) fn patch(path: impl Into<String>, content: &'static str, body: Value) -> Step {
    Step { content, ..step("PATCH", path, body) }
}

/// An object as this side saw it, changed.
pub(crate) fn changed(path: &str, back: usize, merge: &Value) -> Value {
    json!({"@object": path, "back": back, "merge": merge})
}

impl Generator {
    pub(crate) fn new(namespace: &str, random: StdRng) -> Self {
        Self { namespace: namespace.to_owned(), random, count: 0 }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// One of these.
    pub(super) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.random).expect("there must be one").clone()
    }

    /// True once in so many times.
    pub(super) fn rarely(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    /// The path of an object; some names are never there.
    pub(super) fn path(&mut self, kind: Kind, names: &[&str]) -> String {
        let name = self.one(names);
        if kind == Kind::Node {
            return format!("{}/{}-{name}", kind.path(""), self.namespace);
        }
        format!("{}/{name}", kind.path(&self.namespace))
    }

    pub(super) fn node(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// How many versions ago: mostly none.
    pub(super) fn back(&mut self) -> usize {
        self.one(&[0, 0, 0, 1, 2])
    }

    /// What comes first.
    pub(crate) fn set_up(&mut self) -> Vec<Step> {
        let nodes = ["n0", "n1"].map(|name| self.new_node(name));
        nodes.into_iter().collect()
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Step {
        self.count += 1;
        match self.random.random_range(0..100) {
            0..44 => {
                let step = self.pod();
                self.in_either_format(step, Kind::Pod)
            }
            44..70 => {
                let step = self.job();
                self.in_either_format(step, Kind::Job)
            }
            70..77 => self.lease(),
            77..84 => self.event(),
            84..92 => self.node_step(),
            92..95 => self.other(),
            _ => self.list(),
        }
    }

    /// The request with its object in JSON or in protobuf. A pod that was read has volumes, which
    /// the model's table lacks.
    fn in_either_format(&mut self, step: Step, kind: Kind) -> Step {
        let is_new = step.method == "POST" && step.path == kind.path(&self.namespace);
        let is_job = step.method == "PUT" && kind == Kind::Job;
        let content = if (is_new || is_job) && self.rarely(3) { PROTOBUF } else { step.content };
        Step { content, ..step }
    }

    /// What ends the watches.
    pub(crate) fn last(&mut self) -> Vec<Step> {
        let meta = json!({"name": LAST, "labels": {"a": "1"}});
        let container = json!([{"name": "c", "image": "i"}]);
        let namespace = self.namespace.clone();
        let pods = Kind::Pod.path(&namespace);
        let pod = json!({"metadata": meta, "spec": {"nodeName": self.node("n0"),
                         "containers": container}});
        let job = json!({"metadata": meta, "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": container}}}});
        let event = json!({"metadata": meta, "involvedObject": {"namespace": namespace}});
        let running = json!({"status": {"phase": "Running"}});
        vec![
            step("POST", &pods, pod),
            patch(format!("{pods}/{LAST}/status"), MERGE, running),
            step("POST", Kind::Job.path(&namespace), job),
            step("POST", Kind::Lease.path(&namespace), json!({"metadata": meta})),
            step("POST", Kind::Event.path(&namespace), event),
            self.new_node(LAST),
        ]
    }

    /// What other controllers react to, so that only the answer is compared.
    pub(crate) fn after(&mut self) -> Vec<Step> {
        let job = format!("{}/{LAST}", Kind::Job.path(&self.namespace));
        let namespace = format!("{}/{}", Kind::Namespace.path(""), self.namespace);
        let pod = json!({"metadata": {"name": "late"}, "spec": {"containers": [
            {"name": "c", "image": "i"}]}});
        vec![
            step("DELETE", job, Value::Null),
            step("DELETE", namespace, Value::Null),
            step("POST", Kind::Pod.path(&self.namespace), pod),
        ]
    }

    /// What removes from a cluster that others use what lies in no namespace.
    pub(crate) fn clean_up(&self) -> Vec<Step> {
        let query = format!("labelSelector=run%3D{}", self.namespace);
        vec![Step { query, ..step("DELETE", Kind::Node.path(""), Value::Null) }]
    }

    fn new_node(&mut self, name: &str) -> Step {
        let labels = json!({"run": self.namespace});
        let body = json!({"metadata": {"name": self.node(name), "labels": labels}});
        step("POST", Kind::Node.path(""), body)
    }

    fn node_step(&mut self) -> Step {
        let path = self.path(Kind::Node, &["n0", "n1", "n2"]);
        let status = format!("{path}/status");
        let kind = self.one(&["Ready", "Ours", "Theirs"]);
        let value = self.one(&["True", "False"]);
        let time = "2020-01-01T00:00:00Z";
        let condition = json!({"type": kind, "status": value, "reason": "R", "message": "",
                               "lastTransitionTime": time, "lastHeartbeatTime": time});
        let taints = json!([{"key": self.one(&["a", "b"]), "effect": "NoSchedule"}]);
        match self.random.random_range(0..9) {
            0 => self.new_node("n2"),
            1 => step("DELETE", self.path(Kind::Node, &["n2"]), Value::Null),
            2 => patch(status, STRATEGIC, json!({"status": {"conditions": [condition]}})),
            3 => {
                let gone = json!([{"$patch": "delete", "type": kind}]);
                patch(status, STRATEGIC, json!({"status": {"conditions": gone}}))
            }
            4 => patch(path, MERGE, json!({"metadata": {"annotations": {"a": value}}})),
            5 => {
                let version = format!("@version {path} {}", self.back());
                let body = json!({"metadata": {"resourceVersion": version},
                                  "spec": {"taints": taints}});
                patch(path, MERGE, body)
            }
            6 => {
                let merge = json!({"spec": {"taints": taints}, "status": {"phase": "Running"}});
                let body = changed(&path, self.back(), &merge);
                step("PUT", if value == "True" { path } else { status }, body)
            }
            7 => patch(path, STRATEGIC, json!({"spec": {"unschedulable": value == "True"}})),
            _ => step("GET", path, Value::Null),
        }
    }

    fn lease(&mut self) -> Step {
        let path = self.path(Kind::Lease, &["l0", "l1"]);
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let seconds = self.one(&[15, 15, 20, 0]);
        let spec = json!({"holderIdentity": self.one(&["x", "y"]), "leaseDurationSeconds": seconds,
                          "renewTime": "2020-01-01T00:00:00.000000Z"});
        match self.random.random_range(0..6) {
            0 | 1 => {
                let body = json!({"metadata": {"name": name}, "spec": spec});
                step("POST", Kind::Lease.path(&self.namespace), body)
            }
            2 => {
                let body = changed(&path, self.back(), &json!({"spec": spec}));
                step("PUT", path, body)
            }
            3 => {
                let merge = json!({"spec": spec, "metadata": {"resourceVersion": null}});
                let body = changed(&path, 0, &merge);
                step("PUT", path, body)
            }
            4 => step("GET", path, Value::Null),
            _ => step("DELETE", path, Value::Null),
        }
    }

    fn event(&mut self) -> Step {
        let path = self.path(Kind::Event, &["e0", "e1"]);
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let events = Kind::Event.path(&self.namespace);
        let of = self.one(&[self.namespace.clone(), self.namespace.clone(), "other".into()]);
        let involved = json!({"kind": "Job", "name": "j0", "namespace": of});
        match self.random.random_range(0..6) {
            0 | 1 => {
                let body = json!({"metadata": {"name": name}, "involvedObject": involved,
                                  "reason": "R", "message": "M", "type": "Normal", "count": 1});
                step("POST", events, body)
            }
            2 => {
                let count = self.one(&[1, 2, 3]);
                let body = json!({"count": count, "message": "again"});
                patch(path, STRATEGIC, body)
            }
            3 => {
                let path = events.replace("/api/v1", "/apis/events.k8s.io/v1");
                let body = json!({
                    "metadata": {"name": name}, "eventTime": "2020-01-01T00:00:00.000000Z",
                    "reportingController": "example.com/c", "reportingInstance": "i",
                    "action": "A", "reason": "R", "regarding": involved, "note": "N",
                    "type": "Warning"});
                step("POST", path, body)
            }
            4 => step("DELETE", path, Value::Null),
            _ => {
                let query = "fieldSelector=involvedObject.name%3Dj0".to_owned();
                Step { query, ..step("GET", events, Value::Null) }
            }
        }
    }

    fn other(&mut self) -> Step {
        let namespace = format!("{}/{}", Kind::Namespace.path(""), self.namespace);
        let classes = Kind::PriorityClass.path("");
        let pod = json!({"metadata": {"name": "p"}});
        match self.random.random_range(0..6) {
            0 => step("GET", namespace, Value::Null),
            1 => patch(namespace, MERGE, json!({"metadata": {"labels": {"n": "1"}}})),
            2 => step("GET", format!("{classes}/system-node-critical"), Value::Null),
            3 => step("POST", Kind::Pod.path("there-is-none"), pod),
            4 => step("GET", "/api/v1/nothings", Value::Null),
            _ => step("DELETE", format!("{}/there-is-none", Kind::Namespace.path("")), Value::Null),
        }
    }

    fn list(&mut self) -> Step {
        let kind = self.one(&[Kind::Pod, Kind::Pod, Kind::Job, Kind::Lease]);
        let path = kind.path(&self.namespace);
        let queries = [
            "",
            "limit=2",
            "limit=2",
            "limit=2&labelSelector=a%3D1",
            "limit=1&continue=@token",
            "labelSelector=a+in+(0,1),b",
            "labelSelector=!a",
            "labelSelector=none",
            "labelSelector=a+b",
            "fieldSelector=metadata.name%3Dp0",
            "fieldSelector=status.phase%21%3DPending",
            "fieldSelector=spec.none%3D1",
            "resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersion=x",
            "watch=true&sendInitialEvents=true",
            "watch=true&resourceVersionMatch=NotOlderThan",
            "watch=true&fieldSelector=spec.none%3D1",
        ];
        // The token is of pods.
        let query = self.one(&queries);
        let path = if query.contains("token") || query.contains("limit") {
            Kind::Pod.path(&self.namespace)
        } else {
            path
        };
        let is_list = !query.contains("watch");
        let accept = if is_list && self.rarely(3) { BRIEF } else { JSON };
        Step { query: query.to_owned(), accept, ..step("GET", path, Value::Null) }
    }
}
