//! Kubernetes' own end-to-end tests of Jobs (`[sig-apps] Job`, those of conformance among them), as
//! its module has them, with our controller as the only one of Jobs. The scheduler is the real one.
//! Nodes are simulated: they run no container, but do what [`SCRIPTS`] says of its command.

use std::process::Stdio;

use kube::Client;
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, Bind, SCRIPT_ANNOTATION, SimulatedNodes};
use lab::paths::workspace_root;
use lab::{ControlPlane, Options, go_module, install};
use serde_json::{Value, json};
use tokio::process::Command;

/// All of Kubernetes' tests of Jobs; not those of CronJobs.
const FOCUS: &str = r"\[sig-apps\] Job ";

/// Those that are left out, with the reason.
const LEFT_OUT: [(&str, &str); 1] = [(
    "containers restarted by container restart policy should not trigger PodFailurePolicy",
    "a simulated node knows the restart policy of a pod, not that of a container",
)];

/// How the tests end if all others pass.
const SUMMARY: &str = "33 Passed | 0 Failed | 0 Pending | ";

/// What a container's first command with these words does. The first row that fits counts, and a
/// command that fits none succeeds at once. The tests know nothing else of a container: files on a
/// volume are counts of attempts here, and shells, traps and probes are their outcome.
const SCRIPTS: [(&[&str], &str); 8] = [
    (&["/data/foo-$JOB_COMPLETION_INDEX", "exit 42"], "fail exit=42 times=1; succeed"),
    (&["/data/foo-$JOB_COMPLETION_INDEX", "sleep 1000000"], "hang times=1; succeed"),
    (&["touch /data/foo", "exit 1"], "fail exit=1 times=1; succeed"),
    (&["${JOB_COMPLETION_INDEX} % 2", "exit 1"], "index=1,3,5,7,9: fail; succeed"),
    (&["trap _term SIGTERM", "exit 143"], "on-term=143 after=5s"),
    (&["exit 1"], "fail"),
    (&["sleep 1000000"], "hang"),
    (&["/pause:"], "hang"),
];

/// Gives each new pod its script, by its first container: policy and binding.
fn interpreter() -> [Value; 2] {
    let name = "scripts-of-commands";
    let said = "object.spec.containers[0].image + ' '
        + object.spec.containers[0].?command.orValue([]).join(' ') + ' '
        + object.spec.containers[0].?args.orValue([]).join(' ')";
    let mut script = "'succeed'".to_owned();
    for (words, does) in SCRIPTS.iter().rev() {
        let has = |word: &&str| format!("variables.said.contains('{word}')");
        let all: Vec<String> = words.iter().map(has).collect();
        script = format!("{} ? '{does}' : {script}", all.join(" && "));
    }
    let changed = format!(
        "Object{{metadata: Object.metadata{{annotations: {{'{SCRIPT_ANNOTATION}': {script}}}}}}}"
    );
    let pods = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                      "resources": ["pods"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [pods]},
            "variables": [{"name": "said", "expression": said}],
            "mutations": [{"patchType": "ApplyConfiguration",
                           "applyConfiguration": {"expression": changed}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name},
    });
    [policy, binding]
}

async fn interpret(client: &Client) {
    for object in interpreter() {
        install::apply_object(client, &object).await.expect("the policy is installed");
    }
}

#[test]
fn the_tests_have_the_versions_of_the_control_plane() {
    let of = |module: &str| {
        let path = workspace_root().join("tests").join(module).join("go.mod");
        let text = std::fs::read_to_string(path).expect("the module");
        let lines = text.lines().map(|line| line.trim().trim_end_matches(" // indirect"));
        lines.filter(|line| line.starts_with("k8s.io/")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (tests, control_plane) = (of("upstream"), of("control-plane"));
    let kubernetes = |line: &&String| line.starts_with("k8s.io/kubernetes v");
    assert_eq!(tests.iter().find(kubernetes), control_plane.iter().find(kubernetes));
    let replaced = |lines: &[String]| -> Vec<String> {
        lines.iter().filter(|line| line.contains(" => ")).cloned().collect()
    };
    let found = replaced(&tests);
    assert_eq!(found, replaced(&control_plane));
    assert!(found.len() > 20, "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_the_tests_of_kubernetes_itself_pass() {
    let tests = go_module::tests("upstream", ".", "upstream-jobs").await.expect("the tests");
    let more = "root-ca-certificate-publisher-controller,podgroup-protection-controller";
    let controllers = format!("{QUIET_CONTROLLERS},{more}");
    let options = Options::unique("upstream-jobs").gang_scheduling();
    let options = options.controller_manager(&controllers).scheduler();
    let control_plane = ControlPlane::start(options).await.expect("a control plane");
    let client = control_plane.admin_client().await.expect("a client");
    interpret(&client).await;
    install::apply_rights(&client).await.expect("the rights");
    install::apply_gang_scheduling(&client).await.expect("the rights to groups");
    let setup = Setup::debug(control_plane.dir()).argument("--manage-all-jobs");
    let cluster = control_plane.cluster();
    let mut controller =
        Controller::start(cluster, &setup.argument("--check-plans")).await.expect("ours");
    let options = nodes::Options { bind: Bind::Never, ..nodes::Options::default() };
    let nodes = SimulatedNodes::start(client, options).await.expect("nodes");
    let left_out: Vec<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    for (name, why) in LEFT_OUT {
        println!("left out: {name}: {why}");
    }
    let output = Command::new(tests)
        .args(["-ginkgo.no-color", "-ginkgo.focus", FOCUS, "-ginkgo.skip", &left_out.join("|")])
        .arg(format!("--kubeconfig={}", control_plane.kubeconfig_path().display()))
        .args(["--provider=local", "--dump-logs-on-failure=false"])
        .current_dir(control_plane.dir())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the tests run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(SUMMARY), "{said}");
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    nodes.stop().await.expect("the nodes end");
    control_plane.stop().await.expect("the control plane ends");
}
