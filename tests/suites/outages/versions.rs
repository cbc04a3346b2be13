//! Tests an upgrade and a rollback of both programs amid work: the programs of an earlier commit,
//! and those of this one. The commit is the last one, or `EPILOGUE_FORMER=REVISION`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use lab::agent::{Setup, Site};
use lab::audit::Expected;
use lab::cargo::cargo;
use lab::paths::{LabDir, program, workspace_root};
use lab::{Cluster, eventually};
use tokio::process::Command;

use super::stage::{LATER, Stage};
use super::takeover::{ELECTION, has_logged};

const FORMER: &str = "EPILOGUE_FORMER";
const CONTROLLER: &str = "epilogue-controller";
const AGENT: &str = "epilogue-agent";

/// Builds one of our programs at the earlier commit, and returns it. Needs the repository's history.
async fn former(name: &str) -> PathBuf {
    let revision = std::env::var(FORMER).unwrap_or_else(|_| "HEAD^".to_owned());
    let revision = format!("{revision}^{{commit}}");
    let commit = git(&["rev-parse", "--verify", &revision]).output().await.expect("git");
    assert!(commit.status.success(), "{FORMER}: no {revision}; a shallow clone has no history");
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    println!("the earlier commit: {commit}");
    let root = LabDir::of_workspace().former();
    let source = root.join(&commit);
    if !source.exists() {
        let unpacked = root.join(format!("{commit}.{}", std::process::id()));
        std::fs::create_dir_all(&unpacked).expect("its directory");
        unpack(&commit, &unpacked).await;
        // Another test may have been quicker.
        let _ = std::fs::rename(&unpacked, &source);
    }
    let built = cargo()
        .args(["build", "--quiet", "--locked", "--package", name, "--target-dir", "target"])
        .current_dir(&source)
        .status()
        .await;
    assert!(built.expect("cargo").success(), "{name} of {commit} must build");
    source.join("target/debug").join(name)
}

fn git(arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(workspace_root()).args(arguments).kill_on_drop(true);
    command
}

async fn unpack(commit: &str, to: &Path) {
    let mut archive = git(&["archive", commit]).stdout(Stdio::piped()).spawn().expect("git");
    let stream: Stdio = archive.stdout.take().expect("a pipe").try_into().expect("a pipe");
    let unpacked = Command::new("tar").arg("-x").arg("-C").arg(to).stdin(stream).status().await;
    assert!(unpacked.expect("tar").success() && archive.wait().await.expect("git").success());
}

/// How a leader ends.
#[derive(Clone, Copy)]
enum End {
    /// As in a rolling update: by SIGTERM.
    Stopped,
    Killed,
}

/// The leader of one version ends amid 52 Jobs, and a standby of the other goes on; then back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_counts_are_exact_through_upgrades_and_rollbacks_of_the_controller() {
    let programs = [former(CONTROLLER).await, program(CONTROLLER)];
    let mut stage = Stage::start(0, &ELECTION).await;
    // The stage begins with this version. It leads until the earlier one takes over.
    has_logged(&stage.controller, "leading", 1).await;
    stage.create_jobs(13).await;
    let ends = [End::Stopped, End::Stopped, End::Killed, End::Killed];
    for (number, end) in ends.into_iter().enumerate() {
        let next = &programs[number % 2];
        let name = format!("takeover-{number}");
        let standby = stage.start_alongside(&name, next, &ELECTION).await;
        has_logged(&standby, "caches are filled", 1).await;
        stage.progress(rand::random_range(10..30)).await;
        let mut leader = std::mem::replace(&mut stage.controller, standby);
        leader.check().expect("the leader runs until then");
        match end {
            End::Stopped => leader.stop_after_outage().await,
            End::Killed => leader.kill().await,
        }
        has_logged(&stage.controller, "working", 1).await;
        stage.progress(10).await;
        stage.controller.check().expect("the new leader runs");
    }
    stage.all_are_exact_and_as_scripted().await;
    stage.stop().await;
}

/// An agent of one version is killed amid a shutdown, and one of the other goes on with its records
/// and marks.
async fn an_agent_goes_on(first: &Path, second: &Path) {
    let cluster = Cluster::of_tests("outages").expect("the suite's cluster");
    let setup = Setup {
        binary: first.to_owned(),
        pods: 40,
        script: "on-term=143 after=6s",
        // An earlier agent asks in its own way whether the policies refuse what they must.
        expected: Expected::Invalid,
        ..Setup::default()
    };
    let mut site = Site::start(&cluster, setup).await;
    site.shut_down().await;
    site.until("some have DisruptionTarget", |ends| ends.disrupted > 0).await;
    site.kill_and_restart_as(second).await;
    let ends = site.until("all have ended", |ends| ends.ended == 40).await;
    assert_eq!((ends.disrupted, ends.ended_unmarked), (40, 0));
    let state = async || site.node().await;
    let is_marked = |(taints, said): &(Vec<String>, Option<String>)| {
        taints.iter().any(|taint| taint == "epilogue.dev/shutting-down")
            && said.as_ref().is_some_and(|said| said != "idle")
    };
    eventually("the node is marked as before", LATER, state, is_marked).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_an_upgraded_and_a_rolled_back_agent_go_on_with_a_shutdown() {
    let (former, ours) = (former(AGENT).await, program(AGENT));
    an_agent_goes_on(&former, &ours).await;
    an_agent_goes_on(&ours, &former).await;
}
