//! Reads a pod's requests and limits of memory and disk from the wire. Keeps no text of an amount;
//! an invalid amount counts as missing.

use agent_core::pod::{Asks, ContainerAsks};
use agent_core::quantity::Quantity;
use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::Value;

use super::wire_pod::{Container, Spec, exact};

/// An amount of bytes; `None` if it cannot be parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount(Option<u64>);

/// `resources` of a container or of the pod.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    requests: Option<Amounts>,
    limits: Option<Amounts>,
}

/// A list of resources, as far as the agent reads it.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Amounts {
    memory: Amount,
    #[serde(rename = "ephemeral-storage")]
    storage: Amount,
}

/// A volume. Its source is one field of many; the fields here hold nothing but what the node can
/// create again.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    name: String,
    empty_dir: Option<EmptyDir>,
    config_map: Option<IgnoredAny>,
    secret: Option<IgnoredAny>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<IgnoredAny>,
    projected: Option<IgnoredAny>,
    host_path: Option<IgnoredAny>,
    image: Option<IgnoredAny>,
    git_repo: Option<IgnoredAny>,
    csi: Option<IgnoredAny>,
    nfs: Option<IgnoredAny>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EmptyDir {
    medium: Option<String>,
    size_limit: Amount,
}

impl Resources {
    fn requests(self) -> Amounts {
        self.requests.unwrap_or_default()
    }

    fn limits(self) -> Amounts {
        self.limits.unwrap_or_default()
    }
}

impl Volume {
    /// Whether it outlives the pod, or may: other pods wait until it is unmounted. A volume of an
    /// unknown kind counts.
    pub(super) fn outlives_pod(&self) -> bool {
        let of_node = [
            &self.config_map,
            &self.secret,
            &self.downward_api,
            &self.projected,
            &self.host_path,
            &self.image,
            &self.git_repo,
        ];
        self.empty_dir.is_none() && of_node.iter().all(|kind| kind.is_none())
    }

    /// Whether it may have to be attached to the node. NFS and a CSI volume that the pod itself
    /// states never have to. ([SD30])
    pub(super) fn may_be_attached(&self) -> bool {
        self.outlives_pod() && self.csi.is_none() && self.nfs.is_none()
    }

    /// An emptyDir on disk with a limit above 0.
    fn limited(&self) -> Option<(String, u64)> {
        let dir = self.empty_dir.as_ref()?;
        let on_disk = dir.medium.as_deref().unwrap_or_default().is_empty();
        let limit = dir.size_limit.0.filter(|limit| on_disk && *limit > 0)?;
        Some((self.name.clone(), limit))
    }

    /// Whether it is an emptyDir whose files are in memory.
    pub(super) fn in_memory(&self) -> bool {
        self.empty_dir.as_ref().is_some_and(|dir| dir.medium.as_deref() == Some("Memory"))
    }
}

impl Spec {
    /// What the pod asks for.
    ///
    /// The pod as a whole cannot ask for ephemeral storage: an entry there is ignored, as upstream
    /// ignores it.
    pub(super) fn asks(&self) -> Asks {
        let resources = self.resources.unwrap_or_default();
        let own = resources.requests().memory.0;
        let memory = own.unwrap_or_else(|| self.reserved(|amounts| amounts.memory));
        let overhead = self.overhead.unwrap_or_default();
        let with = |sum: u64, overhead: Amount| sum.saturating_add(overhead.0.unwrap_or(0));
        let regular = self.containers.iter().flatten().map(|container| container.asks(false));
        let inits = self.init_containers.iter().flatten().map(|container| container.asks(true));
        Asks {
            memory: with(memory, overhead.memory),
            memory_of_pod: own.is_some(),
            memory_limit: resources.limits().memory.0,
            storage: with(self.reserved(|amounts| amounts.storage), overhead.storage),
            containers: exact(regular.chain(inits)),
            empty_dirs: exact(self.volumes.iter().flatten().filter_map(Volume::limited)),
        }
    }

    /// What the scheduler reserves for containers, whichever is more: all that run together, or one
    /// init container together with the sidecars that started before it.
    fn reserved(&self, amount: impl Fn(Amounts) -> Amount) -> u64 {
        let of = |container: &Container| amount(container.requests()).0.unwrap_or(0);
        let (mut sidecars, mut most) = (0_u64, 0_u64);
        for init in self.init_containers.iter().flatten() {
            let together = sidecars.saturating_add(of(init));
            most = most.max(together);
            if init.is_sidecar() {
                sidecars = together;
            }
        }
        let regular = self.containers.iter().flatten().map(of);
        regular.fold(sidecars, u64::saturating_add).max(most)
    }
}

impl Container {
    fn requests(&self) -> Amounts {
        self.resources.unwrap_or_default().requests()
    }

    fn asks(&self, init: bool) -> ContainerAsks {
        let (requests, limits) = (self.requests(), self.resources.unwrap_or_default().limits());
        ContainerAsks {
            name: self.name.clone(),
            init,
            sidecar: self.is_sidecar(),
            memory: requests.memory.0.unwrap_or(0),
            memory_limit: limits.memory.0,
            storage: requests.storage.0.unwrap_or(0),
            storage_limit: limits.storage.0,
        }
    }
}

/// Accepts any value at all: an invalid amount must not make the pod unreadable.
impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let quantity = |text: &str| text.parse().ok().map(|quantity: Quantity| quantity.units);
        let rounded = |units: f64| Some(units.ceil()).filter(|it| *it >= 0.0).map(|it| it as u64);
        Ok(Self(match Value::deserialize(from)? {
            Value::String(text) => quantity(&text),
            Value::Number(units) => units.as_u64().or_else(|| rounded(units.as_f64()?)),
            _ => None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const MI: u64 = 1 << 20;

    fn amount(value: Value) -> Option<u64> {
        serde_json::from_value::<Amount>(value).expect("must parse").0
    }

    #[test]
    fn any_value_in_the_place_of_an_amount_is_read_or_passed_over() {
        let table = [
            (json!("64Mi"), Some(64 * MI)),
            (json!("1500m"), Some(2)),
            (json!("0"), Some(0)),
            (json!("-1"), None),
            (json!("lots"), None),
            (json!(""), None),
            (json!(7), Some(7)),
            (json!(-7), None),
            (json!(1.5), Some(2)),
            (json!(u64::MAX), Some(u64::MAX)),
            (json!(null), None),
            (json!(true), None),
            (json!(["1", {"a": 1}]), None),
            (json!({"a": {"b": [1]}}), None),
        ];
        for (value, expected) in table {
            assert_eq!(amount(value.clone()), expected, "{value}");
        }
        let whole: Result<Resources, _> =
            serde_json::from_str(r#"{"requests":{"memory":{"x":[1]},"cpu":"1"},"limits":null}"#);
        assert_eq!(whole.expect("must parse").requests().memory, Amount(None));
    }

    fn container(sidecar: bool, request: &str) -> Value {
        let requests = json!({"memory": request, "ephemeral-storage": request});
        let policy = sidecar.then_some("Always");
        json!({"name": "c", "resources": {"requests": requests}, "restartPolicy": policy})
    }

    fn spec(value: Value) -> Spec {
        serde_json::from_value(value).expect("must parse")
    }

    fn pod(regular: &[&str], inits: &[(bool, &str)]) -> Spec {
        let regular: Vec<_> = regular.iter().map(|request| container(false, request)).collect();
        let inits: Vec<_> = inits.iter().map(|(sidecar, it)| container(*sidecar, it)).collect();
        spec(json!({"containers": regular, "initContainers": inits}))
    }

    #[test]
    fn a_pod_asks_for_what_the_scheduler_reserves() {
        let table = [
            (pod(&[], &[]), 0),
            (pod(&["1Mi", "2Mi"], &[]), 3),
            // The largest init container, not their sum.
            (pod(&["1Mi"], &[(false, "5Mi"), (false, "4Mi")]), 5),
            (pod(&["6Mi"], &[(false, "5Mi")]), 6),
            // A sidecar runs alongside all that come after it.
            (pod(&["1Mi"], &[(true, "2Mi")]), 3),
            (pod(&["1Mi"], &[(true, "2Mi"), (false, "5Mi")]), 7),
            (pod(&["1Mi"], &[(false, "5Mi"), (true, "2Mi")]), 5),
            (pod(&["1Mi"], &[(true, "2Mi"), (true, "3Mi"), (false, "1Mi")]), 6),
            (pod(&["bad", "2Mi"], &[]), 2),
        ];
        for (row, (pod, expected)) in table.into_iter().enumerate() {
            let asks = pod.asks();
            assert_eq!((asks.memory, asks.storage), (expected * MI, expected * MI), "row {row}");
            assert!(!asks.memory_of_pod);
        }
        let most = "15Ei";
        assert_eq!(pod(&[most, most], &[(true, most)]).asks().memory, u64::MAX);
    }

    #[test]
    fn the_pod_s_own_request_stands_for_its_containers_and_overhead_comes_on_top() {
        let mut pod = pod(&["1Mi", "2Mi"], &[]);
        let overhead = json!({"memory": "4Mi", "ephemeral-storage": "1Mi"});
        pod.overhead = serde_json::from_value(overhead).unwrap();
        let asks = pod.asks();
        assert_eq!((asks.memory, asks.storage, asks.memory_of_pod), (7 * MI, 4 * MI, false));
        assert_eq!(asks.memory_limit, None);
        let own = json!({
            "requests": {"memory": "64Mi", "ephemeral-storage": "64Mi"},
            "limits": {"memory": "128Mi"},
        });
        pod.resources = serde_json::from_value(own).unwrap();
        let asks = pod.asks();
        assert_eq!((asks.memory, asks.storage, asks.memory_of_pod), (68 * MI, 4 * MI, true));
        assert_eq!(asks.memory_limit, Some(128 * MI));
    }

    #[test]
    fn only_an_empty_dir_on_disk_has_a_limit_to_exceed() {
        let pod = spec(json!({"volumes": [
            {"name": "plain", "emptyDir": {}},
            {"name": "limited", "emptyDir": {"sizeLimit": "10Mi"}},
            {"name": "named", "emptyDir": {"medium": "", "sizeLimit": 5}},
            {"name": "zero", "emptyDir": {"sizeLimit": "0"}},
            {"name": "odd", "emptyDir": {"sizeLimit": "x"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "10Mi"}},
            {"name": "pages", "emptyDir": {"medium": "HugePages-2Mi", "sizeLimit": "10Mi"}},
            {"name": "other", "configMap": {"name": "x"}},
        ]}));
        let expected = [("limited".to_owned(), 10 * MI), ("named".to_owned(), 5)];
        assert_eq!(pod.asks().empty_dirs, expected);
        let volumes = pod.volumes.expect("must have some");
        let in_memory: Vec<_> = volumes.iter().filter(|volume| volume.in_memory()).collect();
        assert_eq!(in_memory.len(), 1);
        assert!(!volumes.iter().any(Volume::outlives_pod));
    }

    #[test]
    fn volumes_that_the_node_cannot_make_again_outlive_the_pod() {
        let kinds = [
            ("configMap", false, false),
            ("secret", false, false),
            ("downwardAPI", false, false),
            ("projected", false, false),
            ("hostPath", false, false),
            ("image", false, false),
            ("gitRepo", false, false),
            ("emptyDir", false, false),
            ("persistentVolumeClaim", true, true),
            ("csi", true, false),
            ("ephemeral", true, true),
            ("nfs", true, false),
            ("tobedone", true, true),
        ];
        for (kind, expected, attached) in kinds {
            let volume: Volume =
                serde_json::from_value(json!({"name": "v", kind: {}})).expect("must parse");
            assert_eq!(volume.outlives_pod(), expected, "{kind}");
            assert_eq!(volume.may_be_attached(), attached, "{kind}");
        }
    }
}
