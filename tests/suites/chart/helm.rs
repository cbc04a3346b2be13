//! Runs Helm as a user does, built from upstream's module.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use lab::paths::{LabDir, workspace_root};
use lab::{Cluster, go_module};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Name of every release.
pub(crate) const RELEASE: &str = "epilogue";

/// The directory of the chart.
pub(crate) fn chart() -> PathBuf {
    workspace_root().join("deploy/chart")
}

/// Runs Helm with these values, which it reads from its standard input.
pub(crate) async fn helm(arguments: &[&str], values: &Value) -> Output {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let build = async || {
        let package = "helm.sh/helm/v4/cmd/helm";
        go_module::program("helm", package).await.expect("Helm must be buildable")
    };
    run(PROGRAM.get_or_init(build).await, arguments, values).await
}

/// The same with Helm 3.
pub(crate) async fn helm_3(arguments: &[&str], values: &Value) -> Output {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let build = async || {
        let package = "helm.sh/helm/v3/cmd/helm";
        let program = go_module::program_as("helm", package, "helm-3").await;
        program.expect("Helm 3 must be buildable")
    };
    run(PROGRAM.get_or_init(build).await, arguments, values).await
}

async fn run(program: &Path, arguments: &[&str], values: &Value) -> Output {
    // Not the user's plugins and repositories.
    let home = LabDir::of_workspace().bin().join("helm-home");
    let mut child = Command::new(program)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env("HELM_CONFIG_HOME", &home)
        .env("HELM_CACHE_HOME", &home)
        .env("HELM_DATA_HOME", &home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("Helm must start");
    let mut stdin = child.stdin.take().expect("stdin was piped");
    // A command without values does not read them.
    let _ = stdin.write_all(values.to_string().as_bytes()).await;
    drop(stdin);
    child.wait_with_output().await.expect("Helm must end")
}

/// The same; returns what it prints, or panics with its error.
pub(crate) async fn done(arguments: &[&str], values: &Value) -> String {
    let output = helm(arguments, values).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "helm {arguments:?} {values}: {error}");
    String::from_utf8(output.stdout).expect("Helm prints text")
}

/// The objects of the chart with these values.
pub(crate) async fn rendered(values: &Value) -> Vec<Value> {
    rendered_from(&chart(), values).await
}

/// The objects of a chart, which may be packaged. Without hooks: those of the uninstallation replace
/// objects of the release.
pub(crate) async fn rendered_from(chart: &Path, values: &Value) -> Vec<Value> {
    let chart = chart.to_str().expect("text");
    objects(&done(&["template", RELEASE, chart, "--no-hooks", "--values=-"], values).await)
}

/// The hooks of the chart with these values, which only a cluster has: here the one of the tests,
/// where nothing is installed.
pub(crate) async fn hooks(values: &Value) -> Vec<Value> {
    let (chart, cluster) = (chart(), Cluster::of_tests("chart").expect("the suite's cluster"));
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig_path().display());
    let chart = chart.to_str().expect("text");
    // An upgrade may find objects that Helm did not create.
    let flags = ["--dry-run=server", "--is-upgrade", &kubeconfig, "--values=-"];
    let text = done(&[&["template", RELEASE, chart], &flags[..]].concat(), values).await;
    objects(&text).into_iter().filter(is_hook).collect()
}

/// The hooks of one event, such as `test`.
pub(crate) async fn hooks_of(event: &str, values: &Value) -> Vec<Value> {
    let mut hooks = hooks(values).await;
    hooks.retain(|hook| hook["metadata"]["annotations"]["helm.sh/hook"] == event);
    hooks
}

/// Whether an object is a hook.
pub(crate) fn is_hook(object: &Value) -> bool {
    object["metadata"]["annotations"]["helm.sh/hook"].is_string()
}

/// The objects of a text with several documents.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let parsed = documents.map(|it| Value::deserialize(it).expect("YAML"));
    parsed.filter(|object| !object.is_null()).collect()
}

/// Helm's error for these values.
pub(crate) async fn refused(values: &Value) -> String {
    let chart = chart();
    let chart = chart.to_str().expect("text");
    let output = helm(&["template", RELEASE, chart, "--values=-"], values).await;
    assert!(!output.status.success(), "{values} is accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The notes that Helm prints after an installation.
pub(crate) async fn notes(values: &Value) -> String {
    let chart = chart();
    let chart = chart.to_str().expect("text");
    let text = done(&["install", RELEASE, chart, "--dry-run=client", "--values=-"], values).await;
    let (_, notes) = text.split_once("\nNOTES:\n").expect("notes");
    notes.to_owned()
}
