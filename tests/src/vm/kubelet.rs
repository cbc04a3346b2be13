//! Renders the kubelet's configuration file. Pure.

use serde_json::{Map, Value, json};

/// A KubeletConfiguration: the laboratory's own, with a test's changes.
#[derive(Clone, Debug)]
pub struct KubeletConfig(Map<String, Value>);

impl Default for KubeletConfig {
    /// Upstream's defaults, except for the small disk and a node status every 5 seconds; so
    /// graceful shutdown is off.
    fn default() -> Self {
        let document = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
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

    /// The file; JSON is YAML.
    pub fn render(&self) -> String {
        serde_json::to_string_pretty(&self.0).expect("a map of JSON must be JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
