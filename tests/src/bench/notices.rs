//! The cost of the sources that give notice of a node's end, while none has anything to say.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use super::agent::cpu_percent;
use crate::agent::{Setup, Site};
use crate::{ControlPlane, Options};

/// How long the agent rests under measurement.
const IDLE: Duration = Duration::from_mins(2);
/// What is asked. The clouds' address leads nowhere from here, so that a request of theirs fails;
/// on a machine of a cloud, one source of the three is asked.
const SOURCES: [(&str, &str); 3] =
    [("none", "off"), ("as by default", "auto"), ("all", "file,scheduled,node,aws,gce,azure")];

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
