//! Describes what happens, in words, for the path to a violation.

use super::kubelet::Ending;
use super::model::{Event, Fate, State};
use super::scope::Scope;
use super::watches::Kind;
use crate::controller::described as described_step;

/// One line for an event, and for the watch that holds back what follows from it.
pub(super) fn described(
    state: &State,
    event: Event,
    late: Option<(usize, Kind)>,
    scope: &Scope,
) -> String {
    let text = described_event(state, event, scope);
    match late {
        Some((number, kind)) => {
            format!("{text}; the watch of {kind:?} of {} holds that back", name(state, number))
        }
        None => text,
    }
}

fn described_event(state: &State, event: Event, scope: &Scope) -> String {
    match event {
        Event::Pod(number, ending) => {
            let uid = state.api.pods.keys().nth(number).map_or("a pod", |uid| uid.as_str());
            format!("{uid} {}", of_pod(ending))
        }
        Event::Sync(number) => {
            let plan = state.planned(number, scope);
            format!("{} plans: {plan}", name(state, number))
        }
        Event::Wait(number) => format!("a wait of {} is over", name(state, number)),
        Event::Call(number, call, fate) => {
            let work = state.processes[number].work.as_ref();
            let call = work.and_then(|work| work.calls.get(call));
            let step = call.map_or_else(String::new, |call| described_step(&call.step));
            let fate = match fate {
                Fate::Answered => "",
                Fate::ReplyLost => "; the reply is lost",
                Fate::Lost => "; the call is lost",
            };
            format!("{} {step}{fate}", name(state, number))
        }
        Event::Orphans(number, item) => {
            let item = state.processes[number].orphans.get(item);
            format!("{} releases orphans: {item:?}", name(state, number))
        }
        Event::CatchUp(number, kind) => {
            format!("the watch of {kind:?} of {} catches up", name(state, number))
        }
        Event::Relist(number, kind) => {
            format!("the watch of {kind:?} of {} breaks and lists again", name(state, number))
        }
        Event::Crash(number) => {
            format!("{} dies, and p{} takes its place", name(state, number), state.started)
        }
        Event::Arrive(call) => {
            let step = state.wire.get(call).map(|sent| described_step(&sent.call.step));
            format!("a call of a dead process arrives: {}", step.unwrap_or_default())
        }
    }
}

fn name(state: &State, number: usize) -> String {
    format!("p{}", state.processes[number].number)
}

fn of_pod(ending: Ending) -> &'static str {
    match ending {
        Ending::Start => "starts on a node",
        Ending::Succeed => "exits with 0",
        Ending::Fail => "exits with 1",
        Ending::DeletePending => "is deleted before it has a node",
        Ending::Delete => "is deleted while it runs",
        Ending::DeleteAtOnce => "is deleted without grace while it runs",
        Ending::Evict => "is evicted: DisruptionTarget, and deleted",
        Ending::EvictByKubelet => "is evicted by its kubelet: DisruptionTarget and Failed",
        Ending::LoseNode => "loses its node: Failed, DisruptionTarget, and deleted",
        Ending::FailWhileRunning => "is called Failed by a shutdown, and runs on",
        Ending::Obey => "exits with 143, as it was asked to",
        Ending::ObeyWithSuccess => "exits with 0, as it was asked to",
        Ending::Refuse => "has succeeded, is refused by a kubelet that restarts, and is Failed",
        Ending::FailUnscheduled => "never had a node, and is failed by pod garbage collection",
    }
}
