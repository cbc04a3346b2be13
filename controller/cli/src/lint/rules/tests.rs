//! Tests each check of lint: a manifest that it finds, and one that is right.

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::{Map, Value, json};

use super::finding::Severity;
use super::{Facts, Finding, lint};

/// A Job of ours with one container, and these fields of its spec.
fn job(spec: Value) -> Value {
    let mut job = json!({
        "kind": "Job", "metadata": {"namespace": "work", "name": "x"},
        "spec": {
            "managedBy": "epilogue.dev/job-controller",
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}],
                                  "initContainers": [{"name": "prepare"}]}},
        },
    });
    set(&mut job["spec"], spec);
    job
}

/// Sets these fields of an object.
fn set(object: &mut Value, fields: Value) {
    if let Value::Object(fields) = fields {
        for (field, value) in fields {
            object[field] = value;
        }
    }
}

/// A Job of ours whose podFailurePolicy has these rules, with a limit for ignored failures.
fn with_rules(rules: Value) -> Value {
    let mut job = job(json!({"activeDeadlineSeconds": 3600, "completionMode": "Indexed",
                             "completions": 3, "backoffLimitPerIndex": 1}));
    job["spec"]["podFailurePolicy"]["rules"] = rules;
    job
}

fn with_pod(spec: Value, pod: Value) -> Value {
    let mut job = job(spec);
    set(&mut job["spec"]["template"]["spec"], pod);
    job
}

fn annotated(mut job: Value, annotations: Value) -> Value {
    job["metadata"]["annotations"] = annotations;
    job
}

fn disruption(action: &str) -> Value {
    json!({"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
}

fn condition(kind: &str, status: Value) -> Value {
    let mut rule = json!({"action": "FailJob", "onPodConditions": [{"type": kind}]});
    rule["onPodConditions"][0]["status"] = status;
    rule
}

fn exits(action: &str, operator: &str, values: Value) -> Value {
    let mut rule = json!({"action": action, "onExitCodes": {"operator": operator}});
    rule["onExitCodes"]["values"] = values;
    rule
}

fn exits_of(container: &str, action: &str, operator: &str, values: Value) -> Value {
    let mut rule = exits(action, operator, values);
    rule["onExitCodes"]["containerName"] = container.into();
    rule
}

fn found(objects: &[Value]) -> Vec<Finding> {
    lint(objects, Facts::default()).findings
}

#[track_caller]
fn clean(object: Value) {
    assert_eq!(found(&[object]), []);
}

/// Expects one finding; returns it.
#[track_caller]
fn one(object: Value, code: Code, severity: Severity, field: &str) -> Finding {
    let mut found = found(&[object]);
    let seen = found.iter().map(|it| (it.code, it.severity, &*it.field)).collect::<Vec<_>>();
    assert_eq!(seen, [(code, severity, field)], "{found:#?}");
    let found = found.remove(0);
    assert!(!found.problem.is_empty() && !found.remedy.is_empty(), "{found:?}");
    found
}

mod of_gangs;

#[test]
fn a_mistyped_condition_type_gets_the_nearest_known_one() {
    let field = "spec.podFailurePolicy.rules[1].onPodConditions[0].type";
    let table = [
        ("DistruptionTarget", "did you mean DisruptionTarget?"),
        ("disruption-target", "did you mean DisruptionTarget?"),
        ("epilogue.dev/OomKilled", "did you mean epilogue.dev/OOMKilled?"),
        ("OOMKilled", "did you mean epilogue.dev/OOMKilled?"),
        ("epilogue.dev/PendingTimedOut", "did you mean epilogue.dev/PendingTimeout?"),
        ("epilogue.dev/End", "did you mean epilogue.dev/Ended?"),
        ("PodSchedule", "did you mean PodScheduled?"),
        ("epilogue.dev/MemoryStall", "sets no condition epilogue.dev/MemoryStall on pods"),
    ];
    for (kind, words) in table {
        let rules = json!([disruption("Ignore"), condition(kind, json!("True"))]);
        let found = one(with_rules(rules), Code::ConditionTypeUnknown, Severity::Error, field);
        assert!(found.problem.contains(words), "{kind}: {found:?}");
    }
    for kind in super::failure_policy::KNOWN_TYPES.into_iter().chain(["example.com/ConfigIssue"]) {
        clean(with_rules(json!([condition(kind, json!("True"))])));
    }
}

#[test]
fn a_status_is_one_that_a_disrupted_pod_has() {
    let field = "spec.podFailurePolicy.rules[0].onPodConditions[0].status";
    let rule = |kind, status| with_rules(json!([condition(kind, status)]));
    for status in ["False", "Unknown"] {
        let job = rule("DisruptionTarget", json!(status));
        one(job, Code::DisruptionTargetNotTrue, Severity::Warning, field);
        clean(rule("Ready", json!(status)));
    }
    // YAML without quotes makes it a boolean.
    for status in [json!(true), json!("true"), json!("")] {
        let job = rule("DisruptionTarget", status);
        one(job, Code::ConditionStatusInvalid, Severity::Error, field);
    }
    clean(rule("DisruptionTarget", json!(null)));
}

#[test]
fn a_rule_has_exit_codes_or_conditions() {
    let field = "spec.podFailurePolicy.rules[0]";
    let both = json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [1]},
                      "onPodConditions": [{"type": "Ready"}]});
    let empty = json!({"action": "Count", "onPodConditions": []});
    for rule in [json!({"action": "Count"}), empty, both] {
        one(with_rules(json!([rule])), Code::RuleWithoutMatch, Severity::Error, field);
    }
}

#[test]
fn an_earlier_rule_shadows_one_that_matches_the_same_or_less() {
    let any = |rules: Value| with_rules(rules);
    let shadowed = [
        json!([disruption("Ignore"), disruption("FailJob")]),
        json!([exits("Count", "In", json!([1, 2, 3])), exits("FailJob", "In", json!([1, 3]))]),
        json!([exits("Count", "NotIn", json!([0])), exits("FailJob", "In", json!([42]))]),
        json!([exits("Count", "NotIn", json!([1])), exits("FailJob", "NotIn", json!([1, 2]))]),
        json!([exits("Count", "In", json!([7])), exits_of("main", "FailJob", "In", json!([7]))]),
    ];
    for rules in shadowed {
        let field = "spec.podFailurePolicy.rules[1]";
        let found = one(any(rules.clone()), Code::RuleShadowed, Severity::Error, field);
        assert!(found.problem.contains("rules[0] before it matches every pod"), "{rules}");
    }
    let right = [
        json!([disruption("Ignore"), condition("epilogue.dev/OOMKilled", json!("True"))]),
        json!([condition("Ready", json!("False")), condition("Ready", json!("True"))]),
        json!([exits("Count", "In", json!([1, 2])), exits("FailJob", "In", json!([2, 3]))]),
        json!([exits("Count", "NotIn", json!([1, 2])), exits("FailJob", "NotIn", json!([1]))]),
        json!([exits("Count", "NotIn", json!([42])), exits("FailJob", "In", json!([42]))]),
        json!([exits("Count", "In", json!([1])), exits("FailJob", "NotIn", json!([1]))]),
        json!([exits_of("main", "Count", "In", json!([7])), exits("FailJob", "In", json!([7]))]),
        json!([
            exits_of("main", "Count", "In", json!([7])),
            exits_of("prepare", "FailJob", "In", json!([7]))
        ]),
    ];
    for rules in right {
        clean(any(rules));
    }
}

#[test]
fn several_earlier_rules_shadow_one_together_and_the_same_action_is_harmless() {
    let field = "spec.podFailurePolicy.rules[2]";
    let first = || [exits("Count", "In", json!([1])), exits("Count", "In", json!([2]))];
    let [a, b] = first();
    let job = with_rules(json!([a, b, exits("FailJob", "In", json!([1, 2]))]));
    let found = one(job, Code::RuleShadowed, Severity::Error, field);
    assert!(found.problem.contains("rules[0] and rules[1] before it match every pod"), "{found:?}");
    let [a, b] = first();
    let job = with_rules(json!([a, b, exits("Count", "In", json!([1, 2]))]));
    one(job, Code::RuleShadowed, Severity::Warning, field);
    // The API refuses an unknown action, and our controller skips such a rule.
    let skipped =
        with_rules(json!([exits("Nap", "In", json!([1])), exits("FailJob", "In", json!([1]))]));
    clean(skipped);
}

#[test]
fn exit_codes_name_a_container_of_the_template() {
    let field = "spec.podFailurePolicy.rules[0].onExitCodes.containerName";
    let rule = |name| with_rules(json!([exits_of(name, "FailJob", "In", json!([42]))]));
    let found = one(rule("mian"), Code::ContainerUnknown, Severity::Error, field);
    assert_eq!(found.remedy, "write main");
    let found = one(rule("sidecar"), Code::ContainerUnknown, Severity::Error, field);
    assert_eq!(found.remedy, "write one of main, prepare");
    let found = one(rule("prepara"), Code::ContainerUnknown, Severity::Error, field);
    assert_eq!(found.remedy, "write prepare");
    clean(rule("main"));
    clean(rule("prepare"));
}

#[test]
fn a_rule_that_names_a_sidecar_is_warned_about() {
    let field = "spec.podFailurePolicy.rules[0].onExitCodes.containerName";
    let rule = |name, policy| {
        let mut job = with_rules(json!([exits_of(name, "FailJob", "In", json!([137]))]));
        let init = &mut job["spec"]["template"]["spec"]["initContainers"];
        *init = json!([{"name": "proxy", "image": "i", "restartPolicy": policy}]);
        job
    };
    one(rule("proxy", json!("Always")), Code::SidecarExitCode, Severity::Warning, field);
    clean(rule("proxy", json!(null)));
    clean(rule("main", json!("Always")));
}

#[test]
fn exit_codes_are_those_that_the_api_takes() {
    let values = "spec.podFailurePolicy.rules[0].onExitCodes.values";
    let rule = |operator: &str, codes: Value| with_rules(json!([exits("Count", operator, codes)]));
    let many: Vec<i64> = (1..=256).collect();
    for codes in [json!([]), json!(null), json!([0, 1]), json!([2, 1]), json!([1, 1]), json!(many)]
    {
        one(rule("In", codes), Code::ExitCodesInvalid, Severity::Error, values);
    }
    let all: Vec<i64> = (1..=255).collect();
    one(rule("NotIn", json!(all)), Code::RuleWithoutMatch, Severity::Error, values);
    let operator = "spec.podFailurePolicy.rules[0].onExitCodes.operator";
    one(rule("Is", json!([1])), Code::ExitCodesInvalid, Severity::Error, operator);
    clean(rule("In", json!([1, 42, 255])));
    clean(rule("NotIn", json!([0, 1])));
}

#[test]
fn failures_that_a_program_repeats_are_not_ignored_without_a_limit() {
    let field = "spec.podFailurePolicy.rules[0].action";
    let ignoring = |rule: Value| job(json!({"podFailurePolicy": {"rules": [rule]}}));
    let oom = json!({"action": "Ignore", "onPodConditions": [{"type": "epilogue.dev/OOMKilled"}]});
    for rule in [exits("Ignore", "In", json!([3])), oom] {
        one(ignoring(rule), Code::IgnoreUnlimited, Severity::Warning, field);
    }
    clean(ignoring(disruption("Ignore")));
    clean(ignoring(exits("Count", "In", json!([3]))));
    let rule = exits("Ignore", "In", json!([3]));
    let limit = json!({"epilogue.dev/disruption-limit": "3"});
    clean(annotated(ignoring(rule.clone()), limit));
    clean(job(json!({"podFailurePolicy": {"rules": [rule]}, "activeDeadlineSeconds": 600})));
    // No other controller has such a limit.
    let mut other = ignoring(rule);
    other["spec"]["managedBy"] = Value::Null;
    assert_eq!(found(&[other.clone()]), []);
    let ours = lint(&[other], Facts { manage_all_jobs: true }).findings;
    assert_eq!(ours.len(), 1, "{ours:?}");
}

#[test]
fn a_job_without_retries_says_what_a_disruption_means() {
    let rules = |rule: Value| json!({"rules": [rule]});
    let none = || job(json!({"backoffLimit": 0}));
    one(none(), Code::DisruptionFailsJob, Severity::Warning, "spec.backoffLimit");
    let exit = json!({"backoffLimit": 0, "podFailurePolicy":
                      rules(exits("FailJob", "In", json!([1])))});
    one(job(exit), Code::DisruptionFailsJob, Severity::Warning, "spec.backoffLimit");
    for action in ["Ignore", "FailJob", "Count"] {
        let policy = rules(disruption(action));
        clean(job(json!({"backoffLimit": 0, "podFailurePolicy": policy})));
    }
    // A misspelled type is one mistake and one finding.
    let policy = rules(condition("DisruptionTargets", json!("True")));
    let field = "spec.podFailurePolicy.rules[0].onPodConditions[0].type";
    let misspelled = job(json!({"backoffLimit": 0, "podFailurePolicy": policy}));
    one(misspelled, Code::ConditionTypeUnknown, Severity::Error, field);
    clean(job(json!({"backoffLimit": 1})));
    clean(job(json!({})));
    let index = json!({"backoffLimitPerIndex": 0, "completionMode": "Indexed", "completions": 2});
    let field = "spec.backoffLimitPerIndex";
    one(job(index), Code::DisruptionFailsJob, Severity::Warning, field);
    clean(with_pod(json!({"backoffLimit": 0}), json!({"restartPolicy": "OnFailure"})));
}

#[test]
fn limits_of_indexes_need_an_indexed_job_and_each_other() {
    let table = [
        (json!({"backoffLimitPerIndex": 1}), "backoffLimitPerIndex"),
        (json!({"successPolicy": {"rules": []}}), "successPolicy"),
    ];
    for (spec, field) in table {
        let field = format!("spec.{field}");
        one(job(spec.clone()), Code::NeedsIndexed, Severity::Error, &field);
        let mut indexed = job(spec);
        indexed["spec"]["completionMode"] = "Indexed".into();
        clean(indexed);
    }
    let alone = json!({"maxFailedIndexes": 1, "completionMode": "Indexed"});
    let code = Code::NeedsBackoffLimitPerIndex;
    one(job(alone), code, Severity::Error, "spec.maxFailedIndexes");
    let rules = json!([exits("FailIndex", "In", json!([1]))]);
    let field = "spec.podFailurePolicy.rules[0].action";
    one(job(json!({"podFailurePolicy": {"rules": rules}})), code, Severity::Error, field);
    clean(with_rules(rules));
}

#[test]
fn values_have_the_type_that_the_api_takes() {
    let (code, error) = (Code::ValueInvalid, Severity::Error);
    for (field, value, remedy) in [
        ("parallelism", json!("2"), "write parallelism: 2"),
        ("activeDeadlineSeconds", json!(true), "give activeDeadlineSeconds a number"),
        ("completions", json!(1e10), "give a whole number below 2^31"),
        ("backoffLimit", json!(1.5), "give a whole number below 2^31"),
        ("parallelism", json!(3_000_000_000_u64), "give a whole number below 2^31"),
        ("suspend", json!("true"), "write suspend: true"),
        ("completionMode", json!("nonindexed"), "write completionMode: NonIndexed"),
    ] {
        let found = one(job(json!({ field: value })), code, error, &format!("spec.{field}"));
        assert_eq!(found.remedy, remedy);
    }
    for (field, value) in [
        ("parallelism", json!("${WORKERS}")),
        ("parallelism", json!("1_000")),
        ("backoffLimit", json!(1e3)),
        ("activeDeadlineSeconds", json!(3_000_000_000_u64)),
        ("suspend", json!("yes")),
        ("completionMode", json!("${MODE}")),
    ] {
        clean(job(json!({ field: value })));
    }
    let mut labelled = job(json!({}));
    labelled["spec"]["template"]["metadata"]["labels"] = json!({"a": "b", "v": 1});
    one(labelled, code, error, "spec.template.metadata.labels[v]");
    let container = |fields: Value| with_pod(json!({}), json!({"containers": [fields]}));
    let path = "spec.template.spec.containers[0]";
    let slept = container(json!({"name": "main", "command": ["sleep", 30]}));
    let found = one(slept, code, error, &format!("{path}.command[1]"));
    assert_eq!(found.remedy, "quote it: \"30\"");
    let debug = container(json!({"name": "main", "env": [{"name": "DEBUG", "value": true}]}));
    one(debug, code, error, &format!("{path}.env[0].value"));
    let empty = json!([{"name": "A"}, {"name": "B", "value": null}, {"name": "C", "value": "1"}]);
    clean(container(json!({"name": "main", "env": empty, "args": [null, "1"]})));
    let many = container(json!({"name": "main", "args": vec![1; 100]}));
    assert_eq!(lint(&[many], Facts::default()).findings.len(), 3);
}

#[test]
fn the_restart_policy_is_one_of_jobs_and_fits_the_other_fields() {
    let field = "spec.template.spec.restartPolicy";
    for policy in [json!("Always"), json!(null), json!("never"), json!(1)] {
        let job = with_pod(json!({}), json!({"restartPolicy": policy}));
        one(job, Code::RestartPolicyInvalid, Severity::Error, field);
    }
    let on_failure = |spec: Value| with_pod(spec, json!({"restartPolicy": "OnFailure"}));
    let policy = json!({"podFailurePolicy": {"rules": [disruption("Ignore")]}});
    one(on_failure(policy), Code::OnFailureInvalid, Severity::Error, field);
    let indexed = json!({"completionMode": "Indexed", "backoffLimitPerIndex": 1});
    one(on_failure(indexed), Code::OnFailureInvalid, Severity::Warning, field);
    clean(on_failure(json!({})));
    // Also a pod that restarts its containers can be evicted and replaced.
    clean(on_failure(json!({"podReplacementPolicy": "Failed"})));
}

#[test]
fn a_policy_for_failures_needs_the_replacement_of_failed_pods() {
    let field = "spec.podReplacementPolicy";
    let policy = |value: &str| {
        let rules = json!({"rules": [disruption("Ignore")]});
        job(json!({"podFailurePolicy": rules, "podReplacementPolicy": value}))
    };
    let code = Code::ReplacementPolicyInvalid;
    one(policy("TerminatingOrFailed"), code, Severity::Error, field);
    clean(policy("Failed"));
    clean(job(json!({"podReplacementPolicy": "TerminatingOrFailed"})));
    one(job(json!({"podReplacementPolicy": "failed"})), code, Severity::Error, field);
}

#[test]
fn a_deadline_is_longer_than_the_grace_period() {
    let code = Code::DeadlineBelowGrace;
    let grace = |seconds: i64| json!({"terminationGracePeriodSeconds": seconds});
    let deadline = |seconds: i64| json!({"activeDeadlineSeconds": seconds});
    let field = "spec.activeDeadlineSeconds";
    one(with_pod(deadline(60), grace(90)), code, Severity::Warning, field);
    one(job(deadline(29)), code, Severity::Warning, field);
    let pod = json!({"activeDeadlineSeconds": 5, "terminationGracePeriodSeconds": 10});
    let field = "spec.template.spec.activeDeadlineSeconds";
    one(with_pod(json!({}), pod), code, Severity::Warning, field);
    clean(with_pod(deadline(90), grace(90)));
    clean(with_pod(deadline(5), grace(0)));
    clean(job(deadline(30)));
}

fn quota(namespace: &str, hard: Value) -> Value {
    let mut quota = json!({"kind": "ResourceQuota",
                           "metadata": {"namespace": namespace, "name": "few"}});
    quota["spec"]["hard"] = hard;
    quota
}

#[test]
fn pods_at_once_fit_into_the_quotas_of_the_namespace() {
    let crowd = |pod: Value| with_pod(json!({"parallelism": 4}), pod);
    let resources = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": 1, "memory": "1Gi"}});
    let sized = json!({"containers": [{"name": "main", "resources": resources}],
                       "initContainers": []});
    let over = [
        (json!({"pods": "3"}), "4 pods at once, but 3 fit: ResourceQuota few allows pods: 3"),
        (json!({"count/pods": 2}), "but 2 fit"),
        (json!({"requests.cpu": "1900m"}), "but 3 fit"),
        (json!({"cpu": "1"}), "but 2 fit"),
        (json!({"limits.cpu": "3"}), "but 3 fit"),
        (json!({"requests.memory": "3.5Gi"}), "but 3 fit"),
        (json!({"pods": "3", "requests.cpu": "600m"}), "but 1 fit"),
    ];
    for (hard, words) in over {
        let found = found(&[crowd(sized.clone()), quota("work", hard)]);
        assert_eq!(found.len(), 1, "{found:?}");
        let Finding { code, severity, field, problem, .. } = &found[0];
        assert_eq!((*code, *severity), (Code::ParallelismOverQuota, Severity::Warning));
        assert!(field == "spec.parallelism" && problem.contains(words), "{problem}");
    }
    let none = found(&[crowd(sized.clone()), quota("work", json!({"limits.cpu": "100m"}))]);
    assert!(none.len() == 1 && none[0].severity == Severity::Error, "{none:?}");
    assert!(none[0].problem.starts_with("not one pod fits"), "{none:?}");
    let mut scoped = quota("work", json!({"pods": "1"}));
    scoped["spec"]["scopes"] = json!(["Terminating"]);
    let fits = [
        quota("work", json!({"pods": "4", "requests.cpu": 2, "limits.memory": "4Gi"})),
        quota("work", json!({"services": "0", "requests.storage": "0"})),
        quota("other", json!({"pods": "1"})),
        scoped,
    ];
    for quota in fits {
        assert_eq!(found(&[crowd(sized.clone()), quota]), []);
    }
    // Completions limit the pods at once; a pod without requests needs nothing of cpu.
    let few = job(json!({"parallelism": 4, "completions": 1}));
    let tight = quota("work", json!({"pods": "1", "requests.cpu": "1m"}));
    assert_eq!(found(&[few, tight]), []);
}

#[test]
fn a_pod_needs_what_its_containers_need_together() {
    let of = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let mut sidecar = of("1");
    sidecar["restartPolicy"] = "Always".into();
    let table = [
        (json!({"containers": [of("1"), of("2")], "initContainers": [of("2")]}), 3),
        (json!({"containers": [of("1")], "initContainers": [of("5")]}), 5),
        (json!({"containers": [of("1")], "initContainers": [sidecar, of("3")]}), 4),
        (json!({"containers": [of("1")], "overhead": {"cpu": "1"}, "initContainers": []}), 2),
        (json!({"containers": [of("9")], "resources": {"requests": {"cpu": "6"}}}), 6),
    ];
    for (pod, needed) in table {
        let job = with_pod(json!({}), pod);
        let fits = quota("work", json!({"cpu": needed}));
        assert_eq!(found(&[job.clone(), fits]), []);
        let less = quota("work", json!({"cpu": needed - 1}));
        assert_eq!(found(&[job, less]).len(), 1, "{needed}");
    }
}

#[test]
fn managed_by_is_spelled_as_a_controller_is() {
    let by = |value: &str| job(json!({"managedBy": value}));
    let code = Code::ManagedByMisspelled;
    let found = one(by("epilogue.dev/job-controler"), code, Severity::Error, "spec.managedBy");
    assert_eq!(found.remedy, "write epilogue.dev/job-controller");
    for value in ["kubernetes.io/job-controller", "kueue.x-k8s.io/multikueue", "example.com/x"] {
        clean(by(value));
    }
}

#[test]
fn annotations_are_known_and_readable() {
    let table = [
        ("disruption-limits", json!("3"), Code::AnnotationUnknown, "epilogue.dev/disruption-limit"),
        ("state", json!("idle"), Code::AnnotationUnknown, "one of epilogue.dev/disruption-limit"),
        ("disruption-limit", json!("few"), Code::AnnotationInvalid, "give a number from 0"),
        ("disruption-limit", json!(3), Code::AnnotationInvalid, "quote it: \"3\""),
        ("backoff-base", json!("5"), Code::AnnotationInvalid, "give a duration"),
        ("backoff-base", json!("0s"), Code::AnnotationInvalid, "give at least 1s"),
        ("pending-timeout", json!("1ms"), Code::AnnotationInvalid, "give at least 1s"),
        ("avoid-failed-nodes", json!("yes"), Code::AnnotationInvalid, "give true or false"),
        ("finished-pods-kept", json!("all"), Code::AnnotationInvalid, "give a number from 0"),
        ("force-fail-after", json!("soon"), Code::AnnotationInvalid, "give a duration"),
        ("pod-failure-policy-names", json!("Exit-2"), Code::AnnotationInvalid, "give names in"),
        ("pod-failure-policy-names", json!("A,B"), Code::AnnotationInvalid, "at most one name for"),
    ];
    for (name, value, code, remedy) in table {
        let name = format!("epilogue.dev/{name}");
        let field = format!("metadata.annotations[{name}]");
        let all = Map::from_iter([(name, value)]);
        let rules = json!({"podFailurePolicy": {"rules": [disruption("Ignore")]}});
        let found = one(annotated(job(rules), all.into()), code, Severity::Error, &field);
        assert!(found.remedy.contains(remedy), "{found:?}");
    }
    let pair = |base: &str, max: &str| {
        let all = json!({"epilogue.dev/backoff-base": base, "epilogue.dev/backoff-max": max});
        annotated(job(json!({})), all)
    };
    let field = "metadata.annotations[epilogue.dev/backoff-base]";
    one(pair("2m", "90s"), Code::AnnotationInvalid, Severity::Error, field);
    clean(pair("1s", "90s"));
    clean(annotated(job(json!({})), json!({"example.com/anything": "1"})));
}

#[test]
fn signal_ahead_of_the_end_is_asked_for_in_the_template() {
    const KEY: &str = "epilogue.dev/end-signal";
    let on_the_job = annotated(job(json!({})), json!({KEY: "USR1@90s"}));
    let field = format!("metadata.annotations[{KEY}]");
    let found = one(on_the_job, Code::AnnotationUnknown, Severity::Error, &field);
    assert_eq!(found.remedy, "move it to spec.template.metadata.annotations");
    let asking = |value: &str| {
        let mut asking = job(json!({}));
        asking["spec"]["template"]["metadata"]["annotations"] = json!({KEY: value});
        asking
    };
    clean(asking("USR1@90s"));
    let field = format!("spec.template.metadata.annotations[{KEY}]");
    let found = one(asking("TERM@90s"), Code::AnnotationInvalid, Severity::Error, &field);
    assert!(found.problem.contains("expected HUP, USR1, USR2 or WINCH"), "{found:?}");
}

#[test]
fn annotations_without_effect_are_found() {
    let code = Code::AnnotationWithoutEffect;
    let timeout = || json!({"epilogue.dev/pending-timeout": "5m"});
    let field = "metadata.annotations[epilogue.dev/pending-timeout]";
    for by in [json!(null), json!("kubernetes.io/job-controller"), json!("example.com/x")] {
        let job = annotated(job(json!({"managedBy": by})), timeout());
        one(job, code, Severity::Warning, field);
    }
    clean(annotated(job(json!({})), timeout()));
    let all_jobs = annotated(job(json!({"managedBy": null})), timeout());
    assert_eq!(lint(&[all_jobs], Facts { manage_all_jobs: true }).findings, []);
    let force = json!({"epilogue.dev/force-fail-after": "10m"});
    clean(annotated(job(json!({"managedBy": null})), force));
    let limit = annotated(job(json!({})), json!({"epilogue.dev/disruption-limit": "3"}));
    let field = "metadata.annotations[epilogue.dev/disruption-limit]";
    one(limit, code, Severity::Warning, field);
}

fn cron_job(template: &Value) -> Value {
    json!({"kind": "CronJob", "metadata": {"namespace": "work", "name": "nightly"},
           "spec": {"jobTemplate": {"metadata": template["metadata"], "spec": template["spec"]}}})
}

#[test]
fn a_cron_job_is_judged_by_its_template() {
    let wrong = job(json!({"backoffLimitPerIndex": 1}));
    let field = "spec.jobTemplate.spec.backoffLimitPerIndex";
    let finding = one(cron_job(&wrong), Code::NeedsIndexed, Severity::Error, field);
    assert_eq!(finding.subject, "cronjob/work/nightly");
    let inside = annotated(job(json!({})), json!({"epilogue.dev/backoff-base": "x"}));
    let field = "spec.jobTemplate.metadata.annotations[epilogue.dev/backoff-base]";
    one(cron_job(&inside), Code::AnnotationInvalid, Severity::Error, field);
    let outside = annotated(cron_job(&job(json!({}))), json!({"epilogue.dev/backoff-base": "1s"}));
    let field = "metadata.annotations[epilogue.dev/backoff-base]";
    one(outside, Code::AnnotationWithoutEffect, Severity::Warning, field);
    // Its Jobs would repeat the findings.
    let mut made = wrong.clone();
    made["metadata"]["ownerReferences"] = json!([{"kind": "CronJob", "name": "nightly"}]);
    let report = lint(&[cron_job(&wrong), made.clone()], Facts::default());
    assert_eq!((report.judged, report.findings.len()), (1, 1));
    assert_eq!(found(&[made]).len(), 1, "without its CronJob it is judged");
}

#[test]
fn subjects_are_named_as_far_as_they_have_names_and_finished_jobs_are_left_out() {
    let mut job = job(json!({"backoffLimitPerIndex": 1}));
    job["metadata"] = json!({"generateName": "x-"});
    assert_eq!(found(&[job.clone()])[0].subject, "job/x-*");
    job["metadata"] = json!(null);
    assert_eq!(found(&[job.clone()])[0].subject, "job/?");
    job["status"] = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    assert_eq!(lint(&[job], Facts::default()).judged, 0);
}

/// Each field in turn has a value of each type, at every depth.
#[test]
fn no_json_makes_it_panic() {
    let rules = json!([disruption("Ignore"), exits_of("main", "FailIndex", "In", json!([1]))]);
    let whole = annotated(with_rules(rules), json!({"epilogue.dev/backoff-base": "1s"}));
    let all = [whole.clone(), cron_job(&whole), quota("work", json!({"cpu": "1"}))];
    let mut tried = 0;
    for at in 0..all.len() {
        for path in paths(&all[at], "") {
            let odd =
                [json!(null), json!(-1), json!(1e300), json!("\u{e9}"), json!([[]]), json!({})];
            for value in odd {
                let mut objects = all.to_vec();
                *objects[at].pointer_mut(&path).expect("a path that was read") = value;
                lint(&objects, Facts { manage_all_jobs: true });
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

fn paths(value: &Value, path: &str) -> Vec<String> {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            let name = |field: &str| field.replace('~', "~0").replace('/', "~1");
            fields.iter().map(|(field, value)| (name(field), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    let below =
        children.into_iter().flat_map(|(name, value)| paths(value, &format!("{path}/{name}")));
    std::iter::once(path.to_owned()).chain(below).collect()
}
