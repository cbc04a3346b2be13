//! Tests adoption and disowning. ([L1], [L2], [L3], [L4])

use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;
use serde_json::json;

use super::builders::{
    Effects, JobBuilder, PodBuilder, api, job, outage, pod, sync, sync_with, uid,
};
use crate::checks::fake_api::FakeApi;
use crate::job::{
    ClaimKind, Step, claim_patch, delete_options, remove_finalizer_patch, strip_patch,
};
use crate::view::Version;

fn claims(effects: &Effects) -> Vec<(String, ClaimKind)> {
    let steps = effects.trace.steps.iter();
    steps
        .filter_map(|(step, _)| match step {
            Step::Claim(claim) => Some(claim),
            _ => None,
        })
        .map(|claim| (claim.pod.name.to_string(), claim.kind))
        .collect()
}

fn confirms(effects: &Effects) -> bool {
    effects.trace.steps.iter().any(|(step, _)| *step == Step::ConfirmJob)
}

#[test]
fn finalizer_patches_and_deletions_name_the_pod_by_its_uid() {
    let pod = pod("p", "Failed").build();
    assert_eq!(remove_finalizer_patch(&pod)["metadata"]["uid"], pod.uid.as_str());
    assert!(remove_finalizer_patch(&pod)["metadata"].get("resourceVersion").is_none());
    let stripped = strip_patch(&pod)["metadata"].clone();
    assert_eq!(stripped["uid"], "uid-p");
    assert_eq!(stripped["resourceVersion"], pod.version.to_string(), "it may end meanwhile");
    let preconditions = |version| delete_options(&pod, version)["preconditions"].clone();
    assert_eq!(preconditions(None), json!({"uid": "uid-p"}));
    assert_eq!(preconditions(Some(Version(7))), json!({"uid": "uid-p", "resourceVersion": "7"}));
    assert_eq!(preconditions(Some(Version(0))), json!({"uid": "uid-p"}), "not a number");
}

#[test]
fn pods_are_claimed_by_owner_selector_and_deletion() {
    let foreign = |pod: PodBuilder| {
        pod.with(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = "other".into())
    };
    let of_kind = |pod: PodBuilder, kind: &str| {
        let kind = kind.to_owned();
        pod.with(|pod| pod["metadata"]["ownerReferences"][0]["kind"] = kind.into())
    };
    let p = || pod("p", "Running").on_node();
    let adopt = Some(ClaimKind::Adopt);
    let disown = Some(ClaimKind::Disown);
    let plain = || job().size(1, 1);
    for (row, (job, pod, claim, active)) in [
        (plain(), p(), None, 1),
        (plain(), p().unselected(), disown, 1),
        (plain(), p().orphan(), adopt, 1),
        (plain(), p().orphan().unselected(), None, 1),
        (plain(), p().orphan().terminating(), None, 1),
        (plain(), foreign(p()), None, 1),
        (plain(), of_kind(p(), "CronJob"), None, 1),
        (plain().deleting(), p(), None, 1),
        (plain().deleting(), p().unselected(), None, 1),
        (plain().deleting(), p().orphan(), None, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let effects = sync(&mut api(job, vec![pod]));
        let kinds: Vec<_> = claims(&effects).into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(kinds, claim.into_iter().collect::<Vec<_>>(), "row {row}");
        assert_eq!(confirms(&effects), claim == adopt, "row {row}");
        assert_eq!(effects.active, active, "row {row}");
    }
}

/// An absent selector matches nothing. (The API never lets such a Job through.)
#[test]
fn a_job_without_selector_adopts_nothing() {
    let job = job().spec("selector", serde_json::Value::Null);
    assert!(api(job, vec![pod("p", "Running").orphan()]).plan().claims.is_empty());
}

fn adopting() -> FakeApi {
    api(job().size(2, 2), vec![pod("p", "Running").orphan(), pod("q", "Succeeded").orphan()])
}

#[test]
fn an_adopted_pod_counts_in_the_same_sync() {
    let mut api = adopting();
    let effects = sync(&mut api);
    assert_eq!((effects.active, effects.succeeded, effects.created.len()), (1, 1, 0));
    assert!(api.pods[&uid("p")].tracked && api.pods[&uid("p")].owner.is_some());
}

/// One live read serves all; any fact against adoption ends the sync.
#[test]
fn adoption_needs_a_job_that_lives() {
    let mut replaced = adopting();
    let live = |api: &mut FakeApi| {
        let mut progress = crate::job::Progress::new(api.plan(), &api.settings);
        let call = progress.next_call().expect("the Job must be read");
        assert_eq!(call.step, Step::ConfirmJob);
        (progress, call)
    };
    for (job_uid, deleting) in [("other", false), ("job-uid", true)] {
        let (mut progress, call) = live(&mut replaced);
        let live = crate::job::LiveJob { uid: job_uid.into(), deleting };
        progress.done(&call, Ok(crate::job::Answer::Live(live)));
        assert_eq!(progress.next_call(), None);
        assert!(progress.into_result().result.is_err(), "{job_uid} {deleting}");
    }
    let mut api = adopting();
    let effects = sync_with(&mut api, &|step, _| (*step == Step::ConfirmJob).then(outage));
    assert!(effects.is_err && effects.writes.is_empty() && claims(&effects).is_empty());
}

#[test]
fn a_refused_adoption_is_reported() {
    let reported = |kind: FailureKind| {
        let refused = || Failure::new(kind, "denied request: not this pod");
        let claim = |step: &Step, _| matches!(step, Step::Claim(_)).then(refused);
        let events = sync_with(&mut adopting(), &claim).events();
        let of_adoption = |it: &&String| it.contains("FailedAdoption");
        events.iter().filter(of_adoption).filter(|it| it.contains("not this pod")).count()
    };
    for kind in [FailureKind::Forbidden, FailureKind::Invalid, FailureKind::ServerError] {
        assert_eq!(reported(kind), 1, "{kind:?}");
    }
    for kind in [FailureKind::Conflict, FailureKind::NotFound, FailureKind::Unknown] {
        assert_eq!(reported(kind), 0, "{kind:?}");
    }
}

/// Which failed claims end the sync: every adoption, and every disowning unless there is nothing to
/// disown, or the API refuses it.
#[test]
fn a_claim_that_fails_ends_the_sync_unless_there_is_nothing_to_claim() {
    let other = || pod("p", "Running").unselected();
    let lost = || pod("p", "Running").untracked();
    let orphan = || pod("p", "Running").orphan();
    for (pod, kind, ends) in [
        (other as fn() -> PodBuilder, FailureKind::NotFound, false),
        (other, FailureKind::Invalid, false),
        (other, FailureKind::Forbidden, false),
        (other, FailureKind::ServerError, true),
        (other, FailureKind::Conflict, true),
        (lost, FailureKind::NotFound, false),
        (lost, FailureKind::Invalid, true),
        // DIVERGES(upstream): upstream continues without the pod.
        (orphan, FailureKind::NotFound, true),
        (orphan, FailureKind::Invalid, true),
        (orphan, FailureKind::Conflict, true),
    ] {
        let mut api = api(job(), vec![pod()]);
        let effects = sync_with(&mut api, &|step, _| {
            matches!(step, Step::Claim(_)).then(|| Failure::new(kind, "no"))
        });
        assert_eq!((effects.is_err, effects.writes.is_empty()), (ends, ends), "{kind:?}");
    }
}

/// DIVERGES(upstream): upstream repeats the patch, and creates nothing.
#[test]
fn a_job_goes_on_without_a_pod_that_it_may_not_adopt_and_asks_again_later() {
    let mut api = api(job().size(1, 1), vec![pod("p", "Running").orphan()]);
    let refused = || Failure::new(FailureKind::Forbidden, "denied request: not this pod");
    let claim = |step: &Step, _| matches!(step, Step::Claim(_)).then(refused);
    let first = sync_with(&mut api, &claim);
    assert!(first.is_err && first.created.is_empty(), "the plan was for two pods fewer");

    let second = sync(&mut api);
    assert!(!second.is_err && claims(&second).is_empty());
    assert_eq!((second.created.len(), second.active), (1, 1));
    assert_eq!(api.plan().requeue_after, Some(SignedDuration::from_mins(5)));

    api.now += SignedDuration::from_mins(5);
    assert_eq!(claims(&sync(&mut api)), [("p".to_owned(), ClaimKind::Adopt)]);
}

#[test]
fn a_pod_that_may_not_be_disowned_is_reported_once_and_tried_again_later() {
    let other = || pod("p", "Running").unselected();
    let mut api = api(job().size(1, 1), vec![other()]);
    let refused = || Failure::new(FailureKind::Forbidden, "denied request: not this pod");
    let claim = |step: &Step, _| matches!(step, Step::Claim(_)).then(refused);
    let first = sync_with(&mut api, &claim);
    assert!(!first.is_err);
    assert_eq!((first.created.len(), first.active), (1, 1), "it counts no more");
    let reported =
        |effects: &Effects| effects.events().iter().any(|it| it.contains("FailedRelease"));
    assert!(reported(&first), "{:?}", first.events());
    let second = sync_with(&mut api, &claim);
    assert!(claims(&second).is_empty() && !reported(&second));

    // The pod of this name is another one.
    let another = || Failure::new(FailureKind::Invalid, "metadata.uid: Invalid value: \"x\"");
    let mut api = super::builders::api(job().size(1, 1), vec![other()]);
    let claim = |step: &Step, _| matches!(step, Step::Claim(_)).then(another);
    assert!(!reported(&sync_with(&mut api, &claim)));
}

#[test]
fn claims_are_patches_that_only_touch_what_they_must() {
    let api = api(
        job().size(3, 3),
        vec![
            pod("a", "Running").orphan(),
            pod("r", "Running").unselected(),
            pod("t", "Running").untracked(),
        ],
    );
    let plan = api.plan();
    let patches: Vec<_> =
        plan.claims.iter().map(|claim| claim_patch(&api.job, claim)["metadata"].clone()).collect();
    let finalizers = serde_json::json!(["batch.kubernetes.io/job-tracking"]);
    for patch in &patches {
        match patch["uid"].as_str() {
            Some("uid-a") => {
                assert_eq!(patch["ownerReferences"][0]["uid"], "job-uid");
                assert_eq!(patch["ownerReferences"][0]["controller"], true);
                assert_eq!(patch["finalizers"], finalizers);
                assert!(patch["resourceVersion"].is_string());
            }
            Some("uid-r") => {
                assert_eq!(patch["ownerReferences"][0]["$patch"], "delete");
                assert_eq!(patch["$deleteFromPrimitiveList/finalizers"], finalizers);
            }
            Some("uid-t") => {
                assert_eq!(patch["finalizers"], finalizers);
                assert!(patch["resourceVersion"].is_string());
                assert!(patch.get("ownerReferences").is_none());
            }
            other => panic!("a claim of {other:?}"),
        }
    }
    assert_eq!(patches.len(), 3);
}

/// A live pod that lost the finalizer gets it back; upstream leaves it so. ([P14])
#[test]
fn a_live_pod_that_lost_its_finalizer_gets_it_back() {
    let lost = || pod("p", "Running").on_node().untracked();
    let track: fn(JobBuilder) -> JobBuilder = |job| job;
    for (what, change, pod, claimed) in [
        ("a live pod", track, lost(), true),
        ("a pod that ended", track, pod("p", "Succeeded").untracked(), false),
        ("a terminating pod", track, lost().terminating(), false),
        ("of a suspended Job", JobBuilder::suspended, lost(), false),
        ("of a Job being deleted", JobBuilder::deleting, lost(), false),
        ("of a failing Job", |job| job.condition("FailureTarget", "R", "m"), lost(), false),
    ] {
        let effects = sync(&mut api(change(job()), vec![pod]));
        assert_eq!(!claims(&effects).is_empty(), claimed, "{what}");
    }
    let mut deleted = api(job(), vec![lost()]);
    deleted.memory.expectations.deleted.insert(uid("p"));
    deleted.memory.expectations.since = Some(deleted.now);
    assert!(deleted.plan().claims.is_empty(), "our own deletion is still to be seen");
}
