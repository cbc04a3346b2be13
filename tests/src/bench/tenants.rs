//! Measures two tenants: one creates thousands of Jobs at once, the other a Job every second. The
//! figure is how long the second one's Jobs wait for their first pod, with and without the flood.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, pin_mut, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::Plan;
use super::contender::{Bed, Contender};
use super::run::create_namespace;
use super::scenario;

const FLOOD: usize = 2_000;
const FLOODING: &str = "tenant-flooding";
const OTHER: &str = "tenant-other";
/// The usual concurrency of scripts that create Jobs.
const CREATIONS_MAX: usize = 16;
/// Jobs of the other tenant in each part.
const PROBES: usize = 30;
const FIRST_POD_WITHIN: Duration = Duration::from_mins(5);
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// When the first pod of each Job appeared.
type FirstPods = Arc<Mutex<HashMap<String, Instant>>>;

/// How long Jobs of the other tenant waited, in order.
#[derive(Clone, Debug)]
pub struct Waits {
    pub contender: Contender,
    pub quiet: Vec<Duration>,
    pub flooded: Vec<Duration>,
}

/// Both parts for each contender of the plan.
pub async fn run(plan: &Plan) -> anyhow::Result<Vec<Waits>> {
    let mut all = Vec::new();
    // During a flood, the limit of 20 requests a second would hide everything else.
    for contender in plan.contenders.iter().copied().filter(|it| *it != Contender::Throttled) {
        eprintln!("tenants, {} …", contender.title());
        let bed = Bed::start(contender, plan.binary.clone(), plan.life, None).await?;
        let waits = measure(&bed, contender).await;
        bed.stop().await?;
        all.push(waits.with_context(|| format!("tenants, {}", contender.title()))?);
    }
    Ok(all)
}

async fn measure(bed: &Bed, contender: Contender) -> anyhow::Result<Waits> {
    let client = bed.control_plane.admin_client().await?;
    create_namespace(&client, FLOODING).await?;
    create_namespace(&client, OTHER).await?;
    let first_pods = FirstPods::default();
    let pods = Api::namespaced(client.clone(), OTHER);
    let watch = tokio::spawn(keep_first_pods(pods, Arc::clone(&first_pods)));
    let _watch = AbortOnDropHandle::new(watch);
    let jobs: Api<Job> = Api::namespaced(client.clone(), OTHER);
    let quiet = probes(&jobs, "quiet", contender, &first_pods).await?;
    let flooding: Api<Job> = Api::namespaced(client, FLOODING);
    let flood = async {
        let params = PostParams::default();
        stream::iter(0..FLOOD)
            .map(async |number| {
                let job = scenario::plain(&format!("flood-{number}"), contender.managed_by());
                flooding.create(&params, &job).await.map(drop)
            })
            .buffer_unordered(CREATIONS_MAX)
            .try_collect::<()>()
            .await
            .context("create the flood")
    };
    let (flooded, ()) = tokio::try_join!(probes(&jobs, "flooded", contender, &first_pods), flood)?;
    Ok(Waits { contender, quiet, flooded })
}

/// A Job every second, and how long each waited for its first pod.
async fn probes(
    jobs: &Api<Job>,
    prefix: &str,
    contender: Contender,
    first_pods: &FirstPods,
) -> anyhow::Result<Vec<Duration>> {
    let mut created = Vec::new();
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0..PROBES {
        seconds.tick().await;
        let name = format!("{prefix}-{number}");
        let job = scenario::plain(&name, contender.managed_by());
        jobs.create(&PostParams::default(), &job).await.context("create a Job")?;
        // Measured from the creation: the API's own time is not the controller's.
        created.push((name, Instant::now()));
    }
    let until = Instant::now() + FIRST_POD_WITHIN;
    loop {
        let shown = first_pods.lock().expect("no holder panics").clone();
        let waited = |(name, at): &(String, Instant)| {
            shown.get(name).map(|shown| shown.saturating_duration_since(*at))
        };
        if let Some(mut waits) = created.iter().map(waited).collect::<Option<Vec<_>>>() {
            waits.sort_unstable();
            return Ok(waits);
        }
        anyhow::ensure!(Instant::now() < until, "a Job has no pod after {FIRST_POD_WITHIN:?}");
        sleep(CHECK_EVERY).await;
    }
}

async fn keep_first_pods(pods: Api<Pod>, first_pods: FirstPods) {
    let events = watcher(pods, watcher::Config::default()).default_backoff().applied_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let labels = event.ok().and_then(|pod| pod.metadata.labels).unwrap_or_default();
        let Some(job) = labels.get("job-name") else { continue };
        let mut first = first_pods.lock().expect("no holder panics");
        first.entry(job.clone()).or_insert_with(Instant::now);
    }
}

/// A table for human readers.
pub fn table(all: &[Waits]) -> String {
    let mut text = format!(
        "{:<10} {:>12} {:>12} {:>14} {:>14} {:>8}\n",
        "", "quiet p50", "quiet p99", "flooded p50", "flooded p99", "ratio"
    );
    for waits in all {
        let ms = |waits: &[Duration], part: f64| percentile(waits, part).as_secs_f64() * 1000.0;
        let (quiet, flooded) = (ms(&waits.quiet, 0.99), ms(&waits.flooded, 0.99));
        writeln!(
            text,
            "{:<10} {:>9.0} ms {quiet:>9.0} ms {:>11.0} ms {flooded:>11.0} ms {:>8.1}",
            waits.contender.title(),
            ms(&waits.quiet, 0.5),
            ms(&waits.flooded, 0.5),
            flooded / quiet.max(1.0),
        )
        .expect("a String must take text");
    }
    text + &format!(
        "From a Job's creation to its first pod, of a tenant that creates one a second; flooded: \
         alongside another one\nthat creates {FLOOD} at once. ratio: p99 with the flood to p99 \
         without it.\n"
    )
}

/// The smallest of these ordered values that at least this part does not exceed.
pub(super) fn percentile(values: &[Duration], part: f64) -> Duration {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "dozens of values"
    )]
    let place = (values.len() as f64 * part).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_percentiles_and_their_ratio() {
        let to = |max: u64| (1..=max).map(|n| Duration::from_millis(10 * n)).collect::<Vec<_>>();
        let waits = Waits { contender: Contender::Ours, quiet: to(10), flooded: to(30) };
        let text = table(&[waits]);
        let row = text.lines().nth(1).expect("a row");
        let row: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(row, ["ours", "50", "ms", "100", "ms", "150", "ms", "300", "ms", "3.0"]);
    }
}
