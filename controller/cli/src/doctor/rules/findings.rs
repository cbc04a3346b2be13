//! Collects the findings of all rules, and what could not be judged.

use epilogue_common::finding_code::FindingCode as Code;
use jiff::Timestamp;

use super::finding::{Finding, Omission};
use super::scene::Scene;
use super::{gangs, jobs, namespaces, nodes, pods, unprepared, waiting};
use crate::kind::Kind;
use crate::lease::LeaseName;

/// All findings, by rule and subject. `lease` is the one that the controller of this project holds
/// while it works, or `None` if it runs without one.
pub(crate) fn findings(scene: &Scene, lease: Option<&LeaseName>, now: Timestamp) -> Vec<Finding> {
    let mut found = pods::findings(scene, now);
    found.extend(jobs::findings(scene, lease, now));
    found.extend(waiting::findings(scene, now));
    found.extend(gangs::findings(scene, lease));
    found.extend(namespaces::findings(scene));
    found.extend(nodes::findings(scene, now));
    found.extend(unprepared::findings(scene));
    found.sort_by(|a, b| (a.rule, &a.subject).cmp(&(b.rule, &b.subject)));
    found
}

/// The checks that were left out because a kind of object was not read.
pub(crate) fn omissions(scene: &Scene) -> Vec<Omission> {
    let table = [
        (Kind::Pod, Code::PodsNotRead, "stuck pods, finalizers, DisruptionTarget"),
        (Kind::Job, Code::JobsNotRead, "finalizers, Jobs without a controller"),
        (Kind::Node, Code::NodesNotRead, "whether pods' nodes exist and report"),
        (Kind::Event, Code::EventsNotRead, "what refuses pods, and missing volumes"),
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
