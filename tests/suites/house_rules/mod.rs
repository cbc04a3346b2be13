//! The house rules, held by tests over the workspace's own files. Each rule is a function from text
//! to violations, in the modules; here it runs over the files.
//!
//! Clippy and rustfmt hold their own rules (`unwrap`, `unsafe`, format), which are not repeated
//! here.

mod citations;
mod features;
mod ledger;
mod purity;
mod shape;
mod sources;
mod syntax;
mod verdicts;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use sources::{Source, read};

/// Fails with all violations at once, each with its place.
fn hold(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}\n  {}\n", violations.join("\n  "));
}

/// Applies a rule about one file to all Rust files.
fn in_all_sources(rule: &str, check: impl Fn(&Source) -> Vec<String>) {
    hold(rule, &violations(&sources::all(), check));
}

/// The violations of a rule about one file, each with the file.
fn violations(sources: &[Source], check: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    let found = sources.iter().flat_map(|source| {
        let place = &source.path;
        check(source).into_iter().map(move |found| format!("{place}: {found}"))
    });
    found.collect()
}

#[test]
fn pure_crates_depend_on_nothing_that_does_io() {
    let rule = "a pure crate decides and touches nothing; its dependencies are listed in \
                tests/suites/house_rules/purity.rs";
    hold(rule, &purity::foreign_dependencies(&purity::metadata()));
}

#[test]
fn pure_crates_ban_the_outside_world_in_their_clippy_toml() {
    let rule = "the clippy.toml of a pure crate bans what the list in purity.rs names";
    let violations: Vec<String> = purity::PURE_CRATES
        .iter()
        .flat_map(|(_, dir)| {
            let path = format!("{dir}/clippy.toml");
            let text = read(&path);
            purity::missing_bans(&text).into_iter().map(move |ban| format!("{path}: {ban}"))
        })
        .collect();
    hold(rule, &violations);
}

#[test]
fn bans_of_a_pure_crate_bind_no_other() {
    let dirs = purity::manifest_dirs(&purity::metadata());
    let has_own = |dir: &str| !read(&format!("{dir}/clippy.toml")).is_empty();
    hold("a crate below a pure one has its own", &purity::caught_by_a_ban(&dirs, has_own));
}

#[test]
fn pure_crates_do_not_lift_their_ban() {
    in_all_sources("a pure crate's code must not allow what its clippy.toml bans", |source| {
        let pure = purity::PURE_CRATES
            .iter()
            .any(|(_, dir)| source.path.starts_with(&format!("{dir}/src/")));
        if pure { purity::lifted_bans(&source.text) } else { Vec::new() }
    });
}

#[test]
fn rules_of_the_command_line_touch_nothing() {
    let rule = "a file in controller/cli/src/*/rules decides; its command reads and prints";
    let sources = sources::all();
    let is_rule = |source: &Source| {
        let path = source.path.strip_prefix("controller/cli/src/").unwrap_or_default();
        !source.is_test() && (path.contains("/rules/") || path.ends_with("/rules.rs"))
    };
    assert!(sources.iter().filter(|source| is_rule(source)).count() > 20, "the rules have moved");
    let check = |source: &Source| {
        if is_rule(source) { purity::io_in_rules(&source.text) } else { Vec::new() }
    };
    hold(rule, &violations(&sources, check));
}

#[test]
fn verdicts_borrow_no_decision_of_the_code_they_judge() {
    let sources = sources::all();
    let judges = |source: &Source| verdicts::judges(&source.path);
    assert!(sources.iter().filter(|source| judges(source)).count() > 10, "the verdicts have moved");
    let check = |source: &Source| {
        if judges(source) { verdicts::borrowed(&source.text) } else { Vec::new() }
    };
    hold("a verdict states its promise in its own words", &violations(&sources, check));
}

#[test]
fn the_command_line_builds_where_users_sit() {
    for target in purity::CLI_TARGETS {
        let found = purity::not_portable(&purity::tree_of_the_command_line(target));
        hold(&format!("kubectl-epilogue on {target} has no crate of Linux"), &found);
    }
}

#[test]
fn a_dependency_has_the_same_features_in_programs_and_tests() {
    let rule = "ask for the features that tests need in tests/Cargo.toml, not in a crate's \
                dev-dependencies, or the tree is compiled twice";
    let programs = features::tree("normal,no-proc-macro");
    let tests = features::tree("normal,dev,no-proc-macro");
    hold(rule, &features::differences(&programs, &tests));
}

#[test]
fn every_file_says_its_one_job_at_its_head() {
    in_all_sources("a file starts with `//!` and what it is for", |source| {
        shape::missing_header(&source.text)
    });
}

#[test]
fn every_file_is_rust() {
    in_all_sources("the other rules read a file as Rust", |source| syntax::not_rust(&source.text));
}

#[test]
fn lines_fit_in_a_hundred_columns() {
    in_all_sources("a line has at most 100 columns, printed samples in tests excepted", |source| {
        if source.is_test() { Vec::new() } else { syntax::long_lines(&source.text) }
    });
}

#[test]
fn files_carry_the_noun_of_what_is_in_them() {
    in_all_sources("a file is named for its content", |source| shape::vague_name(&source.path));
}

#[test]
fn files_have_at_most_500_lines_without_their_tests() {
    in_all_sources("split a file of more than 500 lines", |source| {
        if source.is_test() { Vec::new() } else { syntax::long_file(&source.text) }
    });
}

#[test]
fn functions_have_at_most_70_lines() {
    in_all_sources(
        "split a function of more than 70 lines: parents branch, children compute",
        |s| {
            if s.is_test() { Vec::new() } else { syntax::long_functions(&s.text) }
        },
    );
}

#[test]
fn nothing_is_left_undone_ignored_or_unsafe() {
    in_all_sources(
        "no todo!, unimplemented!, dbg!, #[ignore]; unsafe only where listed",
        |source| syntax::forbidden_tokens(&source.path, &source.text),
    );
}

#[test]
fn every_divergence_from_upstream_is_in_the_ledger() {
    let rule = "a `DIVERGES(upstream)` comment has a row in the ledger, and back";
    let sources = sources::all();
    let code = sources.iter().filter(|source| !source.is_test());
    let counts = ledger::counts(code.map(|source| (source.path.as_str(), source.text.as_str())));
    hold(rule, &ledger::differences(&read(ledger::PAGE), &counts));
}

#[test]
fn every_link_leads_somewhere() {
    let broken = lab::docs::broken_links().expect("pages are readable");
    hold("links of pages lead to files and headings of the repository", &broken);
}

#[test]
fn every_citation_is_a_rule_and_every_rule_is_cited_and_tested() {
    let pages = ["job-controller", "node-agent"].map(|page| read(&format!("docs/rules/{page}.md")));
    let rules: BTreeMap<String, citations::Rule> =
        pages.iter().flat_map(|page| citations::rules(page)).collect();
    assert!(rules.len() > 200, "{}", rules.len());
    let known: BTreeSet<String> = rules.keys().cloned().collect();
    let sources = sources::all();
    let (mut cited, mut functions) = (BTreeSet::new(), BTreeSet::new());
    let mut violations = Vec::new();
    for source in &sources {
        let path = &source.path;
        if !path.ends_with("house_rules/citations.rs") {
            let broken = citations::broken(source, &known);
            violations.extend(broken.into_iter().map(|what| format!("{path}: {what}")));
        }
        cited.extend(citations::comments(&source.text).flat_map(|(_, it)| citations::cited(it)));
        functions.extend(citations::functions(&source.text).map(str::to_owned));
    }
    for manifest in ["deploy/policy/agent/policy.yaml", "tests/node/README.md", "agent/README.md"] {
        cited.extend(citations::cited(&read(manifest)));
    }
    violations.extend(pages.iter().flat_map(|page| citations::not_seen(page, &sources)));
    for (id, rule) in &rules {
        if !cited.contains(id) {
            violations.push(format!("docs/rules: nothing cites [{id}]"));
        }
        let no_test = rule.tests.is_empty().then(|| "a test".to_owned());
        let lost = rule.tests.iter().filter(|name| !functions.contains(*name)).cloned();
        let gone = rule.files.iter().filter(|path| !sources.iter().any(|it| it.path == **path));
        for what in no_test.into_iter().chain(lost).chain(gone.cloned()) {
            violations.push(format!("docs/rules: [{id}] lacks {what}"));
        }
    }
    hold("citations are rules of docs/rules; each rule is cited and names its tests", &violations);
}

#[test]
fn prose_strings_and_names_speak_the_language_of_kubernetes() {
    let mut found = violations(&sources::all(), words::in_rust);
    found.extend(violations(&sources::with_extension("md"), words::in_page));
    found.extend(violations(&sources::with_extension("yaml"), words::in_manifest));
    hold("prose, strings and names have no word of a private dialect", &found);
}
