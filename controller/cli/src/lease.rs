//! Reads the controller's lease: whether a replica works, and how it runs. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use epilogue_common::gang_scheduling::GangScheduling;
use epilogue_common::names::lease;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::Value;

use crate::kind::Kind;

/// Clocks may differ by this much.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);

/// Namespace and name of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseName {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
}

/// A Lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaseSeen {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    pub(crate) renew_time: Option<Timestamp>,
    #[serde(skip)]
    pub(crate) setup: Setup,
}

/// How the last leader runs or ran, as its lease's annotations say. Older controllers
/// write none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Its version.
    pub(crate) version: Option<String>,
    /// Whether it runs all Jobs without `spec.managedBy`.
    pub(crate) manage_all_jobs: Option<bool>,
    /// The namespaces that it watches; all if there are none.
    pub(crate) namespaces: Vec<String>,
    /// What pod GC does.
    pub(crate) mode: Option<String>,
    /// Whether it runs Jobs: one that observes does not.
    pub(crate) runs_jobs: Option<bool>,
    /// Whether it makes Workloads and PodGroups.
    pub(crate) gang_scheduling: Option<GangScheduling>,
}

/// What is known of the controller.
#[derive(Clone, Debug)]
pub(crate) enum Controller {
    /// The caller says that it runs without a lease.
    WithoutLease,
    /// Its lease was not read.
    NotRead,
    /// Its lease, if that exists.
    Read(LeaseName, Option<Box<LeaseSeen>>),
}

impl FromStr for LeaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => {
                Err("expected NAMESPACE/NAME, such as epilogue-system/epilogue-controller"
                    .to_owned())
            }
        }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

impl LeaseName {
    /// The path in the API.
    pub(crate) fn path(&self) -> String {
        let Self { namespace, name } = self;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
    }
}

impl LeaseSeen {
    /// Reads a Lease as the API gives it.
    pub(crate) fn read(object: &Value) -> Result<Self, serde_json::Error> {
        let spec = match object["spec"].clone() {
            Value::Null => Self::default(),
            spec => serde_json::from_value(spec)?,
        };
        let annotations = object["metadata"]["annotations"].clone();
        // A value that is not text is not from the controller.
        let annotations = serde_json::from_value(annotations).unwrap_or_default();
        Ok(Self { setup: Setup::read(&annotations), ..spec })
    }

    /// Whether its holder is alive now, give or take the difference of clocks.
    pub(crate) fn is_alive(&self, now: Timestamp) -> bool {
        let lasts = SignedDuration::from_secs(self.lease_duration_seconds.unwrap_or(0));
        let lasts = lasts.saturating_add(MARGIN);
        let renewed = self.renew_time.filter(|_| self.holder().is_some());
        renewed.is_some_and(|renewed| now.duration_since(renewed) <= lasts)
    }

    fn holder(&self) -> Option<&str> {
        self.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }
}

/// Why no replica works under this lease; `None` if one does.
pub(crate) fn why_idle(lease: Option<&LeaseSeen>, now: Timestamp) -> Option<String> {
    let Some(lease) = lease else { return Some("it does not exist".to_owned()) };
    match lease.holder() {
        _ if lease.is_alive(now) => None,
        Some(holder) => Some(format!("its last holder {holder} does not renew it")),
        None => Some("it has no holder".to_owned()),
    }
}

/// That no replica runs Jobs under this lease, and why; `None` if one does.
pub(crate) fn runs_no_jobs(
    name: &LeaseName,
    lease: Option<&LeaseSeen>,
    now: Timestamp,
) -> Option<String> {
    if let Some(why) = why_idle(lease, now) {
        return Some(format!("no replica of epilogue-controller holds the lease {name}: {why}"));
    }
    let observes = lease.is_some_and(|lease| lease.setup.runs_jobs == Some(false));
    observes.then(|| {
        format!("epilogue-controller only observes, as the lease {name} says: it runs no Job")
    })
}

impl Setup {
    fn read(annotations: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| annotations.get(name).filter(|text| !text.is_empty()).cloned();
        let list = text(lease::WATCH_NAMESPACE).unwrap_or_default();
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self {
            version: text(lease::VERSION),
            manage_all_jobs: text(lease::MANAGE_ALL_JOBS).and_then(|text| text.parse().ok()),
            namespaces: names.map(str::to_owned).collect(),
            mode: text(lease::MODE),
            runs_jobs: text(lease::RUNS_JOBS).and_then(|text| text.parse().ok()),
            gang_scheduling: text(lease::GANG_SCHEDULING)
                .and_then(|text| GangScheduling::read(&text)),
        }
    }

    /// Whether it watches this namespace.
    pub(crate) fn watches(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|name| name == namespace)
    }

    /// Whether it runs the Jobs of this namespace that have no `spec.managedBy`; `None` if that is
    /// not known.
    pub(crate) fn runs_unmanaged(&self, namespace: &str) -> Option<bool> {
        self.manage_all_jobs.map(|all| all && self.watches(namespace))
    }
}

impl Controller {
    /// Finds the lease of this name. `objects` are `None` if leases were not read.
    pub(crate) fn of(
        name: Option<&LeaseName>,
        objects: Option<&[Value]>,
    ) -> Result<Self, serde_json::Error> {
        let Some(name) = name else { return Ok(Self::WithoutLease) };
        let Some(objects) = objects else { return Ok(Self::NotRead) };
        let is_it = |object: &&Value| {
            let metadata = &object["metadata"];
            object["kind"] == Kind::Lease.name()
                && metadata["namespace"] == name.namespace.as_str()
                && metadata["name"] == name.name.as_str()
        };
        let lease = objects.iter().find(is_it).map(LeaseSeen::read).transpose()?;
        Ok(Self::Read(name.clone(), lease.map(Box::new)))
    }

    /// How it runs, or ran last; `None` if it has no lease that was read.
    pub(crate) fn setup(&self) -> Option<&Setup> {
        match self {
            Self::Read(_, Some(lease)) => Some(&lease.setup),
            _ => None,
        }
    }

    /// That no replica runs Jobs, and why; `None` if one does or nothing is known.
    pub(crate) fn idle(&self, now: Timestamp) -> Option<String> {
        let Self::Read(name, lease) = self else { return None };
        runs_no_jobs(name, lease.as_deref(), now)
    }

    /// Why it is not known whether it runs the Jobs without `spec.managedBy`, if it is not.
    pub(crate) fn doubt(&self) -> Option<&'static str> {
        match self {
            Self::NotRead => Some("its lease was not read"),
            Self::Read(_, Some(lease)) if lease.setup.manage_all_jobs.is_none() => {
                Some("its lease does not say")
            }
            Self::WithoutLease => Some("it has no lease that says so"),
            Self::Read(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{at, start};

    fn name() -> LeaseName {
        "epilogue-system/epilogue-controller".parse().expect("a name")
    }

    fn controller(annotations: &Value, holder: &str, renewed: i64) -> Controller {
        let lease = json!({
            "kind": "Lease",
            "metadata": {"namespace": "epilogue-system", "name": "epilogue-controller",
                         "annotations": annotations},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
                     "renewTime": at(renewed)},
        });
        Controller::of(Some(&name()), Some(&[lease])).expect("a lease")
    }

    #[test]
    fn the_lease_says_how_its_leader_runs() {
        let of = controller(
            &json!({"epilogue.dev/version": "0.2.0", "epilogue.dev/manage-all-jobs": "true",
                   "epilogue.dev/watch-namespace": "a,b", "epilogue.dev/mode": "observe"}),
            "c_1",
            -5,
        );
        let setup = of.setup().expect("it is there");
        assert_eq!(
            (setup.version.as_deref(), setup.mode.as_deref()),
            (Some("0.2.0"), Some("observe"))
        );
        assert_eq!(["a", "b", "c"].map(|name| setup.watches(name)), [true, true, false]);
        let runs = |of: &str| setup.runs_unmanaged(of);
        assert_eq!((runs("a"), runs("c")), (Some(true), Some(false)));
        assert_eq!((of.idle(start()), of.doubt()), (None, None));
    }

    #[test]
    fn the_lease_says_whether_gangs_are_scheduled() {
        let of = |text: &str| {
            let of = controller(&json!({"epilogue.dev/gang-scheduling": text}), "c_1", -5);
            of.setup().expect("it is there").gang_scheduling.clone()
        };
        assert_eq!(of("on"), Some(GangScheduling::On));
        let off = of("off: by a later reason");
        assert_eq!(off.map(|it| it.to_string()).as_deref(), Some("off: by a later reason"));
        assert_eq!((of(""), of("perhaps")), (None, None));
    }

    #[test]
    fn of_a_lease_without_annotations_nothing_is_claimed() {
        for annotations in [json!(null), json!({"epilogue.dev/manage-all-jobs": "perhaps"})] {
            let of = controller(&annotations, "c_1", -5);
            let setup = of.setup().expect("it is there");
            assert_eq!((setup, setup.runs_unmanaged("a")), (&Setup::default(), None));
            assert_eq!(of.doubt(), Some("its lease does not say"));
        }
        let unread = Controller::of(Some(&name()), None).expect("nothing");
        assert_eq!((unread.idle(start()), unread.doubt()), (None, Some("its lease was not read")));
    }

    #[test]
    fn a_lease_without_a_live_holder_is_named_with_the_reason() {
        let missing = Controller::of(Some(&name()), Some(&[])).expect("no lease");
        let table = [
            (missing, "it does not exist"),
            (controller(&json!(null), "c_1", -300), "its last holder c_1 does not renew it"),
            (controller(&json!(null), "", -5), "it has no holder"),
        ];
        for (of, why) in table {
            let expected = format!(
                "no replica of epilogue-controller holds the lease \
                 epilogue-system/epilogue-controller: {why}"
            );
            assert_eq!(of.idle(start()), Some(expected));
        }
        assert_eq!(Controller::of(None, Some(&[])).expect("none").idle(start()), None);
    }

    #[test]
    fn a_controller_that_observes_runs_no_jobs() {
        let of = controller(&json!({"epilogue.dev/runs-jobs": "false"}), "c_1", -5);
        let idle = of.idle(start()).expect("it runs none");
        assert!(idle.contains("only observes"), "{idle}");
        let of = controller(&json!({"epilogue.dev/runs-jobs": "true"}), "c_1", -5);
        assert_eq!(of.idle(start()), None);
    }
}
