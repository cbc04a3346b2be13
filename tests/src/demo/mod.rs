//! The main job, live: Jobs of every kind on a real API, run by our controller on simulated
//! nodes. This file is the story; `jobs` are its Jobs, `table` draws them.

mod jobs;
mod table;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::controller::{Controller, Setup};
use crate::nodes::{self, SimulatedNodes};

use jobs::Scene;
use table::{Row, Screen};

const NAMESPACE: &str = "demo";
/// Between two looks at the API.
const REFRESH: Duration = Duration::from_millis(250);
/// Longest time that the Jobs may take; they need about half a minute.
const LENGTH_MAX: Duration = Duration::from_secs(100);

/// Runs the story on this cluster. The control plane must be the demo's own.
pub async fn play(cluster: &Cluster, setup: &Setup) -> anyhow::Result<()> {
    let client = cluster.admin_client().await?;
    let controller = Controller::start(cluster, setup).await?;
    let options =
        nodes::Options { nodes: 3, name_prefix: "node".to_owned(), ..nodes::Options::default() };
    let nodes = SimulatedNodes::start(client.clone(), options).await?;
    create_namespace(&client).await?;
    let scenes = jobs::scenes();
    println!("\nThree simulated nodes; our controller under its own service account. The Jobs:\n");
    for scene in &scenes {
        println!("  {:<12} {}", scene.name, scene.shows);
    }
    println!();
    let outcome = Box::pin(watch(&client, &nodes, &scenes)).await;
    let log = controller.log().display().to_string();
    nodes.stop().await?;
    controller.stop().await;
    let rows = outcome.with_context(|| format!("the controller's log is {log}"))?;
    summarize(&scenes, &rows)
}

/// Draws the Jobs until all of them are finished; shuts a node down and deletes a pod meanwhile.
async fn watch(
    client: &kube::Client,
    nodes: &SimulatedNodes,
    scenes: &[Scene],
) -> anyhow::Result<Vec<Row>> {
    let mut screen = Screen::new(std::io::stdout().is_terminal());
    let begun = Instant::now();
    let mut acts = Acts::default();
    Box::pin(create(client, scenes, |scene| scene.name == jobs::DISRUPTED)).await?;
    loop {
        let rows = rows(client, scenes).await?;
        screen.show(begun.elapsed(), &rows);
        if rows.len() == scenes.len() && rows.iter().all(Row::is_finished) {
            return Ok(rows);
        }
        anyhow::ensure!(
            begun.elapsed() < LENGTH_MAX,
            "not all Jobs finished within {LENGTH_MAX:?}"
        );
        Box::pin(acts.play(client, nodes, scenes, &mut screen)).await?;
        tokio::time::sleep(REFRESH).await;
    }
}

/// Creates the Jobs of these scenes.
async fn create(
    client: &kube::Client,
    scenes: &[Scene],
    which: impl Fn(&Scene) -> bool,
) -> anyhow::Result<()> {
    for scene in scenes.iter().filter(|scene| which(scene)) {
        let job: Job = serde_json::from_value(scene.job.clone()).context("a Job of the demo")?;
        jobs(client).create(&PostParams::default(), &job).await?;
    }
    Ok(())
}

/// What happens to the Jobs' pods from outside, each once. The node goes down before the other
/// Jobs are there, so that it takes nothing of theirs with it.
#[derive(Default)]
struct Acts {
    node_was_shut_down: bool,
    pod_was_deleted: bool,
}

impl Acts {
    async fn play(
        &mut self,
        client: &kube::Client,
        nodes: &SimulatedNodes,
        scenes: &[Scene],
        screen: &mut Screen,
    ) -> anyhow::Result<()> {
        if !self.node_was_shut_down
            && let Some(pod) = running_pod(client, jobs::DISRUPTED).await?
            && let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
        {
            self.node_was_shut_down = true;
            screen.tell(&format!("{node} shuts down: its pods fail with DisruptionTarget"));
            nodes.shutdown(&node).await?;
            create(client, scenes, |scene| scene.name != jobs::DISRUPTED).await?;
        }
        if !self.pod_was_deleted
            && let Some(pod) = running_pod(client, jobs::PATIENT).await?
            && let Some(name) = pod.metadata.name
        {
            self.pod_was_deleted = true;
            screen.tell(&format!("somebody deletes {name}, which takes 5 s to end"));
            pods(client).delete(&name, &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

async fn running_pod(client: &kube::Client, job: &str) -> anyhow::Result<Option<Pod>> {
    let selector = ListParams::default().labels(&format!("job-name={job}"));
    let list = pods(client).list(&selector).await?;
    Ok(list.items.into_iter().find(|pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    }))
}

async fn rows(client: &kube::Client, scenes: &[Scene]) -> anyhow::Result<Vec<Row>> {
    let mut phases: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for pod in pods(client).list(&ListParams::default()).await? {
        let mut labels = pod.metadata.labels.unwrap_or_default();
        let Some(job) = labels.remove("job-name") else { continue };
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let ended = phase == "Succeeded" || phase == "Failed";
        let word = if deleting && !ended { "Terminating".to_owned() } else { phase };
        *phases.entry(job).or_default().entry(word).or_default() += 1;
    }
    let mut all: BTreeMap<String, Job> = BTreeMap::new();
    for job in jobs(client).list(&ListParams::default()).await? {
        all.insert(job.metadata.name.clone().unwrap_or_default(), job);
    }
    let rows = scenes.iter().filter_map(|scene| {
        let job = all.remove(scene.name)?;
        let phases = phases.remove(scene.name).unwrap_or_default();
        Some(Row::new(scene.name, job.status.unwrap_or_default(), phases))
    });
    Ok(rows.collect())
}

/// Says what was shown, and fails if a Job did not end as its scene says.
fn summarize(scenes: &[Scene], rows: &[Row]) -> anyhow::Result<()> {
    println!("\nWhat was shown:\n");
    let mut wrong = Vec::new();
    for (scene, row) in scenes.iter().zip(rows) {
        let as_told = row.ends_as(&scene.end);
        println!("  {} {:<12} {}", if as_told { "✓" } else { "✗" }, scene.name, scene.end);
        if !as_told {
            wrong.push(format!("{row:?} instead of {}", scene.end));
        }
    }
    anyhow::ensure!(wrong.is_empty(), "a Job did not end as it should: {wrong:?}");
    Ok(())
}

async fn create_namespace(client: &kube::Client) -> anyhow::Result<()> {
    use k8s_openapi::api::core::v1::Namespace;
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.to_owned());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &namespace).await.context("create namespace demo")?;
    crate::control_plane::default_service_account(client, NAMESPACE).await?;
    Ok(())
}

fn jobs(client: &kube::Client) -> Api<Job> {
    Api::namespaced(client.clone(), NAMESPACE)
}

fn pods(client: &kube::Client) -> Api<Pod> {
    Api::namespaced(client.clone(), NAMESPACE)
}
