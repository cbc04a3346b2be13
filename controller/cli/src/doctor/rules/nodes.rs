//! Finds annotations and taints that agents or people left on nodes.

use controller_core::podgc::OUT_OF_SERVICE_TAINT;
use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::node::{SHUTTING_DOWN_TAINT, STATE};
use jiff::Timestamp;

use super::finding::{Finding, Rule};
use super::node_seen::Leftover;
use super::scene::Scene;

pub(super) fn findings(scene: &Scene, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, node) in &scene.nodes {
        for Leftover { code, problem, since } in node.leftovers(now) {
            let rule = (Rule::StaleNodeState, code);
            let finding = Finding::new(rule, format!("node/{name}"), problem);
            found.push(with_remedies(finding.since(since), name, scene));
        }
        found.extend(node.is_wrongly_out_of_service(now).then(|| out_of_service(name)));
    }
    found
}

/// Once the node is silent again for a moment, its pods are deleted by force although they run.
fn out_of_service(name: &str) -> Finding {
    let rule = (Rule::OutOfServiceOnReadyNode, Code::OutOfServiceOnReadyNode);
    let problem = format!(
        "it is ready, and has the taint {OUT_OF_SERVICE_TAINT}: the next time that its kubelet is \
         silent, its pods are deleted by force although they may run"
    );
    Finding::new(rule, format!("node/{name}"), problem)
        .remedy(format!("kubectl taint node {name} {OUT_OF_SERVICE_TAINT}-"))
}

fn with_remedies(finding: Finding, name: &str, scene: &Scene) -> Finding {
    let agent = scene.agent_of(name).map_or_else(
        || format!("start the agent of {name}: it resets annotation and taint"),
        |pod| {
            let agent = format!("--namespace {} {}", pod.namespace, pod.name);
            format!(
                "the agent resets annotation and taint; see why it does not: kubectl logs {agent}"
            )
        },
    );
    finding.remedy(agent).remedy(format!(
        "for a node without an agent: kubectl annotate node {name} {STATE}-; kubectl taint node \
         {name} {SHUTTING_DOWN_TAINT}-"
    ))
}
