//! Carries out actions: decides which sink takes an action, and which actions wait for each other.
//! Each sink makes one attempt and reports its result; the core decides whether to retry.

pub mod api;
pub mod events;
pub mod journal;
mod layers;
pub mod logind;
pub mod measure;

use std::sync::Arc;

use agent_core::protocol::action::Action;
use agent_core::protocol::event::ActionResult;
use epilogue_common::outcome::{Failure, FailureKind};
use futures::FutureExt as _;
use futures::future::BoxFuture;

use crate::clock::Clock;
use crate::cri::{Runtime, Stop};
use crate::driver::{Lane, Sinks};
use api::ApiSink;
use events::EventSink;
use journal::JournalSink;
use logind::LogindSink;
use measure::MeasureSink;

/// The sinks.
#[derive(Clone)]
pub(crate) struct AllSinks {
    pub(crate) api: ApiSink,
    pub(crate) notices: EventSink,
    pub(crate) clock: Clock,
    pub(crate) logind: Arc<LogindSink>,
    pub(crate) journal: JournalSink,
    /// `None` if the agent may not use the runtime.
    pub(crate) runtime: Option<Runtime>,
    pub(crate) measure: MeasureSink,
}

impl Sinks for AllSinks {
    fn lane(&self, action: &Action) -> Lane {
        match action {
            // Raising the delay takes seconds, and a bus that hangs as many; the release of the
            // lock must not wait for it.
            Action::TakeLock => Lane::Logind,
            Action::ReleaseLock => Lane::Release,
            Action::Journal(_) | Action::CloseJournal => Lane::Journal,
            _ => Lane::Free,
        }
    }

    fn carry_out(&self, action: Action) -> BoxFuture<'static, ActionResult> {
        let sinks = self.clone();
        let carried_out = async move {
            match action {
                Action::TakeLock => sinks.logind.take_lock().await,
                Action::ReleaseLock => {
                    sinks.logind.release_lock().await;
                    ActionResult::Done(Ok(()))
                }
                Action::RaiseDelay { wanted } => {
                    ActionResult::Delay(sinks.logind.raise_delay(wanted).await)
                }
                Action::Journal(records) => ActionResult::Done(sinks.journal.append(records).await),
                Action::CloseJournal => ActionResult::Done(sinks.journal.clear().await),
                Action::Measure => ActionResult::Measured(sinks.measure.node().await),
                Action::MeasurePods { of, pods } => {
                    ActionResult::Figures(sinks.measure.pods(of, pods).await)
                }
                Action::StopPod { .. }
                | Action::InspectPod(_)
                | Action::SignalContainer { .. }
                | Action::ListRuntimePods => runtime(sinks.runtime, action).await,
                Action::EmitEvent(notice) => {
                    let now = sinks.clock.now().wall;
                    ActionResult::Done(sinks.notices.emit(&notice, now).await)
                }
                action => sinks.api.carry_out(action).await,
            }
        };
        carried_out.boxed()
    }
}

async fn runtime(runtime: Option<Runtime>, action: Action) -> ActionResult {
    match (runtime, action) {
        (Some(runtime), Action::InspectPod(pod)) => runtime.inspect_pod(&pod).await,
        (Some(runtime), Action::StopPod { pod, grace_seconds, sidecars, reach, stop_timeout }) => {
            let wanted = Stop { grace_seconds, sidecars: &sidecars, reach, stop_timeout };
            runtime.stop_pod(&pod, wanted).await
        }
        (Some(runtime), Action::ListRuntimePods) => runtime.list_pods().await,
        (Some(runtime), Action::SignalContainer { container, signal, .. }) => {
            runtime.signal_container(&container, signal.signal).await
        }
        _ => {
            let words = "no container runtime may be used";
            ActionResult::Runtime(Err(Failure::new(FailureKind::Other, words)))
        }
    }
}
