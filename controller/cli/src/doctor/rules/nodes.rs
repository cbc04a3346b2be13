//! Finds annotations and taints that agents left on nodes.

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
    }
    found
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
