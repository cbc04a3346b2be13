//! Finds nodes whose agent would not see a shutdown through.

use std::collections::BTreeMap;

use epilogue_common::finding_code::FindingCode as Code;

use super::finding::{Finding, Rule};
use super::node_check::{NodeCheck, NodeVerdict, lock_and_delay};
use super::scene::Scene;

/// So many nodes are named in one finding.
const NAMES_MAX: usize = 10;

/// One finding for each code: a mistake in the installation concerns all nodes.
pub(super) fn findings(scene: &Scene) -> Vec<Finding> {
    let mut by_code: BTreeMap<Code, Vec<(&str, NodeCheck)>> = BTreeMap::new();
    for (name, node) in scene.nodes.iter().filter(|(_, node)| node.view.is_ready()) {
        let Some(readiness) = &node.readiness else { continue };
        let check = lock_and_delay(Some(readiness));
        if let (NodeVerdict::Fail, Some(code)) = (check.verdict, check.code) {
            by_code.entry(code).or_default().push((name, check));
        }
    }
    by_code.into_iter().map(|(code, nodes)| finding(code, &nodes)).collect()
}

fn finding(code: Code, nodes: &[(&str, NodeCheck)]) -> Finding {
    let (first, check) = &nodes[0];
    let names: Vec<&str> = nodes.iter().take(NAMES_MAX).map(|(name, _)| *name).collect();
    let (subject, problem) = if nodes.len() == 1 {
        (format!("node/{first}"), check.found.clone())
    } else {
        let more = nodes.len() - names.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let problem = format!("{}; on {}{more}", check.found, names.join(", "));
        (format!("{} nodes", nodes.len()), problem)
    };
    Finding::new((Rule::NodeUnprepared, code), subject, problem)
        .remedy(format!("see what is missing: kubectl epilogue doctor {first}"))
}
