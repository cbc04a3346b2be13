//! What the API answers about itself, as far as programs ask where gang scheduling is on: the
//! resources of a group, the schema of Jobs, and rights.

use http::Method;
use serde_json::{Value, json};

use crate::kind::Kind;

/// A call that concerns no kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// The resources of `scheduling.k8s.io/v1beta1`.
    Scheduling,
    /// The schema of `batch/v1`, of which the model has one field.
    Jobs,
    /// A question about rights. The model knows no users: all have all rights.
    Review,
}

impl Document {
    /// That of a path.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Self> {
        match (method.as_str(), path) {
            ("GET", "/apis/scheduling.k8s.io/v1beta1") => Some(Self::Scheduling),
            ("GET", "/openapi/v3/apis/batch/v1") => Some(Self::Jobs),
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
                Some(Self::Review)
            }
            _ => None,
        }
    }

    /// The code of the answer.
    pub(crate) fn code(self) -> u16 {
        if self == Self::Review { 201 } else { 200 }
    }

    /// The answer.
    pub(crate) fn content(self) -> Value {
        match self {
            Self::Scheduling => {
                let kinds = Kind::ALL.into_iter().filter(|kind| kind.is_of_gangs());
                let resources = kinds.map(|kind| {
                    let facts = kind.facts();
                    json!({"name": facts.plural, "kind": facts.name, "namespaced": true})
                });
                json!({
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": Kind::Workload.api_version(),
                    "resources": resources.collect::<Vec<_>>(),
                })
            }
            Self::Jobs => {
                let spec = json!({"properties": {"scheduling": {}}});
                json!({"components": {"schemas": {"io.k8s.api.batch.v1.JobSpec": spec}}})
            }
            Self::Review => json!({
                "kind": "SelfSubjectAccessReview",
                "apiVersion": "authorization.k8s.io/v1",
                "status": {"allowed": true},
            }),
        }
    }
}
