//! Tests the laboratory's own promises: a real API with real identities, labs side by side, and
//! nothing that outlives a lab.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{self, ConfigMap, Node, Pod, ServiceAccount};
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::kubernetes::Version;
use lab::paths::LabDir;
use lab::process::{ProcessRecord, Program};
use lab::run_dir::{self, Phase, State};
use lab::{Cluster, ControlPlane, Namespace, Options, Process, eventually};
use serde_json::json;

/// Enough for what takes a second or two on a quiet machine.
const SOON: Duration = Duration::from_mins(1);

fn cluster() -> Cluster {
    Cluster::of_tests("control_plane").unwrap_or_else(|error| panic!("{error}"))
}

fn is_forbidden<T>(answer: &Result<T, kube::Error>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

#[tokio::test]
async fn version_is_that_of_the_release() {
    let client = cluster().admin_client().await.expect("client");
    let version = client.apiserver_version().await.expect("version");
    let expected = Version::of_tests();
    assert_eq!(version.git_version, format!("v{expected}"));
    assert_eq!(format!("{}.{}", version.major, version.minor), expected.minor());
}

#[tokio::test]
async fn service_account_without_rights_is_denied() {
    let cluster = cluster();
    let namespace = Namespace::create(&cluster).await.expect("namespace");
    let client = cluster.service_account_client(namespace.name(), "default").await.expect("client");
    let pods: Api<Pod> = Api::namespaced(client, namespace.name());
    let answer = pods.list(&ListParams::default()).await;
    assert!(is_forbidden(&answer), "{answer:?}");
    namespace.finish().await.expect("finish");
}

#[tokio::test]
async fn token_of_a_service_account_authenticates_as_it() {
    let cluster = cluster();
    let namespace = Namespace::create(&cluster).await.expect("namespace");
    let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
    let path = dir.path().join("kubeconfig");
    cluster
        .write_service_account_kubeconfig(namespace.name(), "default", &path)
        .await
        .expect("kubeconfig");
    let client = Cluster::new(path, None).admin_client().await.expect("client");
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .expect("review");
    let user = review.status.and_then(|status| status.user_info).expect("a user").username;
    assert_eq!(user, Some(format!("system:serviceaccount:{}:default", namespace.name())));
    namespace.finish().await.expect("finish");
}

#[tokio::test]
async fn kubelet_may_write_its_own_node_and_no_other() {
    let cluster = cluster();
    let ours = format!("n-{:08x}", rand::random::<u32>());
    let client = cluster.node_client(&ours).await.expect("client");
    let nodes: Api<Node> = Api::all(client);
    let node = |name: &str| Node {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Node::default()
    };
    nodes.create(&PostParams::default(), &node(&ours)).await.expect("its own node");
    let other = nodes.create(&PostParams::default(), &node("another")).await;
    assert!(is_forbidden(&other), "{other:?}");
    let admin: Api<Node> = Api::all(cluster.admin_client().await.expect("client"));
    admin.delete(&ours, &kube::api::DeleteParams::default()).await.expect("delete");
}

#[tokio::test]
async fn pod_is_admitted_with_the_account_and_token_that_a_real_cluster_gives() {
    let cluster = cluster();
    let namespace = Namespace::create(&cluster).await.expect("namespace");
    let client = cluster.admin_client().await.expect("client");
    let pods: Api<Pod> = Api::namespaced(client, namespace.name());
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }));
    let pod = pods.create(&PostParams::default(), &pod.expect("a pod")).await.expect("create");
    let spec = pod.spec.expect("a spec");
    assert_eq!(spec.service_account_name.as_deref(), Some("default"));
    assert!(spec.volumes.is_some_and(|volumes| volumes[0].projected.is_some()));
    namespace.finish().await.expect("finish");
}

#[tokio::test]
async fn namespace_of_a_test_goes_when_it_is_dropped() {
    let cluster = cluster();
    let namespace = Namespace::create(&cluster).await.expect("namespace");
    let name = namespace.name().to_owned();
    drop(namespace);
    let namespaces: Api<v1::Namespace> = Api::all(cluster.admin_client().await.expect("client"));
    eventually(
        "the namespace is gone",
        SOON,
        async || namespaces.get_opt(&name).await.expect("get"),
        Option::is_none,
    )
    .await;
}

#[tokio::test]
async fn two_labs_run_alongside_each_other_and_share_nothing() {
    let options = Options::unique("second").controller_manager(QUIET_CONTROLLERS).scheduler();
    let second = ControlPlane::start(options).await.expect("start");
    let processes: Vec<ProcessRecord> = second.processes().cloned().collect();
    assert_eq!(processes.len(), 4);

    let client = second.admin_client().await.expect("client");
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "kube-public");
    eventually(
        "the service account controller works",
        SOON,
        async || accounts.get_opt("default").await.expect("get"),
        Option::is_some,
    )
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let mark = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mark"}});
    maps.patch("mark", &PatchParams::apply("test"), &Patch::Apply(mark)).await.expect("apply");
    let first = cluster().admin_client().await.expect("client");
    let seen = Api::<ConfigMap>::namespaced(first, "default").get_opt("mark").await.expect("get");
    assert_eq!(seen, None);

    let dir = second.dir().to_owned();
    second.stop().await.expect("stop");
    assert!(!processes.iter().any(ProcessRecord::is_alive), "{processes:?}");
    assert!(!dir.join("etcd").exists());
    assert_eq!(State::read(&dir).map(|state| state.phase), Some(Phase::Stopped));
}

#[tokio::test]
async fn children_end_when_their_lab_is_killed() {
    let (mut supervisor, state, _) = lab_up("killed").await;
    supervisor.kill().expect("kill");
    supervisor.wait().expect("wait");
    eventually(
        "no child is alive",
        SOON,
        async || state.processes.iter().filter(|process| process.is_alive()).collect::<Vec<_>>(),
        Vec::is_empty,
    )
    .await;
}

#[tokio::test]
async fn lab_down_leaves_no_process_and_its_name_is_free_again() {
    let (mut supervisor, state, name) = lab_up("down").await;
    let taken = lab(&["up", "--name", &name]);
    let message = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && message.contains("cargo lab down --name"), "{message}");

    let waiter = std::thread::spawn(move || supervisor.wait());
    let down = lab(&["down", "--name", &name]);
    assert!(down.status.success(), "{down:?}");
    let ended = waiter.join().expect("the waiter must not panic").expect("wait");
    assert!(ended.success(), "{ended}");
    assert!(!state.processes.iter().any(ProcessRecord::is_alive), "{state:?}");
    assert!(!run_dir::is_held(&LabDir::of_workspace().runs().join(&name)));
}

#[tokio::test]
async fn program_of_ours_ends_with_the_thread_that_started_it() {
    let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
    let log = dir.path().join("log");
    let starter = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime must be buildable");
        runtime.block_on(async {
            let sleep = Program::new("sleep", Path::new("sleep"), ["1000"], &log);
            let process = Process::spawn_program(&sleep).expect("spawn");
            let record = process.record().clone();
            // Before that the process is still setpriv.
            let name = format!("/proc/{}/comm", record.pid);
            let observe = async || std::fs::read_to_string(&name).unwrap_or_default();
            eventually("it runs", SOON, observe, |name| name == "sleep\n").await;
            // As after a SIGKILL: no code of ours runs that could end it.
            std::mem::forget(process);
            record
        })
    });
    let record = starter.join().expect("the starter must not panic");
    eventually("it is gone", SOON, async || record.is_alive(), |alive| !alive).await;
}

/// Starts `lab up` as a process of its own, and waits until it is ready.
async fn lab_up(prefix: &str) -> (Child, State, String) {
    let name = format!("{prefix}-{:08x}", rand::random::<u32>());
    let supervisor = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["up", "--name", &name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the lab must be startable");
    let dir = LabDir::of_workspace().runs().join(&name);
    let state = eventually(
        "the lab is ready",
        SOON,
        async || State::read(&dir),
        |state| state.as_ref().is_some_and(|state| state.phase == Phase::Ready),
    )
    .await
    .expect("a ready lab must have a state");
    assert!(state.processes.iter().all(ProcessRecord::is_alive));
    assert_eq!(state.supervisor.pid, supervisor.id());
    (supervisor, state, name)
}

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().expect("the lab must start")
}
