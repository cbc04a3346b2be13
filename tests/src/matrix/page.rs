//! Renders `docs/versions.md` from the record. Pure.

use std::fmt::Write as _;

use super::gates::{GATES, Gate};
use super::nightly::{Nightly, section};
use super::nodes::{self, Nodes};
use super::{Counts, Record, Run, SUITES};
use crate::kubernetes::{Feature, Version};

const HEAD: &str = "\
# Kubernetes versions

`cargo lab matrix` writes this page. It runs four suites on a real kube-apiserver and
kube-controller-manager of each version, and records the results in `tests/versions.json`. It is a
step of `.ci/nightly`; `.ci/run` runs all suites on the default version only. To run a suite on one
version:

```sh
cargo lab test --kubernetes 1.33 features   # a suite, or the part of a test's name
cargo lab matrix --kubernetes 1.33          # the four suites, and this page
cargo lab up --kubernetes 1.33 --nodes 3    # a control plane of your own
```
";

const GATE_WORDS: &str = "\
The API server of each version reports its own gates, at their defaults. *always* means that the
version has the feature and no gate for it. *no* means that the version does not have it.
*not asked* means that the version did not run.
";

const NODES_WORDS: &str = "\
`cargo lab matrix --nodes` ends a virtual machine of each kind, with the agent as a service of the
host and the Jobs of our controller, both with their defaults, and the kubelet's own graceful
shutdown off. [How nodes end](how-nodes-end.md) has the words, and Debian 12 in detail. *DT* is the
condition `DisruptionTarget`. *memory*: a pod takes the node's memory, and the agent evicts
(`--pressure=enforce`). The kernel is that of Debian 12, as newer ones do not run in the emulator.
CRI-O has no packages in the registries that the laboratory uses, so no node runs it.

```sh
cargo lab matrix --nodes                                          # hours, emulated
cargo lab matrix --nodes --system debian-13 --story soft-reboot   # one of them
```
";

const NIGHTLY_WORDS: &str = "\
`.ci/nightly` runs what is too long for each change: all tests, both matrices, a release, and an
upgrade and a rollback from the last version that the changelog names.
";

/// The page.
pub fn render(record: &Record, nodes: &Nodes, nightly: Option<&Nightly>) -> String {
    let mut page = HEAD.to_owned();
    let _ = write!(
        page,
        "\nThe default is {}. The kubelet of the node tests is {}.\n\n## Results\n\n{}",
        Version::DEFAULT,
        Version::NODE,
        results(record)
    );
    let _ = write!(page, "\n{}", details(record));
    let _ = write!(page, "\n## Nodes\n\n{NODES_WORDS}\n{}", nodes::section(nodes));
    let _ = write!(page, "\n## The nightly run\n\n{NIGHTLY_WORDS}\n{}", section(nightly));
    let _ = write!(page, "\n## What is off where\n\n{GATE_WORDS}\n{}", gates(record));
    let _ = write!(page, "\n{}", lacks());
    page
}

fn results(record: &Record) -> String {
    let suites = SUITES.map(|suite| format!(" `{suite}` |")).concat();
    let rule = " --- |".repeat(SUITES.len() + 2);
    let mut table = format!("| Kubernetes | run on |{suites}\n|{rule}\n");
    for version in Version::KNOWN {
        let run = record.0.get(&version.to_string());
        let date = run.map_or("not run", |run| &run.date);
        let cells = SUITES.map(|suite| format!(" {} |", cell(run, suite))).concat();
        let _ = writeln!(table, "| {version} | {date} |{cells}");
    }
    table
}

fn cell(run: Option<&Run>, suite: &str) -> String {
    let Some(Counts { passed, failed, not_run }) = run.and_then(|run| run.suites.get(suite)) else {
        return "not run".to_owned();
    };
    let counts = [(passed, "passed"), (failed, "failed"), (not_run, "not run")];
    let words = counts.iter().filter(|(count, _)| **count > 0);
    words.map(|(count, word)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// The failed tests and those that did not run, by version.
fn details(record: &Record) -> String {
    if record.0.is_empty() {
        return "No suite has run yet.\n".to_owned();
    }
    let mut text = String::new();
    for version in Version::KNOWN {
        let Some(run) = record.0.get(&version.to_string()) else { continue };
        let failed = run.failed.iter().map(|line| format!("failed: {line}"));
        let not_run = run.not_run.iter().map(|line| format!("not run: {line}"));
        for line in failed.chain(not_run) {
            let _ = writeln!(text, "- {version}, {line}");
        }
    }
    if text.is_empty() { "No test failed.\n".to_owned() } else { text }
}

fn gates(record: &Record) -> String {
    let versions = Version::KNOWN.map(|version| format!(" {} |", version.minor())).concat();
    let rule = " --- |".repeat(Version::KNOWN.len() + 2);
    let mut table = format!("| Gate | for |{versions}\n|{rule}\n");
    for gate in GATES {
        let state = |version: Version| {
            format!(" {} |", state(&gate, version, record.0.get(&version.to_string())))
        };
        let states = Version::KNOWN.map(state).concat();
        let _ = writeln!(table, "| {} | {} |{states}", gate.name, gate.feature);
    }
    table
}

fn state(gate: &Gate, version: Version, run: Option<&Run>) -> String {
    match run.map(|run| run.gates.get(gate.name)) {
        None => "not asked".to_owned(),
        Some(Some(state)) => state.to_lowercase().replace("(ga)", "(GA)"),
        Some(None) if version.is_before(gate.since) => "no".to_owned(),
        Some(None) => "always".to_owned(),
    }
}

/// What the laboratory itself lacks on a version.
fn lacks() -> String {
    let mut text = String::new();
    for version in Version::KNOWN {
        for feature in Feature::ALL.into_iter().filter(|feature| !version.has(*feature)) {
            let (reason, consequence) = (feature.reason(), feature.consequence());
            let _ = writeln!(text, "- {version}: {reason}. {consequence}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn record() -> Record {
        let counts = Counts { passed: 3, failed: 1, not_run: 2 };
        let run = Run {
            date: "2026-01-02".to_owned(),
            suites: BTreeMap::from([("jobs".to_owned(), counts)]),
            failed: vec!["jobs: jobs::a: FAILED".to_owned()],
            not_run: vec!["jobs: jobs::b: no cgroups".to_owned()],
            gates: BTreeMap::from([("JobManagedBy".to_owned(), "on (GA)".to_owned())]),
        };
        Record(BTreeMap::from([(Version::NODE.to_string(), run)]))
    }

    #[test]
    fn a_version_s_row_has_its_date_and_counts() {
        let page = render(&record(), &Nodes::default(), None);
        let row = "| 1.37.2 | 2026-01-02 | not run | not run | not run | \
                   3 passed, 1 failed, 2 not run |";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("- 1.37.2, failed: jobs: jobs::a: FAILED\n"), "{page}");
        assert!(page.contains("- 1.37.2, not run: jobs: jobs::b: no cgroups\n"), "{page}");
    }

    #[test]
    fn what_did_not_run_is_said_to_be_not_run() {
        let page = render(&Record::default(), &Nodes::default(), None);
        for version in Version::KNOWN {
            let row = format!("| {version} | not run | not run | not run | not run | not run |");
            assert!(page.contains(&row), "{page}");
        }
        assert!(page.contains("No suite has run yet.") && !page.contains("No test failed."));
        assert!(page.contains("not asked") && !page.contains("always |"), "{page}");
    }

    #[test]
    fn a_gate_that_a_server_does_not_name_is_no_or_always() {
        let page = render(&record(), &Nodes::default(), None);
        let row = |gate: &str| page.lines().find(|line| line.starts_with(gate)).expect("a row");
        assert!(row("| JobManagedBy").contains("on (GA)"));
        assert!(row("| ValidatingAdmissionPolicy").contains("always"));
        let later = Gate { name: "Later", feature: "x", since: 38 };
        assert_eq!(state(&later, Version::NODE, record().0.get("1.37.2")), "no");
    }
}
