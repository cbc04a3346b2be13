//! Formats a plan in one line, for logs and tests.

use std::fmt;

use super::plan::{Plan, SkipReason};
use super::pods::PodStage;

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(skip) = self.skip {
            return write!(formatter, "{}: nothing to do: {}", self.job.key, skip_text(skip));
        }
        let census = &self.census;
        write!(
            formatter,
            "{}: {}; active {} ready {} terminating {}; newly succeeded {} failed {} ignored {}",
            self.job.key,
            self.pods,
            census.active.len(),
            census.ready,
            census.terminating.len(),
            census.newly_succeeded.len(),
            census.newly_failed_counted.len(),
            census.newly_failed.len() - census.newly_failed_counted.len(),
        )?;
        if !self.claims.is_empty() {
            write!(formatter, "; claims {}", self.claims.len())?;
        }
        if let Some(verdict) = &self.verdict {
            write!(formatter, "; ends: {} {}", verdict.end.terminal(), verdict.reason)?;
        }
        for wait in &self.waits_for {
            write!(formatter, "; waits for {wait}")?;
        }
        if let Some(after) = self.requeue_after {
            write!(formatter, "; again in {after:#}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PodStage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("no change of pods"),
            Self::Delete { victims, purpose } => {
                write!(formatter, "delete {} for {purpose:?}", victims.len())
            }
            Self::Create(drafts) => write!(formatter, "create {}", drafts.len()),
            Self::FailPending(pods) => write!(formatter, "fail {} pending", pods.len()),
            Self::Refuse(problem) => formatter.write_str(problem),
        }
    }
}

fn skip_text(skip: SkipReason) -> &'static str {
    match skip {
        SkipReason::Stale => "the watches do not show our last writes yet",
        SkipReason::ManagedElsewhere => "spec.managedBy names another controller",
        SkipReason::Finished => "it is finished",
        SkipReason::FinishedByUs => "it is finished, which the watch does not show yet",
        SkipReason::UnknownCompletionMode => "its completionMode is unknown",
    }
}
