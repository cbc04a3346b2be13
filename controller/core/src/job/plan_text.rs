//! A plan in one line, for logs and tests.

use std::fmt;

use super::plan::{Idle, Plan};
use super::pods::PodStage;

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(idle) = self.idle {
            return write!(formatter, "{}: nothing to do: {}", self.job.key, idle_text(idle));
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
            Self::GiveUp(pods) => write!(formatter, "give up {}", pods.len()),
            Self::Refuse(problem) => formatter.write_str(problem),
        }
    }
}

fn idle_text(idle: Idle) -> &'static str {
    match idle {
        Idle::Stale => "the watches do not show our last writes yet",
        Idle::ManagedElsewhere => "spec.managedBy names another controller",
        Idle::Finished => "it is finished",
        Idle::FinishedByUs => "it is finished, which the watch does not show yet",
        Idle::UnknownCompletionMode => "its completionMode is unknown",
    }
}
