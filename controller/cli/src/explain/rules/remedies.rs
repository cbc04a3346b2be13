//! Says what to do about a Job that failed, as YAML for its manifest. Nothing is proposed where the
//! cause is not known.

use controller_core::job::Cause;
use serde::Serialize;
use serde_json::{Value, json};

use super::ends::{End, Ends};

/// The API's limit of `podFailurePolicy.rules`.
const RULES_MAX: usize = 20;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Remedy {
    /// What the change does.
    pub(crate) text: String,
    /// The part of the Job's manifest to change; `None` if there is no such part.
    pub(crate) yaml: Option<String>,
}

/// The remedy for a failed Job. `job` is the Job as the API gives it, `reason` that of its
/// condition `Failed`.
pub(super) fn remedy(job: &Value, reason: &str, ends: &Ends) -> Option<Remedy> {
    let by_failures = ["BackoffLimitExceeded", "FailedIndexes", "MaxFailedIndexesExceeded"];
    if !by_failures.contains(&reason) {
        return None;
    }
    let counted = || ends.last.iter().filter(|end| end.is_counted());
    let is_of = |end: &&End, cause: Cause| end.known_cause() == Some(cause);
    let is_disruption = |end: &&End| {
        end.known_cause().is_some_and(|it| it.is_disruption() && it != Cause::ForceFailed)
    };
    if counted().any(|end| is_disruption(&end)) {
        return disruption(job);
    }
    if let Some(end) = counted().find(|end| is_of(end, Cause::ContainerOom)) {
        return memory(job, end);
    }
    let exited = counted().any(|end| is_of(&end, Cause::ExitCode));
    (exited && reason == "BackoffLimitExceeded").then(|| {
        let limit = job["spec"]["backoffLimit"].as_i64().unwrap_or(6);
        let limit = limit.saturating_mul(2).clamp(6, i64::from(i32::MAX));
        Remedy {
            text: "if another attempt can succeed, allow more of them:".to_owned(),
            yaml: yaml(&json!({"spec": {"backoffLimit": limit}})),
        }
    })
}

/// A rule that ignores disruptions, before those that the Job has.
fn disruption(job: &Value) -> Option<Remedy> {
    if job["spec"]["template"]["spec"]["restartPolicy"] != "Never" {
        let text = "a disruption counted as a failure; only a Job with restartPolicy: Never can \
                    ignore it, by a rule of podFailurePolicy";
        return Some(Remedy { text: text.to_owned(), yaml: None });
    }
    let rules = job["spec"]["podFailurePolicy"]["rules"].as_array().cloned().unwrap_or_default();
    let ignores = |rule: &Value| {
        let mut conditions = rule["onPodConditions"].as_array().into_iter().flatten();
        rule["action"] == "Ignore" && conditions.any(|it| it["type"] == "DisruptionTarget")
    };
    if rules.first().is_some_and(ignores) || rules.len() >= RULES_MAX {
        return None;
    }
    let ignore = json!({"action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let others = rules.into_iter().filter(|rule| !ignores(rule));
    let rules: Vec<Value> = [ignore].into_iter().chain(others).collect();
    // The API takes no other podReplacementPolicy next to a podFailurePolicy.
    let spec = json!({"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": rules}});
    Some(Remedy {
        text: "a disruption counted as a failure; a new Job ignores it with:".to_owned(),
        yaml: yaml(&json!({"spec": spec})),
    })
}

/// Twice the memory for the container that reached its limit.
fn memory(job: &Value, end: &End) -> Option<Remedy> {
    let (_, container) = end.says.split_once(": container ")?;
    let name = container.split(' ').next()?;
    let pod = &job["spec"]["template"]["spec"];
    let lists = ["containers", "initContainers"];
    let (list, it) = lists.into_iter().find_map(|list| {
        let it = pod[list].as_array()?.iter().find(|it| it["name"] == name)?;
        Some((list, it))
    })?;
    let resources = &it["resources"];
    let limit = doubled(resources["limits"]["memory"].as_str()?)?;
    let change = json!({"name": name, "resources": {"limits": {"memory": limit}}});
    Some(Remedy {
        text: format!("container {name} reached its memory limit; a new Job gives it more with:"),
        yaml: yaml(&json!({"spec": {"template": {"spec": {list: [change]}}}})),
    })
}

/// Twice a quantity of memory, in its own unit.
fn doubled(quantity: &str) -> Option<String> {
    let digits = quantity.len() - quantity.trim_start_matches(|it: char| it.is_ascii_digit()).len();
    let (number, unit) = quantity.split_at(digits);
    let known = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"].contains(&unit);
    let number: u64 = number.parse().ok().filter(|_| known)?;
    Some(format!("{}{unit}", number.checked_mul(2)?))
}

fn yaml(value: &Value) -> Option<String> {
    serde_yaml_ng::to_string(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(cause: Cause, says: &str) -> End {
        End {
            at: None,
            pod: "p".to_owned(),
            node: None,
            cause: cause.label().to_owned(),
            counted: Some("Failed"),
            says: says.to_owned(),
        }
    }

    fn job(restart: &str) -> Value {
        let limits = json!({"limits": {"memory": "512Mi"}});
        json!({"spec": {"backoffLimit": 1, "template": {"spec": {
            "restartPolicy": restart, "containers": [{"name": "main", "resources": limits}]}}}})
    }

    fn found(job: &Value, reason: &str, ends: Vec<End>) -> Option<(String, Value)> {
        let remedy = remedy(job, reason, &Ends { last: ends, more: 0 })?;
        let yaml = remedy.yaml.map(|text| serde_yaml_ng::from_str(&text).expect("must be YAML"));
        Some((remedy.text, yaml.unwrap_or_default()))
    }

    #[test]
    fn a_disruption_that_counted_gets_the_rule_that_ignores_it() {
        let evicted = || vec![end(Cause::EvictionByEvictionApi, "pod p was disrupted")];
        let exceeded = "BackoffLimitExceeded";
        let (_, yaml) = found(&job("Never"), exceeded, evicted()).expect("a remedy");
        let ignore = json!({"action": "Ignore",
                            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        let spec =
            json!({"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": [ignore]}});
        assert_eq!(yaml, json!({"spec": spec}));
        let mut with_rule = job("Never");
        let fail = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}});
        with_rule["spec"]["podFailurePolicy"] = json!({"rules": [fail]});
        let (_, yaml) = found(&with_rule, exceeded, evicted()).expect("a remedy");
        assert_eq!(yaml["spec"]["podFailurePolicy"]["rules"], json!([ignore, fail]));
        with_rule["spec"]["podFailurePolicy"] = json!({"rules": [ignore]});
        assert_eq!(found(&with_rule, exceeded, evicted()), None, "it does so already");
        let (text, yaml) = found(&job("OnFailure"), exceeded, evicted()).expect("a remedy");
        assert!(text.contains("restartPolicy: Never") && yaml.is_null(), "{text}");
    }

    #[test]
    fn more_memory_or_more_attempts_are_proposed_where_they_fit() {
        let exceeded = "BackoffLimitExceeded";
        let oom = end(Cause::ContainerOom, "pod p: container main was OOMKilled (exit code 137)");
        let (_, yaml) = found(&job("OnFailure"), exceeded, vec![oom.clone()]).expect("a remedy");
        let main = json!({"name": "main", "resources": {"limits": {"memory": "1024Mi"}}});
        assert_eq!(yaml["spec"]["template"]["spec"]["containers"], json!([main]));
        let exit = || vec![end(Cause::ExitCode, "pod p: container main exited with code 1")];
        let (_, yaml) = found(&job("Never"), exceeded, exit()).expect("a remedy");
        assert_eq!(yaml, json!({"spec": {"backoffLimit": 6}}));
        let mut unlimited = job("Never");
        unlimited["spec"]["template"]["spec"]["containers"][0]["resources"] = json!(null);
        assert_eq!(found(&unlimited, exceeded, vec![oom]), None);
        for nothing in ["DeadlineExceeded", "PodFailurePolicy"] {
            assert_eq!(found(&job("Never"), nothing, exit()), None);
        }
        assert_eq!(found(&job("Never"), exceeded, vec![end(Cause::Unknown, "")]), None);
        assert_eq!(found(&job("Never"), exceeded, Vec::new()), None);
    }

    #[test]
    fn memory_is_doubled_in_its_unit() {
        let table = [
            ("512Mi", Some("1024Mi")),
            ("1G", Some("2G")),
            ("100", Some("200")),
            ("0.5Gi", None),
            ("1e3", None),
            ("", None),
        ];
        for (from, to) in table {
            assert_eq!(doubled(from).as_deref(), to, "{from}");
        }
    }
}
