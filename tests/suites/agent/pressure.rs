//! Tests node pressure on the real API: what the agent writes about a victim, and in which order.

use std::collections::BTreeMap;
use std::time::Duration;

use doubles::cri::{Call, CriDouble, Fault, Layer, Script};
use doubles::http;
use k8s_openapi::api::core::v1::Pod;
use lab::agent::{Setup, Site, State};
use lab::eventually;
use serde_json::{Value, json};
use tonic::Code;

use super::cluster;
use super::configz::Port;
use super::tree::{Driver, MIB, Tree, overwrite, stat};

/// Enough for quick steps on a busy machine.
const SOON: Duration = Duration::from_mins(1);

const MARK: &str = "DisruptionTarget";
const OF_KUBELET: &str = "TerminationByKubelet";
/// 4000 MiB exist, 3900 are used; the victim's container uses 720 and 1 of swap.
const MESSAGE: &str = "The node was low on resource: memory. Threshold quantity: 500Mi, available: \
     100Mi. Container main was using 721Mi, request is 64Mi, has larger consumption of memory. ";

/// A node with a live kubelet and the host's files, and its container runtime.
struct Stage {
    site: Site,
    cri: CriDouble,
    host: Tree,
}

impl Stage {
    /// Starts with the threshold that most tests cross.
    async fn start(arguments: &[&str]) -> Self {
        Self::with("memory.available<500Mi", arguments).await
    }

    async fn with(threshold: &str, arguments: &[&str]) -> Self {
        let threshold = format!("--eviction-hard={threshold}");
        let given = arguments.iter().map(|&argument| argument.to_owned());
        let arguments = std::iter::once(threshold).chain(given).collect();
        let setup = Setup { pods: 0, runtime: true, arguments, ..Setup::default() };
        let site = Site::start(&cluster(), setup).await;
        let cri = CriDouble::start(site.root());
        let host = Tree::at(site.root(), Driver::Cgroupfs);
        Self { site, cri, host }
    }

    /// Creates a running pod that uses this much memory; returns its UID.
    async fn pod(&self, name: &str, bytes: u64, script: Script, change: &Value) -> String {
        let uid = self.site.create(name, "on-term=143", change).await;
        self.site.until_phase(name, "Running").await;
        self.cri.pod(&uid).container("main", script).start().await;
        self.host.pod(&uid, bytes);
        let id = self.cri.id(&uid, "main");
        self.host.usage(&self.host.of_container(&uid, &id), bytes);
        uid
    }

    /// Sets the used memory of the node, in addition to 200 MiB of files.
    fn used(&self, mebibytes: u64) {
        let text = stat(mebibytes * MIB, 500 * MIB, 300 * MIB);
        overwrite(&self.host.path("sys/fs/cgroup/memory.stat"), &text);
    }

    /// The states of a pod in the API since it ran.
    async fn states(&self, name: &str) -> Vec<State> {
        let states = self.site.record.states(name).await;
        let begun = states.iter().position(|state| state.phase == "Running");
        states[begun.expect("must have run")..].to_vec()
    }

    async fn stop(self) {
        self.site.stop().await;
    }
}

fn requests() -> Value {
    let container = json!({"name": "main", "image": "none",
        "resources": {"requests": {"memory": "64Mi"}}});
    json!({"spec": {"containers": [container]}})
}

fn is_marked(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    { conditions }.any(|condition| condition.type_ == MARK && condition.status == "True")
}

fn state(phase: &str, reason: Option<&str>, marked: bool, deleting: bool) -> State {
    let mark = marked.then(|| (MARK.to_owned(), OF_KUBELET.to_owned()));
    State {
        phase: phase.to_owned(),
        reason: reason.map(ToOwned::to_owned),
        conditions: mark.into_iter().collect(),
        deleting,
    }
}

/// The store's own order of writes.
fn version(text: Option<&String>) -> u64 {
    text.and_then(|text| text.parse().ok()).expect("must be a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_that_cannot_run_again_is_marked_reported_stopped_and_failed_in_this_order() {
    // DisruptionTarget, event, stop, Failed. ([EV13], [EV15], [AP1])
    let stage = Stage::start(&["--pressure=enforce"]).await;
    let site = &stage.site;
    // It ignores SIGTERM: a second passes between its mark and its end.
    let hog = stage.pod("hog", 900 * MIB, Script::Stubborn, &requests()).await;
    let small = stage.pod("small", 20 * MIB, Script::Obedient, &requests()).await;
    stage.used(3_700);
    site.until_pod("hog", "marked", is_marked).await;
    stage.used(1_000);
    let ended = site.until_phase("hog", "Failed").await;
    let states =
        [("Running", None, false), ("Running", None, true), ("Failed", Some("Evicted"), true)];
    let states = states.map(|(phase, reason, marked)| state(phase, reason, marked, false));
    assert_eq!(stage.states("hog").await, states);
    // The object stays, and says what the kubelet would have said.
    let status = ended.status.clone().unwrap_or_default();
    assert_eq!(status.message.as_deref(), Some(MESSAGE));
    let conditions: BTreeMap<_, _> = status
        .conditions
        .into_iter()
        .flatten()
        .map(|it| (it.type_, (it.status, it.reason, it.message)))
        .collect();
    let said = |text: &str| Some(text.to_owned());
    let mark = ("True".to_owned(), said(OF_KUBELET), said(MESSAGE));
    assert_eq!(conditions[MARK], mark);
    assert_eq!(conditions["Ready"].0, "False");
    assert!(ended.metadata.deletion_timestamp.is_none());
    assert!(
        ended
            .metadata
            .annotations
            .is_some_and(|all| all.contains_key("epilogue.dev/terminated-at"))
    );
    let events = site.events("hog", "Evicted").await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].message.as_deref(), Some(MESSAGE));
    let annotations = events[0].metadata.annotations.clone().unwrap_or_default();
    let starved = [
        ("starved_resource", "memory"),
        ("offending_containers", "main"),
        ("offending_containers_usage", "721Mi"),
    ];
    for (key, value) in starved {
        assert_eq!(annotations.get(key).map(String::as_str), Some(value), "{annotations:?}");
    }
    let event_of = version(events[0].metadata.resource_version.as_ref());
    assert!(event_of < version(ended.metadata.resource_version.as_ref()));
    let stops: Vec<_> =
        stage.cri.seen().into_iter().filter(|seen| seen.call == Call::StopContainer).collect();
    assert!(!stops.is_empty() && stops.iter().all(|stop| stop.uid == hog), "{stops:?}");
    // No other pod.
    site.until_metric("evictions_total{result=\"done\",signal=\"memory.available\"}", 1.0).await;
    assert_eq!(stage.states("small").await, [state("Running", None, false, false)]);
    assert!(stage.cri.containers(&small).iter().all(|container| container.exit.is_none()));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_node_without_tasks_the_pod_with_most_of_them_ends() {
    let stage = Stage::with("pid.available<1200", &["--pressure=enforce"]).await;
    let site = &stage.site;
    let tasks = |number: u32| {
        let text = format!("0.10 0.20 0.30 2/{number:05} 6789\n");
        stage.host.write("proc/loadavg", &text);
    };
    let small = stage.pod("small", 900 * MIB, Script::Obedient, &requests()).await;
    let bomb = stage.pod("bomb", 20 * MIB, Script::Obedient, &requests()).await;
    let counted = stage.host.of_pod(&bomb);
    stage.host.write_in(&counted, "pids.current", "900\n");
    // Of the 32768 that the kernel allows.
    tasks(31_900);
    site.until_pod("bomb", "marked", is_marked).await;
    tasks(345);
    let ended = site.until_phase("bomb", "Failed").await;
    let states =
        [("Running", None, false), ("Running", None, true), ("Failed", Some("Evicted"), true)];
    let states = states.map(|(phase, reason, marked)| state(phase, reason, marked, false));
    assert_eq!(stage.states("bomb").await, states);
    let message = "The node was low on resource: pids. Threshold quantity: 1200, available: 868. ";
    assert_eq!(ended.status.and_then(|status| status.message).as_deref(), Some(message));
    site.until_metric("evictions_total{result=\"done\",signal=\"pid.available\"}", 1.0).await;
    assert_eq!(stage.states("small").await, [state("Running", None, false, false)]);
    assert!(stage.cri.containers(&small).iter().all(|container| container.exit.is_none()));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_node_without_disk_the_pod_with_most_in_its_layers_ends_once_that_is_known() {
    // No disk has that much, so the shortage exists before the pods. ([EV9])
    let stage = Stage::with("nodefs.available<1000Ti", &["--pressure=enforce"]).await;
    let (site, cri) = (&stage.site, &stage.cri);
    cri.fault(Call::ListContainerStats, "", Fault::Refuse(Code::Unavailable));
    let small = stage.pod("small", 900 * MIB, Script::Obedient, &requests()).await;
    let writer = stage.pod("writer", 20 * MIB, Script::Obedient, &requests()).await;
    // Each would free more than a hundredth of what is missing.
    for (uid, bytes) in [(&small, 20 << 40), (&writer, 50 << 40)] {
        cri.set_layer(uid, "main", Layer { bytes: Some(bytes), ..Layer::default() });
    }
    // The message does not name a container whose logs are unknown. ([EV13])
    stage.host.write(&format!("var/log/pods/n_p_{writer}/main/0.log"), "a line\n");
    let asked = || cri.seen().iter().filter(|seen| seen.call == Call::ListContainerStats).count();
    let before = asked();
    eventually("layers are asked for again", SOON, async || asked(), |now| *now > before + 1).await;
    for name in ["small", "writer"] {
        assert_eq!(stage.states(name).await, [state("Running", None, false, false)]);
    }
    cri.mend();
    let ended = site.until_phase("writer", "Failed").await;
    let states =
        [("Running", None, false), ("Running", None, true), ("Failed", Some("Evicted"), true)];
    let states = states.map(|(phase, reason, marked)| state(phase, reason, marked, false));
    assert_eq!(stage.states("writer").await, states);
    assert_eq!(stage.states("small").await, [state("Running", None, false, false)]);
    let message = ended.status.and_then(|status| status.message).unwrap_or_default();
    let (begin, end) = (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1000Ti, available: ",
        "Ki, request is 0, has larger consumption of ephemeral-storage. ",
    );
    assert!(message.starts_with(begin) && message.ends_with(end), "{message}");
    // 50 TiB and the size of its logs.
    assert!(message.contains("Container main was using 536870912"), "{message}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_that_can_run_again_is_marked_and_then_deleted() {
    // DisruptionTarget first, then DELETE. ([API18])
    let stage = Stage::start(&["--pressure=enforce"]).await;
    let site = &stage.site;
    let mut change = requests();
    change["spec"]["restartPolicy"] = "OnFailure".into();
    let hog = stage.pod("hog", 900 * MIB, Script::Obedient, &change).await;
    stage.used(3_700);
    site.until_phase("hog", "Failed").await;
    stage.used(1_000);
    let states = stage.states("hog").await;
    let expected = [
        state("Running", None, false, false),
        state("Running", None, true, false),
        state("Running", None, true, true),
        state("Failed", None, true, true),
    ];
    assert_eq!(states, expected);
    assert_eq!(site.event_of("hog", "Evicted").await.message.as_deref(), Some(MESSAGE));
    // Its kubelet terminates it, not the agent.
    assert!(
        stage.cri.seen().iter().all(|seen| seen.uid != hog || seen.call != Call::StopContainer)
    );
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_over_a_limit_of_its_own_is_evicted_without_being_disrupted() {
    // A limit that the user set is not a disruption. ([EV26])
    let config = json!({"kubeletconfig": {"localStorageCapacityIsolation": false}}).to_string();
    let port = Port::with_tls(&http::answer("200 OK", &config)).await;
    let address = format!("--kubelet-address={}", port.address);
    let stage = Stage::start(&["--pressure=enforce", "--stuck-after=1s", &address]).await;
    let site = &stage.site;
    let mut change = requests();
    change["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let uid = stage.pod("writer", 20 * MIB, Script::Obedient, &change).await;
    let volume = format!("var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/scratch");
    stage.host.write(&format!("{volume}/data"), &"x".repeat(2 << 20));
    // From now on its kubelet says that it does not enforce limits.
    let line = format!(
        "  sl  local_address rem_address st ...\n   0: 0100007F:{:04X} 00000000:0000 0A \
         00000000:00000000 00:00000000 00000000 0 0 1 1\n",
        port.address.port()
    );
    stage.host.write("var/lib/kubelet/pki/kubelet.crt", &port.certificate);
    stage.host.write("proc/net/tcp", &line);
    let ended = site.until_phase("writer", "Failed").await;
    let expected =
        [state("Running", None, false, false), state("Failed", Some("Evicted"), false, false)];
    assert_eq!(stage.states("writer").await, expected);
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ";
    assert_eq!(ended.status.and_then(|status| status.message).as_deref(), Some(message));
    assert_eq!(site.event_of("writer", "Evicted").await.message.as_deref(), Some(message));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_only_observes_pressure_reports_which_pod_it_would_evict() {
    let stage = Stage::start(&["--pressure=observe"]).await;
    let site = &stage.site;
    let hog = stage.pod("hog", 900 * MIB, Script::Obedient, &requests()).await;
    stage.pod("small", 20 * MIB, Script::Obedient, &requests()).await;
    stage.used(3_700);
    let event_of = site.event_of("hog", "WouldEvict").await.message.unwrap_or_default();
    assert_eq!(event_of, format!("It would be evicted: {MESSAGE}"));
    let observed = "evictions_total{result=\"observed\",signal=\"memory.available\"}";
    site.until_metric(observed, 1.0).await;
    for name in ["hog", "small"] {
        assert_eq!(stage.states(name).await, [state("Running", None, false, false)]);
        assert!(site.events(name, "Evicted").await.is_empty());
    }
    assert!(stage.cri.containers(&hog).iter().all(|container| container.exit.is_none()));
    assert_eq!(stage.cri.running(), 2);
    stage.stop().await;
}
