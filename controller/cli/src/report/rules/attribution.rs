//! Decides which event says how a pod ended, so that each is counted once.
//!
//! A Job's events come first. An end that one describes is that pod's, whatever the API, an agent,
//! pod GC or Kubernetes say of it; a second event that describes the pod adds nothing. An event
//! describes its last ends only and counts the others: the rest. A disrupted pod of the Job that no
//! event describes is taken to be one of the rest, as long as the rest lasts and if the pod ended
//! between the first and the last of it. So the rest is counted from the event only. Other
//! disrupted pods are counted as they are judged.
//!
//! The rest has no times of its own: it ended between the event's first time and its oldest
//! described end. If the event began before the report does, how much of the rest is of the
//! report's time is not known, and all of it is left out.

use std::collections::{BTreeMap, BTreeSet};

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::pod_end::{Counted, PodEnd};
use jiff::Timestamp;

use super::answer::{Cause, DisruptedPod};
use super::disrupted::CLOCKS_DIFFER_MAX;
use super::event_log::EventLog;
use super::job_events::JobEvent;

/// A pod is compared with at most this many events: others may write very many.
const COMPARED_MAX: usize = 100;
/// A name of a Job that is longer may be cut in its pods' names.
const CUT_MIN: usize = 40;
/// A generated name is a base of at most this many bytes, and then
const BASE_MAX: usize = 58;
/// this many random letters.
const RANDOM: usize = 5;

/// What the events of Jobs say of the report's time.
#[derive(Debug)]
pub(super) struct Attribution<'a> {
    /// By namespace and pod.
    ends: BTreeMap<(&'a str, &'a str), (&'a JobEvent, &'a PodEnd)>,
    rests: Vec<Rest<'a>>,
    /// Where they are, by namespace and Job.
    by_job: BTreeMap<(&'a str, &'a str), Vec<usize>>,
    /// Disrupted pods that count as one of a rest, by namespace and name.
    absorbed: BTreeSet<(String, String)>,
    before: u64,
}

/// The ends that an event only counts.
#[derive(Debug)]
pub(super) struct Rest<'a> {
    pub(super) event: &'a JobEvent,
    /// Its first time, and its oldest described end.
    pub(super) between: (Timestamp, Timestamp),
    /// Those that are a disrupted pod which others tell.
    absorbed: u64,
}

impl<'a> Attribution<'a> {
    pub(super) fn new(events: &'a EventLog, (from, now): (Timestamp, Timestamp)) -> Self {
        let (mut ends, mut rests, mut before) = (BTreeMap::new(), Vec::new(), 0_u64);
        let until = now.checked_add(CLOCKS_DIFFER_MAX).unwrap_or(now);
        for event in events.of_jobs.iter().filter(|it| it.last >= from && it.first <= until) {
            for end in event.described.iter().filter(|end| (from..=until).contains(&end.at)) {
                let pod = (event.job.namespace.as_str(), end.pod.as_str());
                ends.entry(pod).or_insert((event, end));
            }
            let to = event.described.first().map_or(event.last, |end| end.at).max(event.first);
            if event.rest() == 0 {
                continue;
            }
            if event.first >= from && to <= until {
                rests.push(Rest { event, between: (event.first, to), absorbed: 0 });
            } else {
                before = before.saturating_add(event.rest());
            }
        }
        let mut by_job: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (at, Rest { event, .. }) in rests.iter().enumerate() {
            by_job.entry((&*event.job.namespace, &*event.job.name)).or_default().push(at);
        }
        Self { ends, rests, by_job, absorbed: BTreeSet::new(), before }
    }

    /// Takes each of these pods that no event describes for one of the rest of its Job.
    pub(super) fn absorb(&mut self, pods: &[DisruptedPod]) {
        let alone = |pod: &&DisruptedPod| self.end(&pod.namespace, &pod.name).is_none();
        let pods: Vec<_> = pods.iter().filter(|pod| has_ended(pod)).filter(alone).collect();
        for pod in pods {
            let places = self.places(pod);
            if let Some(at) = places.into_iter().find(|at| self.rests[*at].may_be(pod)) {
                self.rests[at].absorbed += 1;
                self.absorbed.insert((pod.namespace.clone(), pod.name.clone()));
            }
        }
    }

    /// The rests of the Jobs that the pod may be of.
    fn places(&self, pod: &DisruptedPod) -> Vec<usize> {
        let names = match &pod.job {
            Some(name) => vec![(name.as_str(), false)],
            None => bases(&pod.name).map(|name| (name, name.len() >= CUT_MIN)).collect(),
        };
        let mut places = Vec::new();
        for (name, may_be_cut) in names {
            let from = (pod.namespace.as_str(), name);
            let fits = |job: &(&str, &str)| {
                job.0 == from.0 && (job.1 == name || may_be_cut && job.1.starts_with(name))
            };
            let jobs = self.by_job.range(from..).take_while(|(job, _)| fits(job));
            places.extend(jobs.flat_map(|(_, places)| places).take(COMPARED_MAX));
        }
        places
    }

    /// What a Job's event says of this pod.
    pub(super) fn end(&self, namespace: &str, pod: &str) -> Option<(&'a JobEvent, &'a PodEnd)> {
        self.ends.get(&(namespace, pod)).copied()
    }

    /// The described ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = (&'a JobEvent, &'a PodEnd)> + '_ {
        self.ends.values().copied()
    }

    /// The ends that are only counted.
    pub(super) fn rests(&self) -> &[Rest<'a>] {
        &self.rests
    }

    /// Whether this pod has ended, and no Job's event tells it.
    pub(super) fn is_unattributed(&self, pod: &DisruptedPod) -> bool {
        let name = (pod.namespace.clone(), pod.name.clone());
        has_ended(pod)
            && self.end(&pod.namespace, &pod.name).is_none()
            && !self.absorbed.contains(&name)
    }

    /// How many ends may be of the report's time, or of an earlier one.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    /// The disruptions that are only counted, and that are in no list of pods.
    pub(super) fn unnamed(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Those of them that counted as failures of this Job; `elsewhere`: whether they do where
    /// another controller decides.
    pub(super) fn unnamed_failures(
        &self,
        (namespace, name, uid): (&str, &str, &str),
        elsewhere: bool,
    ) -> u64 {
        self.sum(|event| {
            let job = &event.job;
            let is_of = (&*job.namespace, &*job.name) == (namespace, name) && job.may_have(uid);
            is_of && counts_as_failure(event, elsewhere)
        })
    }

    fn sum(&self, pick: impl Fn(&JobEvent) -> bool) -> u64 {
        let all = self.rests.iter().filter(|it| it.event.is_disruption && pick(it.event));
        all.fold(0, |sum, rest| sum.saturating_add(rest.event.rest() - rest.absorbed))
    }
}

impl Rest<'_> {
    /// Whether this pod may be one of the rest, as long as it lasts.
    fn may_be(&self, pod: &DisruptedPod) -> bool {
        let JobEvent { job, .. } = self.event;
        let is_of = pod.namespace == job.namespace
            && pod
                .job
                .as_ref()
                .map_or_else(|| has_name_of(&job.name, &pod.name), |name| *name == job.name);
        let (from, to) = self.between;
        let from = from.checked_sub(CLOCKS_DIFFER_MAX).unwrap_or(from);
        let to = to.checked_add(CLOCKS_DIFFER_MAX).unwrap_or(to);
        is_of && self.absorbed < self.event.rest() && pod.at.is_none_or(|at| from <= at && at <= to)
    }
}

/// Whether ends of this event are failures of their Job; `elsewhere`: where another controller
/// decides.
pub(super) fn counts_as_failure(event: &JobEvent, elsewhere: bool) -> bool {
    match event.counted {
        Counted::Failed | Counted::IndexFailed | Counted::JobFailed => true,
        Counted::Ignored => false,
        Counted::Elsewhere => elsewhere,
    }
}

/// Whether this pod has ended, rather than waits for its end or was deleted for no disruption.
fn has_ended(pod: &DisruptedPod) -> bool {
    match pod.code {
        Code::DisruptionReported | Code::FailureWithoutDisruptionTarget => true,
        Code::StatusMissingPodDeleted => pod.cause != Cause::Stuck,
        _ => false,
    }
}

/// What a pod's name has before its random letters, and before its index, if it has one.
fn bases(pod: &str) -> impl Iterator<Item = &str> {
    let end = pod.len().checked_sub(RANDOM).and_then(|end| pod.get(..end));
    let base = end.and_then(|base| base.strip_suffix('-'));
    let is_index = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    let indexed = base.and_then(|base| base.rsplit_once('-')).filter(|(_, it)| is_index(it));
    base.into_iter().chain(indexed.map(|(base, _)| base))
}

/// Whether a controller that names pods as Jobs do may have made this name for this Job.
fn has_name_of(job: &str, pod: &str) -> bool {
    bases(pod).any(|base| {
        let rest = pod.len() - RANDOM - base.len();
        job.get(..BASE_MAX.saturating_sub(rest)).unwrap_or(job) == base
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_belongs_to_the_job_whose_name_it_has() {
        let long = "j".repeat(63);
        let cut = format!("{}-abcde", "j".repeat(57));
        let indexed = format!("{}-12-abcde", "j".repeat(54));
        let table = [
            ("train", "train-abcde", true),
            ("train", "train-0-abcde", true),
            ("train", "train-12-abcde", true),
            ("train", "train-x-abcde", false),
            ("train-0", "train-0-abcde", true),
            ("train", "trains-abcde", false),
            ("train", "abcd", false),
            ("train", "train-é12345", false),
            (&long, &cut, true),
            (&long, &indexed, true),
        ];
        for (job, pod, expected) in table {
            assert_eq!(has_name_of(job, pod), expected, "{job} {pod}");
        }
    }
}
