//! Runs `kubectl epilogue report` as a user does: on dumps, and against an API server.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const AT: &str = "--at=2026-11-21T13:00:00Z";

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-epilogue"))
        .arg("report")
        .args(arguments)
        .output()
        .expect("the program must be startable")
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn failed_pod(name: &str, reason: &str, target: Option<&str>) -> Value {
    let condition = target
        .map(|reason| json!({"type": "DisruptionTarget", "status": "True", "reason": reason}));
    let ended = json!({"terminated": {"exitCode": 143, "reason": "Error",
        "startedAt": "2026-11-21T10:00:00Z", "finishedAt": "2026-11-21T12:30:00Z"}});
    json!({"kind": "Pod", "apiVersion": "v1",
           "metadata": {"namespace": "work", "name": name, "uid": name,
                        "creationTimestamp": "2026-11-21T09:59:00Z"},
           "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "main"}]},
           "status": {"phase": "Failed", "reason": reason,
                      "conditions": condition.into_iter().collect::<Vec<_>>(),
                      "containerStatuses": [{"name": "main", "state": ended}]}})
}

fn node() -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"},
           "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

fn file(directory: &Path, items: &[Value]) -> String {
    let path = directory.join("dump.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    std::fs::write(&path, list.to_string()).expect("must be writable");
    path.to_str().expect("must be UTF-8").to_owned()
}

#[test]
fn a_dump_is_reported_as_text_json_and_html() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let hostile = "<script>alert('&')</script>";
    let pods = [node(), failed_pod("lost", "Terminated", None), failed_pod("x", "", Some(hostile))];
    let dump = file(directory.path(), &pods);
    let of = |format: &str| text(&run(&["-f", &dump, AT, "--since=24h", "-o", format]));
    let shown = of("text");
    for expected in [
        "Disruptions from 2026-11-20T13:00:00Z to 2026-11-21T13:00:00Z, all namespaces\n",
        "[failure-without-disruption-target]\n",
        "work/lost on n: status.reason is Terminated",
        "-> Epilogue would act: the agent sets DisruptionTarget before",
        "not known: Jobs were not read",
        "[events-not-read]",
        "metrics are not included: a dump has none  [metrics-not-included]",
    ] {
        assert!(shown.contains(expected), "{expected:?} must be in\n{shown}");
    }
    let answer: Value = serde_json::from_str(&of("json")).expect("must be JSON");
    let work = answer["figures"].as_array().into_iter().flatten();
    let work = work.filter(|it| it["name"] == "work-lost").map(|it| it["estimated"].clone());
    assert_eq!(work.collect::<Vec<_>>(), [json!(2 * 9000)]);
    let page = of("html");
    assert!(page.contains("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;"), "{page}");
    for reference in ["<script", "<link", "src=", "href=", "url(", "@import", "http://", "https://"]
    {
        assert!(!page.contains(reference), "{reference} must not be in\n{page}");
    }
    for part in ["<svg", "prefers-color-scheme:dark", "@media print", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

/// An event of the controller on a Job: this many pods ended alike, the last ones described.
fn ends(job: &str, cause: &str, counted: &str, count: u64, pods: &[&str]) -> Value {
    let end = |(at, pod): (usize, &&str)| {
        json!({"pod": pod, "node": "n", "at": format!("2026-11-21T12:3{at}:00Z"),
               "says": format!("pod {pod} on n ended: failure 1 of 0")})
    };
    let list: Vec<Value> = pods.iter().enumerate().map(end).collect();
    let reason = if cause == "ExitCode" { "PodFailed" } else { "PodDisrupted" };
    json!({"kind": "Event", "apiVersion": "v1", "reason": reason, "count": count,
           "metadata": {"namespace": "work", "name": format!("{job}.{cause}"), "annotations": {
               "epilogue.dev/cause": cause, "epilogue.dev/counted": counted,
               "epilogue.dev/ends": json!(list).to_string(),
               "epilogue.dev/nodes": json!({"n": count}).to_string()}},
           "involvedObject": {"kind": "Job", "namespace": "work", "name": job, "uid": job},
           "source": {"component": "job-controller"}, "message": "the last",
           "firstTimestamp": "2026-11-21T12:30:00Z", "lastTimestamp": "2026-11-21T12:39:00Z"})
}

#[test]
fn what_a_drain_did_is_reported_when_its_pods_are_gone() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let job = json!({"kind": "Job", "apiVersion": "batch/v1",
        "metadata": {"namespace": "work", "name": "train-2", "uid": "train-2"},
        "spec": {"backoffLimit": 0},
        "status": {"failed": 1, "conditions": [{"type": "Failed", "status": "True",
            "reason": "BackoffLimitExceeded", "lastTransitionTime": "2026-11-21T12:31:00Z"}]}});
    let events = [
        ends("train-1", "EvictionByEvictionAPI", "Ignored", 1, &["train-1-aaaaa"]),
        ends("train-2", "EvictionByEvictionAPI", "Failed", 1, &["train-2-kfss9"]),
        ends("train-3", "ExitCode", "Failed", 2, &["train-3-bbbbb", "train-3-ccccc"]),
    ];
    let dump = file(directory.path(), &[&[node(), job][..], &events].concat());
    let of = |format: &str| text(&run(&["-f", &dump, AT, "--since=24h", "-o", format]));
    let shown = of("text");
    assert!(!shown.contains("no disrupted pods were found"), "{shown}");
    for expected in ["EvictionByEvictionAPI", "work/train-2-kfss9", "job-failed-by-disruptions"] {
        assert!(shown.contains(expected), "{expected:?} must be in\n{shown}");
    }
    for line in [
        "EvictionByEvictionAPI         2  1 Failed, 1 Ignored\n",
        "work/train-3: 2 ends, 2 ExitCode\n",
        "2026-11-21T12:00:00Z: 2 EvictionByEvictionAPI, 2 ExitCode\n",
        "work/train-2: 1 of 1 failures were disruptions; backoffLimit is 0",
    ] {
        assert!(shown.contains(line), "{line:?} must be in\n{shown}");
    }
    let answer: Value = serde_json::from_str(&of("json")).expect("must be JSON");
    assert_eq!((&answer["ends"]["total"], &answer["ends"]["disruptions"]), (&json!(4), &json!(2)));
    let page = of("html");
    let expected = "<rect class=\"bar k0\"";
    assert!(page.contains(expected) && page.contains("Worst Jobs"), "{page}");
    // A dump of another namespace has none of them.
    let other = text(&run(&["-f", &dump, AT, "--since=24h", "-n", "other"]));
    assert!(other.contains("nothing to report"), "{other}");
}

#[test]
fn texts_of_events_are_bounded_and_escaped() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let hostile = "\u{1b}[31m<img src=x onerror=alert(1)>";
    let long = "x".repeat(100_000);
    let mut events: Vec<Value> = (0..40)
        .map(|number| ends(&format!("{hostile}{long}{number}"), hostile, "Failed", 1, &[hostile]))
        .collect();
    events.push(ends("j", &format!("{hostile}{long}"), "Ignored", u64::MAX, &[]));
    events.push(json!({"kind": "Event", "apiVersion": "v1", "reason": "Preempted",
        "involvedObject": {"kind": "Pod", "namespace": "work", "name": format!("{hostile}{long}")},
        "source": {"component": "s"}, "lastTimestamp": "2026-11-21T12:30:00Z"}));
    // The pods were read: that one is gone.
    events.push(json!({"kind": "PodList", "apiVersion": "v1", "items": []}));
    let dump = file(directory.path(), &[&[node()][..], &events].concat());
    let of = |format: &str| text(&run(&["-f", &dump, AT, "--since=24h", "-o", format]));
    let shown = of("text");
    assert!(shown.contains("event Preempted of kubernetes"), "{shown}");
    assert!(!shown.contains('\u{1b}') && shown.len() < 50_000, "{}", shown.len());
    let page = of("html");
    assert!(!page.contains("<img") && !page.contains('\u{1b}') && page.len() < 200_000);
}

#[test]
fn a_range_and_a_namespace_select() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let dump = file(directory.path(), &[node(), failed_pod("lost", "Terminated", None)]);
    let of = |arguments: &[&str]| text(&run(&[&["-f", &dump, AT], arguments].concat()));
    assert!(of(&["--since=31m"]).contains("work/lost"));
    let nothing = "nothing to report: no disrupted pods were found, and no Job's event tells how a \
                   pod ended\n";
    assert!(of(&["--since=29m"]).contains(nothing));
    assert!(of(&["-n", "work"]).contains("work/lost"));
    assert!(of(&["-n", "other"]).contains(nothing));
    let page = of(&["-n", "other", "-o", "html"]);
    assert!(page.contains("<p>Nothing to report: no disrupted pods were found"), "{page}");
    assert!(!page.contains("class=\"card") && !page.contains("<svg"), "{page}");
}

#[test]
fn errors_name_the_flag_and_the_remedy() {
    let output = run(&["--since=7w"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = "invalid value '7w' for '--since <DURATION>': expected a number of minutes, \
                    hours or days from 1m to 366d, such as 30m, 24h or 7d";
    assert!(error.contains(expected), "{error}");
    let directory = tempfile::tempdir().expect("must be creatable");
    let output = run(&["-f", &file(directory.path(), &[node()])]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("error: found neither pods nor events that may be read"), "{error}");
}

/// Serves these bodies at their paths; refuses all others with 403.
fn api(bodies: BTreeMap<&'static str, String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be free");
    let port = listener.local_addr().expect("it has an address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection must come in");
            let request = BufReader::new(connection.try_clone().expect("it can be cloned"));
            let mut lines = request.lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let path = first.split([' ', '?']).nth(1).unwrap_or_default();
            let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                                 "reason": "Forbidden", "message": "no", "code": 403});
            let (code, body) = bodies
                .get(path)
                .map_or_else(|| (403, refusal.to_string()), |body| (200, body.clone()));
            let reply = format!(
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
            // A program that ends at a refusal leaves its other requests unread.
            drop(connection.write_all(reply.as_bytes()));
        }
    });
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("report-kubeconfig-{port}"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&path, config.to_string()).expect("the kubeconfig must be writable");
    path.to_str().expect("must be UTF-8").to_owned()
}

fn own_pod(name: &str, bind: &str) -> Value {
    let argument = format!("--metrics-bind-address={bind}");
    json!({"metadata": {"namespace": "epilogue-system", "name": name, "uid": name,
                        "labels": {"app.kubernetes.io/name": "epilogue-controller"}},
           "spec": {"nodeName": "n", "containers": [{"name": "main", "args": [argument]}]},
           "status": {"phase": "Running"}})
}

/// What the text says of [`disruption_times`].
const TIMES: &str = "
HOW LONG DISRUPTIONS TOOK  PHASE        COUNT      MEAN  P50 AT MOST  P99 AT MOST
shutdown                   running          1     4000s       longer       longer
drain                      replaced       200     0.45s         2.5s         2.5s
drain                      running        200     6.17s           5s          20s
";

/// Histograms of a controller.
fn disruption_times() -> String {
    let histogram = |source: &str, phase: &str, sum: f64, numbers: [u64; 4]| {
        let (name, labels) =
            ("epilogue_disruption_seconds", format!("phase=\"{phase}\",source=\"{source}\""));
        let bounds = ["2.5", "5", "20", "+Inf"].into_iter().zip(numbers);
        let buckets =
            bounds.map(|(le, number)| format!("{name}_bucket{{{labels},le=\"{le}\"}} {number}\n"));
        let count = numbers[3];
        let sums = format!("{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}\n");
        buckets.collect::<String>() + &sums
    };
    histogram("drain", "replaced", 90.0, [199, 200, 200, 200])
        + &histogram("drain", "running", 1234.4, [0, 120, 199, 200])
        + &histogram("shutdown", "running", 4000.0, [0, 0, 0, 1])
}

#[test]
fn counters_come_through_the_proxy_where_rights_allow_it() {
    let list = |items: &[Value]| json!({"metadata": {}, "items": items}).to_string();
    let pods = list(&[own_pod("c-0", ":8080"), own_pod("c-1", "127.0.0.1:8080")]);
    let metrics = "epilogue_pod_gc_would_have_total{action=\"orphaned\"} 3\n\
                   epilogue_pod_ends_total{cause=\"NodeGone\",counted=\"Failed\"} 4\n"
        .to_owned()
        + &disruption_times();
    let base = [("/api/v1/pods", pods), ("/api/v1/nodes", list(&[node()]))];
    let proxy = "/api/v1/namespaces/epilogue-system/pods/c-0:8080/proxy/metrics";
    let allowed = api(base.clone().into_iter().chain([(proxy, metrics)]).collect());
    let shown = text(&run(&["--kubeconfig", &allowed]));
    let expected =
        "epilogue_pod_gc_would_have_total{action=\"orphaned\"}: 3 since the start (processes: 1)";
    assert!(shown.contains(expected), "{shown}");
    let expected = "epilogue_pod_ends_total{cause=\"NodeGone\",counted=\"Failed\"}: 4 since";
    assert!(shown.contains(expected), "{shown}");
    assert!(shown.contains(TIMES), "{shown}");
    assert!(shown.contains("the phase notice is absent"), "{shown}");
    let page = text(&run(&["--kubeconfig", &allowed, "-o", "html"]));
    let row = "<tr><td>drain</td><td>running</td><td class=\"n\">200</td><td class=\"n\">6.17s</td>\
               <td class=\"n\">5s</td><td class=\"n\">20s</td></tr>";
    assert!(page.contains(row), "{page}");
    let answer = text(&run(&["--kubeconfig", &allowed, "-o", "json"]));
    let answer: Value = serde_json::from_str(&answer).expect("must be JSON");
    let row = json!({"source": "drain", "phase": "running", "count": 200, "mean_seconds": 6.172,
                     "p50_at_most": 5.0, "p99_at_most": 20.0});
    assert_eq!(answer["disruption_times"][2], row);
    assert!(shown.contains("on their loopback only: 1;"), "{shown}");
    assert!(shown.contains("Epilogue runs (agents: 0, controllers: 2)."), "{shown}");
    let refused = api(base.into_iter().collect());
    let shown = text(&run(&["--kubeconfig", &refused]));
    assert!(shown.contains("the right get pods/proxy in namespace epilogue-system is missing"));
    assert!(shown.contains("events were not read"), "{shown}");
    let shown = text(&run(&["--kubeconfig", &refused, "--no-metrics"]));
    assert!(shown.contains("metrics are not included: --no-metrics"), "{shown}");
    let nothing = run(&["--kubeconfig", &api(BTreeMap::new())]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
}
