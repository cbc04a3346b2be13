//! The bench of the agent: shuts down one node, with as many pods as a kubelet admits, over paths
//! to the API of different quality.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::agent::{Setup, Site, Way};
use crate::{ControlPlane, Options};

/// The default maximum of pods on a kubelet.
const PODS: usize = 110;
/// Long enough for 5 requests a second.
const DELAY_SECONDS: u64 = 120;
/// Idle time over which the agent's CPU is measured.
const IDLE: Duration = Duration::from_secs(30);
const TICKS_PER_SECOND: f64 = 100.0;

/// Figures of one run.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// The path to the API.
    pub way: &'static str,
    /// From the notice until the API showed the last condition.
    pub marked: Option<Duration>,
    /// From the notice until the API showed the last end.
    pub ended: Option<Duration>,
    /// From then until the agent released the lock.
    pub acknowledged: Option<Duration>,
    /// Pods with the condition.
    pub disrupted: usize,
    /// Pods that ended.
    pub terminal: usize,
    /// Whether the agent released the lock in time.
    pub released: bool,
    /// RSS of the agent before the notice.
    pub rss_kib: u64,
    /// The part of it that is pages of the program's file.
    pub file_kib: u64,
    /// CPU of the agent before the notice, in percent of a core.
    pub idle_cpu_percent: f64,
}

/// Runs each path once. The program is the agent's.
pub async fn shutdowns(binary: PathBuf) -> anyhow::Result<Vec<Shutdown>> {
    let here = || Way::RoundTrip(Duration::ZERO);
    let ways = [
        ("same machine", here(), "--pressure=off"),
        ("… --pressure=enforce", here(), "--pressure=enforce"),
        ("200 ms", Way::RoundTrip(Duration::from_millis(200)), "--pressure=off"),
        ("5 requests/s", Way::PerSecond(5.0), "--pressure=off"),
    ];
    let control_plane = ControlPlane::start(Options::unique("bench-agent").without_audit()).await?;
    let mut runs = Vec::new();
    for (name, way, pressure) in ways {
        eprintln!("{name} …");
        let setup = Setup {
            binary: binary.clone(),
            pods: PODS,
            delay_seconds: DELAY_SECONDS,
            way,
            real_kernel: true,
            arguments: vec!["--shutdown-grace-period=90s".to_owned(), pressure.to_owned()],
            ..Setup::default()
        };
        let site = Site::start(control_plane.cluster(), setup).await;
        let run = shut_down(name, &site).await.context(name)?;
        // Each run takes minutes, and the table comes last.
        eprintln!("{}", row(&run));
        runs.push(run);
        site.stop().await;
    }
    control_plane.stop().await?;
    Ok(runs)
}

async fn shut_down(way: &'static str, site: &Site) -> anyhow::Result<Shutdown> {
    let idle_cpu_percent = cpu_percent(site.pid(), IDLE).await?;
    let rss_kib = memory_kib(site.pid(), "VmRSS:")?;
    let file_kib = memory_kib(site.pid(), "RssFile:")?;
    let begun = site.shut_down().await;
    let released = site.down().await;
    let down = Instant::now();
    // The administrator's watch may be behind the agent's.
    let ends = if released {
        site.until("the record shows what the agent saw", |ends| ends.ended == PODS).await
    } else {
        site.record.ends()
    };
    let since = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(begun));
    Ok(Shutdown {
        way,
        marked: since(ends.marked_at).filter(|_| ends.disrupted == PODS),
        ended: since(ends.ended_at).filter(|_| ends.ended == PODS),
        acknowledged: ends.ended_at.map(|at| down.saturating_duration_since(at)),
        disrupted: ends.disrupted,
        terminal: ends.ended,
        released,
        rss_kib,
        file_kib,
        idle_cpu_percent,
    })
}

/// A table for human readers.
pub fn table(runs: &[Shutdown]) -> String {
    let mut text = format!(
        "{:<22} {:>10} {:>10} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}\n",
        "way",
        "disruption",
        "ended",
        "acknowledged",
        "disrupted",
        "terminal",
        "released",
        "RSS KiB",
        "file KiB",
        "CPU %"
    );
    for run in runs {
        text += &row(run);
        text.push('\n');
    }
    text + "\
disruption: notice to the last DisruptionTarget in the API. ended: notice to the last terminal phase
in the API. acknowledged: from then until the agent gave the lock back. RSS and CPU: at rest.\n"
}

fn row(run: &Shutdown) -> String {
    let time = |time: Option<Duration>| {
        time.map_or_else(|| "-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()))
    };
    format!(
        "{:<22} {:>10} {:>10} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7.2}",
        run.way,
        time(run.marked),
        time(run.ended),
        time(run.acknowledged),
        run.disrupted,
        run.terminal,
        run.released,
        run.rss_kib,
        run.file_kib,
        run.idle_cpu_percent
    )
}

fn memory_kib(pid: u32, line: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|it| it.strip_prefix(line));
    let value = found.and_then(|it| it.split_whitespace().next()).context("no such line")?;
    Ok(value.parse()?)
}

/// The CPU that a process takes for so long from now on, in percent of a core.
#[expect(clippy::cast_precision_loss, reason = "a few ticks")]
pub(super) async fn cpu_percent(pid: u32, lasts: Duration) -> anyhow::Result<f64> {
    let before = ticks(pid)?;
    tokio::time::sleep(lasts).await;
    let used = ticks(pid)?.saturating_sub(before);
    Ok(used as f64 / TICKS_PER_SECOND / lasts.as_secs_f64() * 100.0)
}

/// CPU time of a process, in ticks.
fn ticks(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after) = stat.rsplit_once(')').context("no stat")?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let mut next = || -> anyhow::Result<u64> { Ok(fields.next().context("no time")?.parse()?) };
    Ok(next()? + next()?)
}
