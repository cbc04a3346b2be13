//! Tests how pods of the simulated kubelet run and end.

use super::super::pod::ContainerSpec;
use super::super::processes::Signal;
use std::fmt::Write as _;

use super::*;

const PACE: Pace =
    Pace { skip_running: false, restart_backoff: Duration::from_millis(100), remembers: false };

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_000_000 + ms).unwrap()
}

fn pod(policy: RestartPolicy, containers: &[(&str, Role)]) -> PodView {
    let spec = |(name, role): &(&str, Role)| ContainerSpec {
        name: (*name).to_owned(),
        image: "image".to_owned(),
        role: *role,
    };
    PodView {
        uid: "uid".into(),
        namespace: "ns".to_owned(),
        name: "pod".to_owned(),
        created: at(0),
        generation: 1,
        node: Some("sim-0".to_owned()),
        owner: None,
        index: None,
        script: None,
        containers: containers.iter().map(spec).collect(),
        restart_policy: policy,
        grace_seconds: 30,
        deletion_grace_seconds: None,
        ended: None,
        scheduled_condition: true,
        gated: false,
    }
}

fn main_pod(policy: RestartPolicy) -> PodView {
    pod(policy, &[("main", Role::Main)])
}

/// A pod and its machine, with every write accepted at once.
struct Life {
    pod: PodView,
    machine: PodMachine,
}

impl Life {
    fn new(pod: PodView, script: &str, pace: Pace) -> Self {
        let address = Address::new(0, 1);
        let script = Script::parse(script);
        let machine = PodMachine::new(&pod, script, 0, address, pace, at(0));
        Self { pod, machine }
    }

    fn delete(&mut self, grace: u64, ms: i64) {
        self.pod.deletion_grace_seconds = Some(grace);
        self.machine.observe(&self.pod, at(ms));
    }

    /// All writes at this moment, in one line each.
    fn writes(&mut self, ms: i64) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(need) = self.machine.need(&self.pod, at(ms)) {
            self.machine.written(&need);
            lines.push(line(&need));
        }
        lines
    }
}

fn line(need: &Need) -> String {
    let patch = match need {
        Need::Status(patch) => &patch["status"],
        Need::Delete => return "DELETE".to_owned(),
        Need::Event { reason, message } => return format!("{reason}: {message}"),
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut line = text(&patch["phase"]);
    for condition in patch["conditions"].as_array().unwrap() {
        if condition["status"] == "True" && condition["type"] != "PodScheduled" {
            write!(line, " +{}", text(&condition["type"])).unwrap();
        }
    }
    for reason in [&patch["reason"], &patch["message"]] {
        if reason.is_string() {
            write!(line, " {:?}", text(reason)).unwrap();
        }
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in patch[list].as_array().into_iter().flatten() {
            let (kind, state) = container["state"].as_object().unwrap().iter().next().unwrap();
            write!(line, " {}:{kind}", text(&container["name"])).unwrap();
            if let Some(code) = state["exitCode"].as_i64() {
                write!(line, "={code}").unwrap();
            }
            if state["reason"].is_string() {
                write!(line, "({})", text(&state["reason"])).unwrap();
            }
            if container["restartCount"] != 0 {
                write!(line, "x{}", container["restartCount"]).unwrap();
            }
        }
    }
    line
}

const RUNNING: &str = "Running +PodReadyToStartContainers +Initialized +Ready +ContainersReady";

#[test]
fn a_pod_runs_and_succeeds() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "succeed after=1s", PACE);
    assert_eq!(life.writes(0), [format!("{RUNNING} main:running")]);
    assert_eq!(life.machine.deadline(), Some(at(1000)));
    assert_eq!(life.writes(999), [""; 0]);
    assert_eq!(life.writes(1000), ["Succeeded +Initialized main:terminated=0(Completed)"]);
    assert!(life.machine.reported());
    assert_eq!(life.machine.deadline(), None);
}

#[test]
fn skipping_running_leaves_one_write() {
    let pace = Pace { skip_running: true, ..PACE };
    let mut life = Life::new(main_pod(RestartPolicy::Never), "fail exit=3", pace);
    assert_eq!(life.writes(0), ["Failed +Initialized main:terminated=3(Error)"]);
    let mut life = Life::new(main_pod(RestartPolicy::Never), "hang", pace);
    assert_eq!(life.writes(0), [format!("{RUNNING} main:running")]);
}

#[test]
fn only_the_named_container_fails() {
    let pod = pod(RestartPolicy::Never, &[("a", Role::Main), ("b", Role::Main)]);
    let script = "fail exit=137 container=b reason=OOMKilled";
    let mut life = Life::new(pod, script, PACE);
    let ended = "Failed +Initialized a:terminated=0(Completed) b:terminated=137(OOMKilled)";
    assert_eq!(life.writes(0)[1], ended);
}

#[test]
fn deletion_sends_sigterm_then_reports_then_deletes() {
    let script = "on-term=7 after=2s";
    let mut life = Life::new(main_pod(RestartPolicy::Never), script, PACE);
    life.writes(0);
    life.delete(30, 100);
    assert_eq!(life.writes(100), [""; 0]);
    let end = ["Failed +Initialized main:terminated=7(Error)", "DELETE"];
    assert_eq!(life.writes(2100), end);
    // With finalizers the object stays, with a grace of 0: nothing is left to do.
    life.delete(0, 2200);
    assert_eq!(life.writes(2200), [""; 0]);
}

#[test]
fn ignoring_sigterm_is_killed_when_its_grace_ends() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "on-term=ignore", PACE);
    life.writes(0);
    life.delete(5, 0);
    assert_eq!(life.writes(4999), [""; 0]);
    assert_eq!(life.writes(5000)[0], "Failed +Initialized main:terminated=137(Error)");
}

#[test]
fn a_second_deletion_shortens_the_grace() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "on-term=0 after=20s", PACE);
    life.writes(0);
    life.delete(30, 0);
    life.delete(1, 500);
    assert_eq!(life.machine.deadline(), Some(at(1500)));
    assert_eq!(life.writes(1500)[0], "Failed +Initialized main:terminated=137(Error)");
}

#[test]
fn exit_0_on_sigterm_is_a_success() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "on-term=0", PACE);
    life.writes(0);
    life.delete(30, 0);
    let end = ["Succeeded +Initialized main:terminated=0(Completed)", "DELETE"];
    assert_eq!(life.writes(0), end);
}

#[test]
fn a_pod_that_never_started_is_failed_when_deleted() {
    let script = "waiting=ImagePullBackOff";
    let mut life = Life::new(main_pod(RestartPolicy::Never), script, PACE);
    assert_eq!(life.writes(0), ["Pending +Initialized main:waiting(ImagePullBackOff)"]);
    life.delete(30, 10);
    let end = ["Failed +Initialized main:terminated=137(ContainerStatusUnknown)", "DELETE"];
    assert_eq!(life.writes(10), end);
}

#[test]
fn on_failure_restarts_and_counts() {
    let script = "fail exit=2 times=2; succeed";
    let mut life = Life::new(main_pod(RestartPolicy::OnFailure), script, PACE);
    let backing_off = "Running +PodReadyToStartContainers +Initialized main:waiting";
    let first = [format!("{RUNNING} main:running"), format!("{backing_off}(CrashLoopBackOff)")];
    assert_eq!(life.writes(0), first);
    let second =
        [format!("{RUNNING} main:runningx1"), format!("{backing_off}(CrashLoopBackOff)x1")];
    assert_eq!(life.writes(100), second);
    let third = [
        format!("{RUNNING} main:runningx2"),
        "Succeeded +Initialized main:terminated=0(Completed)x2".to_owned(),
    ];
    assert_eq!(life.writes(300), third);
}

#[test]
fn on_failure_restarts_what_a_signal_ended_unless_the_pod_is_deleted() {
    let mut life = Life::new(main_pod(RestartPolicy::OnFailure), "hang", PACE);
    life.writes(0);
    life.machine.signal(Signal::Kill, at(10));
    let backing_off = "Running +PodReadyToStartContainers +Initialized main:waiting";
    assert_eq!(life.writes(10), [format!("{backing_off}(CrashLoopBackOff)")]);
    assert_eq!(life.writes(110), [format!("{RUNNING} main:runningx1")]);
    life.delete(30, 200);
    life.machine.signal(Signal::Kill, at(210));
    assert_eq!(life.writes(210), ["Failed +Initialized main:terminated=137(Error)x1", "DELETE"]);
}

#[test]
fn always_restarts_also_what_exited_0() {
    let mut life = Life::new(main_pod(RestartPolicy::Always), "succeed times=1; hang", PACE);
    life.writes(0);
    assert_eq!(life.writes(100), [format!("{RUNNING} main:runningx1")]);
    assert_eq!(life.machine.deadline(), None);
}

#[test]
fn deleting_a_pod_in_back_off_ends_it_as_it_last_ended() {
    let mut life = Life::new(main_pod(RestartPolicy::OnFailure), "fail exit=9", PACE);
    life.writes(0);
    life.delete(30, 50);
    assert_eq!(life.writes(50), ["Failed +Initialized main:terminated=9(Error)", "DELETE"]);
}

#[test]
fn shutdown_marks_and_keeps_the_pod() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "hang", PACE);
    life.writes(0);
    life.machine.stop(Cause::shutdown(), Duration::from_secs(10), at(10));
    let marked = format!(
        "Failed +Initialized +DisruptionTarget {:?} {SHUTDOWN_MESSAGE:?} \
         main:terminated=143(Error)",
        "Terminated"
    );
    assert_eq!(life.writes(10), [marked]);
}

#[test]
fn a_disrupted_pod_that_exits_0_succeeds_with_the_mark() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "disrupt on-term=0", PACE);
    let marked = "Succeeded +Initialized +DisruptionTarget main:terminated=0(Completed)";
    assert_eq!(life.writes(0)[1], marked);
}

#[test]
fn a_failed_init_container_fails_the_pod_under_never_and_restarts_under_on_failure() {
    let containers = [("setup", Role::Init), ("proxy", Role::Sidecar), ("main", Role::Main)];
    let mut life = Life::new(pod(RestartPolicy::Never, &containers), "init exit=1", PACE);
    let end = "Failed setup:terminated=1(Error) proxy:terminated=0(Completed) \
               main:waiting(PodInitializing)";
    assert_eq!(life.writes(0)[1], end);
    let script = "init exit=1 times=1; hang";
    let mut life = Life::new(pod(RestartPolicy::OnFailure, &containers), script, PACE);
    let backing_off = "Pending +PodReadyToStartContainers setup:waiting(CrashLoopBackOff) \
                       proxy:running main:waiting(PodInitializing)";
    assert_eq!(life.writes(0)[1], backing_off);
    let running = "setup:terminated=0(Completed)x1 proxy:running main:running";
    assert_eq!(life.writes(100), [format!("{RUNNING} {running}")]);
}

#[test]
fn a_pod_becomes_ready_when_its_script_says() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "ready after=1s", PACE);
    let unready = "Running +PodReadyToStartContainers +Initialized main:running";
    assert_eq!(life.writes(0), [unready]);
    assert_eq!(life.writes(1000), [format!("{RUNNING} main:running")]);
}

#[test]
fn an_unreadable_script_is_reported_and_the_pod_waits() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "explode", PACE);
    let complaint = r#"InvalidScript: annotation lab.epilogue.dev/run: unknown word "explode""#;
    let waiting = "Pending +Initialized main:waiting(InvalidScript)";
    assert_eq!(life.writes(0), [complaint, waiting]);
}

#[test]
fn the_end_that_another_client_wrote_is_taken_over() {
    let mut life = Life::new(main_pod(RestartPolicy::Never), "hang", PACE);
    life.writes(0);
    life.pod.ended = Some(TerminalPhase::Failed);
    life.machine.observe(&life.pod, at(10));
    assert_eq!(life.writes(10), [""; 0]);
    assert!(life.machine.reported());
}
