//! Reads the kubelet's graceful shutdown and evictions from its `/configz`. ([SD1], [SD2], [EV21])

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::protocol::node::KubeletEviction;
use agent_core::shutdown::priority_groups::{CRITICAL_PRIORITY, PriorityGroup};
use agent_core::time_span::{TimeSpan, TimeSpanError};
use serde::Deserialize;
use serde_json::Value;

/// The part of the configuration that the agent reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubeletConfig {
    /// The priority groups of its graceful shutdown; empty if that is off, `None` if they cannot be
    /// parsed.
    pub(crate) shutdown_groups: Option<Vec<PriorityGroup>>,
    /// Its eviction thresholds.
    pub(crate) eviction: KubeletEviction,
    /// `containerRuntimeEndpoint`: the socket of its runtime.
    pub(crate) runtime_endpoint: Option<String>,
}

#[derive(Deserialize)]
struct Configz {
    kubeletconfig: Config,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_field_names, reason = "the kubelet's own names")]
struct Config {
    shutdown_grace_period: Option<String>,
    shutdown_grace_period_critical_pods: Option<String>,
    shutdown_grace_period_by_pod_priority: Option<Vec<Group>>,
    container_runtime_endpoint: Option<String>,
    eviction_hard: Thresholds,
    eviction_soft: Thresholds,
    local_storage_capacity_isolation: Option<Value>,
}

/// Thresholds by signal.
type Thresholds = Option<BTreeMap<String, Value>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    #[serde(default)]
    priority: i32,
    shutdown_grace_period_seconds: i64,
}

/// Parses the configuration; `None` if the text is something else.
pub(crate) fn read(configz: &str) -> Option<KubeletConfig> {
    let config = serde_json::from_str::<Configz>(configz).ok()?.kubeletconfig;
    let eviction = KubeletEviction {
        hard: thresholds(config.eviction_hard.as_ref()),
        soft: thresholds(config.eviction_soft.as_ref()),
        // The default is true. ([EV21])
        local_storage_limits: config.local_storage_capacity_isolation != Some(Value::Bool(false)),
    };
    let runtime_endpoint = config.container_runtime_endpoint.clone();
    Some(KubeletConfig { shutdown_groups: shutdown_groups(config), eviction, runtime_endpoint })
}

fn thresholds(map: Option<&BTreeMap<String, Value>>) -> Vec<(String, String)> {
    let entry = |(signal, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        (signal.clone(), value)
    };
    map.into_iter().flatten().map(entry).collect()
}

fn shutdown_groups(config: Config) -> Option<Vec<PriorityGroup>> {
    let groups = configured_groups(config)?;
    let off = groups.iter().all(|group| group.period_seconds == 0);
    Some(if off { Vec::new() } else { groups })
}

fn configured_groups(config: Config) -> Option<Vec<PriorityGroup>> {
    if let Some(groups) = config.shutdown_grace_period_by_pod_priority
        && !groups.is_empty()
    {
        let group = |Group { priority, shutdown_grace_period_seconds: seconds }| PriorityGroup {
            priority,
            period_seconds: u64::try_from(seconds).unwrap_or(0),
        };
        return Some(groups.into_iter().map(group).collect());
    }
    let total = duration(config.shutdown_grace_period.as_deref())?;
    let critical = duration(config.shutdown_grace_period_critical_pods.as_deref())?;
    // Regular and critical are each cut to whole seconds. ([SD2])
    let regular = total.checked_sub(critical).unwrap_or_default();
    if critical > total {
        return Some(Vec::new());
    }
    let periods = [(0, regular), (CRITICAL_PRIORITY, critical)];
    let group = |(priority, period): (i32, Duration)| PriorityGroup {
        priority,
        period_seconds: period.as_secs(),
    };
    Some(periods.map(group).to_vec())
}

/// Parses a duration in Go's format. A negative or missing one turns the feature off.
fn duration(text: Option<&str>) -> Option<Duration> {
    let Some(text) = text else { return Some(Duration::ZERO) };
    if text.ends_with("ns") {
        return Some(Duration::ZERO);
    }
    match text.parse::<TimeSpan>() {
        Ok(span) => Some(span.duration()),
        Err(TimeSpanError::Bounds(_)) if text.starts_with('-') => Some(Duration::ZERO),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(config: &str) -> Option<u64> {
        let configz = format!(r#"{{"kubeletconfig":{config}}}"#);
        let config = read(&configz).expect("must be a configuration");
        let groups = config.shutdown_groups?;
        Some(groups.iter().map(|group| group.period_seconds).sum())
    }

    fn groups(config: &str) -> Vec<(i32, u64)> {
        let configz = format!(r#"{{"kubeletconfig":{config}}}"#);
        let groups = read(&configz).and_then(|config| config.shutdown_groups).unwrap_or_default();
        groups.iter().map(|group| (group.priority, group.period_seconds)).collect()
    }

    #[test]
    fn the_sum_is_what_the_kubelet_makes_of_it() {
        // Total minus critical, and critical, each in whole seconds. ([SD2])
        let two = |total: &str, critical: &str| {
            seconds(&format!(
                r#"{{"shutdownGracePeriod":"{total}","shutdownGracePeriodCriticalPods":"{critical}"}}"#
            ))
        };
        let table = [
            ("5m0s", "2m0s", Some(300)),
            ("1m40s", "0s", Some(100)),
            ("0s", "0s", Some(0)),
            ("1s", "1m40s", Some(0)),
            ("30.9s", "10.9s", Some(30)),
            ("1h0m0.5s", "0s", Some(3600)),
            ("-5s", "0s", Some(0)),
            ("5ns", "0s", Some(0)),
            ("soon", "0s", None),
        ];
        for (total, critical, expected) in table {
            assert_eq!(two(total, critical), expected, "{total} {critical}");
        }
        assert_eq!(seconds("{}"), Some(0));
    }

    #[test]
    fn the_list_wins_over_the_two_durations() {
        let list = r#"{"shutdownGracePeriod":"1s","shutdownGracePeriodByPodPriority":
            [{"priority":0,"shutdownGracePeriodSeconds":20},
             {"priority":7,"shutdownGracePeriodSeconds":-3},
             {"priority":2000000000,"shutdownGracePeriodSeconds":10}]}"#;
        assert_eq!(seconds(list), Some(30));
        assert_eq!(groups(list), [(0, 20), (7, 0), (2_000_000_000, 10)]);
        let two = r#"{"shutdownGracePeriod":"15m","shutdownGracePeriodCriticalPods":"1m"}"#;
        assert_eq!(groups(two), [(0, 840), (2_000_000_000, 60)]);
        let idle = r#"{"shutdownGracePeriodByPodPriority":[{"shutdownGracePeriodSeconds":0}]}"#;
        assert_eq!((groups(idle), seconds(idle)), (Vec::new(), Some(0)));
        let none = r#"{"shutdownGracePeriod":"7s","shutdownGracePeriodByPodPriority":null}"#;
        assert_eq!(seconds(none), Some(7));
    }

    #[test]
    fn another_text_is_no_answer() {
        for text in ["", "Forbidden", "[]", "{}", r#"{"kubeletconfig":7}"#, "\0"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    fn eviction(config: &str) -> KubeletEviction {
        let configz = format!(r#"{{"kubeletconfig":{config}}}"#);
        read(&configz).expect("must be a configuration").eviction
    }

    #[test]
    fn the_kubelets_thresholds_are_read_as_it_writes_them() {
        let entry = |signal: &str, value: &str| (signal.to_owned(), value.to_owned());
        let reported = eviction(
            r#"{"evictionHard":{"nodefs.available":"10%","memory.available":"100Mi"},
                "evictionSoft":{"memory.available":"300Mi"},
                "localStorageCapacityIsolation":false,"shutdownGracePeriod":"soon"}"#,
        );
        let expected = KubeletEviction {
            hard: vec![entry("memory.available", "100Mi"), entry("nodefs.available", "10%")],
            soft: vec![entry("memory.available", "300Mi")],
            local_storage_limits: false,
        };
        assert_eq!(reported, expected);
    }

    #[test]
    fn what_the_configuration_leaves_out_is_the_kubelets_default() {
        // A missing map means no thresholds: `/configz` shows defaults filled in.
        let none = KubeletEviction { local_storage_limits: true, ..KubeletEviction::default() };
        for config in ["{}", r#"{"evictionHard":null,"evictionSoft":{}}"#] {
            assert_eq!(eviction(config), none, "{config}");
        }
        let odd = eviction(r#"{"evictionHard":{"a":1},"localStorageCapacityIsolation":"no"}"#);
        assert_eq!(odd.hard, [("a".to_owned(), "1".to_owned())]);
        assert!(odd.local_storage_limits);
    }
}
