//! Lists all objects of an API, and finds those of a Helm release among them.

use std::collections::BTreeMap;

use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};
use serde_json::{Value, json};

/// All objects of the API by name (`group/Kind/namespace/name`), of all kinds that can be listed.
/// Without events, and without leases, which the API server's own identity has, too.
pub async fn inventory(client: &Client) -> kube::Result<BTreeMap<String, Value>> {
    let discovery = Discovery::new(client.clone()).run().await?;
    let mut all = BTreeMap::new();
    for group in discovery.groups() {
        for (kind, capabilities) in group.recommended_resources() {
            let left_out = matches!(kind.kind.as_str(), "Event" | "Lease" | "ComponentStatus");
            if left_out || !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            for object in api.list(&ListParams::default()).await?.items {
                let mut object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
                object["kind"] = json!(kind.kind);
                all.insert(format!("{}/{}", group.name(), named(&object)), object);
            }
        }
    }
    Ok(all)
}

/// `Kind/namespace/name`.
#[must_use]
pub fn named(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let parts = [&object["kind"], &metadata["namespace"], &metadata["name"]];
    parts.map(text).join("/")
}

/// Whether an object is of one of these releases, by its name, namespace, labels or annotations.
#[must_use]
pub fn is_of_release(name: &str, object: &Value, releases: &[&str]) -> bool {
    let metadata = &object["metadata"];
    let is_release = |name: &Value| releases.iter().any(|release| name == release);
    name.contains("epilogue")
        || is_release(&metadata["labels"]["app.kubernetes.io/instance"])
        || is_release(&metadata["annotations"]["meta.helm.sh/release-name"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_release_are_known_by_name_namespace_label_or_annotation() {
        let of = |metadata: Value| json!({"kind": "Role", "metadata": metadata});
        let is_ours = |object: &Value| is_of_release(&named(object), object, &["epilogue"]);
        let label = json!({"app.kubernetes.io/instance": "epilogue"});
        let note = json!({"meta.helm.sh/release-name": "epilogue"});
        for ours in [
            json!({"name": "epilogue-agent"}),
            json!({"namespace": "epilogue-system", "name": "quota"}),
            json!({"name": "a", "labels": label}),
            json!({"name": "a", "annotations": note}),
        ] {
            assert!(is_ours(&of(ours.clone())), "{ours}");
        }
        let other = json!({"name": "a", "labels": {"app.kubernetes.io/instance": "other"}});
        assert!(!is_ours(&of(other)));
        assert_eq!(named(&of(json!({"namespace": "n", "name": "a"}))), "Role/n/a");
    }
}
