//! Renders the kubelet's configuration file. Pure.

use serde_json::{Map, Value, json};

/// `kind` of its file.
const KIND: &str = "KubeletConfiguration";
/// `apiVersion` of its file.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// A file that is no kubelet's configuration.
#[derive(Debug, thiserror::Error)]
pub enum KubeletConfigError {
    /// Its text has another form.
    #[error("not YAML: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// It has no fields.
    #[error("expected the fields of a KubeletConfiguration, such as `shutdownGracePeriod: 30s`")]
    NoFields,
    /// It is of another kind.
    #[error("{field} is {found}: expected {expected}, or no {field}")]
    Other {
        /// The field.
        field: &'static str,
        /// Its value.
        found: Value,
        /// The value of a kubelet's configuration.
        expected: &'static str,
    },
}

/// A KubeletConfiguration: the laboratory's own, with a test's changes.
#[derive(Clone, Debug)]
pub struct KubeletConfig(Map<String, Value>);

impl Default for KubeletConfig {
    /// Upstream's defaults, except for the small disk and a node status every 5 seconds; so
    /// graceful shutdown is off.
    fn default() -> Self {
        let document = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "systemd",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "failSwapOn": false,
            "resolvConf": "/etc/resolv.conf",
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "logging": {"verbosity": 2},
            "nodeStatusUpdateFrequency": "5s",
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
        });
        let Value::Object(map) = document else { unreachable!("a document is an object") };
        Self(map)
    }
}

impl KubeletConfig {
    /// Turns graceful shutdown on: total seconds, and how many of them are for critical pods.
    #[must_use]
    pub fn graceful_shutdown(self, total_seconds: u32, critical_seconds: u32) -> Self {
        self.set("shutdownGracePeriod", json!(format!("{total_seconds}s")))
            .set("shutdownGracePeriodCriticalPods", json!(format!("{critical_seconds}s")))
    }

    /// Turns graceful shutdown on, by priority: (priority, seconds).
    #[must_use]
    pub fn graceful_shutdown_by_priority(self, periods: &[(i32, u32)]) -> Self {
        let periods: Vec<Value> = periods
            .iter()
            .map(|(priority, seconds)| {
                json!({"priority": priority, "shutdownGracePeriodSeconds": seconds})
            })
            .collect();
        self.set("shutdownGracePeriodByPodPriority", json!(periods))
    }

    /// Sets a hard eviction threshold, such as `memory.available` and `100Mi`.
    #[must_use]
    pub fn evict_below(mut self, signal: &str, amount: &str) -> Self {
        self.0["evictionHard"][signal] = json!(amount);
        self
    }

    /// Sets any other field.
    #[must_use]
    pub fn set(mut self, field: &str, value: Value) -> Self {
        self.0.insert(field.to_owned(), value);
        self
    }

    /// Merges a file over it: maps by their keys, and `null` removes a field. All else replaces.
    pub fn merge(mut self, yaml: &str) -> Result<Self, KubeletConfigError> {
        let Value::Object(fields) = serde_yaml_ng::from_str(yaml)? else {
            return Err(KubeletConfigError::NoFields);
        };
        for (field, expected) in [("kind", KIND), ("apiVersion", API_VERSION)] {
            match fields.get(field) {
                Some(found) if *found != expected => {
                    return Err(KubeletConfigError::Other {
                        field,
                        found: found.clone(),
                        expected,
                    });
                }
                _ => {}
            }
        }
        merge(&mut self.0, fields);
        Ok(self)
    }

    /// The file; JSON is YAML.
    pub fn render(&self) -> String {
        serde_json::to_string_pretty(&self.0).expect("a map of JSON must be JSON")
    }
}

/// As a JSON merge patch (RFC 7386).
fn merge(into: &mut Map<String, Value>, fields: Map<String, Value>) {
    for (name, value) in fields {
        match (into.get_mut(&name), value) {
            (_, Value::Null) => {
                into.remove(&name);
            }
            (Some(Value::Object(into)), Value::Object(fields)) => merge(into, fields),
            (_, value) => {
                into.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_merged_over_the_defaults() {
        let yaml = "kind: KubeletConfiguration\nshutdownGracePeriod: 40s\nclusterDNS: [10.0.0.9]\n\
                    failSwapOn: null\nevictionHard:\n  memory.available: 200Mi\n\
                    evictionSoft:\n  nodefs.available: 5%\n";
        let text = KubeletConfig::default().merge(yaml).expect("a configuration").render();
        let document: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(document["shutdownGracePeriod"], "40s");
        assert_eq!(document["clusterDNS"], json!(["10.0.0.9"]));
        assert_eq!(document.get("failSwapOn"), None);
        assert_eq!(document["evictionHard"]["memory.available"], "200Mi");
        assert_eq!(document["evictionHard"]["nodefs.available"], "1%", "the laboratory's");
        assert_eq!(document["evictionSoft"], json!({"nodefs.available": "5%"}));
        assert_eq!(document["cgroupDriver"], "systemd");
        assert_eq!(document["apiVersion"], API_VERSION);
    }

    #[test]
    fn a_file_of_something_else_is_refused_by_its_field() {
        let refused = |yaml: &str| {
            let error = KubeletConfig::default().merge(yaml).expect_err(yaml);
            error.to_string()
        };
        assert_eq!(
            refused("kind: Pod\napiVersion: v1\n"),
            "kind is \"Pod\": expected KubeletConfiguration, or no kind"
        );
        let alpha = refused("apiVersion: kubelet.config.k8s.io/v1alpha1\nfailSwapOn: true\n");
        assert!(alpha.contains("expected kubelet.config.k8s.io/v1beta1"), "{alpha}");
        for text in ["", "- a\n", "shutdownGracePeriod"] {
            assert!(refused(text).contains("shutdownGracePeriod: 30s"), "{text}");
        }
        assert!(refused("a: b: c").starts_with("not YAML: "));
        assert!(refused("a: 1\n---\nb: 2\n").starts_with("not YAML: "), "two documents");
    }

    #[test]
    fn fields_and_thresholds_are_added_to_the_defaults() {
        let text = KubeletConfig::default()
            .graceful_shutdown(30, 10)
            .evict_below("memory.available", "300Mi")
            .render();
        let document: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(document["shutdownGracePeriod"], "30s");
        assert_eq!(document["shutdownGracePeriodCriticalPods"], "10s");
        assert_eq!(document["evictionHard"]["memory.available"], "300Mi");
        assert_eq!(document["evictionHard"]["nodefs.available"], "1%");
    }
}
