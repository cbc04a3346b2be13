//! Models the API for Jobs, pods and nodes: versions, optimistic concurrency, status rules,
//! finalizers, deletion with grace, and a log of all changes that feeds the watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use controller_core::checks::status_rules;
use controller_core::job::{Claim, ClaimKind, PodDraft, pod_body};
use controller_core::podgc::{NamespaceView, NodeView, WireNode};
use controller_core::view::{
    Interner, Job, JobKey, Pod, PodGroup, Uid, Version, WirePod, Workload,
};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;
use serde::Deserialize as _;
use serde_json::Value;

use super::pod_object;

/// Grace of a deletion that names none, if a kubelet has to act on it.
pub(crate) const GRACE_SECONDS: i64 = 30;

/// What a watch shows of an object.
#[derive(Clone, Debug)]
pub(crate) enum Sighting<T> {
    /// It is there, new or changed.
    Shown(Arc<T>),
    /// It is gone: its last state, and the version of its deletion.
    Gone(Arc<T>, Version),
}

impl<T> Sighting<T> {
    /// The object, if it exists.
    pub(crate) fn shown(&self) -> Option<&Arc<T>> {
        match self {
            Self::Shown(object) => Some(object),
            Self::Gone(..) => None,
        }
    }
}

/// What happens to a Job's pods when it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// A Job as stored, with fields that its view does not show.
#[derive(Clone, Debug)]
pub(crate) struct StoredJob {
    pub(crate) view: Arc<Job>,
    pub(crate) deletion: Option<Propagation>,
}

/// The API server and its store.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) now: Timestamp,
    pub(crate) jobs: BTreeMap<JobKey, StoredJob>,
    pub(crate) pods: BTreeMap<Uid, Arc<Pod>>,
    pub(crate) nodes: BTreeMap<Arc<str>, Value>,
    /// The pods as JSON.
    bodies: BTreeMap<Uid, Arc<Value>>,
    pub(crate) job_log: Vec<Sighting<Job>>,
    pub(crate) pod_log: Vec<Sighting<Pod>>,
    pub(crate) node_log: Vec<Sighting<NodeView>>,
    /// The namespace of all Jobs.
    pub(crate) namespace: Arc<NamespaceView>,
    /// Whether it ever had a `force-fail-after`.
    pub(crate) namespace_accepted: bool,
    pub(crate) namespace_log: Vec<Sighting<NamespaceView>>,
    /// Whether it serves Workloads and PodGroups.
    pub(crate) serves_groups: bool,
    pub(crate) workloads: BTreeMap<Arc<str>, Arc<Workload>>,
    pub(crate) workload_log: Vec<Sighting<Workload>>,
    pub(crate) pod_groups: BTreeMap<Arc<str>, Arc<PodGroup>>,
    pub(crate) pod_group_log: Vec<Sighting<PodGroup>>,
    version: u64,
    interner: Interner,
}

impl Api {
    pub(crate) fn new(now: Timestamp, force_fail_after: Option<SignedDuration>) -> Self {
        let namespace = NamespaceView { name: "ns".to_owned(), force_fail_after };
        Self {
            now,
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            bodies: BTreeMap::new(),
            job_log: Vec::new(),
            pod_log: Vec::new(),
            node_log: Vec::new(),
            namespace: Arc::new(namespace),
            namespace_accepted: force_fail_after.is_some(),
            namespace_log: Vec::new(),
            serves_groups: false,
            workloads: BTreeMap::new(),
            workload_log: Vec::new(),
            pod_groups: BTreeMap::new(),
            pod_group_log: Vec::new(),
            version: 100,
            interner: Interner::default(),
        }
    }

    /// The version of the newest change.
    pub(crate) fn version(&self) -> Version {
        Version(self.version)
    }

    pub(super) fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    /// The time as the API stores it.
    pub(crate) fn whole_second(&self) -> Timestamp {
        Timestamp::from_second(self.now.as_second()).unwrap_or(self.now)
    }

    /// A user creates a Job. `None` if the name is taken.
    pub(crate) fn create_job(&mut self, mut job: Job) -> Option<Arc<Job>> {
        if self.jobs.contains_key(&job.key) {
            return None;
        }
        job.version = self.next_version();
        job.uid = format!("job-{:05}", self.version).into();
        job.generation = 1;
        job.created = Some(self.whole_second());
        let job = Arc::new(job);
        self.store_job(Arc::clone(&job), None);
        Some(job)
    }

    fn store_job(&mut self, view: Arc<Job>, deletion: Option<Propagation>) {
        self.job_log.push(Sighting::Shown(Arc::clone(&view)));
        self.jobs.insert(view.key.clone(), StoredJob { view, deletion });
    }

    /// A user or another controller changes a Job.
    pub(crate) fn edit_job(&mut self, key: &JobKey, how: impl FnOnce(&mut Job)) {
        let Some(stored) = self.jobs.get(key).cloned() else { return };
        let mut job = Job::clone(&stored.view);
        how(&mut job);
        if job.spec != stored.view.spec || job.deleting != stored.view.deleting {
            job.generation += 1;
        }
        job.version = self.next_version();
        self.store_job(Arc::new(job), stored.deletion);
    }

    /// A user deletes a Job.
    pub(crate) fn delete_job(&mut self, key: &JobKey, how: Propagation) {
        if how == Propagation::Background {
            self.remove_job(key);
        } else if let Some(stored) = self.jobs.get_mut(key) {
            stored.deletion.get_or_insert(how);
            self.edit_job(key, |job| job.deleting = true);
        }
    }

    /// Removes a Job without finalizers.
    pub(crate) fn remove_job(&mut self, key: &JobKey) {
        if let Some(stored) = self.jobs.remove(key) {
            let version = self.next_version();
            let uid = stored.view.uid.clone();
            self.job_log.push(Sighting::Gone(stored.view, version));
            self.remove_groups(&uid);
        }
    }

    /// The Job with this UID.
    pub(crate) fn job(&self, uid: &Uid) -> Option<&Arc<Job>> {
        self.jobs.values().map(|stored| &stored.view).find(|job| job.uid == *uid)
    }

    /// PUT of a status that was computed from `read`.
    pub(crate) fn write_status(&mut self, read: &Job, status: &JobStatus) -> Outcome<Arc<Job>> {
        let Some(stored) = self.jobs.get(&read.key).cloned() else {
            return Err(failure(FailureKind::NotFound, "jobs not found"));
        };
        if stored.view.version != read.version || stored.view.uid != read.uid {
            return Err(failure(FailureKind::Conflict, "the object has been modified"));
        }
        let violations = status_rules::violations(&stored.view, status);
        if !violations.is_empty() {
            return Err(failure(FailureKind::Invalid, &violations.join("; ")));
        }
        let mut job = Job::clone(&stored.view);
        job.status = status.clone();
        job.version = self.next_version();
        let job = Arc::new(job);
        self.store_job(Arc::clone(&job), stored.deletion);
        Ok(job)
    }

    /// The newest version among the pods of this Job.
    pub(crate) fn newest_of(&self, job: &Job) -> Version {
        let owned = |pod: &&Arc<Pod>| pod.owner.as_ref().is_some_and(|it| it.uid == job.uid);
        let versions = self.pods.values().filter(owned).map(|pod| pod.version);
        versions.max().unwrap_or_default()
    }

    /// POST of a pod of this Job.
    pub(crate) fn create_pod(&mut self, job: &Job, draft: &PodDraft) -> Arc<Pod> {
        let version = self.next_version();
        let body = pod_body(job, draft);
        let mut body: Value =
            serde_json::from_str(body.json().expect("a body must be JSON")).expect("must be JSON");
        let prefix = body["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
        body["metadata"]["name"] = format!("{prefix}{version}").into();
        body["metadata"]["uid"] = format!("pod-{:05}", version.0).into();
        body["metadata"]["namespace"] = (*job.key.namespace).into();
        body["metadata"]["creationTimestamp"] = self.whole_second().to_string().into();
        self.store_pod(body, version)
    }

    fn store_pod(&mut self, mut body: Value, version: Version) -> Arc<Pod> {
        body["metadata"]["resourceVersion"] = version.to_string().into();
        let wire = WirePod::deserialize(&body).expect("what is stored must be a pod");
        let pod = Arc::new(wire.view(&mut self.interner));
        self.pod_log.push(Sighting::Shown(Arc::clone(&pod)));
        self.bodies.insert(pod.uid.clone(), Arc::new(body));
        self.pods.insert(pod.uid.clone(), Arc::clone(&pod));
        pod
    }

    /// Changes a pod. A deleted pod goes once its grace is over and no finalizer of ours holds it.
    /// A no-op change gets no version, as in the real API.
    pub(crate) fn change_pod(
        &mut self,
        uid: &Uid,
        how: impl FnOnce(&mut Value),
    ) -> Outcome<Arc<Pod>> {
        let (Some(stored), Some(old)) = (self.pods.get(uid).cloned(), self.bodies.get(uid)) else {
            return Err(failure(FailureKind::NotFound, "pods not found"));
        };
        let mut body = Value::clone(old);
        how(&mut body);
        let ends = body["metadata"]["deletionGracePeriodSeconds"] == 0;
        let gone = ends && body["metadata"]["finalizers"].is_null();
        if body == **old && !gone {
            return Ok(stored);
        }
        let version = self.next_version();
        let pod = self.store_pod(body, version);
        if gone {
            self.pod_log.pop();
            self.pods.remove(uid);
            self.bodies.remove(uid);
            self.pod_log.push(Sighting::Gone(Arc::clone(&pod), version));
        }
        Ok(pod)
    }

    /// PATCH of a pod of this version that removes the tracking finalizer.
    pub(crate) fn strip(&mut self, pod: &Pod) -> Outcome<Arc<Pod>> {
        if self.pods.get(&pod.uid).is_some_and(|stored| stored.version != pod.version) {
            return Err(failure(FailureKind::Conflict, "the object has been modified"));
        }
        self.change_pod(&pod.uid, |pod| pod_object::track(pod, false))
    }

    /// PATCH of a pod that adopts it, disowns it, or restores its finalizer.
    pub(crate) fn claim(&mut self, job: &Job, claim: &Claim) -> Outcome<Arc<Pod>> {
        let uid = &claim.pod.uid;
        let owner = self.pods.get(uid).and_then(|pod| pod.owner.clone());
        let ours = owner.as_ref().is_some_and(|owner| owner.uid == job.uid);
        let fits = match claim.kind {
            ClaimKind::Adopt => ours || owner.is_none(),
            ClaimKind::Disown | ClaimKind::Track => ours,
        };
        if self.pods.contains_key(uid) && !fits && claim.kind != ClaimKind::Track {
            return Err(failure(FailureKind::Invalid, "another controller owns it"));
        }
        let gives = claim.kind != ClaimKind::Disown;
        let version = self.pods.get(uid).map(|pod| pod.version);
        if gives && version.is_some_and(|version| version != claim.pod.version) {
            return Err(failure(FailureKind::Conflict, "the object has been modified"));
        }
        let closing = |pod: &Arc<Pod>| pod.deletion.is_some() && !pod.tracked;
        if gives && self.pods.get(uid).is_some_and(closing) {
            return Err(failure(FailureKind::Invalid, "no new finalizers while deleting"));
        }
        self.change_pod(uid, |pod| match claim.kind {
            ClaimKind::Adopt => {
                pod_object::set_owner(pod, Some(job));
                pod_object::track(pod, true);
            }
            ClaimKind::Disown => {
                pod_object::set_owner(pod, None);
                pod_object::track(pod, false);
            }
            ClaimKind::Track => pod_object::track(pod, true),
        })
    }

    /// PATCH of `pods/status`, which names the UID and the version that it was made from.
    pub(crate) fn patch_status(&mut self, uid: &Uid, patch: &Value) -> Outcome<Arc<Pod>> {
        let Some(stored) = self.pods.get(uid) else {
            return Err(failure(FailureKind::NotFound, "pods not found"));
        };
        let read = &patch["metadata"]["resourceVersion"];
        if patch["metadata"]["uid"] != stored.uid.as_str()
            || !read.is_null() && *read != stored.version.to_string()
        {
            return Err(failure(FailureKind::Conflict, "the object has been modified"));
        }
        self.change_pod(uid, |pod| pod_object::merge_status(pod, patch))
    }

    /// DELETE of a pod, which may name the version that it must have.
    pub(crate) fn delete_pod_at(
        &mut self,
        uid: &Uid,
        version: Option<Version>,
        grace: i64,
    ) -> Outcome<()> {
        let stored = self.pods.get(uid).map(|pod| pod.version);
        if version.is_some() && stored.is_some() && stored != version {
            return Err(failure(FailureKind::Conflict, "the object has been modified"));
        }
        self.delete_pod(uid, grace)
    }

    /// DELETE of a pod. The grace is zero if no kubelet has to terminate it.
    pub(crate) fn delete_pod(&mut self, uid: &Uid, grace: i64) -> Outcome<()> {
        let now = self.whole_second();
        let Some(pod) = self.pods.get(uid) else {
            return Err(failure(FailureKind::NotFound, "pods not found"));
        };
        let grace = if pod.node.is_none() || pod.is_terminal() { 0 } else { grace };
        let shorter = pod.deletion.is_none_or(|it| grace < it.grace_seconds);
        self.change_pod(uid, |pod| {
            if shorter {
                pod_object::delete(pod, grace, now);
            }
        })?;
        Ok(())
    }

    /// A user changes the policy of the namespace.
    pub(crate) fn set_force_fail_after(&mut self, force_fail_after: Option<SignedDuration>) {
        self.next_version();
        self.namespace_accepted |= force_fail_after.is_some_and(|after| !after.is_zero());
        let namespace = NamespaceView { name: self.namespace.name.clone(), force_fail_after };
        self.namespace = Arc::new(namespace);
        self.namespace_log.push(Sighting::Shown(Arc::clone(&self.namespace)));
    }

    /// Creates or changes a node.
    pub(crate) fn store_node(&mut self, mut node: Value) {
        let version = self.next_version();
        node["metadata"]["resourceVersion"] = version.to_string().into();
        let view = node_view(&node);
        self.node_log.push(Sighting::Shown(Arc::new(view.clone())));
        self.nodes.insert(view.name, node);
    }

    /// Changes a node, if it exists.
    pub(crate) fn change_node(&mut self, name: &str, how: impl FnOnce(&mut Value)) {
        if let Some(mut node) = self.nodes.get(name).cloned() {
            how(&mut node);
            self.store_node(node);
        }
    }

    /// PATCH of a node, a merge patch that names the version that it was made from.
    pub(crate) fn patch_node(&mut self, name: &str, patch: &Value) -> Outcome<()> {
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return Err(failure(FailureKind::NotFound, "nodes not found"));
        };
        if patch["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"] {
            return Err(failure(FailureKind::Conflict, "the object has been modified"));
        }
        for (field, value) in patch["spec"].as_object().into_iter().flatten() {
            node["spec"][field] = value.clone();
        }
        self.store_node(node);
        Ok(())
    }

    /// Deletes a node.
    pub(crate) fn delete_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.remove(name) {
            let version = self.next_version();
            self.node_log.push(Sighting::Gone(Arc::new(node_view(&node)), version));
        }
    }

    /// The pods that name this Job as their controller.
    pub(crate) fn pods_of(&self, job: &Uid) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values().filter(move |pod| pod.is_owned_by(job))
    }
}

/// A node as its watch shows it.
pub(crate) fn node_view(node: &Value) -> NodeView {
    NodeView::read(&WireNode::deserialize(node).expect("what is stored must be a node"))
}

fn failure(kind: FailureKind, message: &str) -> Failure {
    Failure::new(kind, message)
}
