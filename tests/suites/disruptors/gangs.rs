//! Tests gangs: our controller makes what kube-controller-manager makes for the same Jobs, and the
//! real scheduler places a gang whole or not at all, and preempts it whole.

use controller_core::job::{Resize, Resized, resize_patch};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use lab::bed::{JobBuilder, job};
use lab::kubernetes::Feature;
use lab::{Options, eventually, install};
use serde_json::{Value, json};

use super::gang_recovery;
use super::stage::{LATER, Stage, cpu, ignoring};
use crate::features::warnings::warnings;

/// The annotation by which a parent leaves the PodGroup to the controller of its Jobs.
const GROUP_TEMPLATE: &str = "scheduling.k8s.io/group-template-name";

/// The scheduling objects of a namespace.
pub(super) struct Objects {
    workloads: Api<DynamicObject>,
    pod_groups: Api<DynamicObject>,
    pods: Api<Pod>,
    jobs: Api<Job>,
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.k8s.io", "v1beta1", kind))
}

impl Objects {
    fn of(stage: &Stage) -> Self {
        let (client, namespace) = (stage.pods.clone().into_client(), stage.namespace());
        let of = |kind| Api::namespaced_with(client.clone(), namespace, &resource(kind));
        Self {
            workloads: of("Workload"),
            pod_groups: of("PodGroup"),
            pods: stage.pods.clone(),
            jobs: Api::namespaced(client.clone(), namespace),
        }
    }

    /// The objects of a kind that the Job controls.
    async fn controlled(api: &Api<DynamicObject>, job: &str) -> Vec<Value> {
        let all = api.list(&ListParams::default()).await.expect("the objects").items;
        let is_its = |object: &DynamicObject| {
            let owners = object.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|it| it.controller == Some(true) && it.name == job)
        };
        let its = all.into_iter().filter(is_its);
        its.map(|object| serde_json::to_value(object).expect("an object")).collect()
    }

    /// The Job's only PodGroup.
    pub(super) async fn pod_group(&self, job: &str) -> Value {
        let only = |groups: &Vec<Value>| groups.len() == 1;
        let groups = async || Self::controlled(&self.pod_groups, job).await;
        eventually(&format!("the PodGroup of {job}"), LATER, groups, only).await.remove(0)
    }

    pub(super) async fn pods_of(&self, job: &str) -> Vec<Pod> {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        self.pods.list(&selector).await.expect("the pods").items
    }

    /// What was made for a Job, without what differs from Job to Job.
    async fn made_for(&self, job: &str) -> Value {
        let workloads = Self::controlled(&self.workloads, job).await;
        let groups = Self::controlled(&self.pod_groups, job).await;
        let pods = self.pods_of(job).await;
        let pods = pods.into_iter().map(|pod| serde_json::to_value(pod).expect("a pod"));
        let of = |objects: &mut dyn Iterator<Item = Value>, spec: &str| -> Vec<Value> {
            let of = |object: Value| {
                let owners = object["metadata"]["ownerReferences"].as_array().cloned();
                let mut owners = owners.unwrap_or_default();
                for owner in &mut owners {
                    owner["uid"] = Value::Null;
                }
                owners.sort_by_key(|owner| owner["kind"].to_string());
                json!({"spec": object.pointer(spec), "owners": owners})
            };
            objects.map(of).collect()
        };
        let name = |objects: &[Value]| {
            let name = objects.first().and_then(|it| it["metadata"]["name"].as_str());
            name.unwrap_or("none").to_owned()
        };
        let (workload, group) = (name(&workloads), name(&groups));
        let made = json!({
            "workloads": of(&mut workloads.into_iter(), "/spec"),
            "podGroups": of(&mut groups.into_iter(), "/spec"),
            "pods": of(&mut pods.into_iter(), "/spec/schedulingGroup"),
        });
        let text = made.to_string();
        let text = text.replace(&group, "GROUP").replace(&workload, "WORKLOAD");
        serde_json::from_str(&text.replace(job, "JOB")).expect("must be JSON")
    }
}

/// Jobs that differ in what they say about their group. The pods wait for a node that is not there.
fn samples() -> Vec<(&'static str, JobBuilder)> {
    let sample = |size: u32| {
        job("")
            .spec("parallelism", size)
            .spec("completions", size)
            .pod("nodeSelector", json!({"place": "nowhere"}))
            .pod("automountServiceAccountToken", false)
    };
    let gang = |gang: Value| json!({"schedulingPolicy": {"gang": gang}});
    let everything = json!({
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    });
    let basic = json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}});
    vec![
        ("says-nothing", sample(1)),
        ("is-indexed", sample(3).spec("completionMode", "Indexed")),
        ("whole-gang", sample(3).spec("scheduling", gang(json!({})))),
        ("smaller-gang", sample(3).spec("scheduling", gang(json!({"minCount": 2})))),
        ("basic", sample(2).spec("scheduling", basic)),
        ("everything", sample(3).spec("scheduling", everything).pod("priorityClassName", "urgent")),
        ("suspended", sample(2).spec("scheduling", gang(json!({}))).spec("suspend", true)),
        ("own-group", sample(2).pod("schedulingGroup", json!({"podGroupName": "theirs"}))),
        ("of-a-parent", sample(2)),
        ("delegated", sample(2)),
    ]
}

/// A sample under a name, run by upstream or by us, owned by the parent where it says so.
fn named(name: &str, sample: JobBuilder, ours: bool, parent: &Value) -> Value {
    let mut job = sample.raw();
    job["metadata"]["name"] = format!("{name}-{}", if ours { "o" } else { "u" }).into();
    if !ours {
        job["spec"]["managedBy"] = Value::Null;
    }
    if name == "of-a-parent" || name == "delegated" {
        job["metadata"]["ownerReferences"] = json!([parent]);
    }
    if name == "delegated" {
        job["metadata"]["annotations"] = json!({GROUP_TEMPLATE: if ours { "o" } else { "u" }});
    }
    job
}

/// An object that controls Jobs, and its Workload with a template for each of two of them.
async fn parent(objects: &Objects) -> Value {
    let maps: Api<ConfigMap> = Api::namespaced(
        objects.jobs.clone().into_client(),
        objects.jobs.namespace().expect("it has one"),
    );
    let map = json!({"metadata": {"name": "parent"}});
    let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
    let map = maps.create(&PostParams::default(), &map).await.expect("the parent");
    let template =
        |name: &str| json!({"name": name, "schedulingPolicy": {"gang": {"minCount": 2}}});
    let workload = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload",
        "metadata": {"name": "of-parent"},
        "spec": {
            "controllerRef": {"apiGroup": "", "kind": "ConfigMap", "name": "parent"},
            "podGroupTemplates": [template("o"), template("u")],
        },
    });
    let workload = serde_json::from_value(workload).expect("a Workload");
    objects.workloads.create(&PostParams::default(), &workload).await.expect("the Workload");
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "controller": true,
           "uid": map.metadata.uid})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gangs_are_made_as_upstream_makes_them_and_the_real_scheduler_keeps_them_whole() {
    if Feature::GangScheduling.is_missing() {
        return;
    }
    let options = Options::unique("gangs").gang_scheduling();
    let stage = Stage::with_gangs(options, "podgroup-protection-controller").await;
    let objects = Objects::of(&stage);
    tokio::join!(
        Box::pin(both_make_the_same(&objects)),
        Box::pin(all_or_none(&stage, &objects)),
        Box::pin(preempted(&stage, &objects)),
        Box::pin(gang_recovery::lost_as_a_whole(&stage, &objects)),
        Box::pin(gang_recovery::lost_one_by_one(&stage, &objects)),
        Box::pin(one_that_never_starts_gets_a_warning(&stage)),
    );
    stage.stop().await;
}

/// The API accepts a gang of more pods than the Job will have; the optional policy warns of it.
async fn one_that_never_starts_gets_a_warning(stage: &Stage) {
    let client = stage.pods.clone().into_client();
    install::apply_lint_policy(&client).await.expect("the policy is installed");
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", stage.namespace());
    let sized =
        |completions: u32| gang_of("draft", 3, "nowhere", "all").spec("completions", completions);
    let of = async |job: JobBuilder| warnings(&client, &jobs, &job.raw()).await;
    let code = "[min-count-over-completions]";
    let first = async || of(sized(2)).await;
    eventually("the warning", LATER, first, |found| found.iter().any(|it| it.contains(code))).await;
    let smaller = json!({"schedulingPolicy": {"gang": {"minCount": 2}}});
    for (job, count) in [
        (sized(2), 1),
        (sized(3), 0),
        (sized(2).spec("scheduling", smaller), 0),
        (sized(2).pod("schedulingGroup", json!({"podGroupName": "theirs"})), 0),
        (sized(2).spec("scheduling", Value::Null), 0),
    ] {
        let text = job.clone().raw().to_string();
        assert_eq!(of(job).await.len(), count, "{text}");
    }
}

/// Each sample under both controllers.
async fn both_make_the_same(objects: &Objects) {
    let parent = parent(objects).await;
    for (name, sample) in samples() {
        for ours in [true, false] {
            let job = named(name, sample.clone(), ours, &parent);
            let job: DynamicObject = serde_json::from_value(job).expect("a Job");
            let jobs: Api<DynamicObject> = Api::namespaced_with(
                objects.jobs.clone().into_client(),
                objects.jobs.namespace().expect("it has one"),
                &ApiResource::erase::<Job>(&()),
            );
            jobs.create(&PostParams::default(), &job).await.expect("the Job");
        }
    }
    for (name, sample) in samples() {
        same(objects, name, sample).await;
    }
    named_alike(objects).await;
    stale_resizes_are_refused(objects).await;
    // Elastic: the size follows the Job, or stays where the Job says it.
    for name in ["whole-gang", "smaller-gang"] {
        let patch = Patch::Merge(json!({"spec": {"parallelism": 5}}));
        for job in ["o", "u"].map(|by| format!("{name}-{by}")) {
            objects.jobs.patch(&job, &PatchParams::default(), &patch).await.expect("the Job");
        }
        let size = if name == "whole-gang" { 5 } else { 2 };
        let resized = async || Objects::controlled(&objects.pod_groups, &format!("{name}-o")).await;
        eventually("the gang follows", LATER, resized, |groups| {
            groups[0]["spec"]["schedulingPolicy"]["gang"]["minCount"] == size
        })
        .await;
        let made = async |by: &str| {
            let job = format!("{name}-{by}");
            let workload = Objects::controlled(&objects.workloads, &job).await.remove(0);
            let group = Objects::controlled(&objects.pod_groups, &job).await.remove(0);
            let of = "/spec/podGroupTemplates/0/schedulingPolicy";
            [workload.pointer(of).cloned(), group.pointer("/spec/schedulingPolicy").cloned()]
        };
        let both = async || (made("o").await, made("u").await);
        eventually("both have resized", LATER, both, |(ours, theirs)| ours == theirs).await;
    }
}

async fn same(objects: &Objects, name: &str, sample: JobBuilder) {
    let sample = sample.raw();
    let pods = if sample["spec"]["suspend"] == true {
        0
    } else {
        usize::try_from(sample["spec"]["parallelism"].as_u64().unwrap_or(1)).expect("few")
    };
    let both = async || {
        let ours = objects.made_for(&format!("{name}-o")).await;
        (ours, objects.made_for(&format!("{name}-u")).await)
    };
    let is_made = |made: &Value| {
        let count = |kind: &str| made[kind].as_array().map_or(0, Vec::len);
        let groups = usize::from(!["own-group", "of-a-parent"].contains(&name));
        (count("podGroups"), count("pods")) == (groups, pods)
    };
    let what = format!("{name} is made by both");
    let (ours, theirs) =
        eventually(&what, LATER, both, |(ours, theirs)| is_made(ours) && is_made(theirs)).await;
    let theirs = theirs.to_string().replace("\"templateName\":\"u\"", "\"templateName\":\"o\"");
    assert_eq!(ours.to_string(), theirs, "{name}");
}

/// Each controller would find what the other has made: the names follow from the Job's name and UID.
async fn named_alike(objects: &Objects) {
    let own = ["says-nothing", "is-indexed", "whole-gang", "basic", "suspended"];
    for job in own.iter().flat_map(|name| ["o", "u"].map(|by| format!("{name}-{by}"))) {
        let uid = objects.jobs.get(&job).await.expect("the Job").metadata.uid.expect("a UID");
        let name_of = async |api| {
            let made = Objects::controlled(api, &job).await.remove(0);
            made["metadata"]["name"].as_str().unwrap_or_default().to_owned()
        };
        let names = [name_of(&objects.workloads).await, name_of(&objects.pod_groups).await];
        assert_eq!(names, expected_names(&job, &uid), "{job}");
    }
}

/// The names of the Workload and the PodGroup of a Job, made without the code under test.
fn expected_names(job: &str, uid: &str) -> [String; 2] {
    let hash = |text: &str| -> String {
        let fold = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(16_777_619);
        let sum = text.bytes().fold(2_166_136_261, fold).to_string();
        let letters = ['4', '5', '6', '7', '8', '9', 'b', 'c', 'd', 'f'];
        sum.bytes().map(|digit| letters[usize::from(digit - b'0')]).collect()
    };
    let workload = format!("{job}-{}", hash(&format!("(types.UID){uid}")));
    let template = format!("{job}-pgt-0");
    let group = format!("{workload}-{template}-{}", hash(&format!("{workload}{template}")));
    [workload, group]
}

/// A resize names the object and the size that it changes. Where that is another by now, the API
/// refuses it.
async fn stale_resizes_are_refused(objects: &Objects) {
    let kinds = [(Resized::Workload, &objects.workloads), (Resized::PodGroup, &objects.pod_groups)];
    for (object, api) in kinds {
        let made = Objects::controlled(api, "everything-o").await.remove(0);
        let text = |field: &str| made["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (text("name"), text("uid"));
        let sent = async |uid: &str, from: i32, to: i32| {
            let key = (text("namespace").into(), name.as_str().into());
            let resize = Resize { object, key, uid: uid.into(), from, to };
            let patch = serde_json::from_value(resize_patch(&resize)).expect("a JSON patch");
            let patch = Patch::Json::<()>(patch);
            match api.patch(&name, &PatchParams::default(), &patch).await {
                Ok(_) => 200,
                Err(kube::Error::Api(status)) => status.code,
                Err(error) => panic!("{object:?}: {error}"),
            }
        };
        let answers = [sent(&uid, 1, 3).await, sent("other", 2, 3).await, sent(&uid, 2, 3).await];
        assert_eq!(answers, [422, 422, 200], "{object:?}");
    }
}

/// A gang of pods that need more than half a node each.
pub(super) fn gang_of(name: &str, size: u32, place: &str, mode: &str) -> JobBuilder {
    let containers = json!([{"name": "main", "image": "none", "resources": cpu(40)}]);
    ignoring(job(name))
        .spec("parallelism", size)
        .spec("completions", size)
        .spec("scheduling", json!({"schedulingPolicy": {"gang": {}}, "disruptionMode": {mode: {}}}))
        .pod("nodeSelector", json!({"place": place}))
        .pod("containers", containers)
}

/// Three pods of more than half a node each, and two nodes: none starts, until there is a third.
async fn all_or_none(stage: &Stage, objects: &Objects) {
    let [_, _] = stage.place("gang", [0, 1]).await;
    create(stage, gang_of("whole", 3, "gang", "all").script("succeed after=1s")).await;
    let group = async || objects.pod_group("whole").await;
    eventually("the gang does not fit", LATER, group, |group| {
        let conditions = group["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["reason"] == "Unschedulable")
    })
    .await;
    let pods = objects.pods_of("whole").await;
    let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    assert_eq!((pods.len(), pods.iter().filter(|pod| bound(pod)).count()), (3, 0));
    let [_] = stage.place("gang", [2]).await;
    let state = stage.reaches("whole", |state| state.succeeded == 3).await;
    assert_eq!(state.failed, 0);
}

/// A more urgent pod needs the node of one member. With `disruptionMode: all` the gang goes whole,
/// and each slot has one disruption.
async fn preempted(stage: &Stage, objects: &Objects) {
    let [_, _] = stage.place("preempted", [3, 4]).await;
    let script = "hang on-term=143 after=1s times=2; succeed";
    create(stage, gang_of("preempted", 2, "preempted", "all").script(script)).await;
    stage.reaches("preempted", |state| state.ready == Some(2)).await;
    let first: Vec<String> =
        objects.pods_of("preempted").await.into_iter().filter_map(|it| it.metadata.name).collect();
    stage.create_urgent_pod("urgent", "preempted", 64).await;
    stage.is_reported("preempted", "PreemptionByScheduler", 2).await;
    for pod in &first {
        let disruption = stage.log.of("preempted").into_iter().find(|it| it.name == *pod);
        assert!(disruption.is_some_and(|it| it.disruption.is_some()), "{pod} is disrupted");
    }
    stage.pods.delete("urgent", &DeleteParams::default()).await.expect("the pod is deleted");
    let state = stage.reaches("preempted", |state| state.succeeded == 2).await;
    assert_eq!(state.failed, 0, "the disruptions are ignored, and no slot has a second one");
    assert_eq!(stage.log.of("preempted").len(), 4, "each slot was replaced once");
}

/// The builder's typed Job has no `spec.scheduling`.
pub(super) async fn create(stage: &Stage, job: JobBuilder) {
    let jobs: Api<DynamicObject> = Api::namespaced_with(
        stage.pods.clone().into_client(),
        stage.namespace(),
        &ApiResource::erase::<Job>(&()),
    );
    let job: DynamicObject = serde_json::from_value(job.raw()).expect("a Job");
    jobs.create(&PostParams::default(), &job).await.expect("the Job");
}
