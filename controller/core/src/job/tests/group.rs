//! Tests scheduling groups: who gets a Workload and a PodGroup, what they say, and what becomes of
//! the pods when they cannot be made. (W2 to W7)

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, ago, api, check, job, outage, pod, sync, sync_with};
use crate::checks::fake_api::FakeApi;
use crate::job::{
    Answer, GroupPlan, GroupStep, JobGroups, MetricEvent, SideEffect, Step, WorkloadPlan, pod_body,
    pod_group_body, workload_body,
};
use crate::view::{PodGroup, Workload};

const WORKLOAD: &str = "j-7dccc85c97";
const POD_GROUP: &str = "j-7dccc85c97-j-pgt-0-8bb8d457f";

/// An API that serves Workloads and PodGroups.
fn served(job: JobBuilder, pods: Vec<PodBuilder>) -> FakeApi {
    let mut api = api(job, pods);
    api.groups = Some(JobGroups::default());
    api
}

fn gang(min_count: impl Into<Option<i32>>) -> Value {
    let min_count: Option<i32> = min_count.into();
    let gang = min_count.map_or_else(|| json!({}), |count| json!({"minCount": count}));
    json!({"schedulingPolicy": {"gang": gang}})
}

fn owned_by(kind: &str) -> Value {
    json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": kind, "name": "parent",
            "uid": "uid-parent", "controller": true}])
}

/// The Workload of the parent, with templates of these names and sizes.
fn parent(templates: &[(&str, i32)]) -> Arc<Workload> {
    let template = |(name, count): &(&str, i32)| json!({"name": name, "schedulingPolicy": {"gang": {"minCount": count}}});
    let templates: Vec<Value> = templates.iter().map(template).collect();
    let workload = json!({
        "metadata": {"namespace": "ns", "name": "of-parent", "uid": "uid-w"},
        "spec": {"controllerRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet",
                                   "name": "parent"},
                 "podGroupTemplates": templates},
    });
    Arc::new(Workload::read(&workload.to_string()).expect("must be a Workload"))
}

/// A Job that follows a template of its parent's Workload.
fn delegated() -> JobBuilder {
    job()
        .size(2, 2)
        .meta("ownerReferences", owned_by("JobSet"))
        .meta("annotations", json!({"scheduling.k8s.io/group-template-name": "workers"}))
        .meta("creationTimestamp", ago(10).to_string())
}

/// The calls of a sync, by kind.
fn calls(steps: &[(Step, Outcome<Answer>)]) -> Vec<&'static str> {
    let name = |step: &Step| match step {
        Step::Group(GroupStep::CreateWorkload(_)) => "create Workload",
        Step::Group(GroupStep::FindWorkload(_)) => "find Workload",
        Step::Group(GroupStep::CreatePodGroup(_)) => "create PodGroup",
        Step::Group(GroupStep::FindPodGroup(_)) => "find PodGroup",
        Step::Group(GroupStep::Resize(_)) => "resize",
        Step::Create(_) => "create pod",
        Step::WriteStatus(_) => "write status",
        _ => "other",
    };
    steps.iter().map(|(step, _)| name(step)).collect()
}

fn groups(api: &FakeApi) -> &JobGroups {
    api.groups.as_ref().expect("the API serves them")
}

/// The names of the groups that new pods join.
fn joined(effects: &super::builders::Effects) -> Vec<Option<&str>> {
    effects.created.iter().map(|draft| draft.group.as_deref().map(|it| &*it.name)).collect()
}

#[test]
fn a_new_job_gets_its_group_before_its_pods() {
    let mut api = served(job().size(2, 2).spec("scheduling", gang(None)), vec![]);
    let effects = sync(&mut api);
    let expected =
        ["create Workload", "create PodGroup", "create pod", "create pod", "write status"];
    assert_eq!(calls(&effects.trace.steps), expected);
    let workload = &groups(&api).workloads[0];
    let group = &groups(&api).pod_groups[0];
    assert_eq!(workload.templates[0].min_count, Some(2));
    assert_eq!((group.min_count, group.workload.as_deref()), (Some(2), Some(&*workload.key.1)));
    assert_eq!(joined(&effects), [Some(&*group.key.1); 2]);
    let events = effects.events();
    assert_eq!(
        events[0],
        format!("WorkloadCreated: Created Workload {} for Job j", workload.key.1)
    );
    assert_eq!(events[1], format!("PodGroupCreated: Created PodGroup {} for Job j", group.key.1));
    let counted = SideEffect::Count(MetricEvent::SchedulingObjectsSynced { ok: true });
    assert_eq!(effects.trace.side_effects.iter().filter(|it| **it == counted).count(), 1);
    let again = sync(&mut api);
    assert!(again.trace.steps.is_empty(), "{:?}", again.trace.steps);
}

/// Whose objects are made: of each root, and of one whose parent leaves the PodGroup to us. (W2)
#[test]
fn only_roots_and_those_whose_parent_asks_get_a_group() {
    let owner = owned_by("JobSet");
    let template = json!({"scheduling.k8s.io/group-template-name": "workers"});
    let with_group = |job: JobBuilder| {
        job.with(|it| {
            it["spec"]["template"]["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        })
    };
    let rows = [
        (job(), 1),
        (job().indexed().size(3, 3), 1),
        (job().size(3, None), 1),
        (job().spec("scheduling", json!({"schedulingPolicy": {"basic": {}}})), 1),
        (with_group(job().spec("scheduling", gang(1))), 0),
        (job().meta("ownerReferences", owned_by("CronJob")), 0),
        (job().meta("ownerReferences", owner.clone()), 0),
        (job().meta("annotations", template.clone()), 1),
        (with_group(job().meta("ownerReferences", owner).meta("annotations", template)), 0),
    ];
    for (row, (job, made)) in rows.into_iter().enumerate() {
        let mut api = served(job.clone(), vec![]);
        sync(&mut api);
        assert_eq!(groups(&api).pod_groups.len(), made, "row {row}");
        assert_eq!(groups(&api).workloads.len(), made, "row {row}");
        let mut without = super::builders::api(job, vec![]);
        let effects = sync(&mut without);
        assert!(effects.created.iter().all(|draft| draft.group.is_none()), "row {row}");
    }
}

/// A Job that started without a group goes on without. (W4)
#[test]
fn a_job_that_has_started_gets_no_group_any_more() {
    let rows = [
        job().size(3, 3).started(50),
        job().size(3, 3).status("failed", 1),
        job().size(3, 3).status("succeeded", 1),
        job().size(3, 3).condition("Suspended", "JobResumed", "Job resumed"),
        job().size(3, 3),
    ];
    for (row, job) in rows.into_iter().enumerate() {
        let pods = if row == 4 { vec![pod("a", "Running")] } else { vec![] };
        let mut api = served(job, pods);
        let effects = sync(&mut api);
        assert_eq!(groups(&api), &JobGroups::default(), "row {row}");
        assert!(effects.created.len() >= 2, "row {row}");
    }
}

/// Whatever has become of its group: a gang is one for all pods that it has.
#[test]
fn a_job_that_asks_for_a_group_gets_one_while_it_has_no_pods() {
    let starts = [
        job().started(50),
        job().status("failed", 1),
        job().condition("Suspended", "JobResumed", "Job resumed"),
    ];
    for job in starts {
        let job = job.size(2, 3).spec("scheduling", gang(None));
        let mut api = served(job.clone(), vec![]);
        let effects = sync(&mut api);
        let name = Arc::clone(&groups(&api).pod_groups[0].key.1);
        assert_eq!(joined(&effects), [Some(&*name); 2]);
        let mut api = served(job, vec![pod("a", "Running")]);
        assert_eq!(joined(&sync(&mut api)), [None]);
        assert_eq!(groups(&api), &JobGroups::default());
    }
}

/// Suspended Jobs are planned before they start, and find their group when they do. (W4)
#[test]
fn a_suspended_job_has_its_group_already() {
    let mut api = served(job().size(2, 2).suspended().spec("scheduling", gang(2)), vec![]);
    let effects = sync(&mut api);
    assert_eq!(calls(&effects.trace.steps), ["create Workload", "create PodGroup", "write status"]);
    api.edit(|job| job.spec.suspend = false);
    let effects = sync(&mut api);
    let name = Arc::clone(&groups(&api).pod_groups[0].key.1);
    assert_eq!(joined(&effects), [Some(&*name); 2]);
}

/// A call without a reply may have been carried out: the next one finds what it made.
#[test]
fn a_lost_reply_makes_no_second_object() {
    for lost in ["create Workload", "create PodGroup"] {
        let mut api = served(job().size(2, 2).spec("scheduling", gang(2)), vec![]);
        let fault = |step: &Step, _: usize| {
            let is_lost = matches!(
                (step, lost),
                (Step::Group(GroupStep::CreateWorkload(_)), "create Workload")
                    | (Step::Group(GroupStep::CreatePodGroup(_)), "create PodGroup")
            );
            is_lost.then(|| Failure::new(FailureKind::Unknown, "no reply"))
        };
        // What the call made before its reply was lost.
        let mut made = api.clone();
        made.sync();
        let effects = sync_with(&mut api, &fault);
        assert!(effects.is_err && effects.writes.is_empty(), "{lost}");
        assert!(effects.created.is_empty() && effects.events().len() <= 1, "{lost}");
        // The watches do not show it, so it is created again, which the API refuses.
        let plan = api.plan();
        api.groups = made.groups.clone();
        let mut progress = crate::job::Progress::new(plan, &api.settings);
        let mut names = Vec::new();
        while let Some(call) = progress.next_call() {
            let outcome = api.execute(&call.step);
            names.extend(calls(&[(call.step.clone(), outcome.clone())]));
            progress.done(&call, outcome);
        }
        let found = if lost == "create Workload" { "find Workload" } else { "find PodGroup" };
        assert!(names.contains(&found), "{names:?}");
        assert_eq!(groups(&api).workloads.len(), 1, "{lost}");
        assert_eq!(groups(&api).pod_groups.len(), 1, "{lost}");
        assert_eq!(names.iter().filter(|name| **name == "create pod").count(), 2, "{names:?}");
    }
}

/// A pod that starts before its group is never in it, and a status makes the Job one that started.
#[test]
fn without_its_group_a_job_gets_neither_pods_nor_a_status() {
    for kind in ["Workload", "PodGroup"] {
        let mut api = served(job().size(2, 2).spec("scheduling", gang(2)), vec![]);
        let effects = sync_with(&mut api, &|step, _| {
            let fails = match step {
                Step::Group(GroupStep::CreateWorkload(_)) => kind == "Workload",
                Step::Group(GroupStep::CreatePodGroup(_)) => kind == "PodGroup",
                _ => false,
            };
            fails.then(|| Failure::new(FailureKind::Forbidden, "exceeded quota"))
        });
        assert!(effects.is_err && effects.created.is_empty() && effects.writes.is_empty());
        let last = effects.events().pop().expect("an event");
        let expected = format!("Failed to create {kind} for Job j: exceeded quota");
        assert_eq!(last, format!("FailedWorkloadCreate: {expected}"));
        let effects = sync(&mut api);
        assert_eq!((effects.created.len(), groups(&api).pod_groups.len()), (2, 1), "{kind}");
    }
}

/// Its owner has not asked for the group, which would change nothing.
#[test]
fn a_job_that_asks_for_no_group_starts_where_the_api_refuses_one() {
    let refused = || Failure::new(FailureKind::Forbidden, "exceeded quota");
    for (failure, pods) in [(refused(), 2), (outage(), 0)] {
        for kind in ["Workload", "PodGroup"] {
            let mut api = served(job().size(2, 2), vec![]);
            let effects = sync_with(&mut api, &|step, _| {
                let fails = match step {
                    Step::Group(GroupStep::CreateWorkload(_)) => kind == "Workload",
                    Step::Group(GroupStep::CreatePodGroup(_)) => kind == "PodGroup",
                    _ => false,
                };
                fails.then(|| failure.clone())
            });
            assert_eq!((effects.created.len(), effects.is_err), (pods, pods == 0), "{kind}");
            assert!(effects.created.iter().all(|draft| draft.group.is_none()));
            let expected = format!("FailedWorkloadCreate: Failed to create {kind} for Job j: ");
            // Without a reply there may be one.
            let says = effects.events().iter().any(|it| it.starts_with(&expected));
            assert_eq!(says, pods > 0, "{kind}: {:?}", effects.events());
        }
    }
}

#[test]
fn an_object_of_others_with_the_name_is_not_taken_for_the_jobs() {
    let mut api = served(job().size(1, 1).spec("scheduling", gang(1)), vec![]);
    let mut other = api.clone();
    other.sync();
    let mut foreign = groups(&other).clone();
    let theirs = Workload { owner: None, ..Workload::clone(&foreign.workloads[0]) };
    foreign = JobGroups { workloads: vec![Arc::new(theirs)], ..JobGroups::default() };
    let plan = api.plan();
    api.groups = Some(foreign);
    let mut progress = crate::job::Progress::new(plan, &api.settings);
    while let Some(call) = progress.next_call() {
        let outcome = api.execute(&call.step);
        progress.done(&call, outcome);
    }
    let name = &groups(&api).workloads[0].key.1;
    let expected = format!(
        "Failed to create Workload for Job j: Workload {name} exists, and the Job does not control \
         it"
    );
    let events = progress.take_side_effects();
    let said =
        events.iter().any(|it| matches!(it, SideEffect::Event(it) if it.message == expected));
    assert!(said, "{events:?}");
    assert!(progress.into_result().result.is_err());
}

/// `minCount` is what the Job says, or all pods that run at once, also later. (W3, W5)
#[test]
fn the_size_of_a_gang_follows_its_job() {
    let rows = [(gang(None), 3, 5), (gang(2), 2, 2)];
    for (scheduling, before, after) in rows {
        let mut api = served(job().size(3, 9).spec("scheduling", scheduling), vec![]);
        sync(&mut api);
        let sizes = |api: &FakeApi| {
            let groups = groups(api);
            (groups.workloads[0].templates[0].min_count, groups.pod_groups[0].min_count)
        };
        assert_eq!(sizes(&api), (Some(before), Some(before)));
        api.edit(|job| job.spec.parallelism = 5);
        check(&api);
        let effects = sync(&mut api);
        assert_eq!(sizes(&api), (Some(after), Some(after)));
        assert_eq!(effects.created.len(), 2);
    }
    let mut api = served(job().size(0, 2).spec("scheduling", gang(None)), vec![]);
    sync(&mut api);
    assert_eq!(groups(&api).pod_groups[0].min_count, Some(1), "the API takes no other");
    let basic = json!({"schedulingPolicy": {"basic": {}}});
    let mut api = served(job().size(3, 9).spec("scheduling", basic), vec![]);
    sync(&mut api);
    api.edit(|job| job.spec.parallelism = 5);
    let effects = sync(&mut api);
    assert!(!calls(&effects.trace.steps).contains(&"resize"));
}

/// What has ended is counted, whatever becomes of the group.
#[test]
fn a_group_that_cannot_be_resized_holds_up_no_count() {
    let mut api = served(job().size(2, 4).spec("scheduling", gang(None)), vec![]);
    sync(&mut api);
    let uid = api.pods.keys().next().expect("a pod").clone();
    api.touch(&uid, |pod| pod.phase = crate::view::Phase::Succeeded);
    api.edit(|job| job.spec.parallelism = 3);
    let effects = sync_with(&mut api, &|step, _| {
        matches!(step, Step::Group(GroupStep::Resize(_))).then(outage)
    });
    assert!(effects.is_err);
    assert_eq!((effects.succeeded, effects.created.len()), (1, 2));
    assert!(effects.events().iter().any(|it| it.starts_with("FailedWorkloadUpdate: minCount of")));
    let effects = sync(&mut api);
    assert_eq!((effects.is_err, groups(&api).pod_groups[0].min_count), (false, Some(3)));
}

/// The parent's Workload may come a moment after the Job, or to our watch later. (W6)
#[test]
fn a_job_waits_for_the_workload_of_its_parent_but_not_for_ever() {
    let mut api = served(delegated(), vec![]);
    let effects = sync(&mut api);
    assert!(effects.trace.steps.is_empty() && !effects.is_err);
    assert_eq!(effects.requeue_seconds, Some(50));
    let expected = "SchedulingDependencyNotFound: Job j waits for its scheduling group: no Workload \
                    names the controller of the Job";
    assert_eq!(effects.events(), [expected]);
    api.groups = Some(JobGroups { of_parent: Some(parent(&[("x", 1)])), ..JobGroups::default() });
    assert!(sync(&mut api).trace.steps.is_empty());
    let of_parent = Some(parent(&[("x", 1), ("workers", 2)]));
    api.groups = Some(JobGroups { of_parent, ..JobGroups::default() });
    let effects = sync(&mut api);
    let expected = ["create PodGroup", "create pod", "create pod", "write status"];
    assert_eq!(calls(&effects.trace.steps), expected);
    assert_eq!(groups(&api).pod_groups[0].min_count, Some(2));

    let mut api = served(delegated(), vec![]);
    api.now = api.now.checked_add(SignedDuration::from_secs(50)).expect("in range");
    let effects = sync(&mut api);
    assert_eq!(joined(&effects), [None, None], "a minute has passed");
    assert!(effects.events()[0].starts_with("UnsupportedWorkloadStructure: Pods of Job j are"));
}

/// The size of a delegated group is its template's, whatever the Job says. (W6)
#[test]
fn a_delegated_group_follows_its_template() {
    let mut api = served(delegated().spec("scheduling", gang(1)), vec![]);
    let with = |size| Some(parent(&[("workers", size)]));
    api.groups = Some(JobGroups { of_parent: with(2), ..JobGroups::default() });
    sync(&mut api);
    let size = |api: &FakeApi| groups(api).pod_groups[0].min_count;
    assert_eq!(size(&api), Some(2));
    api.groups.as_mut().expect("served").of_parent = with(7);
    let effects = sync(&mut api);
    assert_eq!((calls(&effects.trace.steps), size(&api)), (vec!["resize"], Some(7)));
}

/// Replicas of a JobSet follow one template, from which one name follows. (W6)
#[test]
fn siblings_get_groups_of_their_own() {
    let mut api = served(delegated(), vec![]);
    let of_parent = Some(parent(&[("workers", 2)]));
    let served = JobGroups { of_parent, ..JobGroups::default() };
    api.groups = Some(served.clone());
    let plan = api.plan();
    let mut first = api.clone();
    first.sync();
    let of_sibling = PodGroup {
        owner: Some("uid-of-sibling".into()),
        ..PodGroup::clone(&groups(&first).pod_groups[0])
    };
    api.groups = Some(JobGroups { pod_groups: vec![Arc::new(of_sibling)], ..served });
    let mut progress = crate::job::Progress::new(plan, &api.settings);
    let mut names = Vec::new();
    while let Some(call) = progress.next_call() {
        let outcome = api.execute(&call.step);
        names.extend(calls(&[(call.step.clone(), outcome.clone())]));
        progress.done(&call, outcome);
    }
    assert_eq!(names[..3], ["create PodGroup", "find PodGroup", "create PodGroup"], "{names:?}");
    let [theirs, ours] = &*groups(&api).pod_groups else { panic!("{:?}", groups(&api)) };
    assert_ne!(theirs.key, ours.key);
}

/// A later API may have policies that this version does not know. (W3)
#[test]
fn what_cannot_be_made_is_refused_and_not_left_out() {
    for (scheduling, field) in [
        (json!({"schedulingPolicy": {"other": {}}}), "schedulingPolicy"),
        (json!({"schedulingPolicy": {"gang": {}}, "disruptionMode": {}}), "disruptionMode"),
    ] {
        let mut api = served(job().spec("scheduling", scheduling), vec![]);
        let effects = sync(&mut api);
        assert!(effects.is_err && effects.trace.steps.is_empty());
        let expected = format!(
            "FailedWorkloadCompilation: Failed to compile Workload for Job j: spec.scheduling.{field} \
             asks for what this version does not know"
        );
        assert_eq!(effects.events(), [expected]);
    }
}

/// Another replica may have made the group, and pods of it, before our watch of groups shows it.
#[test]
fn new_pods_join_the_group_of_the_others_before_the_watch_shows_it() {
    let mut api = served(job().size(2, 4).spec("scheduling", gang(2)), vec![]);
    sync(&mut api);
    let name = Arc::clone(&groups(&api).pod_groups[0].key.1);
    api.groups = Some(JobGroups::default());
    api.edit(|job| job.spec.parallelism = 3);
    assert_eq!(joined(&sync(&mut api)), [Some(&*name)]);
    // After a restore of etcd it may be gone.
    assert_eq!(&*groups(&api).pod_groups[0].key.1, &*name, "it is there again");
    api.groups = Some(JobGroups::default());
    // A pod that the Job has adopted is in the group of another.
    let uid = api.pods.keys().next().expect("a pod").clone();
    for uid in api.pods.keys().cloned().collect::<Vec<_>>() {
        api.touch(&uid, |pod| pod.group = None);
    }
    api.touch(&uid, |pod| pod.group = Some("of-another".into()));
    api.edit(|job| job.spec.parallelism = 4);
    assert_eq!(joined(&sync(&mut api)), [None]);
}

/// The same of a Job whose parent has the Workload, also where a sibling has the first name.
#[test]
fn a_delegated_group_that_no_watch_shows_is_found_or_made_again() {
    let of_parent = Some(parent(&[("workers", 2)]));
    let undone = JobGroups { of_parent, ..JobGroups::default() };
    let mut api = served(delegated().size(2, 4), vec![]);
    api.groups = Some(undone.clone());
    let GroupPlan::Create(WorkloadPlan::Of(draft)) = api.plan().group else { panic!("{api:?}") };
    let of_sibling = draft.clone().of_sibling(&api.job).expect("a name of its own").name;
    sync(&mut api);
    let shown = groups(&api).pod_groups[0].clone();
    api.groups = Some(undone.clone());
    api.edit(|job| job.spec.parallelism = 3);
    let in_group = |name: &str| {
        let mut api = api.clone();
        for uid in api.pods.keys().cloned().collect::<Vec<_>>() {
            api.touch(&uid, |pod| pod.group = Some(name.into()));
        }
        api
    };
    for name in [draft.name, of_sibling] {
        // Another replica has made it.
        let mut api = in_group(&name);
        let mut progress = crate::job::Progress::new(api.plan(), &api.settings);
        let key = (Arc::clone(&shown.key.0), Arc::from(&*name));
        let made = PodGroup { key, ..PodGroup::clone(&shown) };
        api.groups = Some(JobGroups { pod_groups: vec![Arc::new(made)], ..undone.clone() });
        let (mut names, mut joined_by) = (Vec::new(), None);
        while let Some(call) = progress.next_call() {
            if let Step::Create(draft) = &call.step {
                joined_by = draft.group.as_ref().map(|group| Arc::clone(&group.name));
            }
            let outcome = api.execute(&call.step);
            names.extend(calls(&[(call.step.clone(), outcome.clone())]));
            progress.done(&call, outcome);
        }
        let expected = ["create PodGroup", "find PodGroup", "create pod", "write status"];
        assert_eq!((names, joined_by.as_deref()), (expected.to_vec(), Some(&*name)));
        assert_eq!(groups(&api).pod_groups.len(), 1, "{name}");
        // A restore of etcd has undone it.
        let mut api = in_group(&name);
        let effects = sync(&mut api);
        let expected = ["create PodGroup", "create pod", "write status"];
        assert_eq!(
            (calls(&effects.trace.steps), joined(&effects)),
            (expected.to_vec(), vec![Some(&*name)])
        );
    }
    // Pods that the Job has adopted are in the group of another.
    let mut api = in_group("of-another");
    assert_eq!((joined(&sync(&mut api)), groups(&api)), (vec![None], &undone));
}

/// More than one of a kind, or a Workload of another form, can only be made by hand. (W4)
#[test]
fn with_unexpected_objects_a_running_job_goes_on_without_a_group() {
    let mut api = served(job().size(2, 4).spec("scheduling", gang(2)), vec![]);
    sync(&mut api);
    let good = groups(&api).clone();
    let mut two = good.clone();
    two.workloads.push(Arc::clone(&two.workloads[0]));
    let mut twice = good.clone();
    twice.pod_groups.push(Arc::clone(&twice.pod_groups[0]));
    let mut odd = good;
    Arc::make_mut(&mut odd.workloads[0]).templates.clear();
    for groups in [two, twice, odd] {
        let mut api = api.clone();
        api.groups = Some(groups);
        assert!(matches!(api.plan().group, GroupPlan::Alone(_)));
        api.edit(|job| job.spec.parallelism = 3);
        let effects = sync_with(&mut api, &|_, _| None);
        assert_eq!(joined(&effects), [None]);
        assert!(effects.events()[0].starts_with("UnsupportedWorkloadStructure"));
    }
}

/// What others know of the objects: names, owners, references, and each block as the Job has it.
#[test]
fn the_objects_say_what_the_job_says() {
    let scheduling = json!({
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    });
    let job = job().size(2, 2).spec("scheduling", scheduling).with(|it| {
        it["spec"]["template"]["spec"]["priorityClassName"] = "high".into();
    });
    let mut api = served(job, vec![]);
    let effects = sync(&mut api);
    let of = |text: Vec<u8>| serde_json::from_slice::<Value>(&text).expect("must be JSON");
    let bodies: Vec<Value> = effects
        .trace
        .steps
        .iter()
        .filter_map(|(step, _)| match step {
            Step::Group(GroupStep::CreateWorkload(draft)) => {
                Some(of(workload_body(&api.job, draft)))
            }
            Step::Group(GroupStep::CreatePodGroup(draft)) => {
                Some(of(pod_group_body(&api.job, draft)))
            }
            Step::Create(draft) => {
                let body = pod_body(&api.job, draft);
                body.json().map(|text| of(text.as_bytes().to_vec()))
            }
            _ => None,
        })
        .collect();
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job-uid",
                       "controller": true, "blockOwnerDeletion": true});
    let workload = groups(&api).workloads[0].clone();
    let mut template = json!({
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
        "priorityClassName": "high",
    });
    let mut group_spec = template.clone();
    template["name"] = "j-pgt-0".into();
    assert_eq!(
        bodies[0],
        json!({
            "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload",
            "metadata": {"name": WORKLOAD, "namespace": "ns", "ownerReferences": [owner]},
            "spec": {"controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "j"},
                     "podGroupTemplates": [template]},
        })
    );
    group_spec["workloadRef"] = json!({"workloadName": WORKLOAD, "templateName": "j-pgt-0"});
    let of_workload = json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload",
                             "name": WORKLOAD, "uid": workload.uid.as_str()});
    assert_eq!(
        bodies[1],
        json!({
            "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
            "metadata": {"name": POD_GROUP, "namespace": "ns",
                         "ownerReferences": [owner, of_workload]},
            "spec": group_spec,
        })
    );
    assert_eq!(bodies[2]["spec"]["schedulingGroup"], json!({"podGroupName": POD_GROUP}));
    assert_eq!(bodies[2]["metadata"]["ownerReferences"], json!([owner]));
}
