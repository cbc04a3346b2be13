//! Finds labels of namespaces that change nothing: the policy that would act on them is missing, or
//! does not know the value.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::opt_in::{
    FAILED, JOBS, JOBS_BINDING, MANAGED, POD_REPLACEMENT_POLICY, POD_REPLACEMENT_POLICY_BINDING,
};

use super::finding::{Finding, Omission, Rule};
use super::scene::Scene;
use crate::kind::Kind;

/// Label, the value that its policy knows, the binding of the policy, and what happens without it.
const LABELS: [(&str, &str, &str, &str); 2] = [
    (JOBS, MANAGED, JOBS_BINDING, "new Jobs without managedBy stay with kube-controller-manager"),
    (
        POD_REPLACEMENT_POLICY,
        FAILED,
        POD_REPLACEMENT_POLICY_BINDING,
        "new Jobs keep the default TerminatingOrFailed",
    ),
];

pub(super) fn findings(scene: &Scene) -> Vec<Finding> {
    let each = scene.opt_ins.iter().flat_map(|(namespace, label, value)| {
        let known = LABELS.into_iter().filter(move |(known, ..)| known == label);
        known.filter_map(move |row| judged(scene, namespace, value, row))
    });
    each.collect()
}

fn judged(
    scene: &Scene,
    namespace: &str,
    value: &str,
    (label, known, binding, without): (&str, &str, &str, &str),
) -> Option<Finding> {
    let found = |code: Code, problem: String| {
        Finding::new((Rule::LabelWithoutEffect, code), format!("namespace/{namespace}"), problem)
    };
    if value != known {
        let problem = format!("unknown value {value:?} of the label {label}; expected {known}");
        let remedy = format!("kubectl label --overwrite namespace {namespace} {label}={known}");
        return Some(found(Code::OptInValueUnknown, problem).remedy(remedy));
    }
    if !scene.has_read(Kind::PolicyBinding) || scene.has_policy_binding(binding) {
        return None;
    }
    let problem = format!(
        "has the label {label}, but the cluster has no MutatingAdmissionPolicyBinding {binding}: \
         {without}"
    );
    Some(
        found(Code::OptInWithoutPolicy, problem)
            .remedy("kubectl apply -k deploy/policy/opt-in, which needs Kubernetes 1.36")
            .remedy("set the field in the manifest of each Job"),
    )
}

/// What stays open because the bindings were not read. Without a label, nothing does.
pub(super) fn omission(scene: &Scene) -> Option<Omission> {
    if scene.opt_ins.is_empty() || scene.has_read(Kind::PolicyBinding) {
        return None;
    }
    let text = format!(
        "{} were not read; not known: whether labels of namespaces have an effect",
        Kind::PolicyBinding.plural()
    );
    Some(Omission { code: Code::PolicyBindingsNotRead, text })
}
