//! Tests large Jobs: limits of lists, and work that grows with the Job and not with its square.

use std::cell::Cell;
use std::sync::Arc;

use super::builders::{PodBuilder, api, job, pod, sync_with};
use crate::job::{IndexSet, PodStage};
use crate::view::Pod;

/// The most indexes that a Job may have, as the API bounds parallelism.
const INDEXES: u32 = 100_000;

fn every_second() -> IndexSet {
    IndexSet::collect((0..INDEXES).filter(|index| index % 2 == 0))
}

/// The longest list of 100,000 indexes is written and read whole. ([I2], [I3], [I6])
#[test]
fn the_longest_list_of_indexes_is_written_and_read() {
    let text = every_second().to_string();
    assert_eq!(text.len(), 294_444, "within the 1.5 MiB of an object");
    assert_eq!(IndexSet::parse(&text, INDEXES), every_second());
    let mut large = api(
        job().size(1_000, INDEXES as i32).indexed().completed(&text),
        vec![pod("s", "Succeeded").index(1)],
    );
    let effects = sync_with(&mut large, &|_, _| None);
    assert_eq!((effects.succeeded, effects.created.len()), (50_001, 500));
    assert_eq!(effects.created_indexes()[..3], [3, 5, 7]);
    assert!(effects.completed_indexes.starts_with("0-2,4,6,8,"));
}

/// The last index of all.
#[test]
fn the_last_of_100_000_indexes_completes_the_job() {
    let but_one = format!("0-{}", INDEXES - 2);
    let last = |phase: &str| vec![pod("p", phase).index(INDEXES - 1)];
    let base = || job().size(5, INDEXES as i32).indexed().completed(&but_one);
    let effects = sync_with(&mut api(base(), vec![]), &|_, _| None);
    assert_eq!(effects.created_indexes(), [INDEXES - 1]);
    let effects = sync_with(&mut api(base(), last("Succeeded")), &|_, _| None);
    assert_eq!(effects.completed_indexes, format!("0-{}", INDEXES - 1));
    assert_eq!(effects.conditions.len(), 2);
}

/// The search for free indexes stops as soon as it has enough. ([I4])
#[test]
fn free_indexes_are_found_by_asking_for_few() {
    let asked = Cell::new(0_u32);
    let busy = |index: u32| {
        asked.set(asked.get() + 1);
        index < 2_001
    };
    let found = every_second().lowest_missing(INDEXES, 500, busy);
    assert_eq!((found.len(), found[0]), (500, 2_001));
    assert_eq!(asked.get(), 1_500, "1,000 busy ones and 500 free ones");
    asked.set(0);
    assert!(every_second().lowest_missing(INDEXES, 0, busy).is_empty());
    assert_eq!(asked.get(), 0);
}

/// Union and intersection walk each interval once: they hold no more than both sets together.
#[test]
fn sets_are_kept_as_intervals() {
    let all = every_second().union(&IndexSet::collect((0..INDEXES).filter(|it| it % 2 == 1)));
    assert_eq!(all.to_string(), "0-99999");
    assert_eq!(all.intersection_size(&every_second()), 50_000);
    assert_eq!(
        format!("{all:?}").len(),
        "IndexSet { intervals: [(0, 99999)], size: 100000 }".len()
    );
}

/// 2,000 pods and 100,000 indexes in one plan, with the most expensive feature: failures per index.
/// If any part of it were quadratic in the indexes, this would take minutes.
#[test]
fn a_plan_for_2_000_pods_of_100_000_indexes_holds_each_pod_once() {
    let pods: Vec<PodBuilder> = (0..2_000_u32)
        .map(|number| match number % 4 {
            0 => pod(&format!("p{number}"), "Succeeded").index(number * 50),
            1 => pod(&format!("p{number}"), "Failed").index(number * 50).ended(1, 900),
            2 => pod(&format!("p{number}"), "Running").index(number * 50).terminating(),
            _ => pod(&format!("p{number}"), "Running").index(number * 50).on_node(),
        })
        .collect();
    let large = job()
        .size(10_000, INDEXES as i32)
        .indexed()
        .spec("backoffLimitPerIndex", 3)
        .spec("maxFailedIndexes", 10_000)
        .spec("backoffLimit", i32::MAX);
    let api = api(large, pods);
    let plan = api.plan();
    let census = &plan.facts.census;
    assert_eq!([census.active, census.terminating.len()], [500, 500]);
    assert_eq!([&census.newly_succeeded, &census.newly_failed].map(Vec::len), [500, 1_000]);
    let PodStage::Create(drafts) = &plan.pods else { panic!("pods are created") };
    assert_eq!(drafts.len(), 500);
    assert!(census.pods.iter().all(|pod: &Arc<Pod>| Arc::strong_count(pod) >= 2), "shared");
}
