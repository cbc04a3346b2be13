//! Prints events and actions for the trace, one line each.

use agent_core::agent::{Plan, Status};
use agent_core::pod::PodView;
use agent_core::protocol::action::{Action, ActionId};
use agent_core::protocol::event::{ActionResult, Event};

/// Whether the action is a call to the API, whose number under way is limited.
pub(crate) fn is_call(action: &Action) -> bool {
    matches!(
        action,
        Action::PatchStatus { .. }
            | Action::PatchPod { .. }
            | Action::DeletePod { .. }
            | Action::ReadPod(_)
            | Action::Announce(_)
            | Action::Publish(_)
            | Action::Taint { .. }
            | Action::SetNodeCondition { .. }
            | Action::EmitEvent(_)
    )
}

fn pod(view: &PodView) -> String {
    let mark = match &view.disruption {
        Some(disruption) if disruption.stands => " marked",
        Some(_) => " cleared",
        None => "",
    };
    let deleted = if view.is_terminating() { " deleted" } else { "" };
    format!("{}@{} {:?}{mark}{deleted}", view.name, view.resource_version, view.phase)
}

pub(crate) fn event(event: &Event) -> String {
    match event {
        Event::PodsListed(pods) => {
            let pods: Vec<_> = pods.iter().map(pod).collect();
            format!("PodsListed [{}]", pods.join(", "))
        }
        Event::PodObserved(view) => format!("PodObserved {}", pod(view)),
        Event::Finished { id, result } => format!("Finished {} {}", id.0, result_line(result)),
        other => format!("{other:?}"),
    }
}

fn result_line(result: &ActionResult) -> String {
    match result {
        ActionResult::Done(Ok(())) | ActionResult::Patched(Ok(_)) => "ok".into(),
        ActionResult::Done(Err(failure)) | ActionResult::Patched(Err(failure)) => {
            format!("{:?}", failure.kind)
        }
        ActionResult::Pod(Ok(Some(view))) => pod(view),
        ActionResult::Pod(Ok(None)) => "no such pod".into(),
        ActionResult::Measured(Ok(sample)) => {
            let left = sample.signals.iter();
            let left: Vec<_> = left
                .map(|(signal, found)| format!("{signal}={}", found.observation.available))
                .collect();
            format!("measured {}", left.join(" "))
        }
        ActionResult::Figures(Ok(figures)) => format!("figures of {}", figures.len()),
        ActionResult::Runtime(Ok(state)) => {
            let exits: Vec<_> = state.containers.iter().map(|c| c.exit_code).collect();
            format!("runtime {exits:?} ready={}", state.sandbox_ready)
        }
        other => format!("{other:?}"),
    }
}

pub(crate) fn action(id: ActionId, action: &Action) -> String {
    let what = match action {
        Action::PatchStatus { pod, purpose, .. } => format!("PatchStatus {} {purpose:?}", pod.name),
        Action::PatchPod { pod, body } => format!("PatchPod {} {body}", pod.name),
        Action::DeletePod { pod, grace_seconds, .. } => {
            format!("DeletePod {} grace {grace_seconds}", pod.name)
        }
        Action::StopPod { pod, grace_seconds, .. } => {
            format!("StopPod {} grace {grace_seconds}", pod.name)
        }
        Action::ReadPod(pod) => format!("ReadPod {}", pod.name),
        Action::InspectPod(pod) => format!("InspectPod {}", pod.name),
        Action::SignalContainer { pod, signal, .. } => {
            format!("SignalContainer {} {signal}", pod.name)
        }
        Action::Log(line) => {
            let pod = line.pod.as_ref().map(|pod| pod.name.as_str()).unwrap_or_default();
            format!("Say {} {pod}", line.text)
        }
        Action::Measure => "Measure".into(),
        Action::MeasurePods { of, pods } => format!("MeasurePods {of:?} {}", pods.len()),
        Action::SetNodeCondition { kind, stands, .. } => {
            format!("SetNodeCondition {kind} {stands}")
        }
        Action::EmitEvent(notice) => {
            let pod = notice.pod.as_ref().map(|pod| pod.name.as_str()).unwrap_or_default();
            format!("EmitEvent {} {pod}", notice.reason)
        }
        Action::Journal(records) => format!("Journal {records:?}"),
        other => format!("{other:?}"),
    };
    format!("{} {what}", id.0)
}

/// A decision: what it gives, when the agent wakes, and the report.
pub(crate) fn plan(plan: &Plan, report: Option<&Status>) -> String {
    let wake = plan.wake.map_or("never".to_owned(), |at| format!("{:.3}", at.as_secs_f64()));
    let mut lines = vec![format!("plan      wakes at {wake} of CLOCK_MONOTONIC")];
    lines.extend(plan.actions.iter().map(|(id, each)| format!("    gives {}", action(*id, each))));
    if let Some(report) = report {
        let Status { mode, lock, pods, journal_open, stuck, pressure, oom, .. } = report;
        let left = (report.mark_removals_pending, report.boot_recovery_pending);
        let (removals, recoveries) = left;
        lines.push(format!(
            "   report mode {mode:?}, lock {lock:?}, {pods} pods, journal open {journal_open}, \
             {removals} marks to remove, {recoveries} to recover, {} victims, {} stuck, {} causes",
            pressure.victims.len(),
            stuck.pods.values().sum::<usize>(),
            oom.oom_conditions_pending,
        ));
        if let Some(shutdown) = &report.shutdown {
            lines.push(format!(
                "   report shutdown: {:?} {:?}, {} of {} marked, {} terminal, {} awaited, {} \
                 unacknowledged, cancelled {}",
                shutdown.mode,
                shutdown.step,
                shutdown.marked,
                shutdown.candidates,
                shutdown.terminal,
                shutdown.unreported,
                shutdown.unacknowledged,
                shutdown.cancelled,
            ));
        }
    }
    lines.join("\n           ")
}
