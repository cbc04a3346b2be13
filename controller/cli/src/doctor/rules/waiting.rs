//! Finds Jobs that wait for what only people can change: a quota, a policy, capacity, an image, a
//! volume.

use std::collections::BTreeMap;

use controller_core::view::Job;
use epilogue_common::finding_code::FindingCode as Code;
use jiff::{SignedDuration, Timestamp};

use super::finding::{Finding, Rule};
use super::scene::Scene;
use crate::waits::{Obstacle, refusal};

/// A shorter wait is not reported: kubelets, schedulers and quotas need some time.
const WAIT_MIN: SignedDuration = SignedDuration::from_mins(5);
/// A finding names at most this many pods.
const NAMED_MAX: usize = 3;

/// The pods of one Job that lack the same, and since when.
#[derive(Default)]
struct Lacking<'a> {
    since: Option<Timestamp>,
    pods: Vec<&'a str>,
}

pub(super) fn findings(scene: &Scene, now: Timestamp) -> Vec<Finding> {
    let is_long = |since: &Timestamp| now.duration_since(*since) > WAIT_MIN;
    let mut found = Vec::new();
    for job in scene.jobs.values().filter(|job| !job.is_finished()) {
        let refused = refusal(job, &scene.refusals, now).filter(|it| is_long(&it.first));
        found.extend(refused.map(|it| {
            let problem =
                format!("it waits for {} (last refused at {})", it.obstacle.needs, it.last);
            finding(job, it.obstacle.code, problem, it.first)
        }));
    }
    let mut lacking: BTreeMap<(&str, &Obstacle), (&Job, Lacking<'_>)> = BTreeMap::new();
    for seen in &scene.pods {
        let Some((pod, obstacle)) = scene.view(seen).zip(seen.obstacle.as_ref()) else { continue };
        let created = pod.created.filter(|created| pod.is_active() && is_long(created));
        let Some((created, job)) = created.zip(scene.job_of(pod)) else { continue };
        let entry = lacking.entry((job.uid.as_str(), obstacle));
        let (_, of_job) = entry.or_insert_with(|| (job, Lacking::default()));
        of_job.since = Some(of_job.since.map_or(created, |since| since.min(created)));
        of_job.pods.push(&pod.name);
    }
    found.extend(lacking.into_iter().filter_map(|((_, obstacle), (job, mut lacking))| {
        lacking.pods.sort_unstable();
        let first = lacking.pods[..lacking.pods.len().min(NAMED_MAX)].join(", ");
        let problem = match lacking.pods.len() {
            1 => format!("its pod {first} waits {}", obstacle.needs),
            count => format!("{count} pods of it (first {first}) wait {}", obstacle.needs),
        };
        Some(finding(job, obstacle.code, problem, lacking.since?))
    }));
    found
}

fn finding(job: &Job, code: Code, problem: String, since: Timestamp) -> Finding {
    let remedy = match code {
        Code::QuotaExceeded => "raise the quota, or lower the Job's requests or parallelism",
        Code::PodsRefused => "change the Job's pod template, or what refuses its pods",
        Code::ImageNotPulled => "correct the image's name, the pull secret or the registry",
        Code::VolumeOrConfigMissing => "create the volume, Secret or ConfigMap",
        Code::PodUnscheduled => "add capacity, or correct requests and affinity",
        _ => "kubectl describe pod: see its events",
    };
    let subject = format!("job/{}", job.key);
    Finding::new((Rule::WaitingJob, code), subject, problem).since(Some(since)).remedy(remedy)
}
