//! Makes the calls about pods, and tracks all actions under way: which part of the agent each
//! belongs to, and how many may run at once.

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};
use serde_json::Value;

use crate::pod::{PodUid, PodView};
use crate::protocol::action::{Action, ActionId, Line, PodRef, Purpose, Reach};
use crate::protocol::event::RuntimeState;
use crate::protocol::pressure::Resource;
use crate::termination::attempt::Attempt;
use crate::termination::clock::Clock;

/// The part of the agent that a call about a pod belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The shutdown that goes on.
    Shutdown,
    /// The audit of our marks.
    OwnMarks,
    /// Its check of pods that live under a mark of ours.
    Survivors,
    Eviction,
    Stuck,
    /// Pods without a sandbox that no kubelet reports.
    Abandoned,
    Oom,
}

/// What a call does to its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Patch(Purpose),
    Read,
    /// Asks the runtime before the mark.
    ExitCheck,
    /// Deletes the pod, or sets its deadline.
    End,
    /// Stops the pod through the runtime.
    Stop,
    /// Asks the runtime.
    Inspect,
}

/// The purpose of an action; it decides where the result belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Task {
    TakeLock,
    ReleaseLock,
    RaiseDelay,
    Journal,
    Announce,
    Publish,
    Taint,
    NodeCondition(&'static str),
    /// Asks the runtime for all its pods, before the drained record.
    ListRuntimePods,
    Measure,
    MeasurePods(Resource),
    EmitEvent,
    /// Signals the pod's main process.
    EndSignal(PodUid),
    Pod(Part, Verb, PodUid),
}

impl Task {
    /// Whether the action is an API call.
    pub(super) fn is_api(&self) -> bool {
        match self {
            Self::Pod(_, verb, _) => !matches!(verb, Verb::Stop | Verb::Inspect | Verb::ExitCheck),
            Self::Announce
            | Self::Publish
            | Self::Taint
            | Self::NodeCondition(_)
            | Self::EmitEvent => true,
            Self::TakeLock
            | Self::ReleaseLock
            | Self::RaiseDelay
            | Self::Journal
            | Self::EndSignal(_)
            | Self::ListRuntimePods
            | Self::Measure
            | Self::MeasurePods(_) => false,
        }
    }

    /// Whether the action is a runtime check that counts. Stops do not count: they block for their
    /// grace, and all of a priority group start at once.
    fn is_check(&self) -> bool {
        let Self::Pod(part, verb, _) = self else { return false };
        matches!(verb, Verb::Inspect | Verb::ExitCheck) && *part != Part::Oom
    }

    /// The pod that the action may still change, or whose state another write waits for.
    fn occupies(&self) -> Option<&PodUid> {
        let Self::Pod(part, verb, uid) = self else { return None };
        let only_asks =
            matches!(part, Part::OwnMarks | Part::Survivors | Part::Abandoned | Part::Oom)
                && *verb == Verb::Inspect;
        (!only_asks && *verb != Verb::ExitCheck).then_some(uid)
    }
}

/// The answer to a call about a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer<'a> {
    /// To a write, and the version that it has made, if that is known.
    Written(&'a Outcome<()>, Option<&'a str>),
    /// To a read: the pod as the API has it.
    Read(&'a Outcome<Option<Box<PodView>>>),
    /// Of the container runtime.
    Runtime(&'a Result<RuntimeState, Failure>),
}

/// The actions of this decision, and those under way.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    next: u64,
    /// What this decision gives.
    given: Vec<(ActionId, Action)>,
    under_way: BTreeMap<ActionId, Task>,
    api_max: usize,
    /// Whether calls to the API wait.
    held_back: bool,
}

impl Calls {
    pub(super) fn new(api_max: usize) -> Self {
        let (given, under_way, api_max) = (Vec::new(), BTreeMap::new(), api_max.max(1));
        Self { next: 1, given, under_way, api_max, held_back: false }
    }

    /// Holds back calls to the API, or lets them go.
    pub(super) fn hold_back(&mut self, held_back: bool) {
        self.held_back = held_back;
    }

    /// Whether calls to the API wait.
    pub(super) fn is_held_back(&self) -> bool {
        self.held_back
    }

    pub(super) fn send(&mut self, task: Task, action: Action) {
        debug_assert!(!(self.held_back && task.is_api()), "{task:?} must wait");
        let id = self.id();
        self.under_way.insert(id, task);
        self.given.push((id, action));
    }

    /// Reads the pod, if that is due and another API call may begin.
    pub(super) fn read(&mut self, part: Part, pod: &PodRef, read: &mut Attempt, clock: &Clock) {
        if read.is_due(clock) && self.has_room() {
            read.sent();
            let task = Task::Pod(part, Verb::Read, pod.uid.clone());
            self.send(task, Action::ReadPod(pod.clone()));
        }
    }

    /// Asks the runtime, if that is due and another check may begin.
    pub(super) fn inspect(
        &mut self,
        (part, verb): (Part, Verb),
        pod: &PodRef,
        inspect: &mut Attempt,
        clock: &Clock,
    ) {
        if inspect.is_due(clock) && self.has_room_to_inspect() {
            inspect.sent();
            self.ask_runtime(part, verb, pod.clone());
        }
    }

    /// Asks the runtime.
    pub(super) fn ask_runtime(&mut self, part: Part, verb: Verb, pod: PodRef) {
        let task = Task::Pod(part, verb, pod.uid.clone());
        self.send(task, Action::InspectPod(pod));
    }

    /// Patches the pod's status.
    pub(super) fn patch(&mut self, part: Part, purpose: Purpose, pod: &PodRef, body: Value) {
        let task = Task::Pod(part, Verb::Patch(purpose), pod.uid.clone());
        self.send(task, Action::PatchStatus { pod: pod.clone(), purpose, body });
    }

    /// Stops the pod through the runtime.
    pub(super) fn stop(
        &mut self,
        part: Part,
        view: &PodView,
        grace_seconds: u32,
        reach: Reach,
        stop_timeout: Duration,
    ) {
        let (pod, sidecars) = (PodRef::of(view), view.sidecars.clone());
        let task = Task::Pod(part, Verb::Stop, pod.uid.clone());
        self.send(task, Action::StopPod { pod, grace_seconds, sidecars, reach, stop_timeout });
    }

    /// Adds a line to the log, which has no result.
    pub(super) fn log(&mut self, warning: bool, pod: Option<&PodRef>, text: impl Into<String>) {
        let id = self.id();
        let line = Line { warning, text: text.into(), pod: pod.cloned() };
        self.given.push((id, Action::Log(line)));
    }

    /// Warns that the API does not accept a write to the pod.
    pub(super) fn log_refusal(&mut self, pod: &PodRef, text: &str, result: &Outcome<()>) {
        if let Err(failure) = result {
            self.log(true, Some(pod), format!("{text}: {failure}"));
        }
    }

    fn id(&mut self) -> ActionId {
        let id = ActionId(self.next);
        self.next += 1;
        id
    }

    /// Takes the actions of this decision.
    pub(super) fn take(&mut self) -> Vec<(ActionId, Action)> {
        std::mem::take(&mut self.given)
    }

    /// Returns the purpose of the action; `None` if it is not under way, or not any more.
    pub(super) fn finish(&mut self, id: ActionId) -> Option<Task> {
        self.under_way.remove(&id)
    }

    /// Whether another API call may begin.
    pub(super) fn has_room(&self) -> bool {
        !self.held_back && self.count(Task::is_api) < self.api_max
    }

    /// Whether another runtime check may begin.
    pub(super) fn has_room_to_inspect(&self) -> bool {
        self.count(Task::is_check) < self.api_max
    }

    /// Whether a shutdown's stop of the pod is under way.
    pub(super) fn is_stopping(&self, uid: &PodUid) -> bool {
        let stop = Task::Pod(Part::Shutdown, Verb::Stop, uid.clone());
        self.under_way.values().any(|task| *task == stop)
    }

    pub(super) fn count(&self, which: impl Fn(&Task) -> bool) -> usize {
        self.under_way.values().filter(|task| which(task)).count()
    }

    /// Whether an action that may still change the pod is under way.
    pub(super) fn is_busy_with(&self, uid: &PodUid) -> bool {
        self.under_way.values().any(|task| task.occupies() == Some(uid))
    }
}
