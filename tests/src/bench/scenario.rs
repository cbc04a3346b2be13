//! Defines the scenarios: which Jobs, and how they must end.

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::api::DeleteParams;
use serde::Serialize;
use serde_json::{Value, json};

use crate::nodes::SCRIPT_ANNOTATION;

/// A load, the same for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scenario {
    /// 1 Indexed Job of 2,000 pods, 500 at a time
    Large,
    /// 200 Jobs of 10 pods, all 10 at a time
    Many,
    /// 1 Job of 20 pods, one after the other
    Serial,
    /// 1 Job whose only pod is disrupted once, which its podFailurePolicy ignores
    Disrupted,
    /// 338 Jobs of 9 pods of 30 s, at 100 requests a second; runs only if it is named
    Paced,
    /// 200 Jobs whose pod fails 5 times, with the backoff between; runs only if it is named
    Failing,
}

/// How long the pods live does not matter here, only the controller's work on them.
const SUCCEED: &str = "succeed";
/// Its node terminates it with DisruptionTarget; the next one succeeds.
const DISRUPT_ONCE: &str = "disrupt times=1; succeed";
/// The load by which KEP-2879 measured the tracking of Jobs.
const WORK_FOR_A_WHILE: &str = "succeed after=30s";
/// Each pod fails, until the Job does.
const FAIL: &str = "fail exit=1";
/// How often each pod of a failing Job fails.
const FAILURES: u32 = 5;

impl Scenario {
    /// Those that run unless some are named.
    pub const USUAL: [Self; 4] = [Self::Large, Self::Many, Self::Serial, Self::Disrupted];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Large => "large",
            Self::Many => "many",
            Self::Serial => "serial",
            Self::Disrupted => "disrupted",
            Self::Paced => "paced",
            Self::Failing => "failing",
        }
    }

    /// Its description, in one line.
    pub(super) fn says(self) -> &'static str {
        match self {
            Self::Large => "1 Indexed Job, 2000 completions, parallelism 500",
            Self::Many => "200 NonIndexed Jobs, 10 completions, parallelism 10",
            Self::Serial => "1 NonIndexed Job, 20 completions, parallelism 1",
            Self::Disrupted => "1 Job, 1 completion, its pod disrupted once; Ignore on it",
            Self::Paced => "338 Jobs, 9 completions of 30 s, parallelism 9, 100 requests a second",
            Self::Failing => "200 Jobs, 1 completion, backoffLimit 4, each pod fails",
        }
    }

    /// Whether it finishes within a minute even at 20 requests a second.
    pub(super) fn is_small(self) -> bool {
        matches!(self, Self::Serial | Self::Disrupted)
    }

    /// The rate limit of either controller, in requests a second; `None` if the machine is the
    /// limit.
    pub(super) fn rate_limit(self) -> Option<u32> {
        (self == Self::Paced).then_some(100)
    }

    /// The condition with which each of its Jobs ends.
    pub(super) fn end(self) -> &'static str {
        if self == Self::Failing { "Failed" } else { "Complete" }
    }

    pub(super) fn jobs(self) -> u32 {
        match self {
            Self::Many | Self::Failing => 200,
            Self::Paced => 338,
            Self::Large | Self::Serial | Self::Disrupted => 1,
        }
    }

    pub(super) fn completions(self) -> u32 {
        match self {
            Self::Large => 2000,
            Self::Many => 10,
            Self::Serial => 20,
            Self::Disrupted | Self::Failing => 1,
            Self::Paced => 9,
        }
    }

    fn parallelism(self) -> u32 {
        match self {
            // As many as upstream creates and counts per sync.
            Self::Large => 500,
            Self::Many => 10,
            Self::Serial | Self::Disrupted | Self::Failing => 1,
            Self::Paced => 9,
        }
    }

    /// Total number of pods at the end.
    pub(super) fn pods(self) -> u32 {
        match self {
            Self::Failing => self.jobs() * FAILURES,
            Self::Disrupted => 2,
            _ => self.jobs() * self.completions(),
        }
    }

    /// The Jobs, for the controller that `managed_by` names.
    pub(super) fn load(self, managed_by: Option<&str>) -> Vec<Job> {
        let one = |number| job(&format!("{}-{number}", self.name()), managed_by, &self.spec());
        (0..self.jobs()).map(one).collect()
    }

    fn spec(self) -> Value {
        let script = match self {
            Self::Disrupted => DISRUPT_ONCE,
            Self::Paced => WORK_FOR_A_WHILE,
            Self::Failing => FAIL,
            Self::Large | Self::Many | Self::Serial => SUCCEED,
        };
        let mut spec = json!({
            "completions": self.completions(),
            "parallelism": self.parallelism(),
            "script": script,
        });
        if self == Self::Large {
            spec["completionMode"] = "Indexed".into();
        }
        if self == Self::Failing {
            spec["backoffLimit"] = (FAILURES - 1).into();
        }
        if self == Self::Disrupted {
            spec["podFailurePolicy"] = json!({"rules": [{
                "action": "Ignore",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            }]});
        }
        spec
    }

    /// Errors in the status of a finished Job of it.
    pub(super) fn faults(self, status: &JobStatus) -> Vec<String> {
        let (succeeded, failed) = match self {
            Self::Failing => (0, FAILURES as i32),
            _ => (self.completions() as i32, 0),
        };
        let end = self.end();
        let counts = [
            ("succeeded", status.succeeded, succeeded),
            ("failed", status.failed, failed),
            ("active", status.active, 0),
            ("ready", status.ready, 0),
            ("terminating", status.terminating, 0),
        ];
        let mut faults: Vec<String> = counts
            .into_iter()
            .map(|(name, seen, right)| (name, seen.unwrap_or(0), right))
            .filter(|(_, seen, right)| seen != right)
            .map(|(name, seen, right)| format!("{name} is {seen} instead of {right}"))
            .collect();
        if !is_finished(status, end) {
            faults.push(format!("it is not {end}"));
        }
        let indexes = (self == Self::Large).then(|| format!("0-{}", succeeded - 1));
        let seen = status.completed_indexes.clone().filter(|seen| !seen.is_empty());
        if seen != indexes {
            faults.push(format!("completedIndexes is {seen:?} instead of {indexes:?}"));
        }
        faults
    }
}

/// A Job of one pod, whose end shows that the controller works.
pub(super) fn warm_up(managed_by: Option<&str>) -> Job {
    job("warm-up", managed_by, &json!({"script": SUCCEED}))
}

/// A Job of one pod.
pub(super) fn plain(name: &str, managed_by: Option<&str>) -> Job {
    job(name, managed_by, &json!({"script": SUCCEED}))
}

/// A Job whose pods run without end.
pub(super) fn endless(name: &str, managed_by: Option<&str>, pods: u32) -> Job {
    let spec = json!({"script": "hang", "parallelism": pods, "completions": pods});
    job(name, managed_by, &spec)
}

/// A deletion that waits for nothing.
pub(super) fn at_once() -> DeleteParams {
    DeleteParams::background().grace_period(0)
}

/// Whether it has this condition.
pub(super) fn is_finished(status: &JobStatus, condition: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|each| each.type_ == condition && each.status == "True")
}

fn job(name: &str, managed_by: Option<&str>, spec: &Value) -> Job {
    let mut job = json!({
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": {SCRIPT_ANNOTATION: spec["script"]}},
                "spec": {"restartPolicy": "Never",
                         "containers": [{"name": "main", "image": "none"}]},
            },
        },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        if field != "script" {
            job["spec"][field] = value.clone();
        }
    }
    if let Some(managed_by) = managed_by {
        job["spec"]["managedBy"] = managed_by.into();
    }
    serde_json::from_value(job).expect("a Job of the bench must be a Job")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> JobStatus {
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn the_same_load_is_given_to_each_contender() {
        for scenario in Scenario::USUAL.into_iter().chain([Scenario::Paced, Scenario::Failing]) {
            let ours = scenario.load(Some("epilogue.dev/job-controller"));
            let mut theirs = scenario.load(None);
            assert_eq!(ours.len(), scenario.jobs() as usize);
            for job in &mut theirs {
                let spec = job.spec.as_mut().expect("a spec");
                assert_eq!(spec.managed_by, None);
                spec.managed_by = Some("epilogue.dev/job-controller".to_owned());
            }
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_disruption_costs_one_pod_more() {
        assert_eq!(Scenario::USUAL.map(Scenario::pods), [2000, 2000, 20, 2]);
        assert_eq!([Scenario::Paced, Scenario::Failing].map(Scenario::pods), [3042, 1000]);
    }

    #[test]
    fn a_failing_job_has_failed_five_times() {
        let failed = status(json!({"failed": 5, "conditions": [
            {"type": "FailureTarget", "status": "True"}, {"type": "Failed", "status": "True"}]}));
        assert_eq!(Scenario::Failing.faults(&failed), [""; 0]);
        let faults = Scenario::Failing.faults(&status(json!({"succeeded": 1})));
        assert_eq!(faults.len(), 3, "{faults:?}");
    }

    #[test]
    fn exact_counters_have_no_fault() {
        let done = status(json!({
            "succeeded": 2000, "ready": 0, "completedIndexes": "0-1999",
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"},
                           {"type": "Complete", "status": "True"}],
        }));
        assert_eq!(Scenario::Large.faults(&done), [""; 0]);
        let faults = Scenario::Many.faults(&done);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn each_wrong_counter_is_named() {
        let wrong = status(json!({"succeeded": 19, "failed": 1, "active": 1}));
        let faults = Scenario::Serial.faults(&wrong);
        let expected = [
            "succeeded is 19 instead of 20",
            "failed is 1 instead of 0",
            "active is 1 instead of 0",
            "it is not Complete",
        ];
        assert_eq!(faults, expected);
    }
}
