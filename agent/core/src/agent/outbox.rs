//! Tracks actions under way: the purpose of each, and how many may run at once.

use std::collections::{BTreeMap, VecDeque};

use epilogue_common::outcome::Outcome;

use crate::pod::PodUid;
use crate::protocol::action::{Action, ActionId, Line, PodRef};
use crate::protocol::pressure::Resource;

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
    Mark(PodUid),
    Read(PodUid),
    End(PodUid),
    Stop(PodUid),
    Inspect(PodUid),
    /// Asks the runtime before the mark.
    ExitCheck(PodUid),
    Fail(PodUid),
    Clear(PodUid),
    /// States why a container died.
    Cause(PodUid),
    /// Asks which container was killed.
    OomInspect(PodUid),
    Measure,
    MeasurePods(Resource),
    NodeCondition(&'static str),
    /// A step of an eviction for node pressure.
    Evict(EvictStep, PodUid),
    /// Asks the runtime about a pod that hangs.
    StuckInspect(PodUid),
    /// Stops its empty sandbox.
    StuckStop(PodUid),
    /// Writes its phase.
    StuckFail(PodUid),
    /// Asks the runtime about a pod that a clock calls lost.
    RecoveryInspect(PodUid),
    /// Asks the runtime about a pod that lives under a mark of ours.
    SurvivorInspect(PodUid),
    EmitEvent,
}

/// A step of an eviction for node pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictStep {
    Mark,
    Read,
    End,
    Stop,
    Inspect,
    Fail,
}

impl Task {
    /// The pod that the action concerns.
    pub(super) fn pod(&self) -> Option<&PodUid> {
        match self {
            Self::Mark(uid)
            | Self::Read(uid)
            | Self::End(uid)
            | Self::Stop(uid)
            | Self::Inspect(uid)
            | Self::Fail(uid)
            | Self::Clear(uid)
            | Self::StuckInspect(uid)
            | Self::StuckStop(uid)
            | Self::StuckFail(uid)
            | Self::Cause(uid)
            | Self::Evict(_, uid) => Some(uid),
            _ => None,
        }
    }

    /// Whether the action is an API call.
    pub(super) fn is_api(&self) -> bool {
        use Task::{
            Announce, Cause, Clear, EmitEvent, End, Evict, Fail, Mark, NodeCondition, Publish,
            Read, StuckFail, Taint,
        };
        if let Evict(step, _) = self {
            return !matches!(step, EvictStep::Stop | EvictStep::Inspect);
        }
        let of_node = matches!(self, Announce | Publish | Taint | NodeCondition(_) | EmitEvent);
        let of_pod = matches!(self, Mark(_) | Read(_) | End(_) | Fail(_) | Clear(_));
        of_node || of_pod || matches!(self, Cause(_) | StuckFail(_))
    }
}

/// Actions that wait to be fetched, and actions under way.
#[derive(Debug)]
pub(super) struct Outbox {
    next: u64,
    queue: VecDeque<(ActionId, Action)>,
    under_way: BTreeMap<ActionId, Task>,
    api_max: usize,
}

impl Outbox {
    pub(super) fn new(api_max: usize) -> Self {
        Self {
            next: 1,
            queue: VecDeque::new(),
            under_way: BTreeMap::new(),
            api_max: api_max.max(1),
        }
    }

    pub(super) fn send(&mut self, task: Task, action: Action) -> ActionId {
        let id = self.id();
        self.under_way.insert(id, task);
        self.queue.push_back((id, action));
        id
    }

    /// Adds a line to the log, which has no result.
    pub(super) fn log(&mut self, warning: bool, pod: Option<&PodRef>, text: impl Into<String>) {
        let id = self.id();
        let line = Line { warning, text: text.into(), pod: pod.cloned() };
        self.queue.push_back((id, Action::Log(line)));
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

    pub(super) fn fetch(&mut self) -> Option<(ActionId, Action)> {
        self.queue.pop_front()
    }

    /// Returns the purpose of the action; `None` if it is not under way, or not any more.
    pub(super) fn finish(&mut self, id: ActionId) -> Option<Task> {
        self.under_way.remove(&id)
    }

    /// Whether another API call may begin.
    pub(super) fn has_room(&self) -> bool {
        self.count(Task::is_api) < self.api_max
    }

    /// Whether another runtime check may begin. Stops do not count: they block for their grace, and
    /// all of a priority group start at once.
    pub(super) fn has_room_to_inspect(&self) -> bool {
        let inspects = |task: &Task| {
            use Task::{Evict, ExitCheck, Inspect, RecoveryInspect, StuckInspect, SurvivorInspect};
            let after_boot = matches!(task, RecoveryInspect(_) | SurvivorInspect(_));
            let ends = matches!(
                task,
                ExitCheck(_) | Inspect(_) | StuckInspect(_) | Evict(EvictStep::Inspect, _)
            );
            after_boot || ends
        };
        self.count(inspects) < self.api_max
    }

    /// Whether this task is under way.
    pub(super) fn has(&self, task: &Task) -> bool {
        self.under_way.values().any(|other| other == task)
    }

    pub(super) fn count(&self, which: impl Fn(&Task) -> bool) -> usize {
        self.under_way.values().filter(|task| which(task)).count()
    }

    /// Whether an action that may still change the pod is under way.
    pub(super) fn is_busy_with(&self, uid: &PodUid) -> bool {
        self.under_way.values().any(|task| task.pod() == Some(uid))
    }

    /// Withdraws the matching actions that were not fetched yet.
    pub(super) fn retract(&mut self, which: impl Fn(&Task) -> bool) {
        let under_way = &mut self.under_way;
        self.queue.retain(|(id, _)| {
            let retracted = under_way.get(id).is_some_and(&which);
            if retracted {
                under_way.remove(id);
            }
            !retracted
        });
    }
}
