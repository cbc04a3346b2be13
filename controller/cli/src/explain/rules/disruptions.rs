//! Says of each disrupted pod of a Job how long after the first sign each phase was reached, as far
//! as objects of the API show it: their times are whole seconds, and what is gone shows nothing.
//!
//! The phases are those of the controller's `epilogue_disruption_seconds`. The API has no time of a
//! terminal phase, so `reported` is absent.

use std::collections::BTreeMap;

use controller_core::disruption_times::{Source, lost_work, span};
use controller_core::job::{SyncInput, plain};
use controller_core::view::{Deletion, Job, Phase, Pod};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::Known;

/// The most disruptions that are listed.
const LISTED_MAX: usize = 20;
/// The most characters of a pod's name.
const NAME_MAX: usize = 253;

/// The clocks of nodes and of the API server differ by no more. What had ended longer before its
/// first sign was not disrupted.
const CLOCKS_DIFFER_MAX: SignedDuration = SignedDuration::from_mins(1);

/// The disruptions of a Job's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Disruptions {
    /// The last ones, the latest first.
    pub(crate) last: Vec<Disruption>,
    /// How many more there were, of pods that are in the API.
    pub(crate) more: usize,
}

/// The disruption of one pod. Seconds count from its first sign; what the API does not show is
/// `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Disruption {
    /// The pod.
    pub(crate) pod: String,
    /// What disrupted it, as the label `source` of the metric.
    pub(crate) source: &'static str,
    /// Its first sign: the mark `DisruptionTarget`, or the request for its deletion before that.
    pub(crate) first_sign: Timestamp,
    /// How long the warning was: until the announced end of its containers.
    pub(crate) notice_seconds: Option<u64>,
    /// When it got its mark.
    pub(crate) marked_seconds: Option<u64>,
    /// When the last of its containers ended.
    pub(crate) ended_seconds: Option<u64>,
    /// The pod that took its place, where only one can have.
    pub(crate) replacement: Option<String>,
    /// When that pod was made.
    pub(crate) replaced_seconds: Option<u64>,
    /// When the first container of that pod ran.
    pub(crate) running_seconds: Option<u64>,
    /// How long its containers had run, once they have ended; none of a pod that succeeded.
    pub(crate) lost_work_seconds: Option<u64>,
    /// The same in words.
    pub(crate) says: String,
}

/// The pods of the Job, sorted for the question which one took the place of which.
struct Successors<'a> {
    job: &'a Job,
    pods: Vec<&'a Pod>,
    by_index: BTreeMap<u32, Vec<&'a Pod>>,
    /// Whether pods that ended are gone from the API.
    misses_some: bool,
}

/// The disruptions of the Job's pods.
pub(super) fn disruptions(input: &SyncInput<'_>, known: &Known<'_>) -> Disruptions {
    let job = input.job;
    let pods = input.pods.iter().map(|pod| &**pod).filter(|pod| pod.is_owned_by(&job.uid));
    let successors = Successors::new(job, pods.collect());
    let is_wanted = |pod: &&Pod| pod.is_target() && known.wants(&pod.name);
    let disrupted = successors.pods.iter().copied().filter(is_wanted);
    let mut disrupted: Vec<(Timestamp, &Pod)> =
        disrupted.filter_map(|pod| Some((first_sign(pod)?, pod))).collect();
    disrupted.sort_by(|left, right| (right.0, &left.1.name).cmp(&(left.0, &right.1.name)));
    let more = disrupted.len().saturating_sub(LISTED_MAX);
    disrupted.truncate(LISTED_MAX);
    let one = |(sign, pod)| disruption((sign, pod), &successors, known, input.now);
    Disruptions { last: disrupted.into_iter().map(one).collect(), more }
}

/// The first sign of the disruption of a pod that has its mark; `None` where it had ended before.
fn first_sign(pod: &Pod) -> Option<Timestamp> {
    let marked = pod.gc.target()?.since;
    let deleted = pod.deletion.map(Deletion::requested_at);
    let sign = marked.into_iter().chain(deleted).min()?;
    let ended = pod.containers_finished_at().unwrap_or(sign);
    (sign.duration_since(ended) <= CLOCKS_DIFFER_MAX).then_some(sign)
}

fn disruption(
    (sign, pod): (Timestamp, &Pod),
    successors: &Successors<'_>,
    known: &Known<'_>,
    now: Timestamp,
) -> Disruption {
    let after = |at: Timestamp| span(sign, at).as_secs();
    let ended = pod.containers_finished_at();
    let replacement = successors.of(pod, sign);
    let running = replacement.and_then(|pod| first_run(known.pod(pod)));
    let lost = ended.and_then(|at| lost_work(pod, pod.gc.first_start(), at, now));
    let mut disruption = Disruption {
        pod: plain(&pod.name, NAME_MAX),
        source: Source::of(pod).label(),
        first_sign: sign,
        notice_seconds: pod.gc.ends_at().map(after),
        marked_seconds: pod.gc.target().and_then(|target| target.since).map(after),
        ended_seconds: ended.map(after),
        replacement: replacement.map(|pod| plain(&pod.name, NAME_MAX)),
        replaced_seconds: replacement.and_then(|pod| pod.created).map(after),
        running_seconds: running.map(after),
        lost_work_seconds: lost.map(|work| work.as_secs()),
        says: String::new(),
    };
    disruption.says = says(&disruption);
    disruption
}

/// The disruption in one line, without what is not known.
fn says(of: &Disruption) -> String {
    let sign = of.first_sign.strftime("%Y-%m-%dT%H:%M:%SZ");
    let marked = match of.marked_seconds {
        Some(0) => format!("marked {sign}"),
        Some(after) => format!("to be deleted since {sign}, marked after {}", duration(after)),
        None => format!("to be deleted since {sign}"),
    };
    let mut line = format!("{} ({}): {marked}", of.pod, of.source);
    let after = |what: &str, seconds: Option<u64>| {
        seconds.map_or_else(String::new, |it| format!(", {what} after {}", duration(it)))
    };
    line +=
        &of.notice_seconds.map_or_else(String::new, |it| format!(", notice of {}", duration(it)));
    line += &after("containers ended", of.ended_seconds);
    if let Some(name) = &of.replacement {
        line += &after(&format!("replaced by {name}"), of.replaced_seconds);
        line += &after("which ran", of.running_seconds);
    }
    let lost = of.lost_work_seconds.map(duration);
    line + &lost.map_or_else(String::new, |it| format!("; its containers had run {it}"))
}

/// A duration in its two largest units.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let (first, second) = match seconds {
        0..60 => ((seconds, "s"), (0, "")),
        60..3_600 => ((minutes, "min"), (seconds % 60, "s")),
        3_600..86_400 => ((hours, "h"), (minutes % 60, "min")),
        _ => ((days, "d"), (hours % 24, "h")),
    };
    let text = format!("{} {}", first.0, first.1);
    if second.0 == 0 { text } else { format!("{text} {} {}", second.0, second.1) }
}

/// When the first regular container of a pod ran. One that was started again does not show it.
fn first_run(pod: &Value) -> Option<Timestamp> {
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    let at_first = statuses.iter().filter(|it| it["restartCount"].as_u64().unwrap_or(0) == 0);
    let started = at_first.filter_map(|it| {
        let state = &it["state"];
        let of = |state: &Value| state["startedAt"].as_str()?.parse().ok();
        of(&state["running"]).or_else(|| of(&state["terminated"]))
    });
    started.min()
}

impl<'a> Successors<'a> {
    fn new(job: &'a Job, pods: Vec<&'a Pod>) -> Self {
        let mut by_index: BTreeMap<u32, Vec<&Pod>> = BTreeMap::new();
        for pod in pods.iter().filter(|_| job.is_indexed()) {
            let Some(index) = pod.index else { continue };
            by_index.entry(index).or_default().push(pod);
        }
        let count = |number: Option<i32>| usize::try_from(number.unwrap_or(0)).unwrap_or(0);
        let counted = count(job.status.failed).saturating_add(count(job.status.succeeded));
        let seen = pods.iter().filter(|pod| pod.is_terminal()).count();
        Self { job, pods, by_index, misses_some: counted > seen }
    }

    /// The pod that took the place of a disrupted one. The creation may be in the second of the
    /// first sign. Of pods without an index it is only known where no other pod has left its place.
    fn of(&self, pod: &Pod, sign: Timestamp) -> Option<&'a Pod> {
        let candidates = if pod.phase == Phase::Succeeded {
            return None;
        } else if self.job.is_indexed() {
            self.by_index.get(&pod.index?)?
        } else if self.misses_some || pod.is_active() {
            return None;
        } else {
            &self.pods
        };
        let is_later = |it: &&&'a Pod| it.uid != pod.uid && it.created.is_some_and(|at| at >= sign);
        let mut later: Vec<&'a Pod> = candidates.iter().filter(is_later).copied().collect();
        later.sort_by_key(|it| it.created);
        let (first, second) = (*later.first()?, later.get(1));
        if self.job.is_indexed() {
            return second.is_none_or(|second| second.created > first.created).then_some(first);
        }
        let is_other = |it: &&&Pod| it.uid != pod.uid && it.uid != first.uid;
        let others_stay = self.pods.iter().filter(is_other).all(|it| it.is_active());
        (second.is_none() && others_stay).then_some(first)
    }
}
