//! Renders the files of `deploy/monitoring` that are made from others: the `PrometheusRule` from
//! the rule file, and the dashboards from tables of panels.

mod grafana;
mod panels;

use std::path::{Path, PathBuf};

use crate::{ManifestError, read};

/// Set in the environment, it makes the tests write the generated files.
pub const UPDATE_ENV: &str = "UPDATE_MONITORING";

/// What a `PrometheusRule` has before the groups of the rule file.
const RULE_BEGIN: &str = "\
# deploy/monitoring/alerts.yaml as an object of the Prometheus operator. Do not edit it: after a
# change of that file, UPDATE_MONITORING=1 cargo test -p epilogue-deploy writes it again.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: epilogue
  namespace: epilogue-system
  labels:
    app.kubernetes.io/name: epilogue
    app.kubernetes.io/part-of: epilogue
spec:
";

/// The directory of alerts and dashboards.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring")
}

/// The rule file.
pub fn alerts() -> PathBuf {
    directory().join("alerts.yaml")
}

/// Unit tests of the rule file.
pub fn alerts_test() -> PathBuf {
    directory().join("alerts_test.yaml")
}

/// The `PrometheusRule`, in the kustomize component `monitoring`.
pub fn prometheus_rule() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("kustomize/components/monitoring/prometheus-rule.yaml")
}

/// Every generated file with its content.
pub fn generated() -> Result<Vec<(PathBuf, String)>, ManifestError> {
    let mut files = vec![(prometheus_rule(), wrapped(&read(&alerts())?))];
    for dashboard in panels::dashboards() {
        let path = directory().join("dashboards").join(format!("{}.json", dashboard.name()));
        let json = dashboard.json().map_err(|it| ManifestError::Render(path.clone(), it))?;
        files.push((path, json));
    }
    Ok(files)
}

/// A rule file as the spec of a `PrometheusRule`; the comments before its groups stay behind.
fn wrapped(alerts: &str) -> String {
    let groups = alerts.lines().skip_while(|line| line.starts_with('#'));
    let indented = groups.map(|line| format!("  {line}\n").replace("  \n", "\n"));
    RULE_BEGIN.to_owned() + &indented.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_become_the_spec_and_comments_inside_stay() {
        let wrapped =
            wrapped("# About.\n# More.\ngroups:\n  # One.\n  - name: a\n\n    rules: []\n");
        let (_, spec) = wrapped.split_once("spec:\n").expect("must have a spec");
        assert_eq!(spec, "  groups:\n    # One.\n    - name: a\n\n      rules: []\n");
    }
}
