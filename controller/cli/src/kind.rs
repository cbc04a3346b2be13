//! Names the kinds of objects that `doctor`, `report` and `dump` read, and single objects. Pure.

use serde_json::Value;

/// The kinds of objects that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// `v1` Pod.
    Pod,
    /// `batch/v1` Job.
    Job,
    /// `v1` Node.
    Node,
    /// `v1` Namespace.
    Namespace,
    /// `coordination.k8s.io/v1` Lease.
    Lease,
    /// `v1` Event.
    Event,
    /// `admissionregistration.k8s.io/v1` `MutatingAdmissionPolicyBinding`.
    PolicyBinding,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 7] = [
        Self::Pod,
        Self::Job,
        Self::Node,
        Self::Namespace,
        Self::Lease,
        Self::Event,
        Self::PolicyBinding,
    ];

    /// `kind`, as in objects.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Job => "Job",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::Lease => "Lease",
            Self::Event => "Event",
            Self::PolicyBinding => "MutatingAdmissionPolicyBinding",
        }
    }

    /// `apiVersion`, as in objects.
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::Node | Self::Namespace | Self::Event => "v1",
            Self::Job => "batch/v1",
            Self::Lease => "coordination.k8s.io/v1",
            Self::PolicyBinding => "admissionregistration.k8s.io/v1",
        }
    }

    /// The kind of a list of these objects.
    pub(crate) fn list_name(self) -> String {
        format!("{}List", self.name())
    }

    /// The plural for people.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Job => "Jobs",
            Self::Node => "nodes",
            Self::Namespace => "namespaces",
            Self::Lease => "leases",
            Self::Event => "events",
            Self::PolicyBinding => "bindings of mutating admission policies",
        }
    }
}

/// The name of an object for people. A manifest may have no namespace, and leave the end of its
/// name to the API.
pub(crate) fn title(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().filter(|it| !it.is_empty());
    let name = text("name").map(str::to_owned);
    let name = name.or_else(|| text("generateName").map(|name| format!("{name}*")));
    let name = name.unwrap_or_else(|| "?".to_owned());
    text("namespace").map(|namespace| format!("{namespace}/{name}")).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_title_has_what_the_object_has() {
        for (metadata, expected) in [
            (json!({"namespace": "a", "name": "x"}), "a/x"),
            (json!({"namespace": "", "name": "x"}), "x"),
            (json!({"generateName": "x-"}), "x-*"),
            (json!({"namespace": "a"}), "a/?"),
            (json!(null), "?"),
        ] {
            assert_eq!(title(&json!({ "metadata": metadata })), expected);
        }
    }
}
