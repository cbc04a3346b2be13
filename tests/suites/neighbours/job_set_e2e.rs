//! JobSet's own end-to-end tests, as its module has them, with our controller as the only one of
//! Jobs.

use std::process::Stdio;

use kube::api::{Patch, PatchParams};
use lab::bed::SOON;
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, Bind, SimulatedNodes};
use lab::{ControlPlane, Options, go_module};
use serde_json::json;
use tokio::process::Command;

use super::job_set::{JOB_SET, configuration};
use super::{create, objects};

const TESTS: &str = "sigs.k8s.io/jobset/test/e2e";
/// It needs volumes, and the laboratory has nothing that provides them.
const NEEDS_VOLUMES: &str = "should create PVCs with multiple retention policies";
/// How JobSet's tests end if all others passed.
const SUMMARY: &str = "10 Passed | 0 Failed | 0 Pending | 1 Skipped";

/// Its tests wait for this Deployment, and ask nothing else of it.
async fn deployment(client: &kube::Client) {
    let labels = json!({"control-plane": "controller-manager"});
    let container = json!({"name": "manager", "image": "none"});
    let manifest = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "jobset-controller-manager"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    });
    let api = objects(client, &manifest, Some(&JOB_SET.namespace()));
    create(&api, &manifest).await;
    let available = json!({"type": "Available", "status": "True"});
    let status = Patch::Merge(json!({"status": {"conditions": [available]}}));
    let params = PatchParams::default();
    let patched = api.patch_status("jobset-controller-manager", &params, &status).await;
    patched.expect("its status is written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_the_tests_of_job_set_itself_pass() {
    let tests = go_module::tests("jobset", TESTS, "jobset-e2e").await.expect("JobSet's tests");
    let options = Options::unique("jobset-e2e").controller_manager(QUIET_CONTROLLERS).scheduler();
    let control_plane = ControlPlane::start(options).await.expect("a control plane");
    let cluster = control_plane.cluster();
    let job_set = JOB_SET.start(cluster, &configuration()).await.expect("JobSet's controller");
    let client = control_plane.admin_client().await.expect("a client");
    let setup = Setup::debug(control_plane.dir()).argument("--manage-all-jobs");
    let mut controller =
        Controller::start(cluster, &setup.argument("--check-plans")).await.expect("ours");
    let options = nodes::Options {
        bind: Bind::Never,
        default_script: "succeed after=3s".to_owned(),
        ..nodes::Options::default()
    };
    let nodes = SimulatedNodes::start(client.clone(), options).await.expect("nodes");
    deployment(&client).await;
    let output = Command::new(tests)
        .args(["-ginkgo.no-color", "-ginkgo.skip", NEEDS_VOLUMES])
        .env("KUBECONFIG", control_plane.kubeconfig_path())
        .current_dir(control_plane.dir())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("JobSet's tests run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(SUMMARY), "{said}");
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    nodes.stop().await.expect("the nodes end");
    job_set.stop(SOON).await;
    control_plane.stop().await.expect("the control plane ends");
}
