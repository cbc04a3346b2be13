//! Tests that what is kept pod by pod is what a walk finds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::event_handlers::samples;

/// A change of one of few pods.
#[derive(Clone, Debug)]
enum Change {
    Shown { number: usize, phase: usize, bits: u16 },
    Gone(usize),
    Copied,
}

const PODS: usize = 24;
const PHASES: [&str; 4] = ["Pending", "Running", "Succeeded", "Failed"];

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (0..PODS, 0..PHASES.len(), any::<u16>())
            .prop_map(|(number, phase, bits)| Change::Shown { number, phase, bits }),
        2 => (0..PODS).prop_map(Change::Gone),
        1 => Just(Change::Copied),
    ]
}

/// The bits say what else is true of the pod.
fn pod(number: usize, phase: usize, bits: u16) -> Arc<Pod> {
    let has = |bit: u32| bits & (1 << bit) != 0;
    let tracking = "batch.kubernetes.io/job-tracking";
    let mut pod = samples::pod(json!({
        "metadata": {
            "name": format!("p-{number}"), "uid": format!("p-{number:02}"), "namespace": "ns",
            "labels": if has(0) { json!({"job-name": "other"}) } else { json!({"job-name": "a"}) },
            "finalizers": if has(1) { json!([tracking]) } else { json!([]) },
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a",
                "uid": "uid-a", "controller": true}],
        },
        "status": {"phase": PHASES[phase]},
    }));
    pod.index = has(2).then(|| u32::from(bits >> 12));
    if has(3) {
        pod.deletion = Some(crate::view::Deletion { at: jiff::Timestamp::MIN, grace_seconds: 0 });
    }
    if has(4) {
        pod.shown_running_since = Some(jiff::Timestamp::MIN);
    }
    Arc::new(pod)
}

fn job() -> Job {
    samples::job(json!({
        "metadata": {"name": "a", "uid": "uid-a", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"job-name": "a"}}},
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What is kept by each change is what a walk of all pods finds, and a copy stays as it was.
    #[test]
    fn what_is_kept_pod_by_pod_is_what_a_walk_finds(
        changes in prop::collection::vec(change(), 0..120),
    ) {
        let job = job();
        let (mut kept, mut expected) = (JobPods::default(), BTreeMap::new());
        let mut copies = Vec::new();
        for change in changes {
            match change {
                Change::Shown { number, phase, bits } => {
                    let pod = pod(number, phase, bits);
                    kept.insert(&pod, || Some(&job));
                    expected.insert(pod.uid.clone(), pod);
                }
                Change::Gone(number) => {
                    let uid = Uid::from(format!("p-{number:02}"));
                    prop_assert_eq!(kept.remove(&uid), expected.remove(&uid));
                }
                Change::Copied => copies.push((kept.clone(), expected.clone())),
            }
            prop_assert_eq!(kept.len(), expected.len());
        }
        copies.push((kept, expected));
        for (kept, expected) in copies {
            prop_assert!(kept.iter().eq(expected.values()), "in the order of UIDs");
            prop_assert_eq!(&kept, &JobPods::of(&job, expected.values()));
            let active = expected.values().filter(|pod| pod.is_active());
            prop_assert_eq!(kept.active(), active.cloned().collect::<Vec<_>>());
            for kind in Kind::ALL {
                let found = expected.values().filter(|pod| kind.holds(pod));
                prop_assert!(kept.of_kind(kind).eq(found), "{:?}", kind);
            }
            for index in 0..16 {
                let has = kept.active().iter().any(|pod| pod.index == Some(index));
                prop_assert_eq!(kept.has_active(index), has, "{}", index);
            }
            for bound in [0, 3, 16] {
                let mut places: Vec<_> = kept.active().iter().map(|pod| pod.index).collect();
                let number = places.len();
                places.sort_unstable();
                places.dedup();
                let all = places.len() == number
                    && places.iter().all(|index| index.is_some_and(|index| index < bound));
                prop_assert_eq!(kept.have_places(bound), all, "below {}", bound);
            }
        }
    }
}

#[test]
fn a_pod_whose_job_is_unknown_is_matched_once_the_job_is_known() {
    let (job, mut pods) = (job(), JobPods::default());
    let (fits, strays) = (pod(1, 1, 0b10), pod(2, 1, 0b11));
    pods.insert(&fits, || None);
    pods.insert(&strays, || None);
    assert_eq!(pods.unmatched().count(), 2);
    pods.select(&job);
    assert!(pods.unmatched().eq([&strays]));
    let ended = Arc::new(Pod { phase: Phase::Failed, ..Pod::clone(&strays) });
    pods.alter(Arc::clone(&ended));
    pods.alter(Arc::new(Pod { phase: Phase::Failed, ..Pod::clone(&fits) }));
    assert!(pods.unmatched().eq([&ended]));
}

/// Chunks are small in tests.
#[test]
fn a_set_splits_and_joins_its_chunks() {
    let uid = |number: usize| Uid::from(format!("p-{number:02}"));
    let numbers = [5, 3, 9, 1, 7, 0, 8, 2, 6, 4, 15, 13, 19, 11, 17, 10, 18, 12, 16, 14];
    let mut set = PodSet::default();
    for number in numbers {
        assert_eq!(set.insert(pod(number, 1, 0)), None);
    }
    let before = set.clone();
    assert_eq!((set.len(), set.get(&uid(13)).map(|pod| &*pod.name)), (20, Some("p-13")));
    assert!(set.insert(pod(13, 2, 0)).is_some_and(|old| old.phase == Phase::Running));
    for (left, number) in numbers.into_iter().enumerate().map(|(gone, it)| (19 - gone, it)) {
        assert!(set.remove(&uid(number)).is_some() && set.remove(&uid(number)).is_none());
        assert_eq!((set.len(), set.is_empty()), (left, left == 0));
        assert!(set.iter().is_sorted_by_key(|pod| pod.uid.clone()));
    }
    assert_eq!(before.len(), 20, "a copy stays as it was");
    assert!(before.iter().all(|pod| pod.phase == Phase::Running));
}
