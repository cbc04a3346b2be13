//! Runs `lab demo` as a user does, on a control plane of its own, and checks what it prints, what
//! the API then shows, and how it ends.

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use lab::bed::{JobState, has_finalizer};
use lab::kubernetes::Version;
use lab::{Cluster, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Name, condition, succeeded and failed pods of each Job of the demo.
const JOBS: [(&str, &str, i32, i32); 7] = [
    ("report", "Complete", 6, 0),
    ("training", "Complete", 5, 1),
    ("queue", "Complete", 3, 0),
    ("broken", "Failed", 0, 1),
    ("disrupted", "Complete", 1, 0),
    ("bereaved", "Complete", 1, 0),
    ("patient", "Complete", 1, 1),
];

/// The rule of the Jobs that have one.
const RULE: &str = "rule 0 of podFailurePolicy";

/// The last line of a demo that keeps its Jobs.
const LAST: &str = "get events";

/// The demo takes half a minute on an idle machine, and gives up by itself before this.
const SHOWN_WITHIN: Duration = Duration::from_mins(4);
const GONE_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_story_is_shown_and_is_true_in_the_api() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["demo", "--keep", "--kubernetes"])
        .arg(Version::of_tests().minor())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the lab must be startable");
    let lines = timeout(SHOWN_WITHIN, shown(&mut demo)).await.expect("it comes to its end");
    println!("{}", lines.join("\n"));
    summary_is_last(&lines);
    events_are_those_of_the_stories(&lines);
    no_pod_of_patient_came_early(&lines);
    ends_are_those_of_the_stories(&lines);

    let words = lines.last().expect("a line").split_whitespace();
    let kubeconfig = words.skip_while(|word| *word != "--kubeconfig").nth(1).expect("a path");
    let client = Cluster::new(kubeconfig, None).admin_client().await.expect("a client");
    the_api_agrees(&client).await;

    let pid = Pid::from_raw(demo.id().expect("it runs").cast_signed());
    kill(pid, Signal::SIGTERM).expect("it can be signalled");
    let ended = timeout(GONE_WITHIN, demo.wait()).await.expect("it ends").expect("a status");
    assert!(ended.success(), "{ended}");
    let answers = async || client.apiserver_version().await.is_ok();
    eventually("the control plane is gone", GONE_WITHIN, answers, |answers| !answers).await;
}

/// What it prints until it waits, or ends.
async fn shown(demo: &mut Child) -> Vec<String> {
    let mut lines = BufReader::new(demo.stdout.take().expect("a pipe")).lines();
    let mut shown = Vec::new();
    while let Some(line) = lines.next_line().await.expect("text") {
        let is_last = line.ends_with(LAST);
        shown.push(line);
        if is_last {
            break;
        }
    }
    shown
}

/// A check mark for each Job, and then how to go on.
fn summary_is_last(lines: &[String]) {
    let begin = lines.iter().position(|line| line == "What was shown:");
    let summary = &lines[begin.unwrap_or_else(|| panic!("no summary: {lines:#?}"))..];
    let expected = JOBS.map(|(name, condition, succeeded, failed)| {
        format!(
            "  ✓ {name:<12} {condition}: {succeeded} pods succeeded, {failed} counted as failed"
        )
    });
    assert_eq!(summary[2..2 + JOBS.len()], expected);
    let rest = &summary[2 + JOBS.len()..];
    assert!(rest[0].is_empty() && rest[1].starts_with("The Jobs are still there"), "{rest:#?}");
    assert_eq!(rest.len(), 5, "{rest:#?}");
}

fn events_are_those_of_the_stories(lines: &[String]) {
    let events: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("→ ")).collect();
    let [held, off, died, collected, deleted] = events[..] else { panic!("{events:#?}") };
    let node = held.split_once(": the agent holds a delay lock").expect(held).0;
    assert!(off.starts_with(&format!("{node} is off, ")), "{off}");
    assert!(off.contains("; disrupted-"), "{off}");
    assert!(off.ends_with(" is Failed, DisruptionTarget TerminationByKubelet"), "{off}");
    let lost = died.split_once(" dies without a word").expect(died).0;
    assert_ne!(node, lost);
    assert!(collected.starts_with(&format!("pod GC saw that {lost} stays away")), "{collected}");
    assert!(collected.contains("; bereaved-"), "{collected}");
    assert!(collected.ends_with(" is Failed, DisruptionTarget DeletionByPodGC"), "{collected}");
    assert!(deleted.starts_with("a user deletes patient-"), "{deleted}");
}

/// Each end has its event, with what it counted as.
fn ends_are_those_of_the_stories(lines: &[String]) {
    for (begins, has, ends) in [
        ("PodFailed    pod training-3-", " with code 42; failure 1 of 6 allowed", ""),
        ("PodFailed    pod broken-", " with code 3; the Job failed by ", RULE),
        ("PodDisrupted pod disrupted-", " (TerminationByKubelet); ignored by ", RULE),
        ("PodDisrupted pod bereaved-", ": its node is gone; ignored by ", RULE),
        ("PodFailed    pod patient-", " with code 143 (SIGTERM); failure 1 of 6 allowed", ""),
    ] {
        let of_it = lines.iter().filter_map(|line| line.strip_prefix("  "));
        let of_it: Vec<&str> = of_it.filter(|line| line.starts_with(begins)).collect();
        let [line] = of_it[..] else { panic!("{begins}: {lines:#?}") };
        assert!(line.contains(has) && line.ends_with(ends), "{line}");
    }
}

/// The table showed its pod while it terminated, and never another one meanwhile.
fn no_pod_of_patient_came_early(lines: &[String]) {
    let rows = lines.iter().filter(|line| line.starts_with("patient "));
    let rows: Vec<&String> = rows.filter(|row| row.contains("Terminating")).collect();
    assert!(!rows.is_empty(), "{lines:#?}");
    let early = |row: &&&String| row.contains("Running") || row.contains("Pending");
    assert_eq!(rows.iter().find(early), None);
}

/// Counters as printed, no pod uncounted, no finalizer left, and no pod on a node that is gone.
async fn the_api_agrees(client: &kube::Client) {
    let jobs: Api<Job> = Api::namespaced(client.clone(), "demo");
    for (name, condition, succeeded, failed) in JOBS {
        let job = jobs.get(name).await.expect("the Job");
        let state = JobState::of(&job);
        assert_eq!((state.succeeded, state.failed), (succeeded, failed), "{name}: {state:?}");
        let last = state.conditions.last().map(String::as_str);
        assert_eq!(last, Some(condition), "{name}: {state:?}");
        let lists = job.status.and_then(|status| status.uncounted_terminated_pods);
        let lists = lists.unwrap_or_default();
        assert!(lists.succeeded.unwrap_or_default().is_empty(), "{name}");
        assert!(lists.failed.unwrap_or_default().is_empty(), "{name}");
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "demo");
    let held = async || {
        let list = pods.list(&ListParams::default()).await.expect("the pods").items;
        let held = list.into_iter().filter(has_finalizer);
        held.filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
    };
    eventually("no pod keeps its finalizer", GONE_WITHIN, held, Vec::is_empty).await;
}
