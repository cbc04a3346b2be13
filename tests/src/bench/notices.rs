//! Notices of a node's end: what their sources cost while none has anything to say, and how soon
//! many nodes that get one at once have marked their pods.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt as _, stream};

use super::agent::cpu_percent;
use crate::agent::{Setup, Site, Way};
use crate::{ControlPlane, Options};

/// How long the agent rests under measurement.
const IDLE: Duration = Duration::from_mins(2);
/// What is asked. The clouds' address leads nowhere from here, so that a request of theirs fails;
/// on a machine of a cloud, one source of the three is asked.
const SOURCES: [(&str, &str); 3] =
    [("none", "off"), ("as by default", "auto"), ("all", "file,scheduled,node,aws,gce,azure")];

/// Nodes that get a notice at once, the pods of each, and the requests a second of its agent: as
/// many as a client of client-go has without flags.
const NODES: usize = 50;
const PODS: usize = 3;
const REQUESTS_PER_SECOND: f64 = 5.0;
/// How many of them start at once.
const STARTING: usize = 10;

/// The CPU of an agent at rest, by the sources that it asks.
#[derive(Clone, Debug)]
pub struct AtRest {
    /// What is asked.
    pub sources: &'static str,
    /// CPU in percent of a core.
    pub cpu_percent: f64,
}

/// Measures each so many times, in turn, and gives the medians. The program is the agent's.
pub async fn at_rest(binary: PathBuf, runs: u16) -> anyhow::Result<Vec<AtRest>> {
    let control_plane =
        ControlPlane::start(Options::unique("bench-notices").without_audit()).await?;
    let mut found = SOURCES.map(|_| Vec::new());
    for run in 0..runs {
        for (at, (sources, flag)) in SOURCES.into_iter().enumerate() {
            let setup = Setup {
                binary: binary.clone(),
                pods: 1,
                arguments: vec![format!("--notices={flag}"), "--pressure=off".to_owned()],
                ..Setup::default()
            };
            let site = Site::start(control_plane.cluster(), setup).await;
            let percent = cpu_percent(site.pid(), IDLE).await?;
            eprintln!("run {}: {sources}: {percent:.3} %", run + 1);
            found[at].push(percent);
            site.stop().await;
        }
    }
    control_plane.stop().await?;
    let medians = found.into_iter().zip(SOURCES).map(|(mut all, (sources, _))| {
        all.sort_by(f64::total_cmp);
        let cpu_percent = all.get(all.len() / 2).copied().unwrap_or_default();
        AtRest { sources, cpu_percent }
    });
    Ok(medians.collect())
}

/// How long after their notices the nodes had marked all their pods, the shortest first.
pub async fn fleet(binary: PathBuf) -> anyhow::Result<Vec<Duration>> {
    let control_plane = ControlPlane::start(Options::unique("bench-fleet").without_audit()).await?;
    let setup = || Setup {
        binary: binary.clone(),
        pods: PODS,
        way: Way::PerSecond(REQUESTS_PER_SECOND),
        // The groups take so long that the shutdown begins at once.
        arguments: vec!["--notices=file".to_owned(), "--shutdown-grace-period=100s".to_owned()],
        ..Setup::default()
    };
    let starting = stream::iter(0..NODES).map(|_| Site::start(control_plane.cluster(), setup()));
    let sites: Vec<Site> = starting.buffer_unordered(STARTING).collect().await;
    let mut given = Vec::new();
    for site in &sites {
        given.push(Instant::now());
        site.give_notice("in=2min\n");
    }
    let all = sites.iter().map(|site| site.until("all are marked", |ends| ends.disrupted == PODS));
    let ends = join_all(all).await.into_iter().zip(given);
    let mut waits: Vec<Duration> = ends
        .filter_map(|(ends, given)| Some(ends.marked_at?.saturating_duration_since(given)))
        .collect();
    waits.sort();
    join_all(sites.into_iter().map(Site::stop)).await;
    control_plane.stop().await?;
    Ok(waits)
}

/// The figures of [`fleet`] for human readers.
pub fn fleet_line(waits: &[Duration]) -> String {
    let at = |percent: usize| waits.get(waits.len().saturating_sub(1) * percent / 100);
    let seconds = |wait: Option<&Duration>| wait.map_or(0.0, Duration::as_secs_f64);
    format!(
        "{} of {NODES} nodes had all {PODS} pods marked; after the notice: median {:.2} s, p99 \
         {:.2} s, at {REQUESTS_PER_SECOND} requests a second each\n",
        waits.len(),
        seconds(at(50)),
        seconds(at(99)),
    )
}

/// A table for human readers.
pub fn table(rows: &[AtRest]) -> String {
    let mut text = format!("{:<14} {:>9} {:>11}\n", "sources asked", "CPU %", "beyond none");
    let none = rows.first().map_or(0.0, |row| row.cpu_percent);
    for AtRest { sources, cpu_percent } in rows {
        let beyond = cpu_percent - none;
        // A String takes all.
        let _ = writeln!(text, "{sources:<14} {cpu_percent:>9.3} {beyond:>11.3}");
    }
    text + "CPU of the agent at rest, in percent of a core.\n"
}
