//! Measures what running pods cost a controller: its memory for each, and how long a restart takes
//! until the first pod of a new Job, with the CPU that it costs the API server.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use tokio::time::{Instant, sleep, timeout};

use super::Plan;
use super::contender::{Bed, Contender, Life};
use super::picture::{Bar, Group};
use super::run::{create_namespace, rest};
use super::scenario;
use super::usage;

const NAMESPACE: &str = "hold";
/// The pods are of so many Jobs.
const JOBS: u32 = 20;
/// The new Job has a namespace of its own: to look for its pod among all others costs the API
/// server more than what is measured.
const PROBE: &str = "probe";
/// Nodes write each pod twice, and a machine with two cores takes a thousand writes a second.
const RUNNING_WITHIN: Duration = Duration::from_mins(30);
const PROBE_WITHIN: Duration = Duration::from_mins(2);
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The figures of one contender.
#[derive(Clone, Debug)]
pub struct Held {
    pub contender: Contender,
    pub pods: u32,
    pub rss_before_kib: u64,
    pub rss_running_kib: u64,
    /// After the restart, when it is at rest again.
    pub rss_restarted_kib: u64,
    /// From the start to the first pod of a Job that was created meanwhile.
    pub restart: Duration,
    pub api_server_cpu: Duration,
    pub controller_cpu: Duration,
}

/// The figures of each contender of the plan.
pub async fn run(plan: &Plan, pods: u32) -> anyhow::Result<Vec<Held>> {
    let mut all = Vec::new();
    // At 20 requests a second, pods would take minutes to be created and show only the limit.
    for contender in plan.contenders.iter().copied().filter(|it| *it != Contender::Throttled) {
        let what = format!("hold {pods} pods, {}", contender.title());
        eprintln!("{what} …");
        let mut bed = Bed::start(contender, plan.binary.clone(), Life::WithRunning, None).await?;
        let held = measure(&mut bed, contender, pods).await;
        bed.stop().await?;
        all.push(held.context(what)?);
    }
    Ok(all)
}

async fn measure(bed: &mut Bed, contender: Contender, pods: u32) -> anyhow::Result<Held> {
    let client = bed.control_plane.admin_client().await?;
    create_namespace(&client, NAMESPACE).await?;
    create_namespace(&client, PROBE).await?;
    rest(bed, Duration::from_secs(1)).await?;
    let rss_before_kib = usage::of(bed.controller_pid())?.rss_kib;
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    let each = pods.div_ceil(JOBS);
    stream::iter(0..JOBS)
        .map(async |number| {
            let job = scenario::endless(&format!("hold-{number}"), contender.managed_by(), each);
            jobs.create(&PostParams::default(), &job).await.map(drop)
        })
        .buffer_unordered(4)
        .try_collect::<()>()
        .await
        .context("create the Jobs")?;
    let all_pods = Api::namespaced(client.clone(), NAMESPACE);
    let running = timeout(RUNNING_WITHIN, all_run(&jobs, &all_pods, each)).await;
    running.with_context(|| format!("not all pods ran within {RUNNING_WITHIN:?}"))??;
    rest(bed, Duration::from_secs(5)).await?;
    let rss_running_kib = usage::of(bed.controller_pid())?.rss_kib;

    let api_server = usage::of(bed.api_server_pid())?.cpu;
    let begun = Instant::now();
    bed.restart().await?;
    let probe = scenario::plain(PROBE, contender.managed_by());
    let probes: Api<Job> = Api::namespaced(client.clone(), PROBE);
    probes.create(&PostParams::default(), &probe).await.context("create the probe")?;
    timeout(PROBE_WITHIN, first_pod(&Api::namespaced(client, PROBE)))
        .await
        .context("the probe got no pod")??;
    let restart = begun.elapsed();
    rest(bed, Duration::from_secs(2)).await?;
    let controller = usage::of(bed.controller_pid())?;
    Ok(Held {
        contender,
        pods: each * JOBS,
        rss_before_kib,
        rss_running_kib,
        rss_restarted_kib: controller.rss_kib,
        restart,
        api_server_cpu: usage::of(bed.api_server_pid())?.cpu.saturating_sub(api_server),
        controller_cpu: controller.cpu,
    })
}

/// Waits until each Job counts this many active pods, and until all of them run: a node that still
/// reports would make the API server work for it, not for the controller.
pub(super) async fn all_run(jobs: &Api<Job>, pods: &Api<Pod>, each: u32) -> anyhow::Result<()> {
    let each = i32::try_from(each)?;
    let pending = ListParams::default().fields("status.phase!=Running").limit(1);
    loop {
        sleep(Duration::from_secs(1)).await;
        let all = jobs.list(&ListParams::default()).await.context("list the Jobs")?;
        let active = |job: &Job| job.status.as_ref().and_then(|status| status.active);
        if all.items.iter().any(|job| active(job) != Some(each)) {
            continue;
        }
        let pending = pods.list_metadata(&pending).await.context("list the pods")?;
        if pending.items.is_empty() {
            return Ok(());
        }
    }
}

async fn first_pod(pods: &Api<Pod>) -> anyhow::Result<()> {
    let all = ListParams::default();
    while pods.list_metadata(&all).await.context("list the pods")?.items.is_empty() {
        sleep(CHECK_EVERY).await;
    }
    Ok(())
}

impl Held {
    fn growth_per_pod_kib(&self) -> f64 {
        number(self.rss_running_kib.saturating_sub(self.rss_before_kib)) / f64::from(self.pods)
    }

    /// What is compared, by name.
    fn costs(&self) -> [(&'static str, f64); 6] {
        [
            ("KiB a pod", self.growth_per_pod_kib()),
            ("RSS MiB", number(self.rss_running_kib / 1024)),
            ("again MiB", number(self.rss_restarted_kib / 1024)),
            ("restart", self.restart.as_secs_f64()),
            ("CPU", self.controller_cpu.as_secs_f64()),
            ("API CPU", self.api_server_cpu.as_secs_f64()),
        ]
    }
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The ratios of ours to upstream, as bars; none unless both were measured.
pub fn bars(all: &[Held]) -> Group {
    let of = |contender| all.iter().find(|held| held.contender == contender).map(Held::costs);
    let bars = match (of(Contender::Ours), of(Contender::Reference)) {
        (Some(ours), Some(theirs)) => ours.into_iter().zip(theirs).collect(),
        _ => Vec::new(),
    };
    let bar = |((measure, ours), (_, theirs)): ((&str, f64), (&str, f64))| {
        (theirs > 0.0).then(|| Bar { measure: measure.to_owned(), ratio: ours / theirs })
    };
    let pods = all.first().map_or(0, |held| held.pods);
    Group { name: format!("hold, {pods} pods"), bars: bars.into_iter().filter_map(bar).collect() }
}

/// A table for human readers.
pub fn table(all: &[Held]) -> String {
    let mut text = format!(
        "{:<10} {:>9} {:>12} {:>12} {:>12} {:>10} {:>10} {:>10}\n",
        "", "pods", "KiB a pod", "RSS MiB", "again MiB", "restart", "CPU", "API CPU"
    );
    for held in all {
        let mib = |kib: u64| kib / 1024;
        writeln!(
            text,
            "{:<10} {:>9} {:>12.2} {:>12} {:>12} {:>8.2} s {:>8.2} s {:>8.2} s",
            held.contender.title(),
            held.pods,
            held.growth_per_pod_kib(),
            mib(held.rss_running_kib),
            mib(held.rss_restarted_kib),
            held.restart.as_secs_f64(),
            held.controller_cpu.as_secs_f64(),
            held.api_server_cpu.as_secs_f64(),
        )
        .expect("a String must take text");
    }
    let ratios = bars(all).bars;
    if !ratios.is_empty() {
        let said = ratios.iter().map(|bar| format!("{} {:.2}", bar.measure, bar.ratio));
        let said: Vec<String> = said.collect();
        writeln!(text, "ours/reference: {}", said.join(", ")).expect("a String must take text");
    }
    text + "KiB a pod: growth of the controller's memory while its Jobs start these pods.\n\
            again: its memory after a restart.\n\
            restart: from the start to the first pod of a new Job.\n\
            CPU and API CPU: of the controller and of the API server, from the restart until both \
            rest.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(contender: Contender) -> Held {
        Held {
            contender,
            pods: 1_000,
            rss_before_kib: 10_240,
            rss_running_kib: 13_312,
            rss_restarted_kib: 12_288,
            restart: Duration::from_millis(1_250),
            api_server_cpu: Duration::from_millis(640),
            controller_cpu: Duration::from_millis(330),
        }
    }

    #[test]
    fn the_ratio_is_ours_to_upstream_s() {
        let slow = Held { restart: Duration::from_millis(2_500), ..held(Contender::Reference) };
        let text = table(&[slow, held(Contender::Ours)]);
        let ratios = "ours/reference: KiB a pod 1.00, RSS MiB 1.00, again MiB 1.00, restart 0.50";
        assert!(text.contains(ratios), "{text}");
        assert!(bars(&[held(Contender::Ours)]).bars.is_empty());
    }

    #[test]
    fn the_table_shows_growth_per_pod_and_the_restart() {
        let text = table(&[held(Contender::Ours)]);
        let row: Vec<&str> = text.lines().nth(1).expect("a row").split_whitespace().collect();
        let expected = ["ours", "1000", "3.07", "13", "12", "1.25", "s", "0.33", "s", "0.64", "s"];
        assert_eq!(row, expected);
    }
}
