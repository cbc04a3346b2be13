//! Plays the demo: Jobs of every kind on a real API, run by our controller on simulated nodes. One
//! node shuts down under our agent, and another one dies. This file is the story; `jobs` are its
//! Jobs, `host` is the node's logind with the agent, `table` draws the Jobs, `ends` reads how their
//! pods ended.

mod ends;
mod host;
mod jobs;
mod table;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::controller::{Controller, Setup};
use crate::eventually::observe_until;
use crate::nodes::{self, Bind, SimulatedNodes};
use crate::vm::{Seen, Watcher};

use jobs::Scene;
use table::{Row, Screen};

const NAMESPACE: &str = "demo";
/// Between two reads of the API.
const REFRESH: Duration = Duration::from_millis(250);
/// Longest time that the Jobs may take; they need about half a minute.
const LENGTH_MAX: Duration = Duration::from_secs(100);
/// Pod GC waits before it treats a node as gone, here one second.
const QUARANTINE: &str = "--pod-gc-quarantine=1s";
const ENDED_WITHIN: Duration = Duration::from_secs(20);
/// The watch may be behind the node.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);

/// Runs the story on this cluster. The control plane must be the demo's own.
pub async fn play(cluster: &Cluster, setup: &Setup) -> anyhow::Result<()> {
    let client = cluster.admin_client().await?;
    let controller = Controller::start(cluster, &setup.clone().argument(QUARANTINE)).await?;
    let options = nodes::Options {
        nodes: 4,
        name_prefix: "node".to_owned(),
        // The agent taints a node that shuts down.
        bind: Bind::Untainted,
        ..nodes::Options::default()
    };
    let nodes = SimulatedNodes::start(client.clone(), options).await?;
    create_namespace(&client).await?;
    let scenes = jobs::scenes();
    println!(
        "\nFour simulated nodes; our controller and, on the node that goes, our agent, each under \
         its own service account. The Jobs:\n"
    );
    for scene in &scenes {
        println!("  {:<12} {}", scene.name, scene.shows);
    }
    println!();
    let stage = Stage { cluster, client: &client, nodes: &nodes, dir: &setup.dir };
    let outcome = Box::pin(watch(&stage, &scenes)).await;
    let reported = ends::reported(&client, &scenes).await;
    let log = controller.log().display().to_string();
    nodes.stop().await?;
    controller.stop().await;
    let rows = outcome.with_context(|| format!("the controller's log is {log}"))?;
    println!("\nHow their pods ended, as the events of each Job keep it when the pods are gone:\n");
    for line in reported? {
        println!("  {line}");
    }
    summarize(&scenes, &rows)
}

/// The environment of the demo.
struct Stage<'a> {
    cluster: &'a Cluster,
    client: &'a kube::Client,
    nodes: &'a SimulatedNodes,
    dir: &'a Path,
}

/// Draws the Jobs until all of them are finished; powers off a node and deletes a pod meanwhile.
async fn watch(stage: &Stage<'_>, scenes: &[Scene]) -> anyhow::Result<Vec<Row>> {
    let client = stage.client;
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
        Box::pin(acts.play(stage, scenes, &mut screen)).await?;
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

/// The events that hit the Jobs' pods, each once. Nodes go before the Jobs exist that they would
/// take something from.
#[derive(Default)]
struct Acts {
    node_was_shut_down: bool,
    node_has_died: bool,
    pod_was_deleted: bool,
}

impl Acts {
    async fn play(
        &mut self,
        stage: &Stage<'_>,
        scenes: &[Scene],
        screen: &mut Screen,
    ) -> anyhow::Result<()> {
        let client = stage.client;
        if !self.node_was_shut_down
            && let Some((pod, node)) = running_pod(client, jobs::DISRUPTED).await?
        {
            self.node_was_shut_down = true;
            power_off(stage, &node, &pod, screen).await?;
            create(client, scenes, |scene| scene.name == jobs::BEREAVED).await?;
        }
        if !self.node_has_died
            && let Some((pod, node)) = running_pod(client, jobs::BEREAVED).await?
        {
            self.node_has_died = true;
            lose(stage, &node, &pod, screen).await?;
            let early = [jobs::DISRUPTED, jobs::BEREAVED];
            create(client, scenes, |scene| !early.contains(&scene.name)).await?;
        }
        if !self.pod_was_deleted
            && let Some((pod, _)) = running_pod(client, jobs::PATIENT).await?
        {
            self.pod_was_deleted = true;
            screen.say(&format!("a user deletes {pod}, which takes 5 s to terminate"));
            pods(client).delete(&pod, &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

/// Powers off a node like a real one: its logind announces it and waits for the agent's lock. When
/// the lock is released, the agent's writes are in the API; then the node is silent.
async fn power_off(
    stage: &Stage<'_>,
    node: &str,
    pod: &str,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let host = host::Host::start(stage.cluster, &stage.dir.join("hosts"), node).await?;
    let watcher = Watcher::start(stage.client.clone(), NAMESPACE, &stage.dir.join("hosts")).await?;
    screen.say(&format!("{node}: the agent holds a delay lock of logind; now it is powered off"));
    let begun = Instant::now();
    host.power_off().await?;
    let held = begun.elapsed();
    stage.nodes.vanish(node).await?;
    let seen = reported(&watcher, pod, REPORTED_WITHIN).await?;
    screen.say(&format!("{node} is off, {:.1} s later; {seen}", held.as_secs_f64()));
    Ok(())
}

/// A node vanishes, and a user deletes its object: the sign that it will not come back.
async fn lose(stage: &Stage<'_>, node: &str, pod: &str, screen: &mut Screen) -> anyhow::Result<()> {
    let watcher = Watcher::start(stage.client.clone(), NAMESPACE, stage.dir).await?;
    stage.nodes.vanish(node).await?;
    let nodes: Api<Node> = Api::all(stage.client.clone());
    nodes.delete(node, &DeleteParams::default()).await.context("remove a node")?;
    screen.say(&format!("{node} dies without a word, and is removed from the cluster"));
    let seen = reported(&watcher, pod, ENDED_WITHIN).await?;
    screen.say(&format!("pod GC saw that {node} stays away; {seen}"));
    Ok(())
}

/// Describes the pod's end, once the API has it.
async fn reported(watcher: &Watcher, pod: &str, within: Duration) -> anyhow::Result<String> {
    let is_reported = |seen: &Option<Seen>| {
        seen.as_ref().is_some_and(|seen| seen.is_terminal() && seen.is_disrupted())
    };
    let observe = async || watcher.history(pod).into_iter().rfind(Seen::is_terminal);
    let Ok(Some(seen)) = observe_until(within, observe, is_reported).await else {
        anyhow::bail!("{pod} is not terminal in the API: {:?}", watcher.history(pod));
    };
    let (_, reason) = seen.disruption.unwrap_or_default();
    Ok(format!("{pod} is {}, DisruptionTarget {reason}", seen.phase))
}

/// A running pod of the Job, and its node.
async fn running_pod(client: &kube::Client, job: &str) -> anyhow::Result<Option<(String, String)>> {
    let selector = ListParams::default().labels(&format!("job-name={job}"));
    let list = pods(client).list(&selector).await?;
    let running = list.items.into_iter().find(|pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    });
    Ok(running.and_then(|pod| Some((pod.metadata.name?, pod.spec?.node_name?))))
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

/// Prints a summary, and fails if a Job did not end as its scene says.
fn summarize(scenes: &[Scene], rows: &[Row]) -> anyhow::Result<()> {
    println!("\nWhat was shown:\n");
    let mut wrong = Vec::new();
    for (scene, row) in scenes.iter().zip(rows) {
        let as_expected = row.ends_as(&scene.end);
        println!("  {} {:<12} {}", if as_expected { "✓" } else { "✗" }, scene.name, scene.end);
        if !as_expected {
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::JobStatus;
    use serde_json::json;

    use super::*;

    fn rows(scenes: &[Scene]) -> Vec<Row> {
        let row = |scene: &Scene| {
            let status: JobStatus = serde_json::from_value(json!({
                "succeeded": scene.end.succeeded, "failed": scene.end.failed,
                "conditions": [{"type": scene.end.condition, "status": "True"}],
            }))
            .expect("a status");
            Row::new(scene.name, status, BTreeMap::new())
        };
        scenes.iter().map(row).collect()
    }

    #[test]
    fn the_demo_fails_if_one_job_ends_otherwise() {
        let mut scenes = jobs::scenes();
        let rows = rows(&scenes);
        summarize(&scenes, &rows).expect("each Job ended as its scene says");
        scenes[4].end.failed += 1;
        let error = summarize(&scenes, &rows).expect_err("one Job counts another number");
        assert!(error.to_string().contains("disrupted"), "{error}");
    }
}
