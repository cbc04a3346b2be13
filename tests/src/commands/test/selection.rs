//! Decides what a command line selects: which programs cargo builds, and which of their tests run.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Context as _;
use serde_json::Value;

use super::suites::Suite;

/// The crates without IO; their tests take seconds and need no services.
const CORE: [&str; 3] = ["epilogue-common", "controller-core", "agent-core"];

/// The package of the suites; its program of that name has a module for each.
const LAB: &str = "lab";
const SUITES: &str = "suites";

/// The names that a filter can match.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The test targets by name, and the packages that have one of that name.
    targets: BTreeMap<String, BTreeSet<String>>,
    packages: BTreeSet<String>,
}

/// What the filters of a command line select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    packages: BTreeSet<String>,
    suites: BTreeSet<String>,
    /// Parts of tests' names; if there are any, each selected test contains one of them.
    pub(super) parts: Vec<String>,
}

impl Names {
    /// From the output of `cargo metadata --no-deps`, and the modules of the program `suites`.
    pub(super) fn new(metadata: &Value, modules: &[String]) -> anyhow::Result<Self> {
        let mut names = Self::default();
        for package in metadata["packages"].as_array().context("cargo metadata lists packages")? {
            let name = text(&package["name"]);
            for target in package["targets"].as_array().into_iter().flatten() {
                if target["kind"][0] == "test" {
                    names.add(&text(&target["name"]), &name);
                }
            }
            names.packages.insert(name);
        }
        names.targets.remove(SUITES);
        for module in modules {
            names.add(module, LAB);
        }
        Ok(names)
    }

    fn add(&mut self, target: &str, package: &str) {
        self.targets.entry(target.to_owned()).or_default().insert(package.to_owned());
    }

    /// The meaning of `filters`: `core`, a suite's name, a package's name, or else part of tests'
    /// names.
    pub(super) fn select(&self, filters: &[String]) -> Selection {
        let mut selection = Selection::default();
        for filter in filters {
            if filter == "core" {
                selection.packages.extend(CORE.map(str::to_owned));
            } else if self.targets.contains_key(filter) {
                selection.suites.insert(filter.clone());
            } else if self.packages.contains(filter) {
                selection.packages.insert(filter.clone());
            } else {
                selection.parts.push(filter.clone());
            }
        }
        selection
    }

    /// The named suites of which a test may be selected, before the tests are known.
    pub(super) fn suites(&self, selection: &Selection) -> Vec<Suite> {
        let all = self.targets.iter().flat_map(|(name, packages)| {
            let of =
                |package: &String| Suite { package: package.clone(), name: Some(name.clone()) };
            packages.iter().map(of)
        });
        all.filter(|suite| selection.has_suite(suite)).collect()
    }

    /// The arguments of `cargo build` for the selected tests and, where a suite starts them, our
    /// programs.
    pub(super) fn build_arguments(&self, selection: &Selection) -> Vec<String> {
        let list = |arguments: &[&str]| arguments.iter().map(ToString::to_string).collect();
        if selection.is_all() {
            return list(&["--workspace", "--bins", "--tests"]);
        }
        if selection.suites.is_empty() && !selection.packages.contains(LAB) {
            let packages = selection.packages.iter();
            let named = packages.flat_map(|name| ["--package".to_owned(), name.clone()]);
            return named.chain(["--tests".to_owned()]).collect();
        }
        let mut arguments: Vec<String> = list(&["--workspace", "--bins"]);
        if !selection.packages.is_empty() {
            // Unit tests of one package cannot be named together with tests of another.
            arguments.push("--tests".to_owned());
        }
        let mut targets = BTreeSet::new();
        for suite in &selection.suites {
            let packages = &self.targets[suite];
            let is_module = packages.contains(LAB) && suite != "node";
            targets.extend(is_module.then(|| SUITES.to_owned()));
            let others = packages.iter().any(|package| package != LAB) || suite == "node";
            targets.extend(others.then(|| suite.clone()));
        }
        arguments.extend(targets.into_iter().flat_map(|target| ["--test".to_owned(), target]));
        arguments
    }
}

impl Selection {
    /// Whether only parts of names narrow it.
    fn is_all(&self) -> bool {
        self.packages.is_empty() && self.suites.is_empty()
    }

    /// Whether it contains this test.
    pub(super) fn has(&self, suite: &Suite, test: &str) -> bool {
        let part = self.parts.is_empty() || self.parts.iter().any(|part| test.contains(part));
        self.has_suite(suite) && part
    }

    fn has_suite(&self, suite: &Suite) -> bool {
        let is_named = |name: &String| self.suites.contains(name);
        self.is_all()
            || self.packages.contains(&suite.package)
            || suite.name.as_ref().is_some_and(is_named)
    }

    /// Its parts of names that match none of these tests.
    pub(super) fn unmatched<'a>(&'a self, tests: &[&str]) -> Vec<&'a str> {
        let matches = |part: &str| tests.iter().any(|test| test.contains(part));
        self.parts.iter().map(String::as_str).filter(|part| !matches(part)).collect()
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &mut dyn Iterator<Item = &String>| {
            names.map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        let suites = list(&mut self.targets.keys());
        write!(f, "suites: core, {suites}; packages: {}", list(&mut self.packages.iter()))
    }
}

/// The modules that the head file of the program `suites` declares.
pub(super) fn modules(source: &str) -> Vec<String> {
    let declared = |line: &str| Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned());
    source.lines().filter_map(declared).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names() -> Names {
        let target = |name: &str| json!({"name": name, "kind": ["test"]});
        let metadata = json!({"packages": [
            {"name": "lab", "targets": [target("suites"), target("node"),
                                        {"name": "lab", "kind": ["bin"]}]},
            {"name": "epilogue-agent", "targets": [target("host"), target("elogind")]},
            {"name": "epilogue-deploy", "targets": [target("agent")]},
            {"name": "agent-core", "targets": []},
        ]});
        let modules = modules("//! Head.\n\nmod agent;\nmod jobs;\n");
        Names::new(&metadata, &modules).expect("the sample must be readable")
    }

    fn select(filters: &[&str]) -> Selection {
        names().select(&filters.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn suite(package: &str, name: &str) -> Suite {
        let name = (!name.is_empty()).then(|| name.to_owned());
        Suite { package: package.to_owned(), name }
    }

    #[test]
    fn nothing_named_selects_all() {
        let all = select(&[]);
        assert!(all.has(&suite(LAB, "jobs"), "jobs::a") && all.has(&suite("agent-core", ""), "a"));
        assert_eq!(names().build_arguments(&all), ["--workspace", "--bins", "--tests"]);
    }

    #[test]
    fn core_selects_the_pure_crates_and_builds_no_program() {
        let core = select(&["core"]);
        assert!(core.has(&suite("agent-core", ""), "a") && !core.has(&suite(LAB, "jobs"), "a"));
        let arguments = names().build_arguments(&core);
        assert!(arguments.contains(&"agent-core".to_owned()));
        assert!(!arguments.contains(&"--bins".to_owned()), "{arguments:?}");
    }

    #[test]
    fn a_suite_is_built_with_the_programs_that_it_starts() {
        let jobs = select(&["jobs"]);
        assert_eq!(names().build_arguments(&jobs), ["--workspace", "--bins", "--test", "suites"]);
        assert!(jobs.has(&suite(LAB, "jobs"), "jobs::a"));
        assert!(!jobs.has(&suite(LAB, "agent"), "agent::a"));
        let node = names().build_arguments(&select(&["node"]));
        assert_eq!(node, ["--workspace", "--bins", "--test", "node"]);
    }

    #[test]
    fn a_name_that_two_packages_have_selects_both() {
        let agent = select(&["agent"]);
        assert!(agent.has(&suite(LAB, "agent"), "agent::a"));
        assert!(agent.has(&suite("epilogue-deploy", "agent"), "a"));
        let arguments = names().build_arguments(&agent);
        assert_eq!(arguments[2..], ["--test", "agent", "--test", "suites"]);
    }

    #[test]
    fn a_package_named_with_a_suite_keeps_its_unit_tests() {
        let both = select(&["host", "agent-core"]);
        assert!(both.has(&suite("agent-core", ""), "a"));
        assert!(both.has(&suite("epilogue-agent", "host"), "a"));
        assert!(!both.has(&suite("epilogue-agent", "elogind"), "a"));
        assert!(names().build_arguments(&both).contains(&"--tests".to_owned()));
    }

    #[test]
    fn anything_else_is_part_of_a_test_s_name() {
        let named = select(&["jobs", "failed_index"]);
        assert!(named.has(&suite(LAB, "jobs"), "jobs::a_failed_index_counts"));
        assert!(!named.has(&suite(LAB, "jobs"), "jobs::other"));
        assert_eq!(named.unmatched(&["jobs::other"]), ["failed_index"]);
        assert!(named.unmatched(&["jobs::a_failed_index_counts"]).is_empty());
    }
}
