//! Checks that the page of flags, events, metrics and rights, and the headings of troubleshooting,
//! agree with the code, and that no more rules are assumed than the pages say.

use std::collections::BTreeSet;

use epilogue_common::finding_code::FindingCode;
use lab::docs::reference::{PAGE, rendered};
use lab::docs::rules;
use lab::kubernetes::Version;
use lab::matrix::Nodes;
use lab::node_table::{Cell, Column, End, Record, page};
use lab::paths::workspace_root;

#[tokio::test]
async fn operations_md_is_made_of_the_code() {
    let page = std::fs::read_to_string(workspace_root().join(PAGE)).expect("the page");
    let current = rendered(&page, agent_core::agent::REASONS).await.expect("the programs");
    let mut lines = page.lines().zip(current.lines());
    let first = lines.find(|(is, ought)| is != ought);
    assert_eq!(first, None, "run `cargo lab docs`");
    assert_eq!(page.len(), current.len(), "run `cargo lab docs`");
}

#[test]
fn tables_of_how_nodes_end_are_those_of_the_record() {
    let record = Record::read().expect("the record");
    for name in [page::PAGE, page::README] {
        let text = std::fs::read_to_string(workspace_root().join(name)).expect("the page");
        let current = page::rendered(name, &text, &record).expect("its tables");
        let mut lines = text.lines().zip(current.lines());
        let first = lines.find(|(is, ought)| is != ought);
        assert_eq!(first, None, "{name}: run `cargo lab docs`");
        assert_eq!(text.len(), current.len(), "{name}: run `cargo lab docs`");
    }
}

/// What the tables promise: with Epilogue no Job fails by the end of its node, and each counts what
/// its pods say.
#[test]
fn each_cell_of_how_nodes_end_was_played_on_this_kubelet_and_shows_what_is_promised() {
    let record = Record::read().expect("the record");
    let shown = page::shown(&record);
    for (scenario, graceful) in page::ROWS_OF_README {
        let is_shown = |cell: &Cell| {
            (cell.scenario, cell.graceful) == (scenario, graceful)
                && cell.column != Column::BarePods
        };
        assert_eq!(shown.iter().filter(|cell| is_shown(cell)).count(), 3, "{scenario:?}");
    }
    for cell in shown {
        let entry = record.of(&cell).expect("what is shown is recorded");
        assert_eq!(entry.versions.kubernetes, Version::NODE.to_string(), "{cell:?}");
        if cell.column == Column::Today {
            continue;
        }
        for end in std::iter::once(&entry.end).chain(&entry.removed) {
            no_job_fails_or_miscounts(end, &format!("{cell:?}"));
        }
    }
}

fn no_job_fails_or_miscounts(end: &End, how: &str) {
    let jobs = end.pods.iter().filter_map(|(role, pod)| Some((role, pod.job.as_ref()?)));
    for (role, job) in jobs {
        assert_ne!(job.condition, "Failed", "{how}: {role}");
        let wrong: Vec<_> = job.early.iter().chain(&job.wrong).collect();
        assert!(wrong.is_empty(), "{how}: {role}: {wrong:?}");
    }
}

/// The same of other systems and kubelets, where also no Job waits.
#[test]
fn each_recorded_end_of_a_node_of_another_kind_shows_what_is_promised() {
    let nodes = Nodes::read().expect("the record");
    assert!(!nodes.runs().is_empty());
    for run in nodes.runs() {
        for (story, end) in &run.ends {
            let how = format!("{:?}, {}: {story}", run.system, run.kubernetes);
            for end in std::iter::once(&end.seen.end).chain(&end.seen.removed) {
                no_job_fails_or_miscounts(end, &how);
            }
            let last = end.seen.removed.as_ref().unwrap_or(&end.seen.end);
            assert!(!page::in_short(last, None).contains("wait for ever"), "{how}");
        }
        if let Some(memory) = &run.memory {
            let (seen, how) = (&memory.seen, format!("{:?}, {}", run.system, run.kubernetes));
            assert!(seen.end.disruption.is_some() && seen.job.failed == 0, "{how}: {seen:?}");
            assert!(seen.wrong.is_empty(), "{how}: {seen:?}");
        }
    }
}

#[test]
fn events_of_the_controller_are_those_of_the_page() {
    let page = std::fs::read_to_string(workspace_root().join(PAGE)).expect("the page");
    let (_, after) = page.split_once("## Events of the controller").expect("the section");
    let section = after.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 15, "{named:?}");
    let mut code = String::new();
    for directory in ["controller/core/src", "controller/src"] {
        read(&workspace_root().join(directory), &mut code);
    }
    let unknown: Vec<_> =
        named.iter().filter(|name| !code.contains(&format!("\"{name}\""))).collect();
    assert!(unknown.is_empty(), "no event of the controller: {unknown:?}");
    // These two make every event about a Job.
    let drafts = ["EventDraft::warning(", "EventDraft::normal("];
    let said = drafts.iter().flat_map(|draft| code.split(draft).skip(1));
    let said = said.filter_map(|after| after.trim_start().strip_prefix('"')?.split('"').next());
    let missing: Vec<&str> = said.filter(|reason| !named.contains(reason)).collect();
    assert!(missing.is_empty(), "{PAGE} lacks {missing:?}");
}

#[test]
fn pages_of_rules_say_how_many_are_assumed_and_no_more_become_so() {
    let mut assumed = 0;
    for name in rules::PAGES {
        let page = rules::read(name).expect("the page");
        let current = rules::rendered(&page).expect("its figures");
        assert!(page == current, "{name}: run `cargo lab docs`");
        assumed += rules::Figures::of(&page).assumed;
    }
    let most = rules::ASSUMED_MAX;
    assert!(assumed <= most, "{assumed} are assumed, {most} may be: name a test on the real thing");
}

#[test]
fn each_finding_has_a_code_with_a_heading_and_is_reported_by_a_program() {
    let page = "docs/troubleshooting.md";
    let page = std::fs::read_to_string(workspace_root().join(page)).expect("the page");
    // Events have reasons in place of codes.
    let sections = page.split("\n## ").filter(|section| !section.starts_with("Events"));
    let headings: BTreeSet<&str> =
        sections.flat_map(str::lines).filter_map(|line| line.strip_prefix("### ")).collect();
    let codes: BTreeSet<&str> = FindingCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(headings, codes, "docs/troubleshooting.md against common/src/finding_code.rs");
    let mut source = String::new();
    for directory in ["agent/core/src", "controller/core/src", "controller/cli/src"] {
        read(&workspace_root().join(directory), &mut source);
    }
    let unused: Vec<_> =
        FindingCode::ALL.iter().filter(|it| !source.contains(&format!("Code::{it:?}"))).collect();
    assert!(unused.is_empty(), "no program reports {unused:?}");
}

fn read(directory: &std::path::Path, code: &mut String) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("tests") {
            read(&path, code);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            code.push_str(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
        }
    }
}
