//! Tests what is said of the phases of disruptions.

use controller_core::view::fields::keep_pod;

use super::*;
use crate::colour::Paint;
use crate::render::text;

const SHUTDOWN: &str = "Pod was terminated in response to imminent node shutdown.";

/// A pod that was made and ran long before, and gets its mark at this second.
fn marked(name: &str, second: i64) -> Value {
    let mut pod = pod(name, "Running");
    pod["metadata"]["creationTimestamp"] = at(-11_000).into();
    pod["status"]["conditions"] = json!([{
        "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
        "message": SHUTDOWN, "lastTransitionTime": at(second)}]);
    pod["status"]["containerStatuses"] = json!([
        {"name": "main", "restartCount": 0, "state": {"running": {"startedAt": at(-10_960)}}}]);
    pod
}

/// Its containers end at this second.
fn ended(mut pod: Value, second: i64) -> Value {
    pod["status"]["phase"] = "Failed".into();
    pod["status"]["containerStatuses"][0]["state"] = json!({"terminated": {
        "exitCode": 143, "startedAt": at(-10_960), "finishedAt": at(second)}});
    pod
}

/// A pod that is made at one second and runs from the other on.
fn made(name: &str, created: i64, started: Option<i64>) -> Value {
    let mut pod = pod(name, if started.is_some() { "Running" } else { "Pending" });
    pod["metadata"]["creationTimestamp"] = at(created).into();
    if let Some(started) = started {
        pod["status"]["containerStatuses"] = json!([
            {"name": "main", "restartCount": 0, "state": {"running": {"startedAt": at(started)}}}]);
    }
    pod
}

fn with_index(mut pod: Value, index: u32) -> Value {
    let name = "batch.kubernetes.io/job-completion-index";
    pod["metadata"]["annotations"][name] = index.to_string().into();
    pod
}

fn indexed() -> Value {
    spec(started(), &[("completionMode", "Indexed".into())])
}

fn says(job: Value, pods: Vec<Value>) -> Vec<String> {
    explained(job, pods).disruptions.last.into_iter().map(|it| it.says).collect()
}

#[test]
fn each_phase_is_said_with_its_time_since_the_first_sign() {
    let mut old = ended(marked("j-0-old", -50), -15);
    old["metadata"]["annotations"]["epilogue.dev/ends-at"] = at(70).into();
    let pods = vec![
        with_index(old, 0),
        with_index(made("j-0-new", -14, Some(-9)), 0),
        with_index(made("j-1", -60, Some(-50)), 1),
    ];
    let found = explained(indexed(), pods.clone());
    // A dump has no messages, and all times.
    let kept: Vec<Value> = pods.iter().map(|pod| keep_pod(pod, &["job"].into())).collect();
    let mut of_dump = explained(indexed(), kept).disruptions;
    assert_eq!(of_dump.last[0].source, "other");
    of_dump.last[0].says = of_dump.last[0].says.replace("(other)", "(shutdown)");
    of_dump.last[0].source = "shutdown";
    assert_eq!(of_dump, found.disruptions);
    let line = "j-0-old (shutdown): marked 2026-11-21T11:59:10Z, notice of 2 min, containers \
                ended after 35 s, replaced by j-0-new after 36 s, which ran after 41 s; its \
                containers had run 3 h 2 min";
    assert_eq!(says(indexed(), pods), [line]);
    let shown = text(&found, Paint::Plain);
    let section = format!(
        "\nDisruptions:\n  {line}\n  (each from the first sign, by the API's times, which are \
         whole seconds; it has none of the terminal phase)\n"
    );
    assert!(shown.contains(&section), "{shown}");
    let json = serde_json::to_value(&found.disruptions).expect("JSON");
    let expected = json!({
        "pod": "j-0-old", "source": "shutdown", "firstSign": at(-50), "noticeSeconds": 120,
        "markedSeconds": 0, "endedSeconds": 35, "replacement": "j-0-new", "replacedSeconds": 36,
        "runningSeconds": 41, "lostWorkSeconds": 10_945, "says": line});
    assert_eq!(json, json!({"last": [expected], "more": 0}));
}

/// What the API does not show is not said.
#[test]
fn a_disruption_in_progress_has_what_there_is() {
    let old = with_index(marked("a", -50), 0);
    assert_eq!(says(indexed(), vec![old.clone()]), ["a (shutdown): marked 2026-11-21T11:59:10Z"]);
    let mut early = old.clone();
    early["metadata"]["deletionTimestamp"] = at(-25).into();
    early["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    let waits = with_index(made("b", -50, None), 0);
    let line = "a (shutdown): to be deleted since 2026-11-21T11:59:05Z, marked after 5 s, \
                replaced by b after 5 s";
    assert_eq!(says(indexed(), vec![early, waits]), [line]);
    let mut again = with_index(made("b", -40, Some(-10)), 0);
    again["status"]["containerStatuses"][0]["restartCount"] = 1.into();
    let line = "a (shutdown): marked 2026-11-21T11:59:10Z, replaced by b after 10 s";
    assert_eq!(says(indexed(), vec![old.clone(), again]), [line], "its first start is not shown");
    let ends = |second| says(indexed(), vec![with_index(ended(marked("a", -50), second), 0)]);
    assert_eq!(ends(-110).len(), 1, "clocks differ");
    assert!(ends(-111).is_empty(), "a drain comes across a pod that had ended");
    let mut taken_back = old;
    taken_back["status"]["conditions"][0]["status"] = "False".into();
    assert!(says(indexed(), vec![taken_back]).is_empty());
}

#[test]
fn a_pod_that_succeeded_lost_nothing_and_needs_no_other() {
    let mut done = with_index(ended(marked("a", -50), -15), 0);
    done["status"]["phase"] = "Succeeded".into();
    let line = "a (shutdown): marked 2026-11-21T11:59:10Z, containers ended after 35 s";
    assert_eq!(says(indexed(), vec![done, with_index(made("b", -14, None), 0)]), [line]);
}

/// Whether the line about the first pod names another one.
fn is_replaced(job: Value, pods: Vec<Value>) -> bool {
    says(job, pods).pop().expect("a disruption").contains("replaced")
}

#[test]
fn without_indexes_a_replacement_is_named_where_only_one_is_possible() {
    let old = || ended(marked("a", -50), -15);
    let both = || vec![old(), made("new", -14, Some(-9))];
    let more = |pod: Value| both().into_iter().chain([pod]).collect::<Vec<_>>();
    assert!(is_replaced(started(), both()));
    assert!(is_replaced(started(), more(made("early", -90, Some(-80)))));
    assert!(!is_replaced(started(), more(made("newer", -13, None))), "which one?");
    assert!(!is_replaced(started(), more(pod("other", "Failed"))), "in place of the other one?");
    let mut gone = started();
    gone["status"]["failed"] = 2.into();
    assert!(!is_replaced(gone, both()), "in place of one that is gone?");
    assert!(!is_replaced(started(), vec![marked("a", -50), made("new", -14, None)]));
}

#[test]
fn with_indexes_the_next_pod_of_the_index_is_the_replacement() {
    let of = |pod| with_index(pod, 0);
    let old = || of(ended(marked("a", -50), -15));
    let next =
        |pods: Vec<Value>| explained(indexed(), pods).disruptions.last[0].replacement.clone();
    let (first, second) = (of(made("b", -14, None)), of(made("c", -4, None)));
    assert_eq!(next(vec![old(), second, first.clone()]).as_deref(), Some("b"));
    assert_eq!(next(vec![old(), of(made("c", -14, None)), first]), None, "which one?");
    assert_eq!(next(vec![old(), with_index(made("b", -14, None), 1)]), None);
    assert_eq!(next(vec![old(), of(made("b", -51, None))]), None, "it came before");
}

#[test]
fn only_the_last_ones_are_listed() {
    let pods = (0..23).map(|number| with_index(marked(&format!("p{number}"), -number), 0));
    let found = explained(indexed(), pods.collect()).disruptions;
    assert_eq!((found.last.len(), found.more), (20, 3));
    assert_eq!((&*found.last[0].pod, &*found.last[19].pod), ("p0", "p19"));
}

/// Whoever may write pods may write any time, and a dump any name.
#[test]
fn no_time_and_no_name_is_trusted() {
    let mut wild = with_index(ended(marked("a\u{1b}[31m\n", -50), 900_000), 0);
    wild["metadata"]["annotations"]["epilogue.dev/ends-at"] = "9999-12-31T00:00:00Z".into();
    wild["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] =
        "0001-01-01T00:00:00Z".into();
    wild["metadata"]["deletionTimestamp"] = at(0).into();
    wild["metadata"]["deletionGracePeriodSeconds"] = i64::MAX.into();
    let line = says(indexed(), vec![wild]).pop().expect("a disruption");
    assert!(line.starts_with("a?[31m? (shutdown): marked "), "{line}");
    assert!(line.ends_with("; its containers had run 3 h 3 min"), "{line}");
}
