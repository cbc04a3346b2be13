//! Checks any plan in three ways. The API would take each status it writes. Carried out, it comes
//! to rest. A crash after any call, with memory lost, leads to the same end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use epilogue_common::names::job_condition;
use jiff::SignedDuration;

use self::fake_api::{Crash, FakeApi};
use crate::job::{SyncInput, verdict};
use crate::view::Phase;

pub mod fake_api;
mod fake_groups;
pub mod status_rules;

/// Syncs that a Job may take to come to rest: one for every wake-up and every 500 pods, with a
/// margin.
const ROUNDS_MAX: usize = 60;

/// The most crashes to try, spread evenly over the calls of a longer plan.
const CRASHES_MAX: usize = 100;

/// The reason why a plan must not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What does not hold, with the plan's input and both ends.
    pub message: String,
}

/// Runs the three checks on the plan for this input.
///
/// While a list goes on, pods are newer than what counts as seen. A creation in doubt then awaits
/// the end of the list, which no check can bring about: such a plan is not checked.
pub fn verify(input: &SyncInput<'_>) -> Result<(), Violation> {
    let mut pods = input.pods.iter_with_strays();
    let lists = input.memory.creation_in_doubt && pods.any(|pod| pod.version > input.seen.pods);
    if lists {
        return Ok(());
    }
    let mut start = FakeApi::of(input);
    // After a crash, a new process reads the API's current state, not what a watch showed last.
    start.show_own_writes();
    settle(&mut start.clone())?;
    let left = verdict::until_deadline(input.job, input.now);
    if left.is_none_or(|left| left > SignedDuration::ZERO) {
        // What a deadline ends depends on the clock, and lost memory makes waits shorter or longer.
        // A deadline that is due is due in any case.
        start.edit(|job| job.spec.active_deadline_seconds = None);
    }
    let mut whole = start.clone();
    let first = whole.sync();
    settle(&mut whole)?;
    let end = summary(&whole);
    let calls = first.steps.len();
    let stride = calls / CRASHES_MAX + 1;
    for after_calls in (0..=calls).step_by(stride) {
        let mut crashed = start.clone();
        crashed.sync_with(&|_, _| None, Some(Crash { after_calls }));
        crashed.crash();
        settle(&mut crashed)?;
        let other = summary(&crashed);
        if other != end {
            let message = format!(
                "a crash after {after_calls} of {calls} calls ends in\n{other}\ninstead of\n{end}"
            );
            return Err(Violation { message });
        }
    }
    Ok(())
}

/// Syncs until nothing is left to do or to wait for.
fn settle(api: &mut FakeApi) -> Result<(), Violation> {
    for _ in 0..ROUNDS_MAX {
        let trace = api.sync();
        if let Some(refused) = api.refused.first() {
            let message = format!("the API would refuse the status: {refused}\n{trace:#?}");
            return Err(Violation { message });
        }
        let wake = trace.sync_result.and_then(|sync_result| sync_result.requeue_after);
        match wake {
            Some(after) => {
                api.now = api.now.checked_add(after).unwrap_or(api.now);
            }
            None if trace.steps.is_empty() => return Ok(()),
            None => {}
        }
    }
    Err(Violation { message: format!("no rest after {ROUNDS_MAX} syncs: {}", summary(api)) })
}

/// What must not depend on a crash: counters, conditions, and how many pods are in which state.
///
/// The reason of a failed Job may depend on it. The pods that it deleted before the crash show as
/// terminating afterwards. That can break another limit, or fail their index, before the reason is
/// stored.
fn summary(api: &FakeApi) -> String {
    let status = &api.job.status;
    let mut pods: BTreeMap<(Option<u32>, u8, bool, bool), usize> = BTreeMap::new();
    for pod in api.pods.values() {
        let phase = match pod.phase {
            Phase::Succeeded => 2,
            Phase::Failed => 3,
            _ => 1,
        };
        *pods.entry((pod.index, phase, pod.tracked, pod.deletion.is_some())).or_default() += 1;
    }
    let fails = api.job.true_condition(job_condition::FAILURE_TARGET).is_some();
    let failed_indexes = status.failed_indexes.as_ref().filter(|_| !fails);
    let mut text = String::new();
    let conditions: Vec<String> = status
        .conditions
        .iter()
        .flatten()
        .map(|each| {
            let reason = if fails { None } else { each.reason.as_ref() };
            format!("{}={} {reason:?}", each.type_, each.status)
        })
        .collect();
    let written = write!(
        text,
        "active {:?} ready {:?} terminating {:?} succeeded {:?} failed {:?} completed {:?} \
         failed indexes {:?} uncounted {:?} started {} conditions {conditions:?} pods {pods:?}{}",
        status.active,
        status.ready,
        status.terminating,
        status.succeeded,
        status.failed,
        status.completed_indexes,
        failed_indexes,
        status.uncounted_terminated_pods,
        status.start_time.is_some(),
        api.groups_text(),
    );
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
    text
}
