//! Reads the counters of Epilogue's programs through the API server's proxy to their pods.

use std::time::Duration;

use crate::report::rules::Metrics;
use epilogue_runtime::api_error::{Foreign, foreign};
use serde_json::Value;

use crate::failed_read::refused;

/// Time for one pod to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Further pods are left out: each takes a request.
const PODS_MAX: usize = 100;
/// The labels `app.kubernetes.io/name` of Epilogue's pods.
const APPS: [&str; 2] = ["epilogue-agent", "epilogue-controller"];

/// Where a pod serves its metrics.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    /// At this port of the pod.
    Port(u16),
    /// On the loopback, or not at all.
    Unreachable,
}

/// The counters of the pods among the objects. What cannot be read is left out, with its reason.
pub(super) async fn read(client: &kube::Client, objects: &[Value]) -> Metrics {
    let mut metrics = Metrics::default();
    let is_ours = |pod: &&Value| {
        let app = &pod["metadata"]["labels"]["app.kubernetes.io/name"];
        pod["kind"] == "Pod"
            && pod["status"]["phase"] == "Running"
            && APPS.iter().any(|it| app == it)
    };
    let pods: Vec<&Value> = objects.iter().filter(is_ours).collect();
    if pods.is_empty() {
        metrics.leave_out("no pod of Epilogue runs, so no phase of disruptions is measured");
    }
    let (reachable, closed): (Vec<&Value>, Vec<&Value>) =
        pods.into_iter().partition(|pod| address(pod) != Address::Unreachable);
    if !closed.is_empty() {
        metrics.leave_out(format!(
            "pods that serve them on their loopback only: {}; Prometheus has them, if it scrapes \
             --scrape-bind-address",
            closed.len()
        ));
    }
    if reachable.len() > PODS_MAX {
        metrics.leave_out(format!("only {PODS_MAX} of {} pods are asked", reachable.len()));
    }
    for pod in reachable.into_iter().take(PODS_MAX) {
        match ask(client, pod).await {
            Ok(text) => metrics.add(&text),
            Err(Refusal::Forbidden(namespace)) => {
                metrics.leave_out(format!(
                    "the right get pods/proxy in namespace {namespace} is missing; --no-metrics \
                     leaves them out without a request"
                ));
                break;
            }
            Err(Refusal::Foreign(name, reply)) => {
                metrics.leave_out(format!(
                    "pod {name}, or a proxy in between, refused, so no further pod was asked: {}",
                    refused(&reply)
                ));
                break;
            }
            Err(Refusal::Failed(name)) => metrics.leave_out(format!("pod {name} did not answer")),
        }
    }
    metrics
}

enum Refusal {
    Forbidden(String),
    Foreign(String, Foreign),
    Failed(String),
}

async fn ask(client: &kube::Client, pod: &Value) -> Result<String, Refusal> {
    let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let Address::Port(port) = address(pod) else { return Err(Refusal::Failed(name)) };
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
    let Ok(request) = http::Request::get(path).body(Vec::new()) else {
        return Err(Refusal::Failed(name));
    };
    match tokio::time::timeout(ANSWER_MAX, client.request_text(request)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(match (foreign(&error), error) {
            (Some(reply), _) => Refusal::Foreign(name, reply),
            (None, kube::Error::Api(status)) if status.code == 403 => Refusal::Forbidden(namespace),
            _ => Refusal::Failed(name),
        }),
        Err(_) => Err(Refusal::Failed(name)),
    }
}

/// What `--metrics-bind-address` of the pod says.
fn address(pod: &Value) -> Address {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let arguments = containers.flat_map(|each| each["args"].as_array().into_iter().flatten());
    let bind = arguments.filter_map(Value::as_str);
    let bind = bind.filter_map(|text| text.strip_prefix("--metrics-bind-address=")).next_back();
    let Some((host, port)) = bind.and_then(|bind| bind.rsplit_once(':')) else {
        return Address::Unreachable;
    };
    match port.parse() {
        Ok(port) if !matches!(host, "127.0.0.1" | "localhost" | "[::1]") => Address::Port(port),
        _ => Address::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_bind_address_says_whether_the_proxy_reaches_a_pod() {
        let table = [
            (":8080", Address::Port(8080)),
            ("0.0.0.0:9465", Address::Port(9465)),
            ("[::]:9465", Address::Port(9465)),
            ("127.0.0.1:9465", Address::Unreachable),
            ("[::1]:9465", Address::Unreachable),
            ("0", Address::Unreachable),
            (":99999", Address::Unreachable),
        ];
        for (bind, expected) in table {
            let argument = format!("--metrics-bind-address={bind}");
            let pod = json!({"spec": {"containers": [{"args": ["run", argument]}]}});
            assert_eq!(address(&pod), expected, "{bind}");
        }
        assert_eq!(address(&json!({"spec": {}})), Address::Unreachable);
    }
}
