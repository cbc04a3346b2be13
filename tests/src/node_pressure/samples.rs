//! Parses what the machine recorded of itself (`container record`), to find when a pod began to
//! take, and when it was stopped. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::kind::Kind;

/// A line of the record; see tests/node/container/record.go. Numbers that were not read are -1.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Sample {
    /// Milliseconds since 1970, by the node's clock.
    pub(super) at: i64,
    memory: i64,
    tasks: i64,
    disk: i64,
    oom_kills: i64,
    stalled: i64,
    pods: BTreeMap<String, PodSample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct PodSample {
    memory: i64,
    tasks: i64,
    containers: u32,
}

/// This much above the level at rest is not noise: bytes.
const TAKES_BYTES: i64 = 16 << 20;
/// The same of tasks.
const TAKES_TASKS: i64 = 16;
/// A running pod has its sandbox's container and its own.
const RUNS: u32 = 2;
/// Milliseconds in which tasks waited for memory, per second.
const STALLS_PER_SECOND: i64 = 100;

/// Course of one run as seen from the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Course {
    /// When the pod began to take, by the node's clock.
    pub(super) onset: Option<i64>,
    /// When less than the threshold was left.
    pub(super) below: Option<i64>,
    /// When tasks first waited for memory for a tenth of the time.
    pub(super) stalled: Option<i64>,
    /// When the pod's container was gone.
    pub(super) stopped: Option<i64>,
    /// The least amount that was left.
    pub(super) least: Option<i64>,
    /// OOM kills meanwhile, in and outside of pods.
    pub(super) kernel_kills: i64,
}

/// Parses the lines; the last one may be half written.
pub(super) fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

impl Sample {
    fn left(&self, kind: Kind) -> i64 {
        match kind {
            Kind::Memory | Kind::OwnLimit => self.memory,
            Kind::Disk | Kind::DiskLayer => self.disk,
            Kind::Pids => self.tasks,
        }
    }
}

/// The course of the pod with this uid.
pub(super) fn course(samples: &[Sample], kind: Kind, uid: &str, threshold: i64) -> Course {
    let runs = |sample: &&Sample| sample.pods.get(uid).is_some_and(|pod| pod.containers >= RUNS);
    let Some(begin) = samples.iter().position(|sample| runs(&sample)) else {
        return Course::default();
    };
    let first = &samples[begin];
    let samples = &samples[begin..];
    let taken = |sample: &Sample| match kind {
        Kind::Memory | Kind::OwnLimit => {
            pod_grew(first, sample, uid, |pod| pod.memory) > TAKES_BYTES
        }
        Kind::Disk | Kind::DiskLayer => first.disk - sample.disk > TAKES_BYTES,
        Kind::Pids => pod_grew(first, sample, uid, |pod| pod.tasks) > TAKES_TASKS,
    };
    let at = |holds: &dyn Fn(&Sample) -> bool| {
        samples.iter().find(|sample| holds(sample)).map(|sample| sample.at)
    };
    let kills = |sample: Option<&Sample>| sample.map_or(0, |sample| sample.oom_kills);
    let onset = at(&taken);
    Course {
        onset,
        below: at(&|sample| (0..threshold).contains(&sample.left(kind))),
        stalled: samples
            .windows(2)
            // A pod that starts makes other tasks wait, too.
            .filter(|pair| onset.is_some_and(|onset| onset <= pair[0].at))
            .find(|pair| stalls(&pair[0], &pair[1]))
            .map(|pair| pair[1].at),
        stopped: at(&|sample| !runs(&sample)),
        least: samples.iter().map(|sample| sample.left(kind)).filter(|left| *left >= 0).min(),
        kernel_kills: kills(samples.last()) - kills(Some(first)),
    }
}

fn pod_grew(first: &Sample, sample: &Sample, uid: &str, of: impl Fn(&PodSample) -> i64) -> i64 {
    match (first.pods.get(uid), sample.pods.get(uid)) {
        (Some(before), Some(now)) => of(now) - of(before),
        _ => 0,
    }
}

fn stalls(before: &Sample, after: &Sample) -> bool {
    let milliseconds = (after.stalled - before.stalled) / 1000;
    milliseconds * 1000 > STALLS_PER_SECOND * (after.at - before.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: i64, left: i64, used: i64, containers: u32, kills: i64) -> String {
        format!(
            r#"{{"at":{at},"memory":{left},"tasks":9,"disk":9,"oom_kills":{kills},"stalled":0,
            "pods":{{"u":{{"memory":{used},"tasks":5,"oom_kills":0,"containers":{containers}}}}}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn the_course_gives_onset_threshold_and_end() {
        let mb = 1 << 20;
        let text = [
            line(0, 500 * mb, mb, 1, 3),
            line(100, 500 * mb, mb, 2, 3),
            line(200, 400 * mb, 100 * mb, 2, 3),
            line(300, 90 * mb, 410 * mb, 2, 4),
            line(400, 500 * mb, 0, 1, 4),
            "{\"at\":50".to_owned(),
        ]
        .join("\n");
        let samples = parse(&text);
        assert_eq!(samples.len(), 5);
        let course = course(&samples, Kind::Memory, "u", 100 * mb);
        assert_eq!((course.onset, course.below, course.stopped), (Some(200), Some(300), Some(400)));
        assert_eq!((course.least, course.kernel_kills), (Some(90 * mb), 1));
    }

    #[test]
    fn pod_that_never_ran_has_no_course() {
        assert_eq!(course(&parse(&line(0, 1, 1, 1, 0)), Kind::Memory, "u", 5), Course::default());
    }
}
