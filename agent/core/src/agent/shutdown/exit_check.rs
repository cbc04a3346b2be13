//! Asks the runtime whether a pod had already exited, before the agent marks it in place of a dead
//! kubelet. Without a kubelet, the API may show an exited pod as running.

use epilogue_common::outcome::Failure;
use jiff::{SignedDuration, Timestamp};

use super::super::calls::Verb;
use super::super::disruptions::{CLOCKS_DIFFER, Disruptions};
use super::super::facts::Facts;
use super::super::out::Out;
use super::super::pod_steps::Why;
use super::Shutdown;
use crate::pod::{PodUid, PodView};
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::termination::progress::{Terminator, would_succeed};

/// Whether the pod had ended before the shutdown: all its regular containers had exited by the
/// runtime's clock, and none starts again. The sandbox and sidecars may still run, because only a
/// kubelet stops them.
fn had_exited(pod: &PodView, state: &RuntimeState, since: Timestamp) -> bool {
    let margin = SignedDuration::try_from(CLOCKS_DIFFER).unwrap_or(SignedDuration::ZERO);
    let before = |at: Option<Timestamp>| {
        at.is_some_and(|at| at.saturating_add(margin).is_ok_and(|at| at < since))
    };
    let ended = |name: &String| {
        let mut of_name = state.containers.iter().filter(|each| each.name == *name).peekable();
        let known = of_name.peek().is_some();
        known && of_name.all(|each| each.exited && before(each.finished_at))
    };
    // A kubelet that comes back starts what it restarts: the shutdown takes that run from the pod.
    let over = pod.ends_with_its_containers() || would_succeed(pod, state);
    over && pod.containers.iter().all(ended)
}

/// Sends the checks that are due.
pub(super) fn send_exit_checks(facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
    for termination in disruptions.covered_mut().filter(|termination| !termination.is_reported()) {
        termination.ask(Verb::ExitCheck, Why::Shutdown, &facts.clock, out);
    }
}

impl Shutdown {
    /// Takes the runtime's answer to such a check.
    pub(super) fn exit_checked(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let now = facts.clock.monotonic();
        let (since, pace) = (self.since, self.pace(uid));
        let Some(entry) = disruptions.get_mut(uid) else { return };
        let Some(termination) = &mut entry.shutdown else { return };
        let state = match result {
            Ok(state) => state,
            Err(failure) => return termination.mark.exit_check.failed(now, pace, Some(failure)),
        };
        termination.mark.exit_check.done();
        let Some(pod) = facts.pods.get(uid) else { return };
        let untouched =
            !termination.mark.write.may_have_applied() && !termination.end.call.may_have_applied();
        if !untouched || termination.end.by != Terminator::Stop || !had_exited(pod, state, since) {
            return;
        }
        entry.had_exited = true;
        termination.end.by = Terminator::None;
        termination.mark.write.give_up();
        out.journal.append([Record::intent(&termination.pod, Intent::LeaveExited, since)]);
        let text = "all its containers had exited before the shutdown; its kubelet reports it";
        out.calls.log(false, Some(&termination.pod), text);
    }
}
