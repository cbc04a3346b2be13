//! Reads what the events of the demo's Jobs say of their pods' ends.

use std::time::Duration;

use anyhow::bail;
use epilogue_common::names::pod_end_event::{POD_DISRUPTED, POD_FAILED};
use epilogue_common::pod_end::{Counted, PodEnds};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};

use super::NAMESPACE;
use super::jobs::Scene;
use crate::eventually::observe_until;

/// Events are written apart from the Jobs.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// One line for each end, in the order of the scenes: the event's reason, and how the pod ended.
/// Every failure that a Job counts must be among them.
pub(super) async fn reported(
    client: &kube::Client,
    scenes: &[Scene],
) -> anyhow::Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    let read = async || {
        let all = events.list(&ListParams::default()).await;
        all.map(|all| all.items).unwrap_or_default()
    };
    let is_reported = |events: &Vec<Event>| {
        scenes.iter().all(|scene| failures(events, scene.name) >= scene.end.failed)
    };
    let Ok(events) = observe_until(REPORTED_WITHIN, read, is_reported).await else {
        bail!("not each failure has an event within {REPORTED_WITHIN:?}")
    };
    let lines = scenes.iter().flat_map(|scene| of(&events, scene.name));
    Ok(lines
        .flat_map(|(reason, _, ends)| {
            ends.last.into_iter().map(move |end| format!("{reason:<12} {}", end.says))
        })
        .collect())
}

fn failures(events: &[Event], job: &str) -> i32 {
    let counted = of(events, job).filter(|(_, _, ends)| ends.counted != Counted::Ignored);
    counted.map(|(_, count, _)| count).sum()
}

/// Reason, count and content of the Job's events about ends.
fn of<'a>(events: &'a [Event], job: &'a str) -> impl Iterator<Item = (&'a str, i32, PodEnds)> {
    let events =
        events.iter().filter(move |event| event.involved_object.name.as_deref() == Some(job));
    events.filter_map(|event| {
        let reason = event.reason.as_deref()?;
        let ends = PodEnds::read(event.metadata.annotations.as_ref()?)?;
        let is_end = [POD_FAILED, POD_DISRUPTED].contains(&reason);
        is_end.then_some((reason, event.count.unwrap_or(1), ends))
    })
}
