//! Runs `kubectl epilogue lint` on directories and on files that others wrote.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: NAME}\nspec: {template: \
                   {spec: {restartPolicy: Always, containers: [{name: a, image: b}]}}}\n";
const HELM: &str = "kind: Job\nmetadata:\n  name: {{ .Release.Name }}\n";

fn write(directory: &Path, path: &str, text: &str) {
    let path = directory.join(path);
    let parent = path.parent().expect("it has a parent");
    std::fs::create_dir_all(parent).expect("must be creatable");
    std::fs::write(path, text).expect("must be writable");
}

fn job(name: &str) -> String {
    JOB.replace("NAME", name)
}

/// In this directory, so that paths are short.
fn lint(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .arg("lint")
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .expect("the program must be startable")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn subdirectories_are_read_by_a_flag_and_else_named() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let root = directory.path();
    write(root, "d/a.yaml", &job("a"));
    write(root, "d/below/deep/b.yml", &format!("# one\n---\n{}", job("b")));
    write(root, "d/empty/notes.txt", "{{");
    write(root, "d/.git/c.json", "{");
    let flat = lint(root, &["-f", "d"]);
    assert_eq!(err(&flat), "hint: subdirectories hold manifests, too; -R reads them: d/below\n");
    assert!(out(&flat).contains("job/a ") && !out(&flat).contains("job/b "), "{flat:?}");
    let deep = lint(root, &["-R", "-f", "d/a.yaml", "--recursive", "-f", "d/below"]);
    assert_eq!(deep.status.code(), Some(2), "a flag is given once: {deep:?}");
    let deep = lint(root, &["-R", "-f", "d/a.yaml", "-f", "d/below"]);
    assert_eq!((deep.status.code(), err(&deep)), (Some(1), String::new()));
    let found = out(&deep);
    assert!(found.contains("(d/a.yaml:1)\n"), "{found}");
    assert!(found.contains("(d/below/deep/b.yml:3)\n"), "{found}");
    let only_below = lint(root, &["-f", "d/below"]);
    assert_eq!(only_below.status.code(), Some(2), "{only_below:?}");
    assert!(err(&only_below).contains("such as d/below/deep: add -R"), "{only_below:?}");
    let alone = lint(root, &["-R"]);
    assert!(err(&alone).contains("name one by -f"), "{alone:?}");
}

#[cfg(unix)]
#[test]
fn links_to_directories_are_not_followed_and_nothing_hangs() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().expect("must be creatable");
    let root = directory.path();
    write(root, "other.yaml", &job("linked"));
    write(root, "d/a.yaml", &job("a"));
    symlink("..", root.join("d/loop")).expect("must be creatable");
    symlink("/", root.join("d/root.yaml")).expect("must be creatable");
    symlink("nowhere", root.join("d/dangling.yaml")).expect("must be creatable");
    symlink("../other.yaml", root.join("d/link.yaml")).expect("must be creatable");
    let output = lint(root, &["-R", "-f", "d"]);
    let links = "hint: links to directories are not followed: d/loop, d/root.yaml\n";
    assert_eq!((output.status.code(), err(&output)), (Some(1), links.to_owned()));
    assert!(out(&output).contains("job/linked "), "{output:?}");
    let flat = lint(root, &["-f", "d"]);
    assert_eq!(err(&flat), "");
    assert_eq!(out(&flat), out(&output));
}

#[test]
fn files_of_a_shell_s_glob_are_read() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let root = directory.path();
    write(root, "a.yaml", &job("a"));
    write(root, "b.yaml", &job("b"));
    let output = lint(root, &["-f", "a.yaml", "b.yaml"]);
    let found = out(&output);
    assert!(found.contains("(a.yaml:1)") && found.contains("(b.yaml:1)"), "{output:?}");
    let answer = lint(root, &["a.yaml", "-o", "json"]);
    let answer: Value = serde_json::from_str(&out(&answer)).expect("must be JSON");
    assert_eq!(answer["findings"][0]["file"], "a.yaml");
    assert_eq!(answer["findings"][0]["line"], 1);
}

#[test]
fn a_file_that_cannot_be_read_holds_up_itself_only() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let root = directory.path();
    write(root, "d/good.yaml", &job("good"));
    write(root, "d/tab.yaml", "kind: Job\nmetadata:\n\tname: a\n");
    let output = lint(root, &["-f", "d"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).starts_with("error: d/tab.yaml:3: a tab indents"), "{output:?}");
    assert!(out(&output).contains("job/good "), "{output:?}");
    let only = lint(root, &["-f", "d/tab.yaml", "-f", "missing.yaml"]);
    assert_eq!((only.status.code(), out(&only)), (Some(2), String::new()));
    assert_eq!(err(&only).lines().count(), 2, "{only:?}");
}

#[test]
fn what_has_to_be_rendered_first_names_the_command() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let root = directory.path();
    let kustomization = "resources: [job.yaml]\n";
    write(root, "chart/Chart.yaml", "apiVersion: v2\nname: c\n");
    write(root, "chart/templates/a.yaml", HELM);
    write(root, "chart/templates/b.yaml", HELM);
    write(root, "base/kustomization.yaml", kustomization);
    write(root, "base/job.yaml", &job("a").replace("Always", "Never"));
    let chart = lint(root, &["-R", "-f", "chart"]);
    assert_eq!(chart.status.code(), Some(2), "{chart:?}");
    let remedy = "helm template chart | kubectl epilogue lint -f -\n";
    let first = "error: chart/templates/a.yaml:3: `{{ .Release.Name }}` is of a Helm template";
    assert!(err(&chart).contains(first) && err(&chart).contains(remedy), "{chart:?}");
    assert!(err(&chart).contains("1 more templates of the chart chart\n"), "{chart:?}");
    let build = "base/kustomization.yaml is a Kustomization; check what it builds: kubectl \
                 kustomize base | kubectl epilogue lint -f -\n";
    let base = lint(root, &["-f", "base"]);
    assert_eq!((base.status.code(), err(&base)), (Some(0), format!("hint: {build}")));
    let named = lint(root, &["-f", "base/kustomization.yaml"]);
    assert_eq!((named.status.code(), err(&named)), (Some(2), format!("error: {build}")));
    let url = lint(root, &["-f", "https://example.com/a.yaml"]);
    assert!(err(&url).contains("curl -fsSL https://example.com/a.yaml | "), "{url:?}");
}

#[test]
fn what_lint_does_not_check_is_named() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let root = directory.path();
    write(root, "a.yaml", "kind: JobSet\n---\napiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n");
    let output = lint(root, &["-f", "a.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let kinds = "nothing found in 0 Jobs and CronJobs; lint does not check what is there: Job of \
                 batch.volcano.sh/v1alpha1, JobSet\n";
    assert_eq!(out(&output), kinds);
    let empty = lint(root, &["-f", "-"]);
    assert_eq!(out(&empty), "nothing found in 0 Jobs and CronJobs; there are no objects\n");
}
