//! Counts how pods ended by cause, Job, node and hour. [`super::attribution`] counts each once.
//!
//! Ends without a time of their own are in an hour only if the whole time in which they can have
//! been is in it. Otherwise they are counted between its two ends.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::answer::{
    Cause, CauseEnds, DisruptedPod, Ends, EndsBetween, HourEnds, JobEnds, NodeEnds,
};
use super::attribution::{Attribution, Rest};
use super::job_events::JobEvent;
use super::pod::PodSeen;
use controller_core::job::Cause as EndCause;

const HOUR: i64 = 3_600;

/// Some ends of which the same is known.
#[derive(Clone, Copy)]
struct Part<'a> {
    namespace: &'a str,
    job: Option<&'a str>,
    node: Option<&'a str>,
    cause: &'a str,
    is_disruption: bool,
    /// How they counted, as far as the Job's event says.
    counted: Option<&'static str>,
    between: (Timestamp, Timestamp),
    number: u64,
}

/// All ends: what the Jobs' events tell, and the disrupted pods that no event tells.
pub(super) fn count(
    said: &Attribution<'_>,
    pods: &[DisruptedPod],
    seen: &[PodSeen],
    now: Timestamp,
) -> Ends {
    let mut tally = Tally::default();
    for (event, end) in said.ends() {
        let at = end.at.min(now);
        tally.add(Part { node: end.node.as_deref(), ..of(event, (at, at), 1) });
    }
    for rest in said.rests() {
        add_rest(&mut tally, rest);
    }
    let causes = causes(seen);
    for pod in pods.iter().filter(|pod| said.is_unattributed(pod)) {
        let at = pod.at.unwrap_or(now).min(now);
        let known = causes.get(&(pod.namespace.as_str(), pod.name.as_str()));
        tally.add(Part {
            namespace: &pod.namespace,
            job: pod.job.as_deref(),
            node: pod.node.as_deref(),
            cause: known.map_or_else(|| label(pod.cause), |cause| cause.label()),
            is_disruption: true,
            counted: None,
            between: (at, at),
            number: 1,
        });
    }
    tally.answer()
}

fn of(event: &JobEvent, between: (Timestamp, Timestamp), number: u64) -> Part<'_> {
    Part {
        namespace: &event.job.namespace,
        job: Some(&event.job.name),
        node: None,
        cause: &event.cause,
        is_disruption: event.is_disruption,
        counted: Some(event.counted.label()),
        between,
        number,
    }
}

/// The nodes of the rest are those of the event without those of its described ends.
fn add_rest(tally: &mut Tally, rest: &Rest<'_>) {
    let Rest { event, between, .. } = rest;
    let mut left = event.rest();
    for (node, number) in &event.nodes {
        let described = event.described.iter().filter(|it| it.node.as_ref() == Some(node)).count();
        let number = number.saturating_sub(described as u64).min(left);
        left -= number;
        tally.add(Part { node: Some(node), ..of(event, *between, number) });
    }
    tally.add(of(event, *between, left));
}

/// The causes of disrupted pods whose own status says them.
fn causes(seen: &[PodSeen]) -> BTreeMap<(&str, &str), EndCause> {
    let pods =
        seen.iter().map(|pod| ((&*pod.view.namespace, &*pod.view.name), EndCause::of(&pod.view)));
    pods.filter(|(_, cause)| cause.is_disruption()).collect()
}

/// The cause of an end, in the words of events and metrics.
fn label(cause: Cause) -> &'static str {
    let cause = match cause {
        Cause::NodeGone => EndCause::NodeGone,
        Cause::NodeRebooted => EndCause::LostByNode,
        Cause::NodeShutdown | Cause::NodePressure => EndCause::TerminationByKubelet,
        Cause::Preemption => EndCause::PreemptionByScheduler,
        Cause::Taint => EndCause::DeletionByTaintManager,
        Cause::Drain => EndCause::EvictionByEvictionApi,
        Cause::NodeSilent | Cause::Stuck => EndCause::OtherDisruption,
    };
    cause.label()
}

/// The beginning of the hour, in UTC.
fn hour(at: Timestamp) -> Timestamp {
    let second = at.as_second();
    Timestamp::from_second(second - second.rem_euclid(HOUR)).unwrap_or(at)
}

#[derive(Default)]
struct Tally {
    causes: BTreeMap<(String, bool), CauseEnds>,
    jobs: BTreeMap<(String, String), JobEnds>,
    nodes: BTreeMap<Option<String>, NodeEnds>,
    hours: BTreeMap<(Timestamp, String), HourEnds>,
    between: BTreeMap<(Timestamp, Timestamp, String), EndsBetween>,
}

impl Tally {
    fn add(&mut self, part: Part<'_>) {
        let Part { namespace, job, node, cause, is_disruption, counted, between, number } = part;
        if number == 0 {
            return;
        }
        let more = |sum: &mut u64| *sum = sum.saturating_add(number);
        let cause_name = || cause.to_owned();
        let of_cause = self.causes.entry((cause_name(), is_disruption)).or_insert_with(|| {
            let (cause, counted) = (cause_name(), BTreeMap::new());
            CauseEnds { cause, disruption: is_disruption, ends: 0, counted }
        });
        more(&mut of_cause.ends);
        if let Some(counted) = counted {
            more(of_cause.counted.entry(counted).or_default());
        }
        let disruptions = |sum: &mut u64| {
            if is_disruption {
                more(sum);
            }
        };
        if let Some(job) = job {
            let key = (namespace.to_owned(), job.to_owned());
            let of_job = self.jobs.entry(key).or_insert_with_key(|(namespace, name)| JobEnds {
                namespace: namespace.clone(),
                name: name.clone(),
                ends: 0,
                disruptions: 0,
                causes: BTreeMap::new(),
            });
            more(&mut of_job.ends);
            disruptions(&mut of_job.disruptions);
            more(of_job.causes.entry(cause_name()).or_default());
        }
        let key = node.map(str::to_owned);
        let of_node = self.nodes.entry(key).or_insert_with_key(|node| NodeEnds {
            node: node.clone(),
            ends: 0,
            disruptions: 0,
            causes: BTreeMap::new(),
        });
        more(&mut of_node.ends);
        disruptions(&mut of_node.disruptions);
        more(of_node.causes.entry(cause_name()).or_default());
        let (from, to) = between;
        if hour(from) == hour(to) {
            let new = || HourEnds { at: hour(to), cause: cause_name(), ends: 0 };
            more(&mut self.hours.entry((hour(to), cause_name())).or_insert_with(new).ends);
        } else {
            let new = || EndsBetween { from, to, cause: cause_name(), ends: 0 };
            more(&mut self.between.entry((from, to, cause_name())).or_insert_with(new).ends);
        }
    }

    /// The worst first.
    fn answer(self) -> Ends {
        let mut by_cause: Vec<CauseEnds> = self.causes.into_values().collect();
        by_cause.sort_by_key(|it| (Reverse(it.disruption), Reverse(it.ends)));
        let mut by_job: Vec<JobEnds> = self.jobs.into_values().collect();
        by_job.sort_by_key(|it| (Reverse(it.ends), Reverse(it.disruptions)));
        let mut by_node: Vec<NodeEnds> = self.nodes.into_values().collect();
        by_node.sort_by_key(|it| (it.node.is_none(), Reverse(it.ends), Reverse(it.disruptions)));
        let sum = |disruptions_only: bool| {
            let of = by_cause.iter().filter(|it| it.disruption || !disruptions_only);
            of.fold(0_u64, |sum, it| sum.saturating_add(it.ends))
        };
        Ends {
            total: sum(false),
            disruptions: sum(true),
            by_cause,
            by_job,
            by_node,
            by_hour: self.hours.into_values().collect(),
            between: self.between.into_values().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alert_leaves_out_the_causes_of_the_pods_themselves_and_no_others() {
        let alerts = include_str!("../../../../../deploy/monitoring/alerts.yaml");
        let own = EndCause::ALL.into_iter().filter(|cause| !cause.is_disruption());
        let own: Vec<&str> = own.map(EndCause::label).collect();
        let matcher = format!("cause!~\"{}\"", own.join("|"));
        assert_eq!(alerts.matches(&matcher).count(), 2, "{matcher}");
        assert_eq!(alerts.matches("cause!~").count(), 2);
    }
}
