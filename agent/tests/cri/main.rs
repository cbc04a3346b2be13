//! Tests the agent's use of the container runtime: inspecting and stopping pods through a double
//! with real processes, with and without faults.

mod stuck;

use std::path::Path;
use std::time::{Duration, Instant};

use agent_core::pod::PodUid;
use agent_core::protocol::action::{PodRef, Reach};
use agent_core::protocol::event::{ActionResult, RuntimeContainer, RuntimeState};
use doubles::cri::{Call, ContainerFact, CriDouble, Fault, Script, Seen};
use epilogue_agent::cri::{Endpoint, Runtime, Sockets, Stop};
use epilogue_common::end_signal::Signal;
use epilogue_common::outcome::{Failure, FailureKind};
use futures::future::join_all;
use jiff::Timestamp;
use tempfile::TempDir;
use tonic::Code;

/// As in the first attempt of a shutdown.
const WITHIN: Duration = Duration::from_secs(2);

/// A node with a runtime.
struct Node {
    root: TempDir,
    cri: CriDouble,
    runtime: Runtime,
}

impl Node {
    fn start() -> Self {
        let root = tempfile::tempdir().expect("must be creatable");
        let cri = CriDouble::start(root.path());
        let runtime = runtime(root.path());
        Self { root, cri, runtime }
    }

    async fn inspect(&self, uid: &str) -> Result<RuntimeState, Failure> {
        state(self.runtime.inspect_pod(&pod(uid)).await)
    }

    async fn stop(
        &self,
        uid: &str,
        grace: u32,
        sidecars: &[&str],
    ) -> Result<RuntimeState, Failure> {
        let sidecars: Vec<String> = sidecars.iter().map(|&name| name.to_owned()).collect();
        let wanted = Stop {
            grace_seconds: grace,
            sidecars: &sidecars,
            reach: Reach::Pod,
            stop_timeout: WITHIN,
        };
        state(self.runtime.stop_pod(&pod(uid), wanted).await)
    }

    /// The calls that stop or remove something, as `Call target`.
    fn ends(&self) -> Vec<String> {
        let ends = [Call::StopContainer, Call::StopPodSandbox, Call::RemoveContainer];
        let seen = self.cri.seen().into_iter().filter(|seen| ends.contains(&seen.call));
        seen.map(|seen| format!("{:?} {}", seen.call, seen.target)).collect()
    }
}

fn runtime(root: &Path) -> Runtime {
    Runtime::new(Sockets::new(None, root))
}

fn pod(uid: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: format!("name-of-{uid}"), uid: PodUid(uid.into()) }
}

fn state(result: ActionResult) -> Result<RuntimeState, Failure> {
    match result {
        ActionResult::Runtime(state) => state,
        other => panic!("the runtime's state must come back, not {other:?}"),
    }
}

fn container<'a>(state: &'a RuntimeState, name: &str) -> &'a RuntimeContainer {
    let found = state.containers.iter().find(|container| container.name == name);
    found.unwrap_or_else(|| panic!("{name} must be among {:?}", state.containers))
}

fn exit_codes(state: &RuntimeState) -> Vec<(&str, Option<i32>)> {
    let codes = state.containers.iter();
    codes.map(|container| (container.name.as_str(), container.exit_code)).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_running_pod_is_seen_as_running() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    node.cri.pod("b").container("app", Script::Exits(3)).start().await;
    let state = node.inspect("a").await.expect("the runtime must answer");
    assert!(state.sandbox_ready && state.sandbox_known && !state.nothing_runs());
    assert_eq!(state.containers.len(), 1, "another pod's must not be among {state:?}");
    let app = container(&state, "app");
    assert_eq!((app.exited, app.exit_code, app.finished_at), (false, None, None));
}

#[tokio::test]
async fn a_container_that_ended_by_itself_keeps_its_exit() {
    let node = Node::start();
    let before = Timestamp::now();
    node.cri
        .pod("a")
        .container("init", Script::Exits(0))
        .container("app", Script::Exits(3))
        .start()
        .await;
    for state in [node.inspect("a").await, node.stop("a", 5, &[]).await] {
        let state = state.expect("the runtime must answer");
        let app = container(&state, "app");
        assert_eq!((app.exited, app.exit_code, app.reason.as_str()), (true, Some(3), "Error"));
        let finished = app.finished_at.expect("it must have ended");
        assert!(before < finished && finished <= Timestamp::now(), "{finished}");
        assert_eq!(container(&state, "init").reason, "Completed");
    }
    assert_eq!(node.ends(), ["StopPodSandbox a"], "what has ended must not be stopped");
}

#[tokio::test]
async fn only_the_newest_attempt_of_a_container_counts() {
    let node = Node::start();
    let pod = node.cri.pod("a");
    pod.container("app", Script::Exits(1)).container("app", Script::Exits(0)).start().await;
    let state = node.inspect("a").await.expect("the runtime must answer");
    assert_eq!(exit_codes(&state), [("app", Some(0))]);
}

#[tokio::test]
async fn regular_containers_stop_together_then_sidecars_then_the_sandbox() {
    let node = Node::start();
    node.cri
        .pod("a")
        .container("mesh", Script::Obedient)
        .container("logs", Script::Obedient)
        .container("web", Script::Slow(Duration::from_millis(400)))
        .container("db", Script::Slow(Duration::from_millis(400)))
        .start()
        .await;
    let begun = Instant::now();
    let state = node.stop("a", 10, &["mesh", "logs"]).await.expect("the runtime must answer");
    assert!(begun.elapsed() < seconds(3), "{:?}", begun.elapsed());
    assert!(state.nothing_runs() && state.sandbox_known);
    let codes = [("mesh", Some(143)), ("logs", Some(143)), ("web", Some(0)), ("db", Some(0))];
    assert_eq!(exit_codes(&state), codes);

    let mut ends = node.ends();
    ends[..2].sort();
    ends[2..4].sort();
    let expected = [
        "StopContainer db",
        "StopContainer web",
        "StopContainer logs",
        "StopContainer mesh",
        "StopPodSandbox a",
    ];
    assert_eq!(ends, expected);
    let finished = |name| container(&state, name).finished_at;
    assert!(finished("web") < finished("mesh") && finished("db") < finished("logs"), "{state:?}");
}

#[tokio::test]
async fn a_container_that_ignores_the_signal_is_killed_when_the_grace_is_over() {
    let node = Node::start();
    let pod = node.cri.pod("a");
    pod.container("stubborn", Script::Stubborn).container("app", Script::Clean).start().await;
    let begun = Instant::now();
    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    let took = begun.elapsed();
    assert!(seconds(1) <= took && took < seconds(3), "{took:?}");
    assert!(state.nothing_runs());
    assert_eq!(exit_codes(&state), [("stubborn", Some(137)), ("app", Some(0))]);
}

#[tokio::test]
async fn sidecars_get_what_is_left_of_the_grace_and_at_least_a_second() {
    let grace_of = |seen: Vec<Seen>, name: &str| {
        let stop =
            seen.into_iter().find(|seen| seen.call == Call::StopContainer && seen.target == name);
        stop.expect("it must be stopped").timeout
    };
    let node = Node::start();
    let app = Script::Slow(Duration::from_millis(1_100));
    node.cri.pod("a").container("mesh", Script::Clean).container("app", app).start().await;
    node.stop("a", 10, &["mesh"]).await.expect("the runtime must answer");
    assert_eq!(grace_of(node.cri.seen(), "app"), Some(10));
    assert_eq!(grace_of(node.cri.seen(), "mesh"), Some(8));

    let node = Node::start();
    let pod = node.cri.pod("b");
    pod.container("mesh", Script::Clean).container("app", Script::Stubborn).start().await;
    let state = node.stop("b", 1, &["mesh"]).await.expect("the runtime must answer");
    assert_eq!(grace_of(node.cri.seen(), "mesh"), Some(1));
    assert_eq!(exit_codes(&state), [("mesh", Some(0)), ("app", Some(137))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_stops_in_the_time_of_its_slowest_pod() {
    let node = Node::start();
    let pods: Vec<String> = (0..110).map(|number| format!("pod-{number}")).collect();
    for (number, uid) in pods.iter().enumerate() {
        let script = match number % 10 {
            0 => Script::Stubborn,
            1 => Script::Exits(7),
            2 => Script::Clean,
            _ => Script::Obedient,
        };
        node.cri.pod(uid).container("app", script).start().await;
    }
    let begun = Instant::now();
    let states = join_all(pods.iter().map(|uid| node.inspect(uid))).await;
    println!("110 pods inspected at once in {:?}", begun.elapsed());
    assert!(begun.elapsed() < seconds(2), "{:?}", begun.elapsed());
    let alive = states.iter().filter(|state| {
        state.as_ref().is_ok_and(|state| state.sandbox_ready && !state.nothing_runs())
    });
    assert_eq!(alive.count(), 110);

    let begun = Instant::now();
    let states = join_all(pods.iter().map(|uid| node.stop(uid, 2, &[]))).await;
    let took = begun.elapsed();
    println!("110 pods stopped at once in {took:?}, of which 11 took their grace of 2s");
    assert!(seconds(2) <= took && took < seconds(6), "{took:?}");
    for (number, state) in states.into_iter().enumerate() {
        let state = state.expect("the runtime must answer");
        assert!(state.nothing_runs(), "{number}: {state:?}");
        let code = [137, 7, 0, 143, 143, 143, 143, 143, 143, 143][number % 10];
        assert_eq!(exit_codes(&state), [("app", Some(code))], "{number}");
    }
    assert_eq!(node.cri.running(), 0);
}

#[tokio::test]
async fn a_runtime_that_hangs_is_not_waited_for() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    node.cri.fault(Call::Any, "", Fault::Hang);
    let begun = Instant::now();
    let (inspected, stopped) = tokio::join!(node.inspect("a"), node.stop("a", 30, &[]));
    assert!(begun.elapsed() < seconds(4), "{:?}", begun.elapsed());
    for result in [inspected, stopped] {
        let failure = result.expect_err("nothing must be known");
        assert_eq!(failure.kind, FailureKind::Unknown);
        assert!(failure.message.contains("did not answer ListContainers"), "{failure}");
    }
    assert_eq!(node.cri.running(), 1);

    node.cri.mend();
    assert!(node.inspect("a").await.is_ok());
}

#[tokio::test]
async fn a_hundred_calls_that_hang_hold_up_no_other_for_longer_than_themselves() {
    let node = Node::start();
    node.cri.fault(Call::Any, "stuck", Fault::Hang);
    node.cri.pod("well").container("app", Script::Obedient).start().await;
    let begun = Instant::now();
    let stuck = join_all((0..100).map(|_| node.inspect("stuck")));
    let (stuck, ()) = tokio::join!(stuck, async {
        let mut tries = 0;
        while node.inspect("well").await.is_err() {
            tries += 1;
            assert!(tries < 3, "it must be answered when the first ones are given up");
        }
    });
    assert!(stuck.iter().all(Result::is_err));
    assert!(begun.elapsed() < seconds(5), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn stops_that_hang_hold_up_no_other_pod() {
    let node = Node::start();
    for uid in ["stuck", "well"] {
        node.cri.pod(uid).container("app", Script::Obedient).start().await;
    }
    node.cri.fault(Call::StopContainer, "stuck", Fault::Hang);
    let begun = Instant::now();
    let stuck = async { (node.stop("stuck", 1, &[]).await, begun.elapsed()) };
    let well = async { (node.stop("well", 1, &[]).await, begun.elapsed()) };
    let (stuck, well) = tokio::join!(stuck, well);
    let state = well.0.expect("the runtime must answer");
    assert!(state.nothing_runs() && well.1 < seconds(2), "{:?}", well.1);
    // The answer is what remains, not what the agent asked for.
    let state = stuck.0.expect("the runtime must answer");
    assert!(!state.nothing_runs() && state.sandbox_ready);
    assert!(stuck.1 < seconds(1) + seconds(7), "{:?}", stuck.1);
}

#[tokio::test]
async fn one_container_that_cannot_be_stopped_does_not_keep_others_running() {
    let node = Node::start();
    node.cri
        .pod("a")
        .container("mesh", Script::Obedient)
        .container("stuck", Script::Stubborn)
        .container("app", Script::Obedient)
        .start()
        .await;
    node.cri.fault(Call::StopContainer, "stuck", Fault::Hang);
    node.cri.fault(Call::StopPodSandbox, "", Fault::Hang);
    let begun = Instant::now();
    let state = node.stop("a", 1, &["mesh"]).await.expect("the runtime must answer");
    assert!(begun.elapsed() < seconds(8), "{:?}", begun.elapsed());
    let codes = [("mesh", Some(143)), ("stuck", None), ("app", Some(143))];
    assert_eq!(exit_codes(&state), codes);
    assert!(!state.nothing_runs());
}

#[tokio::test]
async fn an_absent_runtime_is_named_with_its_remedy_and_found_when_it_comes() {
    let root = tempfile::tempdir().expect("must be creatable");
    let runtime = runtime(root.path());
    let failure = state(runtime.inspect_pod(&pod("a")).await).expect_err("there is none");
    assert_eq!(failure.kind, FailureKind::Other);
    for words in ["no container runtime's socket", "containerd.sock", "crio.sock", "k3s"] {
        assert!(failure.message.contains(words), "{words:?} must be in {failure}");
    }
    assert!(failure.message.contains("--runtime-endpoint unix:///path"), "{failure}");

    let _cri = CriDouble::start(root.path());
    let state = state(runtime.inspect_pod(&pod("a")).await).expect("it is there");
    assert_eq!(state, RuntimeState::default());
}

#[tokio::test]
async fn a_runtime_that_restarts_is_met_again_and_its_containers_run_on() {
    let mut node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    assert!(node.inspect("a").await.is_ok());
    node.cri.crash();
    let failure = node.inspect("a").await.expect_err("it is down");
    assert!(failure.message.contains("no container runtime's socket"), "{failure}");
    node.cri.listen();
    let mut tries = 0;
    let state = loop {
        match node.inspect("a").await {
            Ok(state) => break state,
            Err(failure) => {
                tries += 1;
                assert!(tries < 3, "{failure}");
            }
        }
    };
    assert!(!state.nothing_runs());
    assert_eq!(node.cri.containers("a")[0].exit, None);
}

#[tokio::test]
async fn a_refused_connection_is_reported_in_the_systems_words() {
    let root = tempfile::tempdir().expect("must be creatable");
    let socket = root.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("must be bindable"));
    let endpoint: Endpoint = format!("unix://{}", socket.display()).parse().expect("is one");
    let runtime = Runtime::new(Sockets::new(Some(endpoint), root.path()));
    let failure = state(runtime.inspect_pod(&pod("a")).await).expect_err("no listener");
    assert_eq!(failure.kind, FailureKind::Unknown);
    assert!(failure.message.contains("Connection refused"), "{failure}");
}

#[tokio::test]
async fn an_error_is_one_attempt_and_the_next_works() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Exits(0)).start().await;
    for (call, code, kind) in [
        (Call::ListContainers, Code::Unavailable, FailureKind::Unknown),
        (Call::ListPodSandbox, Code::Internal, FailureKind::ServerError),
        (Call::ContainerStatus, Code::PermissionDenied, FailureKind::Forbidden),
    ] {
        node.cri.fault(call, "", Fault::RefuseOnce(code));
        let failure = node.inspect("a").await.expect_err("it must be reported");
        assert_eq!(failure.kind, kind, "{failure}");
        assert!(failure.message.contains("the double injects it"), "{failure}");
        assert!(node.inspect("a").await.is_ok());
    }
}

#[tokio::test]
async fn a_container_that_vanishes_is_stopped() {
    let node = Node::start();
    let pod = node.cri.pod("a");
    pod.container("app", Script::Exits(1)).container("gone", Script::Obedient).start().await;
    node.cri.fault(Call::ContainerStatus, "app", Fault::Refuse(Code::NotFound));
    let state = node.inspect("a").await.expect("the runtime must answer");
    let app = container(&state, "app");
    assert_eq!((app.exited, app.exit_code), (true, None), "it had been seen to have exited");

    node.cri.fault(Call::StopContainer, "gone", Fault::Refuse(Code::NotFound));
    node.cri.remove("a", "gone");
    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    assert!(state.nothing_runs());
}

#[tokio::test]
async fn a_container_removed_while_it_is_stopped_is_stopped() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Stubborn).start().await;
    let removal = async {
        while !node.cri.seen().iter().any(|seen| seen.call == Call::StopContainer) {
            tokio::task::yield_now().await;
        }
        node.cri.remove("a", "app");
    };
    let (state, ()) = tokio::join!(node.stop("a", 20, &[]), removal);
    let state = state.expect("the runtime must answer");
    assert!(state.nothing_runs() && state.containers.is_empty() && state.sandbox_known);
}

#[tokio::test]
async fn a_pod_without_containers_runs_while_its_sandbox_is_ready() {
    let node = Node::start();
    node.cri.pod("a").start().await;
    let state = node.inspect("a").await.expect("the runtime must answer");
    assert!(!state.nothing_runs() && state.containers.is_empty());
    let state = node.stop("a", 5, &[]).await.expect("the runtime must answer");
    assert!(state.nothing_runs() && state.sandbox_known);

    let state = node.inspect("never-seen").await.expect("the runtime must answer");
    assert_eq!(state, RuntimeState::default());
    assert!(!state.sandbox_known);
}

#[tokio::test]
async fn a_container_that_was_never_started_is_no_proof_until_it_is_removed() {
    let node = Node::start();
    let pod = node.cri.pod("a").container("init", Script::Exits(0));
    pod.container("app", Script::NeverStarted).start().await;
    let state = node.inspect("a").await.expect("the runtime must answer");
    assert!(!container(&state, "app").exited && !state.nothing_runs());

    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    assert!(state.nothing_runs());
    assert_eq!(exit_codes(&state), [("init", Some(0))], "what has an exit must not be removed");
    assert_eq!(
        node.ends(),
        ["StopContainer app", "StopPodSandbox a", "RemoveContainer app"],
        "it must be removed when it can't be started any more"
    );
}

/// As after a boot, when power went between its creation and its start.
#[tokio::test]
async fn a_container_that_was_only_created_in_a_lost_sandbox_does_not_run() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::NeverStarted).start().await;
    node.cri.fault(Call::RemoveContainer, "", Fault::Refuse(Code::Internal));
    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    assert!(container(&state, "app").exited && state.nothing_runs(), "{state:?}");
    assert_eq!(exit_codes(&state), [("app", None)]);
}

#[tokio::test]
async fn a_sandbox_whose_network_cannot_be_taken_down_is_down() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    node.cri.fault(Call::StopPodSandbox, "", Fault::RefuseAfter(Code::Unknown));
    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    assert!(state.nothing_runs());
}

#[tokio::test]
async fn a_sandbox_that_stays_up_is_reported() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    node.cri.fault(Call::StopPodSandbox, "", Fault::Refuse(Code::Internal));
    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    assert!(state.sandbox_ready && !state.nothing_runs());
    assert_eq!(exit_codes(&state), [("app", Some(143))]);
}

#[tokio::test]
async fn a_stop_of_the_containers_leaves_the_sandbox_to_the_kubelet() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    let reach = Reach::Containers;
    let wanted = Stop { grace_seconds: 1, sidecars: &[], reach, stop_timeout: WITHIN };
    let stopped = node.runtime.stop_pod(&pod("a"), wanted).await;
    let state = state(stopped).expect("the runtime must answer");
    assert!(state.sandbox_ready && state.containers_ended() && !state.nothing_runs());
    assert_eq!(exit_codes(&state), [("app", Some(143))]);
}

#[tokio::test]
async fn no_other_pod_is_touched_even_if_the_runtime_ignores_the_filter() {
    let node = Node::start();
    for uid in ["a", "b", ""] {
        node.cri.pod(uid).container("app", Script::Obedient).start().await;
    }
    node.cri.fault(Call::Any, "a", Fault::IgnoreFilter);
    let state = node.stop("a", 1, &[]).await.expect("the runtime must answer");
    assert!(state.nothing_runs());
    assert_eq!(state.containers.len(), 1);
    let alive = |fact: &ContainerFact| fact.exit.is_none();
    assert!(node.cri.containers("b").iter().all(alive));
    assert_eq!(node.ends(), ["StopContainer app", "StopPodSandbox a"]);
}

#[tokio::test]
async fn between_two_runtimes_the_agent_does_not_guess() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    let other = CriDouble::start_at(&node.root.path().join("run/crio/crio.sock"));
    let failure = node.inspect("a").await.expect_err("it must not be guessed");
    assert!(failure.message.contains("more than one container runtime"), "{failure}");
    assert!(failure.message.contains("--runtime-endpoint"), "{failure}");

    // A containerd that only serves Docker does not speak CRI.
    other.fault(Call::Version, "", Fault::Refuse(Code::Unimplemented));
    assert!(!node.inspect("a").await.expect("only one is left").nothing_runs());

    let endpoint: Endpoint = format!("unix://{}", other.socket.display()).parse().expect("is one");
    let named = Runtime::new(Sockets::new(Some(endpoint), node.root.path()));
    let found = state(named.inspect_pod(&pod("a")).await).expect("it must be asked");
    assert_eq!(found, RuntimeState::default());
}

#[tokio::test]
async fn the_runtime_is_the_one_that_the_kubelet_names() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Obedient).start().await;
    assert!(!node.inspect("a").await.expect("the only one").nothing_runs());
    // A second runtime comes later in the boot: the first is no longer the only one.
    let other = CriDouble::start_at(&node.root.path().join("run/crio/crio.sock"));
    let failure = node.inspect("a").await.expect_err("it must not be guessed");
    assert!(failure.message.contains("more than one container runtime"), "{failure}");

    node.runtime.kubelet_names("unix:///var/run/crio/crio.sock");
    let found = node.inspect("a").await.expect("the kubelet's must be asked");
    assert_eq!(found, RuntimeState::default());
    node.runtime.kubelet_names("unix:///run/containerd/containerd.sock");
    assert!(!node.inspect("a").await.expect("the kubelet's must be asked").nothing_runs());
    drop(other);

    // No other stands in for the kubelet's: it would say that nothing runs.
    node.runtime.kubelet_names("unix:///run/crio/another.sock");
    let failure = node.inspect("a").await.expect_err("it is not there");
    assert!(failure.message.contains("containerRuntimeEndpoint"), "{failure}");
    assert!(failure.message.contains("--runtime-endpoint"), "{failure}");
}

#[tokio::test]
async fn a_stop_that_is_asked_for_twice_with_less_grace_ends_sooner() {
    let node = Node::start();
    node.cri.pod("a").container("app", Script::Stubborn).start().await;
    let begun = Instant::now();
    let (long, short) = tokio::join!(node.stop("a", 30, &[]), node.stop("a", 1, &[]));
    assert!(begun.elapsed() < seconds(4), "{:?}", begun.elapsed());
    for state in [long, short] {
        let state = state.expect("the runtime must answer");
        assert_eq!(exit_codes(&state), [("app", Some(137))]);
    }
}

/// The double has CRI alone, as CRI-O has; the real node has containerd.
#[tokio::test]
async fn runtime_that_sends_no_signals_says_so_and_is_not_asked_again() {
    let node = Node::start();
    let sent = node.runtime.signal_container("c1", Signal::Usr1).await;
    let ActionResult::Done(Err(failure)) = sent else { panic!("{sent:?}") };
    assert_eq!(failure.kind, FailureKind::Other, "which the core does not try again");
    assert!(failure.to_string().contains("containerd does"), "{failure}");
}
