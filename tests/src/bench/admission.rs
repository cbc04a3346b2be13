//! Measures what the admission policies of `deploy/policy` cost an API server, at the rate of
//! writes of a cluster with so many nodes: its CPU, and how long a write takes. The parts
//! alternate, without the policies and with them, on one control plane, so that the machine's own
//! noise is in the table.

mod writers;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::figures::median;
use super::tenants::percentile;
use super::usage;
use crate::{ControlPlane, Options, install};
use writers::Writers;

/// Each part lasts so long.
const PART: Duration = Duration::from_secs(20);
/// The first writes of all fill caches and open connections; they count nowhere.
const WARM_UP: Duration = Duration::from_secs(5);
/// An API server takes a policy into use some time after it was applied, each by itself.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Writes on the way. A kubelet has few; without a bound, a machine that cannot keep up would
/// measure its own queue.
const IN_FLIGHT_MAX: usize = 64;

/// At most one write in so many may fail for its connection.
const LOST_MAX_PART: usize = 100;

/// Who writes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Lease,
    NodeStatus,
    PodStatus,
    AgentPodStatus,
}

/// Writes in 10 s of 5,000 nodes at rest with 100 new pods a second, the number of upstream's
/// scalability tests: a kubelet renews its lease every 10 s and reports its node every 5 min, and
/// writes the status of a pod about three times. Agents write at disruptions only: here 10 pods a
/// second.
const MIX: [(Kind, u32); 4] = [
    (Kind::Lease, 5_000),
    (Kind::NodeStatus, 167),
    (Kind::PodStatus, 3_000),
    (Kind::AgentPodStatus, 100),
];
const MIX_NODES: u32 = 5_000;
const MIX_PERIOD: Duration = Duration::from_secs(10);

/// What one part measured.
#[derive(Clone, Debug)]
pub struct Part {
    policies: bool,
    wall: Duration,
    api_server_cpu: Duration,
    /// The part of the machine that others took.
    foreign_cpu_share: f64,
    /// In no order.
    latencies: Vec<(Kind, Duration)>,
}

/// All parts of a run, in their order.
#[derive(Clone, Debug)]
pub struct Admission {
    pub kubernetes: String,
    /// The nodes of a cluster that writes as much.
    pub nodes: u32,
    parts: Vec<Part>,
}

/// Measures so many pairs of parts, at the rate of a cluster with this many nodes.
pub async fn run(nodes: u32, pairs: usize) -> anyhow::Result<Admission> {
    let options = Options::unique("bench-admission").without_audit();
    let control_plane = ControlPlane::start(options).await?;
    let measured = measure(&control_plane, nodes, pairs).await;
    control_plane.stop().await?;
    measured
}

async fn measure(
    control_plane: &ControlPlane,
    nodes: u32,
    pairs: usize,
) -> anyhow::Result<Admission> {
    let admin = control_plane.admin_client().await?;
    let kubernetes = admin.apiserver_version().await.context("the server's version")?.git_version;
    install::apply_rights(&admin).await?;
    let writers = Arc::new(Writers::create(control_plane.cluster()).await?);
    install::apply_policy(&admin).await?;
    writers.policies_bind().await?;
    writes(&writers, nodes, WARM_UP).await?;
    let mut parts = Vec::new();
    for pair in 1..=pairs {
        for policies in [false, true] {
            let what = format!("{} policies, {pair}", if policies { "with" } else { "without" });
            eprint!("{what} …");
            if policies {
                install::apply_policy(&admin).await?;
                writers.policies_bind().await?;
            } else {
                install::remove_policy(&admin).await?;
                writers.policies_are_gone().await?;
            }
            sleep(SETTLED_AFTER).await;
            let part = part(control_plane, &writers, (nodes, policies)).await.context(what)?;
            eprintln!(" {:.2} CPU", part.cpu());
            parts.push(part);
        }
    }
    Ok(Admission { kubernetes, nodes, parts })
}

async fn part(
    control_plane: &ControlPlane,
    writers: &Arc<Writers>,
    (nodes, policies): (u32, bool),
) -> anyhow::Result<Part> {
    let mut pids: Vec<u32> = control_plane.processes().map(|process| process.pid).collect();
    pids.push(std::process::id());
    let is_it = |name: &str| name == "kube-apiserver";
    let mut processes = control_plane.processes();
    let api_server = processes.find(|it| is_it(&it.name)).context("no API server")?.pid;
    let cpu_of_all = || -> anyhow::Result<Duration> {
        let mut all = Duration::ZERO;
        for pid in &pids {
            all += usage::of(*pid)?.cpu;
        }
        Ok(all)
    };
    let before = (usage::of(api_server)?.cpu, usage::of_machine()?, cpu_of_all()?);
    let begun = Instant::now();
    let latencies = writes(writers, nodes, PART).await?;
    let wall = begun.elapsed();
    let after = (usage::of(api_server)?.cpu, usage::of_machine()?, cpu_of_all()?);
    let busy = after.1.busy.saturating_sub(before.1.busy);
    let machine = after.1.all.saturating_sub(before.1.all);
    let foreign = busy.saturating_sub(after.2.saturating_sub(before.2));
    Ok(Part {
        policies,
        wall,
        api_server_cpu: after.0.saturating_sub(before.0),
        foreign_cpu_share: foreign.as_secs_f64() / machine.as_secs_f64().max(f64::EPSILON),
        latencies,
    })
}

/// Makes the writes of this time, each when it is due, or as soon as the machine can; what it
/// cannot in that time is left out. How long a write takes is measured from its start.
async fn writes(
    writers: &Arc<Writers>,
    nodes: u32,
    length: Duration,
) -> anyhow::Result<Vec<(Kind, Duration)>> {
    let begun = Instant::now();
    let permits = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut tasks = JoinSet::new();
    let mut all = Vec::new();
    for (due, kind, number) in schedule(nodes, length) {
        sleep_until(begun + due).await;
        let permit = Arc::clone(&permits).acquire_owned().await?;
        if begun.elapsed() >= length {
            break;
        }
        let writers = Arc::clone(writers);
        tasks.spawn(async move {
            let took = writers.write(kind, number).await;
            drop(permit);
            took.map(|took| (kind, took))
        });
        while let Some(done) = tasks.try_join_next() {
            all.push(done??);
        }
    }
    while let Some(done) = tasks.join_next().await {
        all.push(done??);
    }
    let latencies: Vec<_> =
        all.iter().filter_map(|(kind, took)| took.map(|took| (*kind, took))).collect();
    let lost = all.len() - latencies.len();
    ensure!(lost * LOST_MAX_PART <= all.len(), "{lost} of {} connections were lost", all.len());
    Ok(latencies)
}

/// When each write is due, with its number among those of its kind. Each kind keeps its distance.
fn schedule(nodes: u32, length: Duration) -> Vec<(Duration, Kind, u32)> {
    let of = |(kind, count): (Kind, u32)| {
        let due = move |number| MIX_PERIOD * MIX_NODES * number / (count * nodes);
        (0..).map(move |number| (due(number), kind, number)).take_while(move |it| it.0 < length)
    };
    let mut all: Vec<_> = MIX.into_iter().flat_map(of).collect();
    all.sort_unstable();
    all
}

impl Part {
    /// The CPUs that the API server used.
    fn cpu(&self) -> f64 {
        self.api_server_cpu.as_secs_f64() / self.wall.as_secs_f64().max(f64::EPSILON)
    }

    /// The figures of its line, in the order of [`COLUMNS`].
    fn figures(&self) -> Vec<f64> {
        let writes = f64::from(u32::try_from(self.latencies.len()).unwrap_or(u32::MAX));
        let cpu_ms = self.api_server_cpu.as_secs_f64() * 1000.0 / writes.max(1.0);
        let rate = writes / self.wall.as_secs_f64().max(f64::EPSILON);
        let latencies = MIX.into_iter().flat_map(|(kind, _)| {
            let of_kind = self.latencies.iter().filter(|(other, _)| *other == kind);
            let mut times: Vec<Duration> = of_kind.map(|(_, took)| *took).collect();
            times.sort_unstable();
            [0.5, 0.99].map(|part| percentile(&times, part).as_secs_f64() * 1000.0)
        });
        [rate, self.cpu(), cpu_ms].into_iter().chain(latencies).collect()
    }
}

const COLUMNS: [&str; 11] = [
    "writes/s", "CPUs", "ms/write", "lease 50", "99", "node 50", "99", "pod 50", "99", "agent 50",
    "99",
];

/// A table for human readers: each part, the medians, and their ratio.
pub fn table(admission: &Admission) -> String {
    let mut text = format!(
        "admission, Kubernetes {}, the writes of {} nodes\n",
        admission.kubernetes, admission.nodes
    );
    line(&mut text, "policies", COLUMNS.map(str::to_owned), "foreign");
    for part in &admission.parts {
        let name = if part.policies { "with" } else { "without" };
        let foreign = format!("{:.2}", part.foreign_cpu_share);
        line(&mut text, name, part.figures().into_iter().map(shown), &foreign);
    }
    let (without, with) = (medians(&admission.parts, false), medians(&admission.parts, true));
    line(&mut text, "median, without", without.iter().copied().map(shown), "");
    line(&mut text, "median, with", with.iter().copied().map(shown), "");
    let ratio = |(with, without): (&f64, &f64)| {
        if *without > 0.0 { shown(with / without) } else { "-".to_owned() }
    };
    let ratios = with.iter().zip(&without).map(ratio);
    line(&mut text, "with/without", ratios, "");
    text + "\
writes/s: those that the machine managed. CPUs and ms/write: the API server's. Then the milliseconds
that a write took, as its client saw it, at the percentiles 50 and 99: leases, node and pod status
by kubelets, and pod status by agents. foreign: the part of the machine that others took meanwhile;
above 0.1, only the ratio means something.\n"
}

fn line(text: &mut String, name: &str, cells: impl IntoIterator<Item = String>, last: &str) {
    write!(text, "{name:<16}").expect("a String must take text");
    for cell in cells {
        write!(text, "{cell:>9}").expect("a String must take text");
    }
    writeln!(text, "{last:>9}").expect("a String must take text");
}

fn shown(figure: f64) -> String {
    format!("{figure:.2}")
}

/// The median of each column over the parts with the policies, or without them.
fn medians(parts: &[Part], policies: bool) -> Vec<f64> {
    let of_them = parts.iter().filter(|part| part.policies == policies);
    let lines: Vec<Vec<f64>> = of_them.map(Part::figures).collect();
    let of = |column| median(lines.iter().map(|line| line[column])).unwrap_or_default();
    (0..COLUMNS.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_write_comes_at_its_rate_and_all_in_order() {
        let all = schedule(MIX_NODES, MIX_PERIOD);
        for (kind, count) in MIX {
            let numbers = all.iter().filter(|it| it.1 == kind).map(|it| it.2);
            assert!(numbers.eq(0..count), "{kind:?}");
        }
        assert!(all.is_sorted_by_key(|it| it.0));
        let tenth = schedule(MIX_NODES / 10, MIX_PERIOD).len();
        assert_eq!(tenth, 500 + 17 + 300 + 10);
    }

    fn part(policies: bool, cpu: u64, pod: u64) -> Part {
        let latencies = (1..=100).map(|n| (Kind::PodStatus, Duration::from_millis(n * pod)));
        Part {
            policies,
            wall: Duration::from_secs(20),
            api_server_cpu: Duration::from_secs(cpu),
            foreign_cpu_share: 0.25,
            latencies: latencies.collect(),
        }
    }

    fn row(text: &str, start: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(start)).expect("the line");
        line[start.len()..].split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_table_has_each_part_the_medians_and_their_ratio() {
        let parts = vec![part(false, 4, 1), part(true, 5, 2), part(false, 6, 1), part(true, 7, 4)];
        let text = table(&Admission { kubernetes: "v1.37.2".to_owned(), nodes: 5_000, parts });
        let first = row(&text, "without");
        assert_eq!(first[..3], ["5.00", "0.20", "40.00"], "{text}");
        assert_eq!((first[7].as_str(), first[8].as_str()), ("50.00", "99.00"), "{text}");
        assert_eq!(first.last().map(String::as_str), Some("0.25"));
        assert_eq!(row(&text, "median, with ")[1], "0.30", "{text}");
        let ratio = row(&text, "with/without");
        assert_eq!(ratio[..4], ["1.00", "1.20", "1.20", "-"], "{text}");
        assert_eq!(ratio[7], "3.00", "{text}");
    }
}
