//! Measures one Job with very many running pods: how long the plans of its syncs take when one pod
//! changes, and how much longer a serial Job next to it takes than alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, interval, sleep, timeout};

use super::Plan;
use super::contender::{Bed, Contender, Life};
use super::exposition::samples;
use super::hold::all_run;
use super::run::{create_namespace, rest, run_jobs};
use super::scenario::{self, Scenario};

const NAMESPACE: &str = "wide";
const SERIAL: &str = "serial";
/// Nodes write each pod twice, and a machine with two cores takes a thousand writes a second.
const RUNNING_WITHIN: Duration = Duration::from_mins(30);
/// Pods that end one by one, each with a sync of its own.
const CHANGES: usize = 20;
const COUNTED_WITHIN: Duration = Duration::from_secs(30);
/// While the serial Job runs, so often a pod of the wide one ends.
const CHANGE_EVERY: Duration = Duration::from_millis(250);
/// Serial Jobs alone, and as many next to the wide one.
const RUNS: usize = 5;
const PLANS: &str = "epilogue_plan_seconds_bucket";

/// The figures of one contender.
#[derive(Clone, Debug)]
pub struct Wide {
    pub contender: Contender,
    pub pods: u32,
    /// Upper bounds of the median and of the 99th percentile of plans, in seconds; upstream has no
    /// such metric.
    pub plans: Option<[f64; 2]>,
    /// From the end of a pod until the status counts it, in order.
    pub counted: Vec<Duration>,
    /// Wall times of the serial Job, in order.
    pub alone: Vec<Duration>,
    pub alongside: Vec<Duration>,
}

/// The figures of each contender of the plan.
pub async fn run(plan: &Plan, pods: u32) -> anyhow::Result<Vec<Wide>> {
    let mut all = Vec::new();
    // At 20 requests a second, pods would take minutes to be created and show only the limit.
    for contender in plan.contenders.iter().copied().filter(|it| *it != Contender::Throttled) {
        let what = format!("wide, {pods} pods, {}", contender.title());
        eprintln!("{what} …");
        let bed = Bed::start(contender, plan.binary.clone(), Life::WithRunning, None).await?;
        let wide = measure(&bed, contender, pods).await;
        bed.stop().await?;
        all.push(wide.context(what)?);
    }
    Ok(all)
}

async fn measure(bed: &Bed, contender: Contender, pods: u32) -> anyhow::Result<Wide> {
    let client = bed.control_plane.admin_client().await?;
    create_namespace(&client, NAMESPACE).await?;
    create_namespace(&client, SERIAL).await?;
    let alone = serial(&client, contender, "alone").await?;

    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    let wide = scenario::endless(NAMESPACE, contender.managed_by(), pods);
    jobs.create(&PostParams::default(), &wide).await.context("create the wide Job")?;
    let all_pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let running = timeout(RUNNING_WITHIN, all_run(&jobs, &all_pods, pods)).await;
    running.with_context(|| format!("not all pods ran within {RUNNING_WITHIN:?}"))??;
    rest(bed, Duration::from_secs(5)).await?;

    let few = ListParams::default().limit(2_000);
    let few = all_pods.list_metadata(&few).await.context("list some pods")?;
    let mut names = few.items.into_iter().filter_map(|pod| pod.metadata.name);
    let before = bed.metrics().await?;
    let mut counted = Vec::new();
    for (number, name) in names.by_ref().take(CHANGES).enumerate() {
        counted.push(one_ends(&jobs, &all_pods, &name, number + 1).await?);
    }
    counted.sort_unstable();
    let after = bed.metrics().await?;
    let plans = before.zip(after).and_then(|(before, after)| {
        Some([quantile(&before, &after, 0.5)?, quantile(&before, &after, 0.99)?])
    });

    let ends = async {
        let mut ticks = interval(CHANGE_EVERY);
        for name in names {
            ticks.tick().await;
            end(&all_pods, &name).await?;
        }
        anyhow::bail!("too few pods for the time that the serial Jobs take")
    };
    let alongside = tokio::select! {
        alongside = serial(&client, contender, "alongside") => alongside?,
        ended = ends => ended?,
    };
    Ok(Wide { contender, pods, plans, counted, alone, alongside })
}

/// The wall times of serial Jobs, one after the other, in order of length.
async fn serial(
    client: &kube::Client,
    contender: Contender,
    name: &str,
) -> anyhow::Result<Vec<Duration>> {
    let mut walls = Vec::new();
    for number in 0..RUNS {
        let mut load = Scenario::Serial.load(contender.managed_by());
        for job in &mut load {
            job.metadata.name = Some(format!("{name}-{number}"));
        }
        // What waits for it counts the complete Jobs of the namespace, so earlier ones go.
        let begun = Instant::now();
        run_jobs(client, (SERIAL, "Complete"), load).await?;
        walls.push(begun.elapsed());
        delete_all(client).await?;
    }
    walls.sort_unstable();
    Ok(walls)
}

async fn delete_all(client: &kube::Client) -> anyhow::Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), SERIAL);
    let pods: Api<Pod> = Api::namespaced(client.clone(), SERIAL);
    let all = ListParams::default();
    jobs.delete_collection(&scenario::at_once(), &all).await.context("delete the Jobs")?;
    pods.delete_collection(&scenario::at_once(), &all).await.context("delete the pods")?;
    Ok(())
}

/// Ends a pod, and returns how long it takes until the status counts this many successes.
async fn one_ends(
    jobs: &Api<Job>,
    pods: &Api<Pod>,
    name: &str,
    number: usize,
) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    end(pods, name).await?;
    let number = i32::try_from(number)?;
    while begun.elapsed() < COUNTED_WITHIN {
        let job = jobs.get_status(NAMESPACE).await.context("read the wide Job")?;
        // An ended pod that is still listed counts towards no number.
        if job.status.and_then(|status| status.succeeded) >= Some(number) {
            return Ok(begun.elapsed());
        }
        sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("a pod is not counted after {COUNTED_WITHIN:?}")
}

async fn end(pods: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let result = pods.patch_status(name, &PatchParams::default(), &ended).await;
    result.map(drop).with_context(|| format!("end the pod {name}"))
}

/// The bound of the histogram of plans of Jobs below which this part of them is that came between
/// two readings.
fn quantile(before: &str, after: &str, part: f64) -> Option<f64> {
    let buckets = |text| -> Vec<(String, f64)> {
        let of_jobs = samples(text, PLANS).filter(|sample| sample.label("work") == "job");
        of_jobs.map(|sample| (sample.label("le").to_owned(), sample.value)).collect()
    };
    let earlier: BTreeMap<String, f64> = buckets(before).into_iter().collect();
    let count = |(bound, count): (String, f64)| {
        let new = count - earlier.get(&bound).unwrap_or(&0.0);
        (bound, new)
    };
    let new: Vec<(String, f64)> = buckets(after).into_iter().map(count).collect();
    let all = new.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
    let (bound, _) = new.into_iter().find(|(_, count)| *count >= all * part)?;
    Some(bound.parse().unwrap_or(f64::INFINITY))
}

impl Wide {
    /// Median wall time next to the wide Job, divided by that alone.
    fn ratio(&self) -> f64 {
        median(&self.alongside).as_secs_f64() / median(&self.alone).as_secs_f64().max(f64::EPSILON)
    }
}

fn median(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// A table for human readers.
pub fn table(all: &[Wide]) -> String {
    let mut text = format!(
        "{:<10} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7}\n",
        "wide", "pods", "plan p50", "plan p99", "counted", "alone", "alongside", "ratio"
    );
    for wide in all {
        let bound = |place: usize| match wide.plans {
            Some(plans) => format!("≤ {} ms", plans[place] * 1000.0),
            None => "-".to_owned(),
        };
        let seconds = |sorted: &[Duration]| format!("{:.2} s", median(sorted).as_secs_f64());
        writeln!(
            text,
            "{:<10} {:>9} {:>11} {:>11} {:>11} {:>11} {:>11} {:>7.2}",
            wide.contender.title(),
            wide.pods,
            bound(0),
            bound(1),
            seconds(&wide.counted),
            seconds(&wide.alone),
            seconds(&wide.alongside),
            wide.ratio(),
        )
        .expect("a String must take text");
    }
    text + &format!(
        "plan: of a sync after one of the pods has ended, {CHANGES} in turn, by the histogram's \
         bounds.\ncounted: from the end of a pod until the status counts it. alone, alongside: a \
         serial Job of 20 pods,\nwithout and with the wide Job, of which a pod ends every \
         {CHANGE_EVERY:?}; medians of {RUNS}.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposition(counts: [u32; 3]) -> String {
        let line = |(bound, count): (&str, u32)| {
            format!("{PLANS}{{le=\"{bound}\",work=\"job\"}} {count}\n")
        };
        let other = format!("{PLANS}{{le=\"0.1\",work=\"orphans\"}} 900\n");
        ["0.001", "0.005", "+Inf"].into_iter().zip(counts).map(line).collect::<String>() + &other
    }

    #[test]
    fn a_quantile_is_of_what_came_between_two_readings() {
        let (before, after) = (exposition([50, 50, 50]), exposition([60, 148, 150]));
        assert_eq!(quantile(&before, &after, 0.1), Some(0.001));
        assert_eq!(quantile(&before, &after, 0.5), Some(0.005));
        assert_eq!(quantile(&before, &after, 0.99), Some(f64::INFINITY));
        assert_eq!(quantile(&after, &after, 0.5), None);
    }

    #[test]
    fn the_table_shows_bounds_and_the_ratio_of_medians() {
        let to = |each: [u64; 3]| each.map(Duration::from_millis).to_vec();
        let ours = Wide {
            contender: Contender::Ours,
            pods: 100_000,
            plans: Some([0.001, 0.005]),
            counted: to([10, 20, 30]),
            alone: to([900, 1_000, 1_100]),
            alongside: to([1_000, 1_200, 1_900]),
        };
        let reference = Wide { contender: Contender::Reference, plans: None, ..ours.clone() };
        let text = table(&[ours, reference]);
        let rows: Vec<&str> = text.lines().skip(1).take(2).collect();
        let words = rows[0].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, "ours 100000 ≤ 1 ms ≤ 5 ms 0.02 s 1.00 s 1.20 s 1.20");
        assert!(rows[1].contains(" - "), "{}", rows[1]);
    }
}
