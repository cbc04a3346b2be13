//! Acts on single pods of the node, and reads what the API shows of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::site::{Site, pod};
use crate::bed::JobBuilder;
use crate::eventually;

const SOON: Duration = Duration::from_mins(1);

impl Site {
    /// The directory that replaces the host's root.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// A client with an administrator's rights.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The name of its namespace.
    pub fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// The name of its node.
    pub fn node_name(&self) -> &str {
        &self.nodes.names()[0]
    }

    /// The pods of its namespace, for an administrator.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// Creates a pod of the Job on the node, with these changes; returns its UID.
    pub async fn create(&self, name: &str, script: &str, change: &Value) -> String {
        let mut pod = pod(name, self.node_name(), script, &self.owner);
        merge(&mut pod, change);
        let pod = serde_json::from_value(pod).expect("must be a pod");
        let pod = self.pods().create(&PostParams::default(), &pod).await.expect("a pod");
        pod.metadata.uid.expect("must have a UID")
    }

    /// Creates a Job whose pods only the node binds.
    pub async fn create_job(&self, job: JobBuilder) {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), self.namespace.name());
        jobs.create(&PostParams::default(), &job.build()).await.expect("the Job");
    }

    /// A Job, as the API has it.
    pub async fn job(&self, name: &str) -> Job {
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), self.namespace.name());
        jobs.get(name).await.expect("the Job")
    }

    /// The name of the Job's only pod, once it exists.
    pub async fn only_pod_of(&self, job: &str) -> String {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        let see = async || {
            let pods = self.pods().list(&selector).await.expect("the pods").items;
            pods.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
        };
        let mut names = eventually("a pod", SOON, see, |names| !names.is_empty()).await;
        assert_eq!(names.len(), 1, "{names:?}");
        names.remove(0)
    }

    /// Deletes a pod, with this grace.
    pub async fn delete(&self, name: &str, grace_seconds: u32) {
        let how = DeleteParams::default().grace_period(grace_seconds);
        self.pods().delete(name, &how).await.expect("the pod is deleted");
    }

    /// Removes all finalizers of a pod.
    pub async fn release(&self, name: &str) {
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let params = PatchParams::default();
        self.pods().patch(name, &params, &release).await.expect("the pod is released");
    }

    /// Changes a pod's status, as an administrator.
    pub async fn change_status(&self, name: &str, status: &Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        let params = PatchParams::default();
        self.pods().patch_status(name, &params, &patch).await.expect("the status is changed");
    }

    /// From now on the node's kubelet writes no status of its pods.
    pub async fn silence_kubelet(&self) {
        self.nodes.vanish(self.node_name()).await.expect("the node vanishes");
    }

    /// The node's kubelet continues with its pods.
    pub async fn revive_kubelet(&self) {
        self.nodes.revive(self.node_name()).await.expect("the node is revived");
    }

    /// A pod, as the API has it.
    pub async fn pod(&self, name: &str) -> Pod {
        self.pods().get(name).await.expect("the pod")
    }

    /// Waits for a state of a pod.
    pub async fn until_pod(&self, name: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let what = format!("{name} {what} (log: {})", self.agent.log().display());
        let see = async || self.pod(name).await;
        eventually(&what, SOON, see, holds).await
    }

    /// Waits until a pod is in this phase.
    pub async fn until_phase(&self, name: &str, phase: &str) -> Pod {
        let is_in = |pod: &Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
        };
        self.until_pod(name, phase, is_in).await
    }

    /// Waits until a pod is gone.
    pub async fn until_gone(&self, name: &str) {
        let what = format!("{name} gone (log: {})", self.agent.log().display());
        let see = async || self.pods().get_opt(name).await.expect("an answer");
        eventually(&what, SOON, see, Option::is_none).await;
    }

    /// The events of this reason about a pod.
    pub async fn events(&self, name: &str, reason: &str) -> Vec<Event> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), self.namespace.name());
        let fields = format!("involvedObject.name={name},reason={reason}");
        let list = events.list(&ListParams::default().fields(&fields)).await;
        list.expect("the events").items
    }

    /// Waits for an event of this reason about a pod; returns the first.
    pub async fn event_of(&self, name: &str, reason: &str) -> Event {
        let what = format!("{reason} about {name} (log: {})", self.agent.log().display());
        let see = async || self.events(name, reason).await;
        let events = eventually(&what, SOON, see, |events| !events.is_empty()).await;
        events.into_iter().next().expect("must be there")
    }

    /// Waits until a metric has a value; returns it. The agent closes its lock before it says so.
    pub async fn known_metric(&self, name: &str) -> f64 {
        let what = format!("{name} is known (log: {})", self.agent.log().display());
        let see = async || self.metric(name).await;
        eventually(&what, SOON, see, Option::is_some).await.expect("must be known")
    }

    /// Waits for this value of a metric, named without its prefix.
    pub async fn until_metric(&self, name: &str, value: f64) {
        let see = async || self.metric(name).await;
        let is_it = |found: &Option<f64>| *found == Some(value);
        eventually(name, SOON, see, is_it).await;
    }

    /// Counts a kill at the limit of a container of the pod in the host's cgroups; the container
    /// has ended.
    pub async fn oom_kill(&self, name: &str) {
        self.count_kill(name, "67108864", 1).await;
    }

    /// The same for a container below its limit: the node had no memory left.
    pub async fn oom_kill_by_node(&self, name: &str) {
        self.count_kill(name, "max", 0).await;
    }

    async fn count_kill(&self, name: &str, limit: &str, at_limit: u32) {
        let uid = self.pod(name).await.metadata.uid.expect("must have a UID");
        let name = format!("pod{uid}");
        let made = self.root.path().join(&name);
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("must have one")).expect("must be made");
            std::fs::write(path, text).expect("must be writable");
        };
        for level in [&made, &made.join("c0")] {
            write(level.join("memory.max"), &format!("{limit}\n"));
            write(level.join("cgroup.events"), "populated 0\n");
            for file in ["memory.events.local", "memory.events"] {
                write(level.join(file), &format!("oom {at_limit}\noom_kill 1\n"));
            }
        }
        // A cgroup appears with all of its files.
        let place = self.root.path().join("sys/fs/cgroup/kubepods").join(name);
        std::fs::rename(made, place).expect("must be movable");
    }
}

/// RFC 7396 without the removal of fields.
fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => into.clone_from(change),
    }
}
