//! Tests the rights of the controller's token with gang scheduling: it makes the Workloads and
//! PodGroups of Jobs, and of each it sets `minCount`. Without the component it has none of these.

use std::time::Duration;

use epilogue_deploy::gang_scheduling;
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::kubernetes::Feature;
use lab::{ControlPlane, Options, eventually, install};
use serde_json::{Value, json};

use super::allowed::goes;
use super::call::{Answer, Call};
use super::refused::{all_are_refused, forbidden, invalid};
use super::world::{Token, World};

/// Time for the API server to learn of a right, a policy or a resource.
const SOON: Duration = Duration::from_mins(1);
const API: &str = "scheduling.k8s.io/v1beta1";
/// The group of custom resources that stand for Workloads and PodGroups.
const STAND_IN: &str = "gangs.example.com";

/// A Job, Workload or PodGroup as the controller of a child.
fn owner(kind: &str, api: &str, uid: &Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "name": "job", "uid": uid, "controller": true})
}

fn gang(count: u32) -> Value {
    json!({"gang": {"minCount": count}})
}

fn workload(api: &str, owners: Value) -> Value {
    let mut object = json!({
        "apiVersion": api, "kind": "Workload",
        "metadata": {"name": "w", "labels": {"app": "a"}, "annotations": {"theirs": "1"}},
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "job"},
            "podGroupTemplates": [{"name": "job", "schedulingPolicy": gang(2)}],
        },
    });
    object["metadata"]["ownerReferences"] = owners;
    object
}

fn pod_group(api: &str, owners: Value) -> Value {
    let mut object = json!({
        "apiVersion": api, "kind": "PodGroup",
        "metadata": {"name": "g", "labels": {"app": "a"}, "annotations": {"theirs": "1"}},
        "spec": {
            "workloadRef": {"workloadName": "w", "templateName": "job"},
            "schedulingPolicy": gang(2),
        },
    });
    object["metadata"]["ownerReferences"] = owners;
    object
}

fn path(world: &World, api: &str, resource: &str) -> String {
    format!("/apis/{api}/namespaces/{}/{resource}", world.namespace())
}

/// A suspended Job, which exists: the garbage collector would remove what has another owner.
async fn job(world: &World) -> Value {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"},
        "spec": {"suspend": true, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
        }}},
    });
    world.done(Call::create(path(world, "batch/v1", "jobs"), job)).await["metadata"]["uid"].clone()
}

/// Waits until the API server refuses this call, which an administrator may make, by a policy.
async fn holds(world: &World, probe: Call) {
    let answer = async || probe.clone().dry().send(&world.agent).await;
    let by_policy = |text: &str| text.contains("'epilogue-controller-gang-");
    eventually("the policy holds", SOON, answer, |answer| by_policy(&answer.message)).await;
}

#[tokio::test]
async fn with_gang_scheduling_the_controller_makes_the_groups_of_jobs_and_no_others() {
    if Feature::GangScheduling.is_missing() {
        return;
    }
    let options = Options::unique("gang-scheduling").gang_scheduling();
    let options = options.controller_manager(QUIET_CONTROLLERS);
    let control_plane = ControlPlane::start(options).await.expect("a control plane");
    let cluster = control_plane.cluster().clone();
    let world = World::on(cluster, Token::OfNode).await.of_the_controller().await;
    let uid = job(&world).await;
    nothing_is_allowed_without_the_component(&world, &uid).await;
    install::apply_gang_scheduling(&world.admin).await.expect("the component");
    holds(&world, Call::create(path(&world, API, "workloads"), workload(API, json!([])))).await;
    writes(&world, &uid).await;
    other_owners(&world, &uid).await;
    other_fields(&world).await;
    world.finish().await;
    control_plane.stop().await.expect("it stops");
}

async fn nothing_is_allowed_without_the_component(world: &World, uid: &Value) {
    let job = json!([owner("Job", "batch/v1", uid)]);
    let (workloads, groups) = (path(world, API, "workloads"), path(world, API, "podgroups"));
    let refusals = vec![
        forbidden("read Workloads", Call::get(&workloads), "cannot list"),
        forbidden("read PodGroups", Call::get(&groups), "cannot list"),
        forbidden(
            "a Workload without the component",
            Call::create(&workloads, workload(API, job.clone())).dry(),
            "cannot create",
        ),
        forbidden(
            "a PodGroup without the component",
            Call::create(&groups, pod_group(API, job)).dry(),
            "cannot create",
        ),
    ];
    all_are_refused(world, refusals).await;
}

/// All that the controller does, in its order.
async fn writes(world: &World, uid: &Value) {
    let (workloads, groups) = (path(world, API, "workloads"), path(world, API, "podgroups"));
    let job = owner("Job", "batch/v1", uid);
    let made = workload(API, json!([job]));
    let made = goes(world, "create a Workload", Call::create(&workloads, made)).await;
    let mut by_name = owner("Workload", API, &made["metadata"]["uid"]);
    by_name["name"] = "w".into();
    by_name["controller"] = false.into();
    let made = pod_group(API, json!([job, by_name]));
    goes(world, "create a PodGroup", Call::create(&groups, made)).await;
    for list in [&workloads, &groups] {
        goes(world, "list them", Call::get(list)).await;
        let watch = format!("{list}?watch=true&timeoutSeconds=1&resourceVersion=0");
        let answer = Call::get(watch).send(&world.agent).await;
        assert!(answer.is_success(), "{}", answer.message);
    }
    goes(world, "read a Workload", Call::get(format!("{workloads}/w"))).await;
    goes(world, "read a PodGroup", Call::get(format!("{groups}/g"))).await;
    let template = json!({"name": "job", "schedulingPolicy": gang(3)});
    let template = json!({"spec": {"podGroupTemplates": [template]}});
    let by_name = Call::patch(format!("{workloads}/w"), template.clone());
    let set = goes(world, "set a Workload's minCount", by_name).await;
    let template = &set["spec"]["podGroupTemplates"][0];
    assert_eq!(template["schedulingPolicy"], gang(3), "{set}");
    let policy = json!({"spec": {"schedulingPolicy": gang(3)}});
    let set = Call::patch(format!("{groups}/g"), policy);
    let set = goes(world, "set a PodGroup's minCount", set).await;
    assert_eq!(set["spec"]["schedulingPolicy"], gang(3), "{set}");
}

async fn other_owners(world: &World, uid: &Value) {
    let (workloads, groups) = (path(world, API, "workloads"), path(world, API, "podgroups"));
    let mut not_controller = owner("Job", "batch/v1", uid);
    not_controller["controller"] = false.into();
    let owners = [
        ("without an owner", json!([])),
        ("of a Job that does not control it", json!([not_controller])),
        ("of a CronJob", json!([owner("CronJob", "batch/v1", uid)])),
        ("of a ReplicaSet", json!([owner("ReplicaSet", "apps/v1", uid)])),
        ("of another API's Job", json!([owner("Job", "batch.example.com/v1", uid)])),
    ];
    for (what, owners) in owners {
        let named = |mut object: Value| {
            object["metadata"]["name"] = "other".into();
            object
        };
        let workload = Call::create(&workloads, named(workload(API, owners.clone())));
        let group = Call::create(&groups, named(pod_group(API, owners)));
        let refusals = vec![
            invalid(what, workload, "creates the Workloads and PodGroups of Jobs"),
            invalid(what, group, "creates the Workloads and PodGroups of Jobs"),
        ];
        all_are_refused(world, refusals).await;
    }
    let older = "scheduling.k8s.io/v1alpha3";
    let mut object = workload(older, json!([]));
    object["metadata"]["name"] = "older".into();
    let older = Call::create(path(world, older, "workloads"), object);
    let refusal = invalid("by an older version", older, "creates the Workloads and PodGroups");
    all_are_refused(world, vec![refusal]).await;
}

async fn other_fields(world: &World) {
    let workload = format!("{}/w", path(world, API, "workloads"));
    let group = format!("{}/g", path(world, API, "podgroups"));
    holds(world, Call::merge(&workload, json!({"metadata": {"labels": {"probe": "1"}}}))).await;
    holds(world, Call::merge(&group, json!({"metadata": {"labels": {"probe": "1"}}}))).await;
    for path in [&workload, &group] {
        let change = |change: Value| Call::merge(path, json!({"metadata": change}));
        let refusals = vec![
            invalid("a label", change(json!({"labels": {"app": "b"}})), "change labels"),
            invalid("another's label", change(json!({"labels": {"x.io/y": "1"}})), "change labels"),
            invalid("no labels", change(json!({"labels": null})), "change labels"),
            invalid("an annotation", change(json!({"annotations": {"a": "b"}})), "annotations"),
            invalid("a finalizer", change(json!({"finalizers": ["a.io/b"]})), "finalizers"),
            invalid("no owner", change(json!({"ownerReferences": null})), "ownerReferences"),
            forbidden("delete it", Call::delete(path, json!({})).dry(), "cannot delete"),
        ];
        all_are_refused(world, refusals).await;
    }
    let read = world.done(Call::get(&group)).await;
    let condition = json!([{"type": "DisruptionTarget", "status": "True", "reason": "R",
                            "message": "", "lastTransitionTime": "2026-11-21T14:00:00Z"}]);
    let status = json!({"status": {"conditions": condition}});
    let refusals = vec![
        forbidden("update it", Call::update(&group, read), "cannot update"),
        forbidden(
            "the scheduler's status",
            Call::merge(format!("{group}/status"), status),
            "cannot patch",
        ),
    ];
    all_are_refused(world, refusals).await;
}

/// The policies of updates, for custom resources of the same names; and all rights to these.
fn stand_ins() -> Vec<Value> {
    let policies = gang_scheduling().expect("the manifests").into_iter().filter_map(|object| {
        let name = object["metadata"]["name"].as_str()?;
        let of_updates = name.ends_with("-gang-workloads") || name.ends_with("-gang-pod-groups");
        let text = object.to_string().replace(name, &format!("{name}-stand-in"));
        let text = text.replace("scheduling.k8s.io", STAND_IN);
        of_updates.then(|| serde_json::from_str(&text).expect("JSON"))
    });
    let definition = |kind: &str, plural: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{STAND_IN}")},
            "spec": {
                "group": STAND_IN, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": "v1beta1", "served": true, "storage": true,
                              "schema": {"openAPIV3Schema": {
                                  "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                              }}}],
            },
        })
    };
    let rbac = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole",
        "metadata": {"name": "gang-stand-ins"},
        "rules": [{"apiGroups": [STAND_IN], "resources": ["*"], "verbs": ["*"]}],
    });
    let binding = json!({
        "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": "gang-stand-ins"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "gang-stand-ins"},
        "subjects": [{"kind": "ServiceAccount", "name": install::CONTROLLER,
                      "namespace": install::NAMESPACE}],
    });
    let others = [definition("Workload", "workloads"), definition("PodGroup", "podgroups")];
    others.into_iter().chain([role, binding]).chain(policies).collect()
}

/// The API itself refuses other changes of the spec to everybody, today. The policies do not rely
/// on that, as custom resources show, which have no rules of their own.
#[tokio::test]
async fn of_a_group_s_spec_the_controller_changes_min_count_and_nothing_else() {
    let world = World::start(Token::OfNode).await.of_the_controller().await;
    for object in stand_ins() {
        install::apply_object(&world.admin, &object).await.expect("a stand-in");
    }
    let api = format!("{STAND_IN}/v1beta1");
    let owners = json!([owner("Job", "batch/v1", &job(&world).await)]);
    let mut made = workload(&api, owners.clone());
    made["spec"]["podGroupTemplates"] = json!([template(2), second(2)]);
    let workloads = path(&world, &api, "workloads");
    let groups = path(&world, &api, "podgroups");
    for (list, object) in [(&workloads, made), (&groups, pod_group(&api, owners))] {
        let create = async || Call::create(list, object.clone()).send(&world.admin).await;
        eventually("the resource is served", SOON, create, Answer::is_success).await;
    }
    let (workload, group) = (format!("{workloads}/w"), format!("{groups}/g"));
    for path in [&workload, &group] {
        holds(&world, Call::merge(path, json!({"metadata": {"labels": {"probe": "1"}}}))).await;
    }
    changes_of_a_workload(&world, &workload).await;
    changes_of_a_pod_group(&world, &group).await;
    for object in stand_ins().iter().rev() {
        install::delete_object(&world.admin, object).await.expect("the stand-in goes");
    }
    world.finish().await;
}

fn template(count: u32) -> Value {
    json!({"name": "job", "schedulingPolicy": gang(count)})
}

fn second(count: u32) -> Value {
    json!({"name": "second", "schedulingPolicy": gang(count)})
}

async fn changes_of_a_workload(world: &World, path: &str) {
    const FIRST: &str = "may change the first one";
    let spec = |spec: Value| Call::merge(path, json!({"spec": spec}));
    let templates = |list: Value| spec(json!({"podGroupTemplates": list}));
    let changed = |field: &str, value: Value| {
        let mut first = template(2);
        first[field] = value;
        templates(json!([first, second(2)]))
    };
    let more = json!({"gang": {"minCount": 2, "maxCount": 9}});
    let refusals = vec![
        invalid("whose it is", spec(json!({"controllerRef": {"name": "b"}})), "controllerRef of a"),
        invalid("a new field", spec(json!({"queue": "q"})), "change queue of a Workload"),
        invalid("no template", templates(json!([])), FIRST),
        invalid("one less", templates(json!([template(2)])), FIRST),
        invalid("one more", templates(json!([template(2), second(2), {"name": "c"}])), FIRST),
        invalid("the second", templates(json!([template(2), second(3)])), FIRST),
        invalid("both", templates(json!([template(3), second(3)])), FIRST),
        invalid("their order", templates(json!([second(2), template(2)])), FIRST),
        invalid("a name", changed("name", json!("b")), "change name"),
        invalid("a mode", changed("disruptionMode", json!({"all": {}})), "change disruptionMode"),
        invalid("no policy", templates(json!([{"name": "job"}, second(2)])), "gang.minCount, and"),
        invalid("basic", changed("schedulingPolicy", json!({"basic": {}})), "gang.minCount, and"),
        invalid("more of a gang", changed("schedulingPolicy", more), "gang: the controller may"),
        invalid("a status", Call::merge(path, json!({"status": {"a": 1}})), "not change status"),
    ];
    all_are_refused(world, refusals).await;
    let set = templates(json!([template(5), second(2)]));
    goes(world, "set minCount of the first template", set).await;
}

async fn changes_of_a_pod_group(world: &World, path: &str) {
    const POLICY: &str = "spec.schedulingPolicy: the controller may change gang.minCount";
    let spec = |spec: Value| Call::merge(path, json!({"spec": spec}));
    let policy = |policy: Value| spec(json!({"schedulingPolicy": policy}));
    let refusals = vec![
        invalid("its template", spec(json!({"workloadRef": {"templateName": "b"}})), "workloadRef"),
        invalid("a mode", spec(json!({"disruptionMode": {"all": {}}})), "change disruptionMode"),
        invalid("no policy", spec(json!({"schedulingPolicy": null})), POLICY),
        invalid("basic", policy(json!({"gang": null, "basic": {}})), POLICY),
        invalid("both policies", policy(json!({"basic": {}})), POLICY),
        invalid("more of a gang", policy(json!({"gang": {"maxCount": 9}})), "may change minCount"),
        invalid("a status", Call::merge(path, json!({"status": {"a": 1}})), "not change status"),
    ];
    all_are_refused(world, refusals).await;
    goes(world, "set minCount", policy(json!({"gang": {"minCount": 5}}))).await;
}
