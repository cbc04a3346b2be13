//! Reads a Job's options from its annotations, which go beyond the API's fields.
//!
//! The same rules stand in `deploy/policy/controller/job-annotations.yaml`, which refuses a Job
//! that breaks them. Here an event reports a value that cannot be read, and the option is left out.

use std::collections::BTreeMap;

use epilogue_common::names::job_option::{
    AVOID_FAILED_NODES, BACKOFF_BASE, BACKOFF_MAX, DISRUPTION_LIMIT, PENDING_TIMEOUT,
};
use jiff::SignedDuration;

use super::sync_input::Settings;
use crate::go_duration::GoDuration;
use crate::view::Job;

/// The options of one Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `epilogue.dev/disruption-limit`: ignored failures beyond this many fail the Job.
    pub disruption_limit: Option<u32>,
    /// `epilogue.dev/backoff-base`, in place of `--default-job-pod-failure-backoff`.
    pub backoff_base: Option<SignedDuration>,
    /// `epilogue.dev/backoff-max`, in place of `--max-job-pod-failure-backoff`.
    pub backoff_max: Option<SignedDuration>,
    /// `epilogue.dev/pending-timeout`: the controller fails a pod that has not started by then.
    pub pending_timeout: Option<SignedDuration>,
    /// `epilogue.dev/avoid-failed-nodes`: prefer other nodes than those of disrupted pods.
    pub avoid_failed_nodes: bool,
    /// Values that could not be read, for people.
    pub problems: Vec<String>,
}

impl Options {
    /// Reads the annotations of a Job.
    pub(super) fn read(job: &Job) -> Self {
        Self::of(&job.annotations)
    }

    /// Reads annotations.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        if !annotations.keys().any(|name| name.starts_with("epilogue.dev/")) {
            return Self::default();
        }
        let mut reader = Reader { annotations, problems: Vec::new() };
        let mut options = Self {
            disruption_limit: reader.number(DISRUPTION_LIMIT),
            backoff_base: reader.duration(BACKOFF_BASE),
            backoff_max: reader.duration(BACKOFF_MAX),
            pending_timeout: reader.duration(PENDING_TIMEOUT),
            avoid_failed_nodes: reader.flag(AVOID_FAILED_NODES),
            problems: reader.problems,
        };
        if let (Some(base), Some(max)) = (options.backoff_base, options.backoff_max)
            && base > max
        {
            let problem = format!("{BACKOFF_BASE} is longer than {BACKOFF_MAX}; both are left out");
            options.problems.push(problem);
            (options.backoff_base, options.backoff_max) = (None, None);
        }
        options
    }

    /// The process's settings, adapted to this Job.
    pub(super) fn apply(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        let base = &mut settings.default_job_pod_failure_backoff;
        let max = &mut settings.max_job_pod_failure_backoff;
        *base = self.backoff_base.unwrap_or(*base);
        *max = self.backoff_max.unwrap_or(*max);
        // If only one of the two is set, the other follows where they would contradict each other.
        match (self.backoff_base, self.backoff_max) {
            (None, Some(max)) => *base = (*base).min(max),
            _ => *max = (*max).max(*base),
        }
        settings
    }
}

struct Reader<'a> {
    annotations: &'a BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn number(&mut self, name: &str) -> Option<u32> {
        self.read(name, |text| text.parse().ok(), "a number from 0, such as 3")
    }

    fn duration(&mut self, name: &str) -> Option<SignedDuration> {
        let parse = |text: &str| SignedDuration::try_from(text.parse::<GoDuration>().ok()?.0).ok();
        self.read(name, parse, "a duration, such as 500ms, 30s or 10m")
    }

    fn flag(&mut self, name: &str) -> bool {
        self.read(name, |text| text.parse().ok(), "true or false").unwrap_or(false)
    }

    fn read<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
        remedy: &str,
    ) -> Option<T> {
        let text = self.annotations.get(name)?;
        let value = parse(text);
        if value.is_none() {
            self.problems.push(format!("{name}: {text:?} is left out; give {remedy}"));
        }
        value
    }
}
