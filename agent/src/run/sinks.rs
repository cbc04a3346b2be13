//! Combines all sinks: decides which one takes an action, and which actions wait for each other.

use std::sync::Arc;

use agent_core::protocol::action::Action;
use agent_core::protocol::event::ActionResult;
use epilogue_common::outcome::{Failure, FailureKind};
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::clock::Clock;
use crate::cri::{Runtime, Stop};
use crate::driver::{Lane, Sinks};
use crate::sink::api::ApiSink;
use crate::sink::events::EventSink;
use crate::sink::journal::JournalSink;
use crate::sink::logind::LogindSink;
use crate::sink::measure::MeasureSink;

/// The sinks.
pub(super) struct AllSinks {
    pub(super) api: ApiSink,
    pub(super) notices: EventSink,
    pub(super) clock: Clock,
    pub(super) logind: Arc<LogindSink>,
    pub(super) journal: JournalSink,
    /// `None` if the agent may not use the runtime.
    pub(super) runtime: Option<Runtime>,
    pub(super) measure: MeasureSink,
}

impl Sinks for AllSinks {
    fn lane(&self, action: &Action) -> Lane {
        match action {
            // Raising the delay takes seconds; the release of the lock must not wait for it.
            Action::TakeLock | Action::ReleaseLock => Lane::Logind,
            Action::Journal(_) | Action::CloseJournal => Lane::Journal,
            _ => Lane::Free,
        }
    }

    fn carry_out(&self, action: Action) -> BoxFuture<'static, ActionResult> {
        match self.lane(&action) {
            Lane::Logind => {
                let logind = Arc::clone(&self.logind);
                async move { logind.carry_out(&action).await }.boxed()
            }
            Lane::Journal => {
                let journal = self.journal.clone();
                async move { journal.carry_out(&action).await }.boxed()
            }
            Lane::Free => match action {
                Action::RaiseDelay { .. } => {
                    let logind = Arc::clone(&self.logind);
                    async move { logind.carry_out(&action).await }.boxed()
                }
                Action::Measure | Action::MeasurePods { .. } => {
                    let measure = self.measure.clone();
                    async move { measure.carry_out(action).await }.boxed()
                }
                Action::StopPod { .. } | Action::InspectPod(_) => {
                    runtime(self.runtime.clone(), action).boxed()
                }
                Action::EmitEvent(notice) => {
                    let (notices, clock) = (self.notices.clone(), self.clock.clone());
                    async move { notices.emit(&notice, clock.now().wall).await }.boxed()
                }
                action => {
                    let api = self.api.clone();
                    async move { api.carry_out(action).await }.boxed()
                }
            },
        }
    }
}

async fn runtime(runtime: Option<Runtime>, action: Action) -> ActionResult {
    match (runtime, action) {
        (Some(runtime), Action::InspectPod(pod)) => runtime.inspect_pod(&pod).await,
        (Some(runtime), Action::StopPod { pod, grace_seconds, sidecars, reach, stop_timeout }) => {
            let wanted = Stop { grace_seconds, sidecars: &sidecars, reach, stop_timeout };
            runtime.stop_pod(&pod, wanted).await
        }
        _ => {
            let words = "no container runtime may be used";
            ActionResult::Runtime(Err(Failure::new(FailureKind::Other, words)))
        }
    }
}
