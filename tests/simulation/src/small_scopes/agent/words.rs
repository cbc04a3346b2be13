//! Describes what happens, in words, for the path to a violation.

use super::model::{Event, Fate, State};
use super::process::Flight;
use super::scope::Scope;

/// One line for an event, and one for each action that the agent begins by it.
pub(super) fn described(state: &State, event: Event, scope: &Scope) -> String {
    let since = state.now.saturating_sub(state.history.announced_at.unwrap_or(state.now));
    let mut after = state.clone();
    after.said = Some(Vec::new());
    // A violation is printed after the path.
    let _ = after.happen(event, scope);
    let actions = after.said.unwrap_or_default();
    let actions: Vec<String> = actions.into_iter().map(|it| format!("\n       {it}")).collect();
    format!("at {since:?}: {}{}", described_event(state, event), actions.concat())
}

fn described_event(state: &State, event: Event) -> String {
    match event {
        Event::Advance => {
            let at = state.next_limit().unwrap_or(state.now);
            format!("{:?} pass", at.saturating_sub(state.now))
        }
        Event::Announce => "logind announces a shutdown".to_owned(),
        Event::Cancel => "the shutdown is cancelled".to_owned(),
        Event::Go => "the machine goes off".to_owned(),
        Event::List => "the agent lists pods".to_owned(),
        Event::ReadLogind => "the agent reads logind's state".to_owned(),
        Event::ReadKubelet => "the agent reads the kubelet's state".to_owned(),
        Event::Hear => "the agent hears logind's signal".to_owned(),
        Event::Watch => "the agent's watch shows what has changed".to_owned(),
        Event::Decide => "the agent decides".to_owned(),
        Event::Call(id, fate) => {
            let flight = state.process.as_ref().and_then(|process| process.in_flight.get(&id));
            let action = match flight {
                Some(Flight::Sent(action)) => crate::agent::print::action(id, action),
                _ => String::new(),
            };
            let fate = match fate {
                Fate::Answered => "answered",
                Fate::Refused => "refused (403)",
                Fate::ReplyLost => "carried out, and the reply is lost",
                Fate::Lost => "lost",
            };
            format!("{action} is {fate}")
        }
        Event::Reply(id) => format!("action {} ends", id.0),
        Event::KubeletHears => "the kubelet hears logind's signal".to_owned(),
        Event::KubeletActs(number) => format!("the kubelet acts on p{number}"),
        Event::KubeletIsDone => "the kubelet is done, and gives its lock back".to_owned(),
        Event::KubeletEnds => "the kubelet dies".to_owned(),
        Event::KubeletStarts => "the kubelet starts".to_owned(),
        Event::End(number) => format!("the container of p{number} exits with 0 by itself"),
        Event::Crash(true) => {
            "the agent dies with its write on the disk, and starts again".to_owned()
        }
        Event::Crash(false) => "the agent dies, and starts again".to_owned(),
        Event::Arrive(_) => "a call of the dead process arrives".to_owned(),
    }
}
