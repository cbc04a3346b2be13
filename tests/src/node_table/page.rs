//! Renders the recorded ends of nodes as the tables of the pages. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::case::Scenario;
use super::cell::{BARE_PODS, BROKEN, Cell, Column, PLANNED, Row, UNPLANNED, WITH_BARE_PODS};
use super::ledger::{JobRow, Replaced};
use super::record::{End, Entry, PodEnd, Record};
use crate::docs;

/// The page with every cell.
pub const PAGE: &str = "docs/how-nodes-end.md";
/// The page with the rows that matter most.
pub const README: &str = "README.md";

/// A pod that had ended before, and one that comes back with its node.
const NOT_COUNTED: [&str; 2] = ["done", "daemon"];

/// Roles are named up to this number; more are counted.
const NAMED: usize = 3;

/// A page with its tables up to date.
pub fn rendered(name: &str, page: &str, record: &Record) -> anyhow::Result<String> {
    let sections =
        if name == README { vec![("ends", readme(record))] } else { sections(record).into() };
    let put =
        |page: String, (section, body): &(&str, String)| docs::replaced(name, &page, section, body);
    sections.iter().try_fold(page.to_owned(), put)
}

/// The sections of [`PAGE`], by their names.
fn sections(record: &Record) -> [(&'static str, String); 5] {
    [
        ("ends: played on", played_on(record)),
        ("ends: planned", table(record, &PLANNED)),
        ("ends: broken", table(record, &BROKEN)),
        ("ends: unplanned", table(record, &UNPLANNED)),
        ("ends: bare pods", bare_pods(record)),
    ]
}

/// The last row of [`README`], by the figures of `cargo lab node pressure memory` in [`PAGE`].
const MEMORY: &str = "| 5 | memory runs short (30 runs each, Kubernetes 1.36.3) \
    | wrong pods evicted in 18 runs | in none, with `--pressure=enforce` |";

/// How the node ends in the other rows of [`README`], and whether graceful shutdown is on.
pub const ROWS_OF_README: [(Scenario, bool); 4] = [
    (PLANNED[0].scenario, PLANNED[0].graceful),
    (PLANNED[1].scenario, PLANNED[1].graceful),
    (PLANNED[2].scenario, PLANNED[2].graceful),
    (UNPLANNED[0].scenario, UNPLANNED[0].graceful),
];

fn readme(record: &Record) -> String {
    let words = [
        "power-off",
        "the same, kubelet's own grace on",
        "reboot",
        "power cut, and the power comes back",
    ];
    let rows = ROWS_OF_README.map(|(scenario, graceful)| Row { scenario, graceful, words: "" });
    let rows = rows.into_iter().zip(words);
    let mut text = "| | what happens | today | with Epilogue |\n|---|---|---|---|\n".to_owned();
    for (number, (row, words)) in (1..).zip(rows) {
        let short = |column| match record.of(&row.cell(column)) {
            Some(entry) => short(&entry.end),
            None => "not run yet".to_owned(),
        };
        let (today, release) = (short(Column::Today), short(Column::Release));
        let _ = writeln!(text, "| {number} | {words} | {today} | {release} |");
    }
    text + MEMORY
}

/// Versions and days, each once.
fn played_on(record: &Record) -> String {
    let entries = record.entries();
    let all = |of: fn(&Entry) -> &str| {
        let each: BTreeSet<&str> = entries.iter().map(of).collect();
        each.into_iter().collect::<Vec<_>>().join(", ")
    };
    let days: BTreeSet<&str> = entries.iter().map(|entry| entry.date.as_str()).collect();
    let days = match (days.first(), days.last()) {
        (Some(first), Some(last)) if first != last => format!("from {first} to {last}"),
        (Some(day), _) => format!("on {day}"),
        _ => "never".to_owned(),
    };
    format!(
        "Played {days}: Kubernetes {}, systemd {}, containerd {}, Linux {}.",
        all(|entry| &entry.versions.kubernetes),
        all(|entry| &entry.versions.systemd),
        all(|entry| &entry.versions.containerd),
        all(|entry| &entry.versions.linux),
    )
}

/// A row is shown once each of its cells is recorded.
fn is_shown(record: &Record, row: &Row) -> bool {
    let mut columns = Cell::COLUMNS.into_iter().filter(|column| row.has(*column));
    columns.all(|column| record.of(&row.cell(column)).is_some())
}

/// The cells that the pages show.
pub fn shown(record: &Record) -> Vec<Cell> {
    let rows = PLANNED.iter().chain(&BROKEN).chain(&UNPLANNED);
    let rows = rows.filter(|row| is_shown(record, row));
    let cells = rows.flat_map(|row| {
        Cell::COLUMNS.into_iter().filter(|column| row.has(*column)).map(|column| row.cell(column))
    });
    let bare = WITH_BARE_PODS.map(|row| row.cell(Column::BarePods));
    cells.chain(bare.into_iter().filter(|cell| record.of(cell).is_some())).collect()
}

fn table(record: &Record, rows: &[Row]) -> String {
    if !rows.iter().any(|row| is_shown(record, row)) {
        return "Not played yet on these versions.".to_owned();
    }
    let mut text = "| how the node ends | graceful | without Epilogue | with the agent \
                    | with agent and controller |\n|---|---|---|---|---|\n"
        .to_owned();
    for row in rows.iter().filter(|row| is_shown(record, row)) {
        let graceful = if row.graceful { "on" } else { "off" };
        let none = || "–".to_owned();
        let of = |column| cell(record, row.cell(column));
        let cells = Cell::COLUMNS.map(|column| if row.has(column) { of(column) } else { none() });
        let _ = writeln!(text, "| {} | {graceful} | {} |", row.words, cells.join(" | "));
    }
    text.trim_end().to_owned()
}

fn bare_pods(record: &Record) -> String {
    let rows: Vec<Row> = WITH_BARE_PODS
        .into_iter()
        .filter(|row| record.of(&row.cell(Column::BarePods)).is_some())
        .collect();
    if rows.is_empty() {
        return "Not played yet on these versions.".to_owned();
    }
    let flags = BARE_PODS.join(" ");
    let mut text =
        format!("| how the node ends | graceful | with the agent, `{flags}` |\n|---|---|---|\n");
    for row in rows {
        let cell = cell(record, row.cell(Column::BarePods));
        let _ = writeln!(text, "| {} | off | {cell} |", row.words);
    }
    text.trim_end().to_owned()
}

fn cell(record: &Record, cell: Cell) -> String {
    let Some(Entry { end, removed, .. }) = record.of(&cell) else {
        return "not run yet".to_owned();
    };
    let mut text = format!("Pods: {}. Jobs: {}.", pods(end), jobs(end));
    // It changes nothing where no Job waits.
    if let Some(removed) = removed.as_ref().filter(|_| count(end, JobIs::Waiting) > 0) {
        let _ = write!(text, " Once the node is deleted: {}.", jobs(removed));
    }
    text
}

/// What became of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PodIs {
    Reported,
    Unreported,
    Deleted,
    Stuck,
    Running,
}

/// What became of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JobIs {
    Failed,
    Ignored,
    Counted,
    Succeeded,
    Running,
    Waiting,
}

impl PodIs {
    fn of(pod: &PodEnd, node_is_lost: bool) -> Self {
        let is_terminal = ["Failed", "Succeeded"].contains(&pod.phase.as_str());
        let is_disrupted = pod.disruption.as_ref().is_some_and(|(status, _)| status == "True");
        match (is_terminal, is_disrupted) {
            (true, true) => Self::Reported,
            (true, false) => Self::Unreported,
            _ if pod.gone => Self::Deleted,
            _ if node_is_lost => Self::Stuck,
            _ => Self::Running,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Reported => "terminal with DT",
            Self::Unreported => "terminal without DT",
            Self::Deleted => "deleted without an end",
            Self::Stuck => "`Running` for ever",
            Self::Running => "running",
        }
    }
}

impl JobIs {
    fn of(job: &JobRow, node_is_lost: bool) -> Self {
        match job.condition.as_str() {
            "Failed" => Self::Failed,
            "Complete" if job.failed > 0 => Self::Counted,
            "Complete" if job.replacement.is_some() => Self::Ignored,
            "Complete" => Self::Succeeded,
            _ if node_is_lost || job.active == 0 => Self::Waiting,
            _ => Self::Running,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Failed => "**failed for good**",
            Self::Ignored => "replaced, no failure counted",
            Self::Counted => "replaced, one failure counted",
            Self::Succeeded => "complete by that pod",
            Self::Running => "running",
            Self::Waiting => "waiting for ever",
        }
    }
}

fn is_lost(end: &End) -> bool {
    !end.node.starts_with("True")
}

/// The roles in each state.
fn pods(end: &End) -> String {
    let mut by: BTreeMap<PodIs, Vec<&str>> = BTreeMap::new();
    for (role, pod) in counted(end) {
        by.entry(PodIs::of(pod, is_lost(end))).or_default().push(role);
    }
    let groups = by.into_iter().map(|(state, roles)| group(&roles, state.words()));
    groups.collect::<Vec<_>>().join(", ")
}

/// The Jobs in each state, how soon pods were replaced, and what is wrong.
fn jobs(end: &End) -> String {
    let mut by: BTreeMap<JobIs, Vec<&str>> = BTreeMap::new();
    let mut after = Vec::new();
    let mut wrong = String::new();
    for (role, job) in end.pods.iter().filter_map(|(role, pod)| Some((role, pod.job.as_ref()?))) {
        by.entry(JobIs::of(job, is_lost(end))).or_default().push(role);
        after.extend(job.replaced.iter().filter_map(|replaced| match replaced {
            Replaced::After(ms) => Some(*ms),
            Replaced::Before => None,
        }));
        for problem in job.early.iter().chain(&job.wrong) {
            let _ = write!(wrong, ", **{role}: {problem}**");
        }
    }
    let groups = by.into_iter().map(|(state, roles)| group(&roles, state.words()));
    let mut text = groups.collect::<Vec<_>>().join(", ");
    if let (Some(first), Some(last)) = (after.iter().min(), after.iter().max()) {
        let _ = write!(text, " ({} to {} s after the end)", seconds(*first), seconds(*last));
    }
    text + &wrong
}

fn group(roles: &[&str], words: &str) -> String {
    match roles.len() {
        count if count > NAMED => format!("{count} {words}"),
        count => format!("{count} {words} ({})", roles.join(", ")),
    }
}

/// Two digits are more than the poll of an emulated machine is worth.
fn seconds(milliseconds: i64) -> String {
    let hundredths = (milliseconds + 5) / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn counted(end: &End) -> impl Iterator<Item = (&str, &PodEnd)> {
    let pods = end.pods.iter().map(|(role, pod)| (role.as_str(), pod));
    pods.filter(|(role, _)| !NOT_COUNTED.contains(role))
}

fn count(end: &End, state: JobIs) -> usize {
    let jobs = end.pods.values().filter_map(|pod| pod.job.as_ref());
    jobs.filter(|job| JobIs::of(job, is_lost(end)) == state).count()
}

/// An end in one cell of a wide table, and that after the node was deleted, if a Job waits for it.
pub fn in_short(end: &End, removed: Option<&End>) -> String {
    let states: Vec<PodIs> = counted(end).map(|(_, pod)| PodIs::of(pod, is_lost(end))).collect();
    let reported = states.iter().filter(|state| **state == PodIs::Reported).count();
    let mut text = format!("{reported} of {} pods terminal with DT; {}", states.len(), short(end));
    if let Some(removed) = removed.filter(|_| count(end, JobIs::Waiting) > 0) {
        let _ = write!(text, "; once the node is deleted: {}", short(removed));
    }
    text
}

/// What matters most, in a few words.
fn short(end: &End) -> String {
    let jobs = end.pods.values().filter(|pod| pod.job.is_some()).count();
    let mut words = Vec::new();
    let states: Vec<PodIs> = counted(end).map(|(_, pod)| PodIs::of(pod, is_lost(end))).collect();
    let stuck = states.iter().filter(|state| **state == PodIs::Stuck).count();
    if stuck > 0 {
        words.push(format!("{stuck} of {} pods stay `Running`", states.len()));
    }
    let (failed, waiting) = (count(end, JobIs::Failed), count(end, JobIs::Waiting));
    if failed > 0 {
        words.push(format!("{failed} of {jobs} Jobs fail for good"));
    }
    if waiting > 0 {
        words.push(format!("{waiting} of {jobs} Jobs wait for ever"));
    }
    if failed + waiting == 0 {
        words.push(format!("all {jobs} Jobs complete or go on"));
    }
    words.join(", ")
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
