//! Finds the last writer of an object, by its `managedFields`. Pure.
//!
//! The API gives an entry a new time, of a second, whenever its manager changes a value; a value
//! belongs to the manager that changed it last.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use serde_json::Value;

/// The managers with the newest time; several if they wrote within one second.
pub(super) fn last(meta: &ObjectMeta) -> Vec<String> {
    let entries = meta.managed_fields.as_deref().unwrap_or_default();
    let newest = entries.iter().filter_map(time).max();
    entries.iter().filter(|entry| time(entry) == newest).map(describe).collect()
}

/// The manager that changed `status.FIELD` last.
pub(super) fn of_status(meta: &ObjectMeta, field: &str) -> Option<String> {
    let has = |fields: &Value| fields["f:status"].get(format!("f:{field}")).is_some();
    let entries = meta.managed_fields.iter().flatten();
    let owns = |entry: &&ManagedFieldsEntry| entry.fields_v1.iter().any(|fields| has(&fields.0));
    entries.filter(owns).max_by_key(|entry| time(entry)).map(describe)
}

fn time(entry: &ManagedFieldsEntry) -> Option<jiff::Timestamp> {
    entry.time.as_ref().map(|time| time.0)
}

/// For example `kubelet/Update/status@12:30:05`.
fn describe(entry: &ManagedFieldsEntry) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let time = time(entry).map(|time| time.strftime("%H:%M:%S").to_string());
    format!(
        "{}/{}/{}@{}",
        part(&entry.manager),
        part(&entry.operation),
        part(&entry.subresource),
        time.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn newest_entry_wrote_last_and_the_one_with_the_phase_wrote_the_phase() {
        let entry = |manager: &str, time: &str, fields: Value| {
            json!({
                "manager": manager, "operation": "Update", "subresource": "status",
                "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields,
            })
        };
        let meta = json!({"managedFields": [
            entry("kubelet", "2026-01-01T00:00:05Z", json!({"f:status": {"f:phase": {}}})),
            entry("other", "2026-01-01T00:00:06Z", json!({"f:status": {"f:conditions": {}}})),
        ]});
        let meta = serde_json::from_value(meta).expect("metadata");
        assert_eq!(last(&meta), ["other/Update/status@00:00:06"]);
        let phase = of_status(&meta, "phase");
        assert_eq!(phase.as_deref(), Some("kubelet/Update/status@00:00:05"));
        assert_eq!(of_status(&meta, "reason"), None);
    }
}
