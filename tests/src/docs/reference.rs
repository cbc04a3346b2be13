//! Renders the generated sections of `docs/operations.md`: flags as the programs print them,
//! events, metrics and rights as in the code.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use epilogue_deploy::rights::{AGENTS, CONTROLLERS, GANGS, OBSERVERS};
use tokio::process::Command;

use super::metrics;
use super::replaced;
use crate::paths::{program, workspace_root};

/// The page with these sections.
pub const PAGE: &str = "docs/operations.md";

/// Programs with the sub commands whose help the page shows.
const COMMANDS: [(&str, &[&str]); 15] = [
    ("epilogue-agent", &["run"]),
    ("epilogue-agent", &["check"]),
    ("epilogue-agent", &["leave"]),
    ("epilogue-agent", &["leave-status"]),
    ("epilogue-agent", &["install-status"]),
    ("epilogue-controller", &[]),
    ("kubectl-epilogue", &[]),
    ("kubectl-epilogue", &["explain"]),
    ("kubectl-epilogue", &["doctor"]),
    ("kubectl-epilogue", &["lint"]),
    ("kubectl-epilogue", &["leave"]),
    ("kubectl-epilogue", &["report"]),
    ("kubectl-epilogue", &["dump"]),
    ("kubectl-epilogue", &["completion"]),
    ("kubectl-epilogue", &["man"]),
];

/// Files that name metrics, and the prefixes of the names.
const METRICS: [(&str, &str, &str); 4] = [
    ("agent", "agent/src/metrics", "epilogue_agent_"),
    ("controller", "controller/src/metrics.rs", "job_controller_"),
    ("controller", "controller/src/podgc/metrics.rs", ""),
    ("both", "common/runtime/src", ""),
];

/// The page with its sections up to date. Needs the built programs.
pub async fn rendered(page: &str, events: &[(&str, &str)]) -> anyhow::Result<String> {
    let mut page = page.to_owned();
    let mut flags = String::new();
    for (program, sub_commands) in &COMMANDS {
        flags += &help(program, sub_commands).await?;
    }
    for (name, body) in [
        ("flags", flags),
        ("events", self::events(events)),
        ("metrics", all_metrics()?),
        ("rights", rights()),
    ] {
        page = replaced(PAGE, &page, name, &body)?;
    }
    Ok(page)
}

async fn help(name: &str, sub_commands: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program(name))
        .args(sub_commands)
        .arg("--help")
        .env_clear()
        .output()
        .await
        .with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name} --help failed");
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let title = [&[name], sub_commands].concat().join(" ");
    Ok(format!("### {title}\n\n```text\n{}\n```\n\n", lines.join("\n").trim()))
}

fn events(events: &[(&str, &str)]) -> String {
    let mut table = "| reason | meaning |\n|---|---|\n".to_owned();
    for (reason, meaning) in events {
        writeln!(table, "| `{reason}` | {meaning} |").expect("a String takes text");
    }
    table
}

fn all_metrics() -> anyhow::Result<String> {
    let mut rows = Vec::new();
    for (who, path, prefix) in METRICS {
        for (file, text) in sources(path)? {
            // The metrics of the work queues are next to those of Jobs, with another prefix.
            let is_jobs = file.ends_with("controller/src/metrics.rs");
            let (jobs, queues) = text.split_once("struct QueueHistograms").unwrap_or((&text, ""));
            let (first, second) = if is_jobs { (jobs, queues) } else { (text.as_str(), "") };
            rows.extend(metrics::of(first, prefix).into_iter().map(|it| (who, it)));
            let braced = format!("struct Q {second}");
            rows.extend(metrics::of(&braced, "workqueue_").into_iter().map(|it| (who, it)));
        }
    }
    rows.sort();
    let mut table = "| program | metric | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for (who, metric) in rows {
        let labels: Vec<String> = metric.labels.iter().map(|it| format!("`{it}`")).collect();
        let (name, labels, help) =
            (metric.name, labels.join(", "), metric.help.replace('|', "\\|"));
        writeln!(table, "| {who} | `{name}` | {labels} | {help} |").expect("a String takes text");
    }
    Ok(table)
}

/// The Rust files of a directory, including the sibling `NAME.rs`, or one file.
fn sources(path: &str) -> anyhow::Result<Vec<(String, String)>> {
    let root = workspace_root();
    let mut files = Vec::new();
    let mut directories = vec![root.join(path)];
    let module = root.join(format!("{path}.rs"));
    if module.is_file() {
        files.push(module);
    }
    while let Some(next) = directories.pop() {
        if next.is_file() {
            files.push(next);
            continue;
        }
        for entry in std::fs::read_dir(&next).with_context(|| format!("{}", next.display()))? {
            let entry = entry?.path();
            if entry.is_dir() || entry.extension().is_some_and(|it| it == "rs") {
                directories.push(entry);
            }
        }
    }
    files.sort();
    let read = |file: std::path::PathBuf| {
        Ok((file.to_string_lossy().into_owned(), std::fs::read_to_string(&file)?))
    };
    files.into_iter().map(read).collect()
}

fn rights() -> String {
    let mut table =
        "| role | group | resource | verb | only | for |\n|---|---|---|---|---|---|\n".to_owned();
    for (role, group, resource, verb, only, why) in
        CONTROLLERS.iter().chain(&GANGS).chain(&AGENTS).chain(&OBSERVERS)
    {
        let group = if group.is_empty() { "core" } else { group };
        writeln!(table, "| {role} | {group} | `{resource}` | {verb} | {only} | {why} |")
            .expect("a String takes text");
    }
    table
}
