//! Objects that a tenant may create to harm others: depth, size, extreme numbers and times, odd
//! texts.

use lab::bed::{JobBuilder, job};
use serde_json::{Map, Value, json};

use super::{HOLE, LEVELS, managed_fields};

/// The largest request that the API still stores, in bytes.
const LARGE: usize = 1_300_000;
/// The same for objects with many keys, each of which the API also names in `managedFields`.
const KEYED: usize = 300_000;

/// One object.
pub(crate) struct Object {
    pub(crate) what: &'static str,
    /// `jobs` or `pods`.
    pub(crate) resource: &'static str,
    pub(crate) body: Vec<u8>,
}

fn of_job(what: &'static str, job: JobBuilder) -> Object {
    Object { what, resource: "jobs", body: job.raw().to_string().into_bytes() }
}

fn of_pod(what: &'static str, name: &str, metadata: &Value, spec: &Value) -> Object {
    let mut pod = json!({"metadata": {"name": name}, "spec": {
        "containers": [{"name": "main", "image": "none"}], "automountServiceAccountToken": false}});
    merge(&mut pod["metadata"], metadata);
    merge(&mut pod["spec"], spec);
    Object { what, resource: "pods", body: pod.to_string().into_bytes() }
}

fn merge(into: &mut Value, from: &Value) {
    for (name, value) in from.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

/// As many entries as fit into the largest request.
pub(crate) fn many(entry: impl Fn(usize) -> Value) -> Value {
    up_to(LARGE, entry)
}

fn many_keyed(entry: impl Fn(usize) -> Value) -> Value {
    up_to(KEYED, entry)
}

fn up_to(bytes: usize, entry: impl Fn(usize) -> Value) -> Value {
    let size = entry(10_000).to_string().len() + 1;
    (0..bytes / size).map(entry).collect()
}

pub(crate) fn many_pairs(bytes: usize) -> Value {
    let pair = |number: usize| (format!("k{number:06}"), json!(format!("v{number:06}")));
    Value::Object((0..bytes / 20).map(pair).collect::<Map<_, _>>())
}

/// The name of a Job of [`large_job`].
pub(crate) fn large_name(number: usize) -> String {
    format!("large-{number}")
}

/// A suspended Job with a template as large as the API stores it.
pub(crate) fn large_job(number: usize) -> Object {
    let container = json!([{"name": "main", "image": "none", "args": ["a".repeat(LARGE)]}]);
    let large = job(&large_name(number)).spec("suspend", true).pod("containers", container);
    of_job("a large Job", large)
}

/// A pod without owner that has 15,000 labels of its own.
pub(crate) fn labelled_pod(number: usize) -> Object {
    let Value::Object(mut labels) = many_pairs(KEYED) else { panic!("pairs make an object") };
    labels.insert("number".to_owned(), number.to_string().into());
    let metadata = json!({"labels": labels});
    of_pod("a pod with labels", &format!("labelled-{number}"), &metadata, &json!({}))
}

pub(crate) fn all() -> Vec<Object> {
    [deep(), large(), numbers(), texts(), pods()].into_iter().flatten().collect()
}

/// Deeper than parsers of JSON go.
fn deep() -> Vec<Object> {
    let levels = format!("{}{{}}{}", "{\"f:a\":".repeat(LEVELS), "}".repeat(LEVELS));
    let filled = |what, job: JobBuilder| {
        let body = job.raw().to_string().replace(HOLE, &levels).into_bytes();
        Object { what, resource: "jobs", body }
    };
    let fields = || managed_fields(&"hole".into());
    vec![
        filled(
            "a deep template",
            job("deep").spec("suspend", true).pod_metadata("managedFields", fields()),
        ),
        filled(
            "a deep template of another controller's Job",
            job("deep-foreign")
                .spec("managedBy", "example.com/x")
                .pod_metadata("managedFields", fields()),
        ),
        filled(
            "a deep template of a Job that runs",
            job("deep-running").pod_metadata("managedFields", fields()),
        ),
        filled("deep metadata", job("deep-metadata").metadata("managedFields", fields())),
    ]
}

/// 1.3 MB of one thing.
fn large() -> Vec<Object> {
    let suspended = |name: &str| job(name).spec("suspend", true);
    let container = |field: &str, value: Value| {
        let mut container = json!({"name": "main", "image": "none"});
        container[field] = value;
        json!([container])
    };
    let wide: Map<String, Value> =
        (0..LARGE / 16).map(|number| (format!("f:{number:07}"), json!({}))).collect();
    let owner = |number: usize| json!({"apiVersion": "v1", "kind": "Secret", "name": format!("n{number}"), "uid": "u"});
    let port = |number: usize| json!({"containerPort": number % 65_000 + 1, "hostIP": "127.0.0.1"});
    let number = |number: usize| json!(number.to_string());
    let absent = |number: usize| json!({"key": format!("k{number}"), "operator": "DoesNotExist"});
    let selecting = |name: &str, expressions: Value| {
        suspended(name)
            .spec("manualSelector", true)
            .pod_metadata("labels", json!({"a": "0"}))
            .spec("selector", json!({"matchExpressions": expressions}))
    };
    let template = |name: &str, field: &str, value: Value| suspended(name).pod(field, value);
    vec![
        of_job(
            "a list of variables",
            template(
                "env",
                "containers",
                container("env", many_keyed(|number| json!({"name": format!("V{number}")}))),
            ),
        ),
        of_job(
            "a list of variables of a Job that runs",
            job("env-running").indexed(3).pod(
                "containers",
                container("env", many_keyed(|number| json!({"name": format!("V{number}")}))),
            ),
        ),
        of_job(
            "a list of arguments",
            template("args", "containers", container("args", many(|_| json!("a")))),
        ),
        of_job(
            "one argument",
            template("arg", "containers", container("args", json!(["a".repeat(LARGE)]))),
        ),
        of_job(
            "a list of ports",
            template("ports", "containers", container("ports", many_keyed(port))),
        ),
        of_job(
            "a list of tolerations",
            template("tolerations", "tolerations", many(|_| json!({"operator": "Exists"}))),
        ),
        of_job(
            "a list of empty references",
            template("secrets", "imagePullSecrets", many(|_| json!({"name": "s"}))),
        ),
        of_job("a node selector", template("nodes", "nodeSelector", many_pairs(KEYED))),
        of_job(
            "labels of a template",
            suspended("labels").pod_metadata("labels", many_pairs(KEYED)),
        ),
        of_job("labels of a Job", suspended("job-labels").metadata("labels", many_pairs(KEYED))),
        of_job(
            "finalizers of a Job",
            suspended("finalizers")
                .metadata("finalizers", many_keyed(|number| json!(format!("a.io/{number}")))),
        ),
        of_job(
            "owners of a Job",
            suspended("owners").metadata("ownerReferences", many_keyed(owner)),
        ),
        of_job(
            "a wide set of managed fields",
            suspended("wide").pod_metadata("managedFields", managed_fields(&Value::Object(wide))),
        ),
        of_job(
            "annotations",
            suspended("annotations").metadata("annotations", many_pairs(200_000)),
        ),
        of_job(
            "annotations of ours",
            suspended("our-annotations").metadata(
                "annotations",
                json!({"example.com/a": "a".repeat(100_000), "example.com/b": "b".repeat(100_000)}),
            ),
        ),
        of_job(
            "values of a selector",
            selecting("values", json!([{"key": "a", "operator": "In", "values": many(number)}])),
        ),
        of_job("requirements of a selector", selecting("requirements", many(absent))),
    ]
}

/// At the ends of their types, and beyond.
fn numbers() -> Vec<Object> {
    let max = i32::MAX;
    let index_list: String =
        (0..6_000).map(|index| (2 * index).to_string()).collect::<Vec<_>>().join(",");
    let tolerations = json!([
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": i64::MIN}]);
    let limits = json!({"cpu": "0.0000000001", "memory": "9223372036854775807Ei",
                        "example.com/x": "1e3"});
    let quantities = json!([{"name": "main", "image": "none", "resources": {"limits": limits}}]);
    let rule = json!({"action": "Ignore", "onExitCodes": {"operator": "In",
        "values": (1..=255).collect::<Vec<_>>()}});
    vec![
        of_job("the longest deadline", job("deadline").spec("activeDeadlineSeconds", i64::MAX)),
        of_job("a deadline of now", job("no-deadline").spec("activeDeadlineSeconds", 0)),
        of_job("the longest time to live", job("ttl").spec("ttlSecondsAfterFinished", max)),
        of_job("the highest backoff limit", job("limit").spec("backoffLimit", max)),
        of_job(
            "the most completions, suspended",
            job("completions")
                .spec("completions", max)
                .spec("parallelism", max)
                .spec("suspend", true),
        ),
        of_job(
            "the most completions by index",
            job("indexes").indexed(1).spec("completions", max).spec("parallelism", 1),
        ),
        of_job("the widest Job by index", job("wide-index").indexed(100_000).spec("suspend", true)),
        of_job(
            "the highest limits of an index",
            job("per-index")
                .indexed(2)
                .spec("backoffLimitPerIndex", max)
                .spec("maxFailedIndexes", 2),
        ),
        of_job(
            "a success policy of the longest list of indexes",
            job("success").indexed(100_000).spec("parallelism", 1).spec(
                "successPolicy",
                json!({"rules": vec![json!({"succeededIndexes": index_list}); 20]}),
            ),
        ),
        of_job(
            "a failure policy of all codes",
            job("codes").spec("podFailurePolicy", json!({"rules": vec![rule; 20]})),
        ),
        of_job("the longest grace", job("grace").pod("terminationGracePeriodSeconds", i64::MAX)),
        of_job("a deadline of a pod", job("pod-deadline").pod("activeDeadlineSeconds", i32::MAX)),
        of_job("a toleration before all time", job("tolerating").pod("tolerations", tolerations)),
        of_job("odd quantities", job("odd").spec("suspend", true).pod("containers", quantities)),
    ]
}

/// Names and annotations.
fn texts() -> Vec<Object> {
    let long = "n".repeat(63);
    let nines = "9".repeat(40);
    let odd = "\u{0}\u{1b}[2J\u{202e}\r\n\u{fffd}";
    let everything = json!({"key": "no-such-label", "operator": "DoesNotExist"});
    let annotated = |name: &str, all: Value| job(name).metadata("annotations", all);
    let with_option = |name: &str, option: &str, text: &str| {
        annotated(name, json!({format!("epilogue.dev/{option}"): text}))
    };
    vec![
        of_job("the longest name", job(&long)),
        of_job("a name of dots", job("a.b.c.d.e.f.g.h")),
        of_job("control characters", annotated("control", json!({"a": odd}))),
        of_job("a backoff without end", with_option("base", "backoff-base", "2540400h")),
        of_job("a backoff of no time", with_option("negative", "backoff-max", "-1s")),
        of_job("a limit beyond numbers", with_option("beyond", "disruption-limit", &nines)),
        of_job("a long word", with_option("word", "pending-timeout", &"h".repeat(100_000))),
        of_job(
            "a selector of everything",
            job("everything")
                .spec("manualSelector", true)
                .pod_metadata("labels", json!({"a": "b"}))
                .spec("selector", json!({"matchExpressions": [everything]})),
        ),
        of_job(
            "the longest name of another controller",
            job("managed").spec("managedBy", format!("example.com/{}", "x".repeat(51))),
        ),
    ]
}

/// Pods that look like those of Jobs.
fn pods() -> Vec<Object> {
    const TRACKING: &str = "batch.kubernetes.io/job-tracking";
    const INDEX: &str = "batch.kubernetes.io/job-completion-index";
    let owner = |name: &str| {
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "no-such-uid",
                "controller": true}])
    };
    let none = json!({});
    let index = |text: &str| json!({"annotations": {INDEX: text}, "labels": {INDEX: "0"}});
    vec![
        of_pod("a stray with the finalizer", "stray", &json!({"finalizers": [TRACKING]}), &none),
        of_pod(
            "a pod of a Job that is not",
            "spoof",
            &json!({"finalizers": [TRACKING], "ownerReferences": owner("probe")}),
            &none,
        ),
        of_pod("an index below zero", "below", &index("-1"), &none),
        of_pod("an index beyond numbers", "over", &index("99999999999999999999"), &none),
        of_pod("labels without end", "labels", &json!({"labels": many_pairs(KEYED)}), &none),
        of_pod("annotations", "annotations", &json!({"annotations": many_pairs(100_000)}), &none),
        of_pod("an invented node", "nowhere", &none, &json!({"nodeName": "n".repeat(253)})),
        of_pod("the longest name of a pod", &"p".repeat(253), &none, &none),
        of_pod(
            "variables without end",
            "variables",
            &none,
            &json!({"containers": [{"name": "main", "image": "none",
                "env": many_keyed(|number| json!({"name": format!("V{number}")}))}]}),
        ),
    ]
}
