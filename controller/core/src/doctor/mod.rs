//! Judges a cluster for `kubectl epilogue doctor`: what makes no progress, why, and what would
//! help. Pod GC decides whether a pod can be failed.

mod finding;
mod jobs;
mod namespaces;
mod node_report;
mod nodes;
mod pods;
mod scene;
#[cfg(test)]
mod tests;
mod unprepared;

pub use finding::{Finding, Omission, Rule};
pub(crate) use node_report::AGENT_REPORTER;
pub use node_report::{NodeCheck, NodeReport, NodeVerdict, node_report};
pub use scene::{AgentPod, Kind, LeaseName, Scene, SceneError};

use epilogue_common::finding_code::FindingCode as Code;
use jiff::{SignedDuration, Timestamp};

/// A problem younger than this is not reported: the component in charge gets the time to act.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// All findings, by rule and subject. `lease` is the one that the controller of this project holds
/// while it works, or `None` if it runs without one.
pub fn findings(scene: &Scene, lease: Option<&LeaseName>, now: Timestamp) -> Vec<Finding> {
    let mut found = pods::findings(scene, now);
    found.extend(jobs::findings(scene, lease, now));
    found.extend(namespaces::findings(scene));
    found.extend(nodes::findings(scene, now));
    found.extend(unprepared::findings(scene));
    found.sort_by(|a, b| (a.rule, &a.subject).cmp(&(b.rule, &b.subject)));
    found
}

/// The checks that were left out because a kind of object was not read.
pub fn omissions(scene: &Scene) -> Vec<Omission> {
    let table = [
        (Kind::Pod, Code::PodsNotRead, "stuck pods, finalizers, DisruptionTarget"),
        (Kind::Job, Code::JobsNotRead, "finalizers, Jobs without a controller"),
        (Kind::Node, Code::NodesNotRead, "whether pods' nodes exist and report"),
        (Kind::Lease, Code::LeasesNotRead, "whether the controller and the kubelets run"),
        (Kind::Namespace, Code::NamespacesNotRead, "force-fail-after of namespaces"),
    ];
    let unread = table.into_iter().filter(|(kind, ..)| !scene.has_read(*kind));
    unread
        .map(|(kind, code, open)| {
            let text = format!("{} were not read; not known: {open}", kind.plural());
            Omission { code, text }
        })
        .chain(namespaces::omission(scene))
        .collect()
}

/// Whether the component in charge had enough time to act.
fn is_overdue(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since) > MARGIN
}

/// Formats a time as the API does.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
