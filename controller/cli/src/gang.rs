//! Reads whether a Job asks that its pods are scheduled as a gang. Pure.

use epilogue_common::names::GROUP_TEMPLATE_NAME;
use serde_json::Value;

/// By what a Job asks for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// `spec.scheduling.schedulingPolicy.gang`: of its own.
    Policy,
    /// The annotation `scheduling.k8s.io/group-template-name`: one of its controller's Workload.
    Template,
}

impl Wish {
    /// The field, in words.
    pub(crate) fn field(self) -> String {
        match self {
            Self::Policy => "spec.scheduling.schedulingPolicy.gang".to_owned(),
            Self::Template => format!("the annotation {GROUP_TEMPLATE_NAME}"),
        }
    }
}

/// By what the Job asks its controller for a gang; `None` if it does not. A template that names a
/// PodGroup has it from elsewhere.
pub(crate) fn wish(job: &Value) -> Option<Wish> {
    if has_group(job) {
        return None;
    }
    if job["metadata"]["annotations"][GROUP_TEMPLATE_NAME].is_string() {
        return Some(Wish::Template);
    }
    job["spec"]["scheduling"]["schedulingPolicy"]["gang"].is_object().then_some(Wish::Policy)
}

/// Whether the template of the Job's pods names a PodGroup.
pub(crate) fn has_group(job: &Value) -> bool {
    job["spec"]["template"]["spec"]["schedulingGroup"].is_object()
}
