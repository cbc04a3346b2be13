//! Defines the part of the CRI v1 messages that the agent sends and reads. The field numbers are
//! those of the published definition (`runtime.v1`); fields without a name here are skipped.
//!
//! Written by hand: 30 of the definition's 175 messages, here and in `stats`, and of those only the
//! fields that the agent needs. prost skips what has no name here, so a list of all containers
//! costs no more memory than that. Generated types would hold everything, a published crate of them
//! needs `protoc` in each build, and a shortened definition of ours could be as wrong as this file.
//! Field numbers never change; the tests hold them against bytes that protoc made from the
//! published definition.

use std::collections::BTreeMap;

use super::stats::{
    ImageFsInfoRequest, ImageFsInfoResponse, ListContainerStatsRequest, ListContainerStatsResponse,
};

/// Label of containers and sandboxes: the pod's UID. The kubelet sets it.
pub const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";
/// Label of containers and sandboxes: the pod's name.
pub const POD_NAME_LABEL: &str = "io.kubernetes.pod.name";
/// Label of containers and sandboxes: the pod's namespace.
pub const POD_NAMESPACE_LABEL: &str = "io.kubernetes.pod.namespace";
/// Annotation of sandboxes: where the kubelet has the pod from, `api`, `file` or `http`.
pub const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Label of containers: their name in the pod's spec.
pub const CONTAINER_NAME_LABEL: &str = "io.kubernetes.container.name";

/// The request of a call.
pub trait Call: prost::Message + 'static {
    /// The answer.
    type Answer: prost::Message + Default + 'static;
    /// The call's name.
    const NAME: &'static str;
    /// The call's full name, as gRPC needs it.
    const PATH: &'static str;
    /// A header that the call needs.
    const HEADER: Option<(&'static str, &'static str)> = None;
}

/// Names calls: service, call, request, answer.
macro_rules! calls {
    ($($service:literal $name:literal $request:ty => $answer:ty;)*) => { $(
        impl Call for $request {
            type Answer = $answer;
            const NAME: &'static str = $name;
            const PATH: &'static str = concat!("/runtime.v1.", $service, "/", $name);
        }
    )* };
}

calls! {
    "RuntimeService" "Version" VersionRequest => VersionResponse;
    "RuntimeService" "Status" StatusRequest => StatusResponse;
    "RuntimeService" "ListPodSandbox" ListPodSandboxRequest => ListPodSandboxResponse;
    "RuntimeService" "StopPodSandbox" StopPodSandboxRequest => Empty;
    "RuntimeService" "ListContainers" ListContainersRequest => ListContainersResponse;
    "RuntimeService" "ContainerStatus" ContainerStatusRequest => ContainerStatusResponse;
    "RuntimeService" "StopContainer" StopContainerRequest => Empty;
    "RuntimeService" "RemoveContainer" RemoveContainerRequest => Empty;
    "RuntimeService" "ListContainerStats" ListContainerStatsRequest => ListContainerStatsResponse;
    "ImageService" "ImageFsInfo" ImageFsInfoRequest => ImageFsInfoResponse;
}

/// `Version`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionRequest {
    /// The kubelet's version of the protocol.
    #[prost(string, tag = "1")]
    pub version: String,
}

/// `Version`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VersionResponse {
    /// A constant that a kubelet wants.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The runtime's name, such as `containerd`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// The runtime's version.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// The version of the protocol, `v1`.
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
    /// The reason, in one word.
    #[prost(string, tag = "3")]
    pub reason: String,
    /// The reason, for people.
    #[prost(string, tag = "4")]
    pub message: String,
}

/// `ListPodSandbox`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodSandboxRequest {
    /// Which sandboxes; `None` means all.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<PodSandboxFilter>,
}

/// Which sandboxes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodSandboxFilter {
    /// Only sandboxes with all of these labels.
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
    /// Whether it is ready. An unknown number counts as ready.
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
    /// Creation time in ns since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    /// The labels of the kubelet and of the pod.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
}

/// `PodSandbox.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    /// Containers can be started in it.
    Ready = 0,
    /// No container can start in it any more.
    NotReady = 1,
}

/// `StopPodSandbox`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopPodSandboxRequest {
    /// The sandbox's id.
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

/// `ListContainers`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainersRequest {
    /// Which containers; `None` means all.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerFilter>,
}

/// Which containers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerFilter {
    /// Only containers with all of these labels.
    #[prost(btree_map = "string, string", tag = "4")]
    pub label_selector: BTreeMap<String, String>,
}

/// `ListContainers`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainersResponse {
    /// The containers, with exited ones.
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
    /// Its state. An unknown number counts as created, which is not exited.
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    /// Creation time in ns since 1970.
    #[prost(int64, tag = "7")]
    pub created_at: i64,
    /// The kubelet's labels.
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
    /// Ended.
    Exited = 2,
    /// The runtime lost sight of it.
    Unknown = 3,
}

/// `ContainerStatus`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerStatusRequest {
    /// The container's id.
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
    /// Its state, as in the list.
    #[prost(enumeration = "ContainerState", tag = "3")]
    pub state: i32,
    /// Creation time in ns since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    /// Start time in ns since 1970; 0 before the start.
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    /// End time in ns since 1970; 0 before the end.
    #[prost(int64, tag = "6")]
    pub finished_at: i64,
    /// 128 plus the signal's number, if a signal ended it.
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    /// Such as `Completed`, `Error`, `OOMKilled`.
    #[prost(string, tag = "10")]
    pub reason: String,
}

/// `StopContainer`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StopContainerRequest {
    /// The container's id.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The seconds between the stop signal and SIGKILL; 0 is SIGKILL at once.
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}

/// `RemoveContainer`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RemoveContainerRequest {
    /// The container's id.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// The empty answer of calls that only report success.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Empty {}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write as _;
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String must take any text");
            text
        })
    }

    fn from_hex<M: Message + Default>(text: &str) -> M {
        let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("must be hex");
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digits).collect();
        M::decode(bytes.as_slice()).expect("must be the message")
    }

    fn pair(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn calls_have_the_names_of_the_published_definition() {
        assert_eq!(StatusRequest::PATH, "/runtime.v1.RuntimeService/Status");
        assert_eq!(ImageFsInfoRequest::PATH, "/runtime.v1.ImageService/ImageFsInfo");
        assert_eq!(ListContainerStatsRequest::NAME, "ListContainerStats");
    }

    // protoc made the bytes below from the published definition, with all fields set.

    #[test]
    fn requests_are_what_the_published_definition_makes_of_them() {
        let label_selector = pair("k", "v");
        let sandboxes = ListPodSandboxRequest {
            filter: Some(PodSandboxFilter { label_selector: label_selector.clone() }),
        };
        let containers = ListContainersRequest { filter: Some(ContainerFilter { label_selector }) };
        let id = || "c1".to_owned();
        let table = [
            (VersionRequest { version: "v1".into() }.encode_to_vec(), "0a027631"),
            (StatusRequest {}.encode_to_vec(), ""),
            (sandboxes.encode_to_vec(), "0a081a060a016b120176"),
            (containers.encode_to_vec(), "0a0822060a016b120176"),
            (StopPodSandboxRequest { pod_sandbox_id: "s1".into() }.encode_to_vec(), "0a027331"),
            (ContainerStatusRequest { container_id: id() }.encode_to_vec(), "0a026331"),
            (
                StopContainerRequest { container_id: id(), timeout: 30 }.encode_to_vec(),
                "0a026331101e",
            ),
            (RemoveContainerRequest { container_id: id() }.encode_to_vec(), "0a026331"),
        ];
        for (bytes, expected) in table {
            assert_eq!(hex(&bytes), expected);
        }
    }

    #[test]
    fn answers_are_read_as_the_published_definition_writes_them() {
        let version: VersionResponse = from_hex("0a0178120272741a02763922027631");
        let expected = VersionResponse {
            version: "x".into(),
            runtime_name: "rt".into(),
            runtime_version: "v9".into(),
            runtime_api_version: "v1".into(),
        };
        assert_eq!(version, expected);

        let status: StatusResponse =
            from_hex("0a180a160a0c52756e74696d65526561647910011a017222016d12060a016b120176");
        let condition = RuntimeCondition {
            kind: "RuntimeReady".into(),
            status: true,
            reason: "r".into(),
            message: "m".into(),
        };
        assert_eq!(status.status, Some(RuntimeStatus { conditions: vec![condition] }));

        let sandboxes: ListPodSandboxResponse = from_hex(
            "0a340a027331120c0a016e1201751a026e7320031801208180a8b1e39fe7cb172a060a016c1201313206\
             0a01611201323a0472756e63",
        );
        let sandbox = PodSandbox {
            id: "s1".into(),
            state: PodSandboxState::NotReady.into(),
            created_at: 1_700_000_000_000_000_001,
            labels: pair("l", "1"),
            annotations: pair("a", "2"),
        };
        assert_eq!(sandboxes.items, [sandbox]);
    }

    #[test]
    fn containers_are_read_as_the_published_definition_writes_them() {
        let containers: ListContainersResponse = from_hex(
            "0a370a026331120273311a050a016e100222030a01692a01723002388280a8b1e39fe7cb1742060a016c\
             1201314a060a016112013252026969",
        );
        let container = Container {
            id: "c1".into(),
            pod_sandbox_id: "s1".into(),
            state: ContainerState::Exited.into(),
            created_at: 1_700_000_000_000_000_002,
            labels: pair("l", "1"),
        };
        assert_eq!(containers.containers, [container]);

        let status: ContainerStatusResponse = from_hex(
            "0a6b0a02633112050a016e10021803208380a8b1e39fe7cb17288480a8b1e39fe7cb17308580a8b1e39f\
             e7cb1738feffffffffffffffff0142030a01694a017252094f4f4d4b696c6c65645a016d62060a016c12\
             01316a060a016112013272040a022f707a022f6c8a0102696912060a016b120176",
        );
        let expected = ContainerStatus {
            id: "c1".into(),
            state: ContainerState::Unknown.into(),
            created_at: 1_700_000_000_000_000_003,
            started_at: 1_700_000_000_000_000_004,
            finished_at: 1_700_000_000_000_000_005,
            exit_code: -2,
            reason: "OOMKilled".into(),
        };
        assert_eq!(status.status, Some(expected));
    }
}
