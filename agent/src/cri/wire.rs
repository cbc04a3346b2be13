//! The part of the CRI v1 messages that the agent sends and reads. The numbers are those of the
//! published definition (`runtime.v1`); what is not named here is skipped in reading.
//!
//! Written by hand because a published crate of these types needs `protoc` in each build.

use std::collections::BTreeMap;

/// Label of containers and sandboxes: the pod's UID. The kubelet sets it. (§9.2)
pub const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";
/// Label of containers and sandboxes: the pod's name.
pub const POD_NAME_LABEL: &str = "io.kubernetes.pod.name";
/// Label of containers and sandboxes: the pod's namespace.
pub const POD_NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
/// Label of containers: their name in the pod's spec.
pub const CONTAINER_NAME_LABEL: &str = "io.kubernetes.container.name";
/// Annotation of sandboxes: who brought the pod to the kubelet, `api`, `file` or `http`.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// The full names of the calls, as gRPC asks for them.
pub mod path {
    /// `Version`.
    pub const VERSION: &str = "/runtime.v1.RuntimeService/Version";
    /// `Status`.
    pub const STATUS: &str = "/runtime.v1.RuntimeService/Status";
    /// `ListPodSandbox`.
    pub const LIST_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
    /// `StopPodSandbox`.
    pub const STOP_POD_SANDBOX: &str = "/runtime.v1.RuntimeService/StopPodSandbox";
    /// `ListContainers`.
    pub const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
    /// `ContainerStatus`.
    pub const CONTAINER_STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
    /// `StopContainer`.
    pub const STOP_CONTAINER: &str = "/runtime.v1.RuntimeService/StopContainer";
    /// `RemoveContainer`.
    pub const REMOVE_CONTAINER: &str = "/runtime.v1.RuntimeService/RemoveContainer";
}

/// `Version`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionRequest {
    /// Of the kubelet's side of the protocol.
    #[prost(string, tag = "1")]
    pub version: String,
}

/// `Version`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionResponse {
    /// Such as `containerd`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// The program's.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// The protocol's, `v1`.
    #[prost(string, tag = "4")]
    pub runtime_api_version: String,
}

/// `Status`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StatusRequest {}

/// `Status`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StatusResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
}

/// The runtime's own conditions.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RuntimeStatus {
    /// `RuntimeReady` and `NetworkReady` at least.
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<RuntimeCondition>,
}

/// One condition.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RuntimeCondition {
    /// Its type.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Whether it is true.
    #[prost(bool, tag = "2")]
    pub status: bool,
    /// Why, in a word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// Why, for people.
    #[prost(string, tag = "4")]
    pub message: String,
}

/// `ListPodSandbox`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodSandboxRequest {
    /// Which; none is all.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<PodSandboxFilter>,
}

/// Which sandboxes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandboxFilter {
    /// Those with all of these labels.
    #[prost(btree_map = "string, string", tag = "3")]
    pub label_selector: BTreeMap<String, String>,
}

/// `ListPodSandbox`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodSandboxResponse {
    /// The sandboxes.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

/// One sandbox.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandbox {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Whether it is ready. A number that is not known counts as ready.
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
    /// In ns since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    /// The kubelet's and the pod's.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// The pod's.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
}

/// `PodSandbox.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    /// Containers can be started in it.
    Ready = 0,
    /// None can, for ever.
    NotReady = 1,
}

/// `StopPodSandbox`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopPodSandboxRequest {
    /// Which.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// `ListContainers`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainersRequest {
    /// Which; none is all.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerFilter>,
}

/// Which containers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerFilter {
    /// Those with all of these labels.
    #[prost(btree_map = "string, string", tag = "4")]
    pub label_selector: BTreeMap<String, String>,
}

/// `ListContainers`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainersResponse {
    /// The containers, exited ones included.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Container>,
}

/// One container, in a list.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Container {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its sandbox's id.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// Its state. A number that is not known counts as created, which is not exited.
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    /// In ns since 1970.
    #[prost(int64, tag = "7")]
    pub created_at: i64,
    /// The kubelet's.
    #[prost(btree_map = "string, string", tag = "8")]
    pub labels: BTreeMap<String, String>,
}

/// `Container.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Not started yet.
    Created = 0,
    /// Started.
    Running = 1,
    /// Over.
    Exited = 2,
    /// The runtime lost sight of it.
    Unknown = 3,
}

/// `ContainerStatus`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerStatusRequest {
    /// Which.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// `ContainerStatus`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerStatusResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
}

/// One container, with how it ended.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerStatus {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// As in the list.
    #[prost(enumeration = "ContainerState", tag = "3")]
    pub state: i32,
    /// In ns since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    /// In ns since 1970; 0 before the start.
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    /// In ns since 1970; 0 before the end.
    #[prost(int64, tag = "6")]
    pub finished_at: i64,
    /// 128 and the signal's number, where a signal ended it.
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    /// Such as `Completed`, `Error`, `OOMKilled`.
    #[prost(string, tag = "10")]
    pub reason: String,
}

/// `StopContainer`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopContainerRequest {
    /// Which.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The seconds between the stop signal and SIGKILL; 0 is SIGKILL at once.
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}

/// `RemoveContainer`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RemoveContainerRequest {
    /// Which.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// The answer of calls that say nothing but that they are done.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Empty {}
