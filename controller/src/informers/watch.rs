//! Defines the watched kinds, and starts the watch of each.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use controller_core::podgc::{NamespaceView, WireNode};
use controller_core::view::{self, Job, PodGroup, Reply, WireJob, WirePod, Workload};
use epilogue_common::watch_event::Rejected;
use epilogue_runtime::watch::{self, Newest, Pauses, Read, Relist, Scope, Signs};
use futures::StreamExt as _;
use kube::Client;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::scheduling_api::{POD_GROUPS, SCHEDULING, WORKLOADS};

pub(crate) use epilogue_runtime::watch::WatchEvent;

/// Objects per page where the server does not stream lists: a page of the largest ones is 150 MB.
const PAGE_SIZE: u32 = 100;
/// The first pause after a failure; doubled with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(500);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause while no connection comes about: Jobs wait for it once the API is back.
const UNCONNECTED_MAX: Duration = Duration::from_secs(2);

/// A kind that can be watched.
pub(crate) trait Watched: Sized + Send + 'static {
    /// Path prefix of its group and version.
    const GROUP: &'static str;
    /// Plural name of the resource in paths.
    const PLURAL: &'static str;
    /// Whether objects have a namespace.
    const NAMESPACED: bool;
    /// How to read an object.
    const READ: Read<Self>;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
}

/// A Job, and its `resourceVersion` as the server writes it.
#[derive(Clone, Debug)]
pub(crate) struct VersionedJob {
    version: String,
    pub(crate) job: Job,
}

impl VersionedJob {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let wire = WireJob::read(text)?;
        let version = wire.meta.resource_version.clone().unwrap_or_default();
        Ok(Self { version, job: wire.view()? })
    }

    fn decode(message: &[u8]) -> Result<Self, Rejected> {
        let (job, version) = Job::decode(message)?;
        Ok(Self { version, job })
    }
}

impl Watched for VersionedJob {
    const GROUP: &'static str = "/apis/batch/v1";
    const PLURAL: &'static str = "jobs";
    const NAMESPACED: bool = true;
    const READ: Read<Self> = Read { json: Self::read, protobuf: Some(Self::decode) };

    fn version(&self) -> &str {
        &self.version
    }
}

impl Watched for WirePod {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "pods";
    const NAMESPACED: bool = true;
    const READ: Read<Self> = Read { json: view::read, protobuf: Some(Self::decode) };

    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// An object whose view is all that is read of it, and its `resourceVersion` as the server writes
/// it.
#[derive(Clone, Debug)]
pub(crate) struct Versioned<T> {
    version: String,
    pub(crate) object: T,
}

impl<T> Versioned<T> {
    fn read(
        text: &str,
        read: impl Fn(&str) -> Result<T, serde_json::Error>,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self { version: Reply::read(text)?.version, object: read(text)? })
    }
}

impl Watched for Versioned<Workload> {
    const GROUP: &'static str = SCHEDULING;
    const PLURAL: &'static str = WORKLOADS;
    const NAMESPACED: bool = true;
    const READ: Read<Self> = Read { json: |text| Self::read(text, Workload::read), protobuf: None };

    fn version(&self) -> &str {
        &self.version
    }
}

impl Watched for Versioned<PodGroup> {
    const GROUP: &'static str = SCHEDULING;
    const PLURAL: &'static str = POD_GROUPS;
    const NAMESPACED: bool = true;
    const READ: Read<Self> = Read { json: |text| Self::read(text, PodGroup::read), protobuf: None };

    fn version(&self) -> &str {
        &self.version
    }
}

impl Watched for WireNode {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "nodes";
    const NAMESPACED: bool = false;
    const READ: Read<Self> = Read { json: view::read, protobuf: None };

    fn version(&self) -> &str {
        WireNode::version(self)
    }
}

/// A namespace, reduced to the fields that pod GC reads.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawNamespace {
    metadata: NamespaceMeta,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamespaceMeta {
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl RawNamespace {
    /// Reads its policy.
    pub(crate) fn view(self) -> NamespaceView {
        NamespaceView::new(self.metadata.name, &self.metadata.annotations)
    }
}

impl Watched for RawNamespace {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "namespaces";
    const NAMESPACED: bool = false;
    const READ: Read<Self> = Read { json: view::read, protobuf: None };

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// Passes every event of a kind to `handle`, in one namespace or all, until `token` is cancelled.
///
/// The first list is a consistent read. A stale one would hide pods that the previous leader
/// created, and duplicates would follow. ([Q7])
pub(crate) async fn watch<T: Watched>(
    client: Client,
    namespace: Option<&str>,
    (newest, signs, relist): (Newest, Signs, Relist),
    token: CancellationToken,
    mut handle: impl FnMut(WatchEvent<T>) + Send,
) {
    let of = |namespace: Option<&str>| match namespace {
        None => format!("{}/{}", T::GROUP, T::PLURAL),
        Some(namespace) => format!("{}/namespaces/{namespace}/{}", T::GROUP, T::PLURAL),
    };
    let names = of(namespace.or(T::NAMESPACED.then_some("default")));
    let pauses = Pauses {
        first: PAUSE_BASE,
        max: PAUSE_MAX,
        unconnected_max: UNCONNECTED_MAX,
        hurried_max: PAUSE_MAX,
        hurry: None,
    };
    let scope = Scope {
        path: of(namespace),
        names,
        selector: None,
        read: T::READ,
        version: T::version,
        newest,
        signs,
        relist,
        page_size: PAGE_SIZE,
        objects_max: usize::MAX,
        pauses,
        // A replica that waits for the lease writes nothing.
        asks: true,
    };
    let mut events = pin!(watch::watch(client, scope).take_until(token.cancelled_owned()));
    while let Some(event) = events.next().await {
        handle(event);
    }
}
