//! Checks that alerts and dashboards use what the programs export, that each alert has a runbook,
//! and that promtool accepts the rules and their unit tests.

mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use epilogue_deploy::monitoring::{
    UPDATE_ENV, alerts, alerts_test, directory, generated, prometheus_rule,
};
use epilogue_deploy::{documents, enforce};
use serde_json::{Value, json};

use promql::{Names, names};

/// The page of runbooks, as it is published.
const RUNBOOKS: &str = "https://epilogue.dev/docs/runbooks.html";
/// Labels that `scrape.yaml` gives each series; `node` only that of an agent.
const OF_TARGET: [&str; 3] = ["instance", "job", "node"];
/// What Prometheus itself records of each target.
const OF_PROMETHEUS: [&str; 1] = ["up"];
/// Histograms whose labels the table in docs/operations.md leaves out.
const HISTOGRAMS: [(&str, &[&str]); 3] = [
    ("job_controller_job_sync_duration_seconds", &["completion_mode", "result", "action"]),
    ("workqueue_queue_duration_seconds", &["name"]),
    ("workqueue_work_duration_seconds", &["name"]),
];
/// Histograms whose labels are in the table.
const NAMED_HISTOGRAMS: [&str; 1] = ["epilogue_disruption_seconds"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("must be readable")
}

/// The metrics in the generated table of docs/operations.md, which has all that the code names.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let page = page("docs/operations.md");
    let (_, table) = page.split_once("<!-- generated: metrics -->").expect("must have the table");
    let (table, _) = table.split_once("<!-- end: metrics -->").expect("must have an end");
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let rows = table.lines().filter(|line| line.contains("| `"));
    let mut metrics: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').collect();
            let name: Vec<String> = quoted(cells[2]);
            (name[0].clone(), quoted(cells[3]).into_iter().collect())
        })
        .collect();
    for (name, labels) in HISTOGRAMS {
        let found = metrics.get_mut(name).expect(name);
        assert!(found.is_empty(), "the table has labels of {name} now: remove it from HISTOGRAMS");
        found.extend(labels.iter().map(|it| (*it).to_owned()));
    }
    for name in HISTOGRAMS.into_iter().map(|(name, _)| name).chain(NAMED_HISTOGRAMS) {
        let labels = metrics.get(name).expect(name).clone();
        for series in ["_bucket", "_count", "_sum"] {
            let mut labels = labels.clone();
            labels.extend((series == "_bucket").then(|| "le".to_owned()));
            metrics.insert(format!("{name}{series}"), labels);
        }
    }
    for name in OF_PROMETHEUS {
        metrics.insert(name.to_owned(), BTreeSet::new());
    }
    metrics
}

/// All rules of the rule file.
fn rules() -> Vec<Value> {
    let file = documents(&alerts()).expect("must be readable").remove(0);
    let groups = file["groups"].as_array().expect("must have groups").clone();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone());
    rules.collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("must be text: {value}"))
}

/// The alerts by name.
fn all_alerts() -> BTreeMap<String, Value> {
    let alerts = rules().into_iter().filter(|rule| rule["alert"].is_string());
    alerts.map(|rule| (text(&rule["alert"]).to_owned(), rule)).collect()
}

/// The dashboards as they are checked in, by name.
fn dashboards() -> BTreeMap<String, Value> {
    let entries = fs::read_dir(directory().join("dashboards")).expect("must be a directory");
    let parsed = entries.map(|entry| {
        let path = entry.expect("must be readable").path();
        let json = fs::read_to_string(&path).expect("must be readable");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, serde_json::from_str(&json).expect("must be JSON"))
    });
    parsed.collect()
}

/// The panels' expressions, and those that fill variables, with what to call them in a failure.
fn expressions(name: &str, dashboard: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().expect("must have panels") {
        let place = format!("dashboard {name}, panel {}", text(&panel["title"]));
        for target in panel["targets"].as_array().expect("must have targets") {
            all.push((place.clone(), text(&target["expr"]).to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("must have variables") {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        let inside = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
        if let Some((metric, label)) = inside.and_then(|it| it.rsplit_once(", ")) {
            let place = format!("dashboard {name}, variable {}", text(&variable["name"]));
            all.push((place, format!("sum by ({label}) ({metric})")));
        }
    }
    all
}

/// All expressions of alerts and dashboards.
fn all_expressions() -> Vec<(String, String)> {
    let of_rule = |rule: &Value| {
        let name = rule["alert"].as_str().or(rule["record"].as_str()).expect("must have a name");
        (name.to_owned(), text(&rule["expr"]).to_owned())
    };
    let mut all: Vec<(String, String)> = rules().iter().map(of_rule).collect();
    for (name, dashboard) in dashboards() {
        all.extend(expressions(&name, &dashboard));
    }
    all
}

/// `EpilogueLockNotHeld` as `epilogue-lock-not-held`.
fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(letter.to_ascii_lowercase());
    }
    kebab
}

#[test]
fn generated_files_are_current() {
    let update = std::env::var_os(UPDATE_ENV).is_some();
    for (path, expected) in generated().expect("must be rendered") {
        if update {
            fs::create_dir_all(path.parent().expect("must be in a directory"))
                .expect("a directory");
            fs::write(&path, &expected).expect("must be writable");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        let first = found.lines().zip(expected.lines()).find(|(is, ought)| is != ought);
        let hint = format!("{}: run {UPDATE_ENV}=1 cargo test -p epilogue-deploy", path.display());
        assert_eq!(first, None, "{hint}");
        assert_eq!(found.len(), expected.len(), "{hint}");
    }
    let files = generated().expect("must be rendered").len() - 1;
    assert_eq!(dashboards().len(), files, "a dashboard without a table");
}

#[test]
fn the_operator_s_object_has_the_rules_of_the_file() {
    let rule = documents(&prometheus_rule()).expect("must be readable").remove(0);
    let file = documents(&alerts()).expect("must be readable").remove(0);
    assert_eq!(rule["spec"], file);
    assert_eq!(rule["kind"], "PrometheusRule");
    let component = prometheus_rule().with_file_name("kustomization.yaml");
    let component = documents(&component).expect("must be readable").remove(0);
    assert_eq!(component["resources"], json!(["prometheus-rule.yaml"]));
}

#[test]
fn alerts_and_dashboards_use_metrics_and_labels_that_exist() {
    let mut metrics = exported();
    assert!(metrics.len() > 60, "{metrics:?}");
    let recorded = rules().into_iter().filter_map(|rule| {
        let name = rule["record"].as_str()?.to_owned();
        Some((name, names(text(&rule["expr"])).grouped.into_iter().collect()))
    });
    metrics.extend(recorded);
    for (place, expression) in all_expressions() {
        let Names { metrics: used, grouped } = names(&expression);
        assert!(!used.is_empty(), "{place} uses no metric: {expression}");
        let mut known: BTreeSet<&str> = OF_TARGET.into();
        for (metric, matched) in &used {
            let labels = metrics.get(metric);
            let labels = labels.unwrap_or_else(|| panic!("{place}: no program exports {metric}"));
            known.extend(labels.iter().map(String::as_str));
            for label in matched.iter().filter(|label| !OF_TARGET.contains(&label.as_str())) {
                assert!(labels.contains(label), "{place}: {metric} has no label {label}");
            }
        }
        for label in &grouped {
            assert!(known.contains(label.as_str()), "{place}: no metric has the label {label}");
        }
    }
}

/// kube-controller-manager exports metrics of the same names.
#[test]
fn metrics_that_upstream_has_too_are_selected_by_their_job() {
    for (place, expression) in all_expressions() {
        for (metric, labels) in names(&expression).metrics {
            let of_both = ["up", "workqueue_", "job_controller_", "process_"];
            let shared = of_both.iter().any(|prefix| metric.starts_with(prefix));
            assert!(!shared || labels.contains("job"), "{place}: {metric} of which program?");
        }
    }
}

#[test]
fn legends_and_texts_name_labels_that_the_series_have() {
    let metrics = exported();
    for (name, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().expect("must have panels") {
            for target in panel["targets"].as_array().expect("must have targets") {
                let (expr, legend) = (text(&target["expr"]), text(&target["legendFormat"]));
                let Names { metrics: used, grouped } = names(expr);
                for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                    let is_grouped = grouped.contains(label);
                    let is_kept = !["sum", "max", "count"].iter().any(|it| expr.contains(it));
                    let has = used.keys().any(|metric| metrics[metric].contains(label));
                    assert!(is_grouped || is_kept && has, "{name}: {label} of {expr}");
                }
            }
        }
    }
    for (name, alert) in all_alerts() {
        let Names { metrics: used, grouped } = names(text(&alert["expr"]));
        let texts = alert["annotations"].to_string();
        for rest in texts.split("$labels.").skip(1) {
            let label = rest.split(|it: char| !it.is_alphanumeric()).next().unwrap_or_default();
            let has = |metric: &String| metrics.get(metric).is_some_and(|it| it.contains(label));
            let known = OF_TARGET.contains(&label) || grouped.contains(label);
            assert!(known || used.keys().any(has), "{name}: {label}");
        }
    }
}

#[test]
fn each_alert_has_a_severity_texts_and_a_runbook() {
    let page = page("docs/runbooks.md");
    let headings: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let alerts = all_alerts();
    let anchors: BTreeSet<String> = alerts.keys().map(|name| kebab(name)).collect();
    let expected: BTreeSet<&str> = anchors.iter().map(String::as_str).collect();
    assert_eq!(headings, expected, "docs/runbooks.md against deploy/monitoring/alerts.yaml");
    for (name, alert) in &alerts {
        let severity = text(&alert["labels"]["severity"]);
        assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        let annotations = &alert["annotations"];
        assert_eq!(annotations["runbook_url"], format!("{RUNBOOKS}#{}", kebab(name)));
        for field in ["summary", "description"] {
            assert!(text(&annotations[field]).ends_with('.'), "{name}: a sentence in {field}");
        }
    }
    for section in page.split("\n### ").skip(1) {
        let (heading, body) = section.split_once('\n').expect("must have a body");
        let body = body.split("\n## ").next().unwrap_or_default();
        for part in ["- *Means:*", "- *See:*", "- *Do"] {
            assert!(body.contains(part), "{heading} lacks {part}");
        }
    }
}

#[test]
fn each_alert_is_tested_with_series_that_fire_and_series_that_do_not() {
    let file = documents(&alerts_test()).expect("must be readable").remove(0);
    let mut seen: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for test in file["tests"].as_array().expect("must have tests") {
        for check in test["alert_rule_test"].as_array().expect("must check alerts") {
            let fires = !check["exp_alerts"].as_array().expect("must expect").is_empty();
            seen.entry(text(&check["alertname"]).to_owned()).or_default().insert(fires);
        }
    }
    let both = BTreeSet::from([false, true]);
    let expected: BTreeMap<String, BTreeSet<bool>> =
        all_alerts().into_keys().map(|name| (name, both.clone())).collect();
    assert_eq!(seen, expected);
}

/// `cargo lab prepare` puts it into the target directory; else it is searched in PATH.
fn promtool() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("must be in target");
    let unpacked = target.join("lab/promtool/usr/bin/promtool");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|it| it.join("promtool"));
    [unpacked].into_iter().chain(installed).find(|it| it.is_file())
}

#[test]
fn promtool_accepts_the_rules_and_their_unit_tests() {
    let Some(promtool) = promtool() else {
        let remedy = "`cargo lab prepare` unpacks it on Debian";
        println!("not run: [no-promtool] promtool is not installed ({remedy})");
        return;
    };
    // What the dashboards query, as rules.
    let scratch = tempfile::tempdir().expect("must be creatable");
    let queries = scratch.path().join("queries.yaml");
    let rules = all_expressions().into_iter().enumerate().map(|(at, (_, expr))| {
        json!({"record": format!("query:{at}"), "expr": expr.replace("$__rate_interval", "5m")})
    });
    let groups = json!({"groups": [{"name": "queries", "rules": rules.collect::<Vec<_>>()}]});
    fs::write(&queries, groups.to_string()).expect("must be writable");
    for (task, file) in [("check", alerts()), ("check", queries), ("test", alerts_test())] {
        let output = Command::new(&promtool).args([task, "rules"]).arg(&file).output();
        let output = output.expect("must run");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "promtool {task} rules: {said}");
        assert!(said.contains("SUCCESS"), "{said}");
    }
}

/// The scrape configuration selects ports and pods by names that the manifests have.
#[test]
fn what_is_scraped_is_what_the_manifests_offer() {
    let file = documents(&directory().join("scrape.yaml")).expect("must be readable").remove(0);
    let workloads = [
        ("epilogue-controller", "../components/scraping/deployment.yaml", "epilogue-system"),
        ("epilogue-agent", "../components/scraping/daemon-set.yaml", "epilogue-agents"),
    ];
    for (name, path, namespace) in workloads {
        let all = file["scrape_configs"].as_array().expect("must have jobs");
        let job = all.iter().find(|job| job["job_name"] == name).expect(name);
        assert_eq!(job["kubernetes_sd_configs"][0]["namespaces"]["names"][0], namespace);
        let workload = documents(&enforce().join("../../common").join(path))
            .expect("must be readable")
            .remove(0);
        assert_eq!(workload["metadata"]["namespace"], namespace);
        let port = text(&workload["spec"]["template"]["spec"]["containers"][0]["ports"][0]["name"]);
        assert_eq!(job["relabel_configs"][0]["regex"], format!("{name};{port}"));
    }
}
