//! Reads fields that others than the API server write, so that no content of them can hide the
//! object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

/// Reads metadata without `managedFields`, which is the largest part and which no decision reads.
pub(crate) fn lean_metadata<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lean {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        #[serde(default, deserialize_with = "lenient_time")]
        creation_timestamp: Option<Time>,
        #[serde(default, deserialize_with = "lenient_time")]
        deletion_timestamp: Option<Time>,
        deletion_grace_period_seconds: Option<i64>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        finalizers: Option<Vec<String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let lean = Lean::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: lean.name,
        namespace: lean.namespace,
        uid: lean.uid,
        resource_version: lean.resource_version,
        generation: lean.generation,
        creation_timestamp: lean.creation_timestamp,
        deletion_timestamp: lean.deletion_timestamp,
        deletion_grace_period_seconds: lean.deletion_grace_period_seconds,
        labels: lean.labels,
        annotations: lean.annotations,
        finalizers: lean.finalizers,
        owner_references: lean.owner_references,
        ..ObjectMeta::default()
    })
}

/// Reads a time that others than the API server wrote. The API takes years that no calendar here
/// has. A year after 9999 reads as the end of time, and a text that is not a time as `None`.
pub fn lenient_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text: Option<Cow<'de, str>> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| time(&text)).map(Time))
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| {
        let year = text.split('-').next().filter(|year| year.len() >= 4)?;
        let is_far = year.parse::<u64>().is_ok_and(|year| year >= 9999);
        is_far.then_some(Timestamp::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{PodDraft, pod_body};
    use crate::view::{Source, WireJob, WirePod};
    use serde_json::json;

    fn deep(levels: usize) -> String {
        format!("{}1{}", "{\"f:a\":".repeat(levels), "}".repeat(levels))
    }

    #[test]
    fn managed_fields_of_any_depth_hide_no_job() {
        let fields = format!("[{{\"fieldsV1\":{}}}]", deep(400));
        let text = format!(
            "{{\"metadata\":{{\"name\":\"j\",\"managedFields\":{fields}}},\"spec\":{{\"template\":{{\
             \"metadata\":{{\"labels\":{{\"a\":\"b\"}},\"managedFields\":{fields}}},\"spec\":{{}}}}}}}}"
        );
        let job = WireJob::read(&text).and_then(WireJob::view).expect("must be readable");
        let Source::Json { metadata, .. } = &job.source else { panic!("must be from JSON") };
        assert_eq!((&*job.key.name, metadata.as_str()), ("j", "{\"name\":\"j\"}"));
        let pod = pod_body(&job, &PodDraft::default());
        let pod = pod.json().expect("must be JSON");
        let pod: serde_json::Value = serde_json::from_str(pod).expect("must be readable");
        assert_eq!(pod["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(pod["metadata"].get("managedFields"), None);
    }

    #[test]
    fn depth_elsewhere_is_an_error_that_says_so() {
        let text = format!("{{\"status\":{{\"new\":{}}}}}", deep(400));
        let error = WireJob::read(&text).expect_err("must be too deep");
        assert!(error.to_string().contains("recursion limit"), "{error}");
    }

    #[test]
    fn errors_name_the_field() {
        let said = |text: &str| {
            let job = WireJob::read(text).and_then(WireJob::view);
            job.expect_err("must be unreadable").to_string()
        };
        let condition = r#"{"status":{"conditions":[{"type":"A","status":"True",
            "lastTransitionTime":"9999-12-31T23:59:59Z"}]}}"#;
        let error = said(condition);
        assert!(error.starts_with("status.conditions[0].lastTransitionTime: "), "{error}");
        let error = said(r#"{"spec":{"parallelism":"two"}}"#);
        assert!(error.starts_with("spec.parallelism: invalid type"), "{error}");
    }

    #[test]
    fn year_beyond_the_calendar_is_the_end_of_time() {
        for far in ["9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "292277026596-12-04T15:30:07Z"]
        {
            assert_eq!(time(far), Some(Timestamp::MAX), "{far}");
        }
        for none in ["", "no time", "0000", "-1-01-01T00:00:00Z", "1e9-01-01T00:00:00Z"] {
            assert_eq!(time(none), None, "{none}");
        }
        let sane = "2026-11-22T10:00:00Z";
        assert_eq!(time(sane), sane.parse().ok());
    }

    #[test]
    fn times_beyond_the_calendar_hide_no_pod() {
        let far = "10000-01-01T00:00:00Z";
        let state = json!({"terminated": {"exitCode": 1, "startedAt": far, "finishedAt": far}});
        let pod = json!({"metadata": {"name": "p"}, "status": {
            "startTime": far,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": far}],
            "containerStatuses": [{"name": "c", "state": state}],
        }});
        let pod: WirePod = serde_json::from_str(&pod.to_string()).expect("must be readable");
        let pod = pod.view(&mut crate::view::Interner::default());
        let terminated = pod.containers[0].terminated.as_ref().expect("must be terminated");
        assert_eq!(terminated.finished_at, Some(Timestamp::MAX));
    }
}
