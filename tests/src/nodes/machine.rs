//! One pod on its node, as a state machine without IO: watch events and the time go in, the next
//! write comes out, one at a time.

mod processes;
mod restart;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::pod::{PodView, RestartPolicy, Role, TerminalPhase};
use super::processes::Processes;
use super::script::{Act, End, OnTerm, Readiness, Script, ScriptError, Start};
use super::status::{Address, ContainerState, Disruption, Flag, Phase, PodStatus, Termination};
use restart::restarts;

/// The message of a pod that its node's shutdown terminated.
pub const SHUTDOWN_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// The longest wait between two restarts, in first waits; the kubelet has 10 s and 300 s.
const BACKOFF_FACTOR_MAX: u32 = 30;

/// Which statuses of a pod are written, and how fast its containers restart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) skip_running: bool,
    pub(super) restart_backoff: Duration,
    /// Keeps the containers of ended pods, so that they can be reported again. Benches leave
    /// 100,000 ended pods behind, and do without.
    pub(super) remembers: bool,
}

/// The next write that the node wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Need {
    Status(Value),
    /// DELETE with grace 0 and the uid as precondition.
    Delete,
    /// A Warning event on the pod.
    Event {
        reason: &'static str,
        message: String,
    },
}

/// Why a pod is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Deleted,
    Disrupted { reason: String, message: String },
}

impl Cause {
    pub(super) fn shutdown() -> Self {
        Self::Disrupted { reason: "Terminated".to_owned(), message: SHUTDOWN_MESSAGE.to_owned() }
    }

    fn scripted(reason: &str) -> Self {
        let message = match reason {
            "Evicted" => "The node was low on resource: memory. ".to_owned(),
            "Terminated" => SHUTDOWN_MESSAGE.to_owned(),
            "Preempting" => "Preempted in order to admit critical pod".to_owned(),
            reason => format!("The node ended the pod: {reason}."),
        };
        Self::Disrupted { reason: reason.to_owned(), message }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Bound, no container runs; `None`: none ever will.
    Waiting {
        starts: Option<Timestamp>,
    },
    Initializing {
        ends: Timestamp,
    },
    Running {
        ends: Option<Timestamp>,
        ready: Option<Timestamp>,
    },
    /// Ended containers wait for their restart, in the init or the main part of the pod.
    BackingOff {
        until: Timestamp,
        init: bool,
    },
    Stopping {
        dies: Timestamp,
        code: i32,
    },
    Ended,
}

#[derive(Debug)]
pub(super) struct PodMachine {
    script: Script,
    act: Act,
    /// Earlier pods of the same owner and index.
    earlier: u32,
    pace: Pace,
    address: Address,
    stage: Stage,
    status: PodStatus,
    stopping: Option<Cause>,
    /// The exit code of the processes, once they have run and ended.
    exited: Option<i32>,
    /// The API does not show `status` yet.
    unwritten: bool,
    complaint: Option<ScriptError>,
    deletion_seen: bool,
    delete_needed: bool,
}

impl PodMachine {
    /// A pod that its node just accepted.
    pub(super) fn new(
        pod: &PodView,
        script: Result<Script, ScriptError>,
        earlier: u32,
        address: Address,
        pace: Pace,
        now: Timestamp,
    ) -> Self {
        let checked = script.and_then(|script| {
            let names: Vec<&str> = main_names(pod);
            let has_init = pod.containers.iter().any(|c| c.role == Role::Init);
            script.check(&names, has_init).map(|()| script)
        });
        let (script, complaint) = match checked {
            Ok(script) => (script, None),
            Err(error) => (Script::default(), Some(error)),
        };
        let mut act = script.choose(pod.index, earlier);
        let mut status = PodStatus::new(&pod.containers, now);
        if let Some(error) = &complaint {
            act.start = Start::Waiting("InvalidScript".to_owned());
            status.waiting_message = Some(error.to_string());
        }
        let mut machine = Self {
            script,
            act,
            earlier,
            pace,
            address,
            stage: Stage::Ended,
            status,
            stopping: None,
            exited: None,
            unwritten: false,
            complaint,
            deletion_seen: false,
            delete_needed: false,
        };
        if pod.ended.is_none() {
            machine.admit(now);
        }
        machine.observe(pod, now);
        machine
    }

    pub(super) fn ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Whether the end of the pod is in the API.
    pub(super) fn reported(&self) -> bool {
        self.ended() && !self.unwritten
    }

    /// Takes in the current state from the watch.
    pub(super) fn observe(&mut self, pod: &PodView, now: Timestamp) {
        if let Some(phase) = pod.ended
            && !self.ended()
        {
            // Another writer ended it: a real worker adopts that phase when it next syncs.
            self.status.phase = match phase {
                TerminalPhase::Succeeded => Phase::Succeeded,
                TerminalPhase::Failed => Phase::Failed,
            };
            self.exited = Some(137).filter(|_| self.processes() != Processes::None);
            self.stage = Stage::Ended;
            self.unwritten = false;
        }
        let Some(grace) = pod.deletion_grace_seconds else { return };
        if grace == 0 && self.ended() {
            self.delete_needed = false;
            return;
        }
        if !self.deletion_seen && grace > 0 {
            self.delete_needed = true;
        }
        self.deletion_seen = true;
        self.stop(Cause::Deleted, Duration::from_secs(grace.max(1)), now);
    }

    /// Begins to stop the pod, or stops it sooner than planned.
    pub(super) fn stop(&mut self, cause: Cause, grace: Duration, now: Timestamp) {
        let kill_at = now + grace;
        if self.stopping.is_none() {
            self.stopping = Some(cause);
        }
        match &mut self.stage {
            Stage::Ended => {}
            Stage::Stopping { dies, code } => {
                if kill_at < *dies {
                    (*dies, *code) = (kill_at, 137);
                }
            }
            Stage::Waiting { .. } => self.end_unstarted(now),
            Stage::BackingOff { .. } => self.end(now),
            Stage::Initializing { .. } | Stage::Running { .. } => {
                self.stage = match self.act.on_term {
                    OnTerm::Exit { code, after } if after <= grace => {
                        Stage::Stopping { dies: now + after, code }
                    }
                    _ => Stage::Stopping { dies: kill_at, code: 137 },
                };
            }
        }
    }

    /// Refuses a pod at a node that admits none.
    pub(super) fn reject(&mut self, reason: &str, message: String, now: Timestamp) {
        if self.ended() {
            return;
        }
        self.status.phase = Phase::Failed;
        self.status.reason = Some(reason.to_owned());
        self.status.message = Some(message);
        // A refused pod gets no container statuses: the kubelet never checked for containers.
        self.status.containers.clear();
        self.finish(now);
    }

    /// The next write. Nothing is forgotten until `written` confirms it.
    pub(super) fn need(&mut self, pod: &PodView, now: Timestamp) -> Option<Need> {
        if let Some(error) = &self.complaint {
            let message = format!("annotation {}: {error}", super::script::ANNOTATION);
            return Some(Need::Event { reason: "InvalidScript", message });
        }
        while !self.unwritten && self.step(pod, now) {}
        if self.unwritten {
            return Some(Need::Status(self.status.patch(pod, &self.address)));
        }
        (self.ended() && self.delete_needed).then_some(Need::Delete)
    }

    /// The API has gone back, and need not show what was written.
    pub(super) fn report_again(&mut self, pod: &PodView) {
        self.unwritten = pod.ended.is_none();
        (self.deletion_seen, self.delete_needed) = (false, false);
    }

    /// The API accepted the write.
    pub(super) fn written(&mut self, need: &Need) {
        match need {
            Need::Status(_) => {
                self.unwritten = false;
                if self.ended() && !self.pace.remembers {
                    self.status.containers = Vec::new();
                }
            }
            Need::Delete => self.delete_needed = false,
            Need::Event { .. } => self.complaint = None,
        }
    }

    /// When the next step is due without an event.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        match self.stage {
            Stage::Waiting { starts } => starts,
            Stage::Initializing { ends } => Some(ends),
            Stage::Running { ends, ready } => match (ends, ready) {
                (Some(ends), Some(ready)) => Some(ends.min(ready)),
                (ends, ready) => ends.or(ready),
            },
            Stage::BackingOff { until, .. } => Some(until),
            Stage::Stopping { dies, .. } => Some(dies),
            Stage::Ended => None,
        }
    }

    fn admit(&mut self, now: Timestamp) {
        match self.act.start.clone() {
            Start::After(delay) => {
                self.stage = Stage::Waiting { starts: Some(now + delay) };
                self.unwritten = !delay.is_zero();
            }
            Start::Waiting(reason) => {
                self.stage = Stage::Waiting { starts: None };
                for container in self.status.of(Role::Main) {
                    container.state = ContainerState::Waiting(reason.clone().into());
                }
                self.unwritten = true;
            }
            Start::Rejected(reason) => {
                self.stage = Stage::Waiting { starts: None };
                let message = format!("Pod was rejected: {reason}");
                self.reject(&reason, message, now);
            }
        }
    }

    /// Takes the next due step; false if no step is due.
    fn step(&mut self, pod: &PodView, now: Timestamp) -> bool {
        match self.stage {
            Stage::Waiting { starts: Some(at) } if at <= now => self.start(now),
            Stage::Initializing { ends } if ends <= now => self.end_init(pod, now),
            Stage::Running { ends, ready: Some(at) } if at <= now => {
                self.status.ready.set(true, now);
                self.stage = Stage::Running { ends, ready: None };
                self.unwritten = true;
            }
            Stage::Running { ends: Some(at), .. } if at <= now => self.end_run(pod, now),
            Stage::BackingOff { until, init } if until <= now => self.restart(pod, init, now),
            Stage::Stopping { dies, code } if dies <= now => {
                for container in &mut self.status.containers {
                    container.exit(code, None, now);
                }
                self.exited = Some(code);
                // Whom a signal of others ended, the kubelet starts again.
                if self.stopping.is_none() && restarts(pod.restart_policy, code) {
                    self.back_off(false, pod.restart_policy, now);
                } else {
                    self.end(now);
                }
            }
            _ => return false,
        }
        true
    }

    fn start(&mut self, now: Timestamp) {
        self.status.sandbox.set(true, now);
        for sidecar in self.status.of(Role::Sidecar) {
            sidecar.start(now);
        }
        let run = self.act.init;
        let first = self.status.of(Role::Init).next();
        let (Some(run), Some(first)) = (run, first) else { return self.run(now) };
        first.start(now);
        for container in self.status.of(Role::Main) {
            container.state = ContainerState::Waiting("PodInitializing".into());
        }
        self.stage = Stage::Initializing { ends: now + run.after };
        self.unwritten = !self.pace.skip_running;
    }

    fn end_init(&mut self, pod: &PodView, now: Timestamp) {
        let code = self.act.init.map_or(0, |run| run.code);
        if let Some(first) = self.status.of(Role::Init).next() {
            first.exit(code, None, now);
        }
        match (code, pod.restart_policy) {
            (0, _) => self.run(now),
            (_, RestartPolicy::Never) => {
                for sidecar in self.status.of(Role::Sidecar) {
                    sidecar.exit(0, None, now);
                }
                self.end(now);
            }
            (_, policy) => self.back_off(true, policy, now),
        }
    }

    /// Every init container is done: the main ones run.
    fn run(&mut self, now: Timestamp) {
        for init in self.status.of(Role::Init).filter(|c| c.termination().is_none()) {
            init.start(now);
            init.exit(0, None, now);
        }
        for main in self.status.of(Role::Main).filter(|c| c.termination().is_none()) {
            main.start(now);
        }
        self.status.phase = Phase::Running;
        self.status.initialized.set(true, now);
        let ready = match self.act.readiness {
            Readiness::After(Duration::ZERO) => {
                self.status.ready.set(true, now);
                None
            }
            Readiness::After(delay) => Some(now + delay),
            Readiness::Never => None,
        };
        let ends = match &self.act.end {
            End::Exit { after, .. } | End::Disrupted { after, .. } => Some(now + *after),
            End::Hang => None,
        };
        self.stage = Stage::Running { ends, ready };
        let restarted = self.restarts() > 0;
        self.unwritten = !self.pace.skip_running || ends.is_none() || restarted;
    }

    fn end_run(&mut self, pod: &PodView, now: Timestamp) {
        let (code, only, why) = match self.act.end.clone() {
            End::Exit { code, container, reason, .. } => (code, container, reason),
            End::Disrupted { reason, .. } => {
                let grace = Duration::from_secs(pod.grace_seconds.max(1));
                return self.stop(Cause::scripted(&reason), grace, now);
            }
            End::Hang => return,
        };
        self.exited = Some(code);
        for main in self.status.of(Role::Main) {
            match &only {
                Some(name) if *name != main.spec.name => main.exit(0, None, now),
                _ => main.exit(code, why.as_deref(), now),
            }
        }
        if self.main_codes().any(|code| restarts(pod.restart_policy, code)) {
            return self.back_off(false, pod.restart_policy, now);
        }
        for sidecar in self.status.of(Role::Sidecar) {
            sidecar.exit(0, None, now);
        }
        self.end(now);
    }

    /// No container was ever created. The phase and the forced container states are those of the
    /// kubelet's last sync of a terminated pod ([PT2]).
    fn end_unstarted(&mut self, now: Timestamp) {
        let initialized = self.status.initialized.status;
        let mut init = self.status.containers.iter_mut().filter(|c| c.spec.role != Role::Main);
        if let Some(first) = init.next() {
            first.state = ContainerState::Terminated(Termination::unknown());
        }
        if initialized {
            for main in self.status.of(Role::Main) {
                main.state = ContainerState::Terminated(Termination::unknown());
            }
        }
        self.end(now);
    }

    /// All processes are gone: the final phase follows from the containers.
    fn end(&mut self, now: Timestamp) {
        for container in &mut self.status.containers {
            // If nothing restarts a container in back-off, its state is its last end.
            if matches!(container.state, ContainerState::Waiting(_))
                && let Some(last) = container.last.take()
            {
                container.state = ContainerState::Terminated(last);
            }
        }
        let succeeded = self.main_succeeded();
        self.status.phase = if succeeded { Phase::Succeeded } else { Phase::Failed };
        if let Some(Cause::Disrupted { reason, message }) = self.stopping.clone() {
            if !succeeded {
                self.status.reason = Some(reason);
                self.status.message = Some(message.clone());
            }
            self.status.disruption = Some(Disruption { message, at: now });
        }
        self.finish(now);
    }

    fn finish(&mut self, now: Timestamp) {
        self.status.ready.set(false, now);
        self.status.sandbox = Flag::new(false, now);
        self.stage = Stage::Ended;
        self.unwritten = true;
    }

    fn main_codes(&mut self) -> impl Iterator<Item = i32> {
        self.status.of(Role::Main).filter_map(|c| c.termination().map(|end| end.code))
    }

    fn main_succeeded(&mut self) -> bool {
        self.status.of(Role::Main).all(|c| c.termination().is_some_and(|end| end.code == 0))
    }
}

fn main_names(pod: &PodView) -> Vec<&str> {
    let main = pod.containers.iter().filter(|container| container.role == Role::Main);
    main.map(|container| container.name.as_str()).collect()
}

#[cfg(test)]
mod tests;
