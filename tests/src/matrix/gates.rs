//! The feature gates that matter to Epilogue: which exist, and what a server says of them.

use std::collections::BTreeMap;

use crate::error::LabError;

/// A gate of the API server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    /// Upstream's name.
    pub(super) name: &'static str,
    /// What depends on it here.
    pub(super) feature: &'static str,
    /// The first minor version that has it.
    pub(super) since: u16,
}

const fn gate(name: &'static str, feature: &'static str, since: u16) -> Gate {
    Gate { name, feature, since }
}

/// Those of the page, in its order.
pub(super) const GATES: [Gate; 11] = [
    gate("JobManagedBy", "`spec.managedBy`, by which Jobs choose the controller", 30),
    gate("JobPodReplacementPolicy", "`spec.podReplacementPolicy`", 28),
    gate("JobBackoffLimitPerIndex", "`spec.backoffLimitPerIndex`, `maxFailedIndexes`", 28),
    gate("JobSuccessPolicy", "`spec.successPolicy`", 30),
    gate("MutablePodResourcesForSuspendedJobs", "other resources for a suspended Job", 35),
    gate("ValidatingAdmissionPolicy", "the policies in `deploy/policy`", 26),
    gate("MutatingAdmissionPolicy", "policies that set `spec.managedBy`", 32),
    gate("ServiceAccountTokenPodNodeInfo", "the agent's policies, for agents in pods", 29),
    gate("ServiceAccountTokenNodeBinding", "the agent's policies, for agents on the host", 29),
    gate("WatchList", "lists as a stream; without it the controller reads pages", 27),
    gate("WorkloadWithJob", "gang scheduling of Jobs, with rights of its own", 36),
];

/// What the API server says of the gates of the page.
pub async fn of_server(client: &kube::Client) -> Result<BTreeMap<String, String>, LabError> {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("must be a request");
    let text = client.request_text(request).await.map_err(LabError::api("read /metrics"))?;
    Ok(parse(&text))
}

/// The gates of the page in a server's metrics, as `on (BETA)`. A gate that is generally available
/// has no stage there.
fn parse(metrics: &str) -> BTreeMap<String, String> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("kubernetes_feature_enabled{"));
    let gates = lines.filter_map(|line| {
        let (labels, value) = line.split_once("} ")?;
        let label = |name: &str| {
            let after = labels.split(&format!("{name}=\"")).nth(1)?;
            after.split('"').next()
        };
        let name = label("name").filter(|name| GATES.iter().any(|gate| gate.name == *name))?;
        let stage = label("stage").filter(|stage| !stage.is_empty()).unwrap_or("GA");
        let state = if value.trim() == "1" { "on" } else { "off" };
        Some((name.to_owned(), format!("{state} ({stage})")))
    });
    gates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_from_the_metrics_of_a_server() {
        let metrics = "# TYPE kubernetes_feature_enabled gauge\n\
            kubernetes_feature_enabled{name=\"JobManagedBy\",stage=\"BETA\"} 1\n\
            kubernetes_feature_enabled{name=\"JobSuccessPolicy\",stage=\"\"} 1\n\
            kubernetes_feature_enabled{name=\"WorkloadWithJob\",stage=\"ALPHA\"} 0\n\
            kubernetes_feature_enabled{name=\"Another\",stage=\"ALPHA\"} 0\n\
            kubernetes_build_info{major=\"1\"} 1\n";
        let expected = [
            ("JobManagedBy", "on (BETA)"),
            ("JobSuccessPolicy", "on (GA)"),
            ("WorkloadWithJob", "off (ALPHA)"),
        ];
        let expected = expected.map(|(name, state)| (name.to_owned(), state.to_owned()));
        assert_eq!(parse(metrics), BTreeMap::from(expected));
    }
}
