//! What the controller watches, as it comes over the wire, and how the stores are told of it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use controller_core::podgc::WireNode;
use controller_core::view::{Version, WirePod};
use epilogue_runtime::watch::{self, Deaf, Listener, Pauses, Scope};
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Objects per page where the server does not stream lists.
const PAGE_SIZE: u32 = 500;
/// The first pause after a failure; doubled with each further one.
const PAUSE_BASE: Duration = Duration::from_millis(500);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// An object that can be watched.
pub(crate) trait Watched: DeserializeOwned + Clone + Debug + Send + 'static {
    /// The path of its group and version.
    const GROUP: &'static str;
    /// The name of its kind in paths.
    const PLURAL: &'static str;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
}

/// A Job as it came over the wire; whether it parses is found out one by one.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct RawJob(pub(crate) Value);

impl Watched for RawJob {
    const GROUP: &'static str = "/apis/batch/v1";
    const PLURAL: &'static str = "jobs";

    fn version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

impl Watched for WirePod {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "pods";

    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl Watched for WireNode {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "nodes";

    fn version(&self) -> &str {
        WireNode::version(self)
    }
}

/// A namespace as it came over the wire, reduced to what it can ask for.
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
    /// `metadata.name`.
    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }

    /// `metadata.annotations`.
    pub(crate) fn annotations(&self) -> &BTreeMap<String, String> {
        &self.metadata.annotations
    }
}

impl Watched for RawNamespace {
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "namespaces";

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// What a watch tells.
#[derive(Clone, Debug)]
pub(crate) enum Seen<T> {
    /// A list of everything begins; one that was coming in is void.
    ListBegins,
    /// The list has come to its end, and shows all that happened up to this version.
    ListEnds(Version),
    /// An object is there, as part of a list or because it was added or modified.
    Shown(T),
    /// An object was deleted; its version is that of the deletion.
    Gone(T),
    /// Everything that happened up to this version was told.
    UpTo(Version),
}

/// Tells a store at once.
struct Told<H>(H);

impl<T, H> Listener<T> for Told<H>
where
    T: Send,
    H: FnMut(Seen<T>) + Send,
{
    async fn tell(&mut self, seen: watch::Seen<T>) -> Result<(), Deaf> {
        (self.0)(match seen {
            watch::Seen::ListBegins => Seen::ListBegins,
            watch::Seen::ListEnds(version) => Seen::ListEnds(Version::parse(&version)),
            watch::Seen::Shown(object) => Seen::Shown(object),
            watch::Seen::Gone(object) => Seen::Gone(object),
            watch::Seen::UpTo(version) => Seen::UpTo(Version::parse(&version)),
        });
        Ok(())
    }
}

/// Tells everything that happens to objects of a kind, in one namespace or in all, until `token`
/// is cancelled. The first list is a consistent read: a stale one would hide pods that the process
/// before us created, and so lead to more of them. (spec §30)
pub(crate) async fn watch<T: Watched>(
    client: Client,
    namespace: Option<&str>,
    token: CancellationToken,
    handle: impl FnMut(Seen<T>) + Send,
) {
    let path = match namespace {
        None => format!("{}/{}", T::GROUP, T::PLURAL),
        Some(namespace) => format!("{}/namespaces/{namespace}/{}", T::GROUP, T::PLURAL),
    };
    let pauses = Pauses { first: PAUSE_BASE, max: PAUSE_MAX, hurried_max: PAUSE_MAX, hurry: None };
    let scope = Scope {
        path,
        selector: None,
        version: T::version,
        page_size: PAGE_SIZE,
        objects_max: usize::MAX,
        pauses,
    };
    tokio::select! {
        () = token.cancelled() => {}
        // A store listens for as long as it is there.
        _deaf = watch::watch(client, scope, Told(handle)) => {}
    }
}
