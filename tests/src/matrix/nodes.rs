//! How nodes of other systems and kubelets end: `tests/node/platforms.json`, a section of
//! `docs/versions.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{read, write};
use crate::error::LabError;
use crate::node_pressure;
use crate::node_table::{End, Scenario, page};
use crate::paths::workspace_root;
use crate::vm::{Platform, System};

/// The ways to end that each platform is played with. Those that leave the machine off are last.
pub const STORIES: [Scenario; 5] = [
    Scenario::Reboot,
    Scenario::SoftReboot,
    Scenario::PowerCut,
    Scenario::Poweroff,
    Scenario::KubeletStopped,
];

/// The last run of each platform.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nodes(Vec<Run>);

/// What was played on one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The system.
    pub system: System,
    /// The version of kubelet and control plane.
    pub kubernetes: String,
    /// The versions of the packages that matter.
    pub packages: BTreeMap<String, String>,
    /// The ends, by the scenario's name.
    pub ends: BTreeMap<String, Dated<Ends>>,
    /// A pod that took the node's memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<Dated<node_pressure::Run>>,
}

/// What the API showed of a node's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// After the end.
    pub end: End,
    /// Once the node was deleted, if its machine stayed off.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub removed: Option<End>,
}

/// What was seen on a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dated<T> {
    /// Such as `2026-11-28`.
    pub date: String,
    /// What was seen.
    pub seen: T,
}

impl<T> Dated<T> {
    /// Seen today.
    pub fn today(seen: T) -> Self {
        Self { date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(), seen }
    }
}

impl Nodes {
    /// The record of this checkout; empty if none exists.
    pub fn read() -> Result<Self, LabError> {
        Ok(read(&path())?.unwrap_or_default())
    }

    /// Writes the record.
    pub fn write(&self) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self).expect("a record must be JSON") + "\n";
        write(&path(), &text)
    }

    /// The run of a platform with these packages; what was played with others is gone.
    pub fn run(&mut self, platform: Platform, packages: BTreeMap<String, String>) -> &mut Run {
        let (system, kubernetes) = (platform.system, platform.kubernetes.to_string());
        let is_of_it = |run: &Run| (run.system, &run.kubernetes) == (system, &kubernetes);
        self.0.retain(|run| !is_of_it(run) || run.packages == packages);
        if !self.0.iter().any(is_of_it) {
            let ends = BTreeMap::new();
            let kubernetes = kubernetes.clone();
            self.0.push(Run { system, kubernetes, packages, ends, memory: None });
        }
        let places = Platform::all();
        self.0.sort_by_key(|run| places.iter().position(|place| run.is_of(*place)));
        self.0.iter_mut().find(|run| is_of_it(run)).expect("it must be there by now")
    }

    /// All runs.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }
}

impl Run {
    fn is_of(&self, platform: Platform) -> bool {
        (self.system, self.kubernetes.as_str())
            == (platform.system, platform.kubernetes.to_string().as_str())
    }

    /// The first and the last day.
    fn days(&self) -> String {
        let ends = self.ends.values().map(|end| &end.date);
        let mut days: Vec<&String> = ends.chain(self.memory.as_ref().map(|it| &it.date)).collect();
        days.sort();
        match (days.first(), days.last()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (Some(day), _) => (*day).clone(),
            _ => "not played".to_owned(),
        }
    }
}

/// The section of the page.
pub(super) fn section(nodes: &Nodes) -> String {
    let names = STORIES.map(|story| format!(" {} |", story.name())).concat();
    let rule = " --- |".repeat(STORIES.len() + 4);
    let mut text = format!("| node | packages | played |{names} memory |\n|{rule}\n");
    for platform in Platform::all() {
        let run = nodes.0.iter().find(|run| run.is_of(platform));
        let _ = writeln!(text, "| {platform} | {}", row(platform.system, run));
    }
    text
}

fn row(system: System, run: Option<&Run>) -> String {
    let version = |name: &str| {
        let version = run.and_then(|run| run.packages.get(name));
        version.map(|version| format!("{name} {version}"))
    };
    let packages: Vec<String> =
        ["systemd", "containerd", "runc", "linux"].into_iter().filter_map(version).collect();
    let days = run.map_or_else(|| "not played".to_owned(), Run::days);
    let mut text = format!("{} | {days} |", packages.join(", "));
    for story in STORIES {
        let end = run.and_then(|run| run.ends.get(story.name()));
        let cell = match end {
            Some(Dated { seen, .. }) => page::in_short(&seen.end, seen.removed.as_ref()),
            None if story == Scenario::SoftReboot && !system.has_soft_reboot() => "–".to_owned(),
            None => "not played".to_owned(),
        };
        let _ = write!(text, " {cell} |");
    }
    let memory = run.and_then(|run| run.memory.as_ref());
    let _ = write!(
        text,
        " {} |",
        memory.map_or_else(|| "not played".to_owned(), |run| evicted(&run.seen))
    );
    text
}

/// How the pod ended that took the node's memory, and what else did.
fn evicted(run: &node_pressure::Run) -> String {
    let mut text = run.end.phase.clone();
    match &run.end.disruption {
        Some(reason) => {
            let _ = write!(text, ", DT `{reason}`");
        }
        None => text.push_str(", no DT"),
    }
    text.push_str(if run.job.failed > 0 { "; its Job counts it" } else { "; its Job ignores it" });
    match run.wrong.len() {
        0 => text.push_str("; no other pod ended"),
        1 => text.push_str("; another pod ended"),
        count => {
            let _ = write!(text, "; {count} other pods ended");
        }
    }
    text
}

fn path() -> PathBuf {
    workspace_root().join("tests/node/platforms.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(systemd: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("systemd".to_owned(), systemd.to_owned())])
    }

    fn platform(system: System) -> Platform {
        Platform { system, ..Platform::DEFAULT }
    }

    #[test]
    fn what_was_played_with_other_packages_goes() {
        let mut nodes = Nodes::default();
        let sid = platform(System::DebianSid);
        let end = End { node: "True".to_owned(), taints: Vec::new(), pods: BTreeMap::new() };
        let seen = Ends { end, removed: None };
        let run = nodes.run(sid, packages("261"));
        run.ends.insert("reboot".to_owned(), Dated { date: "2026-01-02".to_owned(), seen });
        nodes.run(Platform::DEFAULT, packages("252"));
        assert_eq!(nodes.run(sid, packages("261")).ends.len(), 1);
        let systems: Vec<System> = nodes.runs().iter().map(|run| run.system).collect();
        assert_eq!(systems, [System::Debian12, System::DebianSid], "in the order of the page");
        assert_eq!(nodes.run(sid, packages("262")).ends.len(), 0);
        assert_eq!(nodes.runs().len(), 2);
    }

    #[test]
    fn the_section_has_a_row_for_each_platform_and_says_what_was_not_played() {
        let mut nodes = Nodes::default();
        let run = nodes.run(Platform::DEFAULT, packages("252"));
        let (end, job) = (node_pressure::PodEnd::default(), node_pressure::JobEnd::default());
        let mut seen = node_pressure::Run { number: 1, end, job, ..node_pressure::Run::default() };
        seen.end.phase = "Failed/Evicted".to_owned();
        seen.end.disruption = Some("TerminationByKubelet".to_owned());
        run.memory = Some(Dated { date: "2026-01-02".to_owned(), seen });
        let text = section(&nodes);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows.len(), Platform::all().len());
        assert!(rows[0].contains(" | systemd 252 | 2026-01-02 | not played | – |"), "{}", rows[0]);
        assert!(
            rows[0].ends_with(
                "| Failed/Evicted, DT `TerminationByKubelet`; its Job ignores it; no other pod \
                 ended |"
            ),
            "{}",
            rows[0]
        );
        assert!(rows[1].ends_with("| not played | not played | not played |"), "{}", rows[1]);
    }
}
