//! Which tests a command line means: suites, packages and names. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Context as _;
use serde_json::Value;

/// The crates without IO; their tests take seconds and need nothing.
const CORE: [&str; 3] = ["epilogue-common", "controller-core", "agent-core"];

/// The package whose suites run on a real API, but for those that its manifest excepts.
const LAB: &str = "lab";

/// The package that has a suite against a real logind, and the suite.
const AGENT: (&str, &str) = ("epilogue-agent", "elogind");

/// What can be named: the test targets of the workspace, by package.
#[derive(Debug, Default)]
pub(super) struct Suites {
    /// Suite to package.
    targets: BTreeMap<String, String>,
    packages: BTreeSet<String>,
    /// Suites of the lab that need no control plane.
    offline: BTreeSet<String>,
}

/// What `cargo test` is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// The arguments of each run. `--test` bars the unit tests of every package in the same run,
    /// so suites and whole packages are run apart.
    pub(super) runs: Vec<Vec<String>>,
    /// Parts of tests' names.
    pub(super) names: Vec<String>,
    pub(super) needs_control_plane: bool,
    /// Whether a real logind has to be there.
    pub(super) needs_logind: bool,
}

impl Selection {
    /// For `cargo build`: all our programs, which the suites start, and with them, so that
    /// dependencies are compiled once, the test programs of the runs.
    pub(super) fn build_arguments(&self) -> Vec<String> {
        let mut arguments = [workspace(), vec!["--bins".to_owned()]].concat();
        match self.runs.as_slice() {
            [only] if only.iter().any(|argument| argument == "--test") => {
                arguments.extend_from_slice(&only[1..]);
            }
            _ => arguments.push("--tests".into()),
        }
        arguments
    }
}

impl Suites {
    /// From the output of `cargo metadata --no-deps`.
    pub(super) fn of_metadata(metadata: &Value) -> anyhow::Result<Self> {
        let mut suites = Self::default();
        for package in metadata["packages"].as_array().context("cargo metadata lists packages")? {
            let name = text(&package["name"]);
            for target in package["targets"].as_array().into_iter().flatten() {
                if target["kind"][0] == "test" {
                    suites.targets.insert(text(&target["name"]), name.clone());
                }
            }
            let offline = package["metadata"]["lab"]["without-control-plane"].as_array();
            suites.offline.extend(offline.into_iter().flatten().map(text));
            suites.packages.insert(name);
        }
        Ok(suites)
    }

    /// The meaning of `filters`: a suite's name, a package's name, `core`, or else a test's name.
    pub(super) fn select(&self, filters: &[String]) -> Selection {
        let (mut packages, mut targets) = (Vec::new(), Vec::new());
        let mut names = Vec::new();
        let (mut needs_control_plane, mut needs_logind) = (false, false);
        for filter in filters {
            if filter == "core" {
                packages.extend(CORE.iter().flat_map(|name| package_argument(name)));
            } else if let Some(package) = self.targets.get(filter) {
                needs_control_plane |= package == LAB && !self.offline.contains(filter);
                needs_logind |= filter == AGENT.1;
                targets.extend(["--test".to_owned(), filter.clone()]);
            } else if self.packages.contains(filter) {
                needs_control_plane |= filter == LAB;
                needs_logind |= filter == AGENT.0;
                packages.extend(package_argument(filter));
            } else {
                names.push(filter.clone());
            }
        }
        let mut runs = Vec::new();
        if packages.is_empty() && targets.is_empty() {
            runs.push(workspace());
            (needs_control_plane, needs_logind) = (true, true);
        }
        if !packages.is_empty() {
            runs.push(packages);
        }
        if !targets.is_empty() {
            runs.push([workspace(), targets].concat());
        }
        Selection { runs, names, needs_control_plane, needs_logind }
    }
}

impl fmt::Display for Suites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &mut dyn Iterator<Item = &String>| {
            names.map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        let suites = list(&mut self.targets.keys());
        write!(f, "suites: core, {suites}; packages: {}", list(&mut self.packages.iter()))
    }
}

/// With `--workspace`, dependencies have the same features in every run, and are compiled once.
fn workspace() -> Vec<String> {
    vec!["--workspace".to_owned()]
}

fn package_argument(name: &str) -> [String; 2] {
    ["--package".to_owned(), name.to_owned()]
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn suites() -> Suites {
        let target = |name: &str| json!({"name": name, "kind": ["test"]});
        let metadata = json!({"packages": [
            {"name": "lab",
             "targets": [target("jobs"), target("house_rules"), {"name": "lab", "kind": ["bin"]}],
             "metadata": {"lab": {"without-control-plane": ["house_rules"]}}},
            {"name": "epilogue-agent", "targets": [target("logind"), target("elogind")], "metadata": null},
        ]});
        Suites::of_metadata(&metadata).expect("the sample must be readable")
    }

    fn select(filters: &[&str]) -> Selection {
        suites().select(&filters.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn nothing_named_means_everything_on_a_control_plane() {
        let all = select(&[]);
        assert_eq!(all.runs, [["--workspace"]]);
        assert!(all.needs_control_plane && all.needs_logind);
    }

    #[test]
    fn core_means_the_pure_crates_and_no_control_plane() {
        let core = select(&["core"]);
        assert_eq!(core.runs[0].len(), 2 * CORE.len());
        assert!(!core.needs_control_plane);
    }

    #[test]
    fn only_suites_on_the_real_api_get_a_control_plane() {
        assert!(select(&["jobs"]).needs_control_plane);
        assert!(!select(&["house_rules"]).needs_control_plane);
        assert!(!select(&["logind"]).needs_control_plane);
        assert_eq!(select(&["logind"]).runs, [["--workspace", "--test", "logind"]]);
    }

    #[test]
    fn only_the_agents_suite_on_it_and_the_agent_get_a_logind() {
        assert!(select(&["elogind"]).needs_logind && select(&["epilogue-agent"]).needs_logind);
        assert!(!select(&["jobs"]).needs_logind && !select(&["core"]).needs_logind);
    }

    #[test]
    fn a_suite_does_not_bar_the_unit_tests_of_a_package() {
        let both = select(&["logind", "lab"]);
        assert_eq!(both.runs[0], ["--package", "lab"]);
        assert_eq!(both.runs[1], ["--workspace", "--test", "logind"]);
    }

    #[test]
    fn programs_are_built_together_with_the_suites_that_start_them() {
        let jobs = select(&["jobs"]).build_arguments();
        assert_eq!(jobs, ["--workspace", "--bins", "--test", "jobs"]);
        let all = select(&[]).build_arguments();
        assert_eq!(all, ["--workspace", "--bins", "--tests"]);
    }

    #[test]
    fn anything_else_is_part_of_a_tests_name() {
        let named = select(&["jobs", "failed_index"]);
        assert_eq!(named.names, ["failed_index"]);
        assert_eq!(named.runs, [["--workspace", "--test", "jobs"]]);
    }
}
