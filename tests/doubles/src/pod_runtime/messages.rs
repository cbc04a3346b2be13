//! The CRI v1 messages that a kubelet sends to run pods, with the fields that it needs. The field
//! numbers are those of the published definition (`runtime.v1`).

use std::collections::BTreeMap;

use epilogue_agent::cri::wire::{Call, ContainerState, Empty, PodSandboxState};

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
    "RuntimeService" "RunPodSandbox" RunPodSandbox => PodSandboxId;
    "RuntimeService" "ListPodSandbox" ListPodSandbox => PodSandboxes;
    "RuntimeService" "PodSandboxStatus" StatusOfPodSandbox => PodSandboxStatusAnswer;
    "RuntimeService" "RemovePodSandbox" PodSandboxId => Empty;
    "RuntimeService" "CreateContainer" CreateContainer => ContainerId;
    "RuntimeService" "StartContainer" ContainerId => Empty;
    "RuntimeService" "ListContainers" ListContainers => Containers;
    "RuntimeService" "ContainerStatus" StatusOfContainer => ContainerStatusAnswer;
    "ImageService" "ImageStatus" StatusOfImage => ImageStatusAnswer;
}

/// Defines messages: each field with its type and number.
macro_rules! messages {
    ($($message:ident { $($field:ident: $kind:ty = $attributes:tt,)* })*) => { $(
        messages!(@ $message { $($field: $kind = $attributes,)* });
    )* };
    (@ $message:ident { $($field:ident: $kind:ty = ($($attribute:tt)*),)* }) => {
        #[derive(Clone, PartialEq, Eq, prost::Message)]
        pub(super) struct $message {
            $(#[prost($($attribute)*)] pub(super) $field: $kind,)*
        }
    };
}

type Map = BTreeMap<String, String>;

messages! {
    PodSandboxName {
        name: String = (string, tag = "1"),
        uid: String = (string, tag = "2"),
        namespace: String = (string, tag = "3"),
        attempt: u32 = (uint32, tag = "4"),
    }
    PodSandboxConfig {
        metadata: Option<PodSandboxName> = (message, optional, tag = "1"),
        labels: Map = (btree_map = "string, string", tag = "6"),
        annotations: Map = (btree_map = "string, string", tag = "7"),
    }
    RunPodSandbox { config: Option<PodSandboxConfig> = (message, optional, tag = "1"), }
    PodSandboxId { id: String = (string, tag = "1"), }
    OnePodSandboxState { state: i32 = (enumeration = "PodSandboxState", tag = "1"), }
    PodSandboxFilter {
        id: String = (string, tag = "1"),
        state: Option<OnePodSandboxState> = (message, optional, tag = "2"),
        labels: Map = (btree_map = "string, string", tag = "3"),
    }
    ListPodSandbox { filter: Option<PodSandboxFilter> = (message, optional, tag = "1"), }
    PodSandbox {
        id: String = (string, tag = "1"),
        metadata: Option<PodSandboxName> = (message, optional, tag = "2"),
        state: i32 = (enumeration = "PodSandboxState", tag = "3"),
        created_at: i64 = (int64, tag = "4"),
        labels: Map = (btree_map = "string, string", tag = "5"),
        annotations: Map = (btree_map = "string, string", tag = "6"),
    }
    PodSandboxes { items: Vec<PodSandbox> = (message, repeated, tag = "1"), }
    StatusOfPodSandbox { id: String = (string, tag = "1"), }
    Network { ip: String = (string, tag = "1"), }
    NamespaceOptions {
        network: i32 = (int32, tag = "1"),
        pid: i32 = (int32, tag = "2"),
        ipc: i32 = (int32, tag = "3"),
    }
    Namespaces { options: Option<NamespaceOptions> = (message, optional, tag = "2"), }
    Linux { namespaces: Option<Namespaces> = (message, optional, tag = "1"), }
    PodSandboxStatus {
        id: String = (string, tag = "1"),
        metadata: Option<PodSandboxName> = (message, optional, tag = "2"),
        state: i32 = (enumeration = "PodSandboxState", tag = "3"),
        created_at: i64 = (int64, tag = "4"),
        network: Option<Network> = (message, optional, tag = "5"),
        linux: Option<Linux> = (message, optional, tag = "6"),
        labels: Map = (btree_map = "string, string", tag = "7"),
        annotations: Map = (btree_map = "string, string", tag = "8"),
    }
    PodSandboxStatusAnswer { status: Option<PodSandboxStatus> = (message, optional, tag = "1"), }
    ContainerName {
        name: String = (string, tag = "1"),
        attempt: u32 = (uint32, tag = "2"),
    }
    ImageName { image: String = (string, tag = "1"), }
    ContainerConfig {
        metadata: Option<ContainerName> = (message, optional, tag = "1"),
        image: Option<ImageName> = (message, optional, tag = "2"),
        labels: Map = (btree_map = "string, string", tag = "9"),
        annotations: Map = (btree_map = "string, string", tag = "10"),
    }
    CreateContainer {
        sandbox: String = (string, tag = "1"),
        config: Option<ContainerConfig> = (message, optional, tag = "2"),
    }
    ContainerId { id: String = (string, tag = "1"), }
    OneContainerState { state: i32 = (enumeration = "ContainerState", tag = "1"), }
    ContainerFilter {
        id: String = (string, tag = "1"),
        state: Option<OneContainerState> = (message, optional, tag = "2"),
        sandbox: String = (string, tag = "3"),
        labels: Map = (btree_map = "string, string", tag = "4"),
    }
    ListContainers { filter: Option<ContainerFilter> = (message, optional, tag = "1"), }
    Container {
        id: String = (string, tag = "1"),
        sandbox: String = (string, tag = "2"),
        metadata: Option<ContainerName> = (message, optional, tag = "3"),
        image: Option<ImageName> = (message, optional, tag = "4"),
        image_ref: String = (string, tag = "5"),
        state: i32 = (enumeration = "ContainerState", tag = "6"),
        created_at: i64 = (int64, tag = "7"),
        labels: Map = (btree_map = "string, string", tag = "8"),
        annotations: Map = (btree_map = "string, string", tag = "9"),
        image_id: String = (string, tag = "10"),
    }
    Containers { containers: Vec<Container> = (message, repeated, tag = "1"), }
    StatusOfContainer { id: String = (string, tag = "1"), }
    ContainerStatus {
        id: String = (string, tag = "1"),
        metadata: Option<ContainerName> = (message, optional, tag = "2"),
        state: i32 = (enumeration = "ContainerState", tag = "3"),
        created_at: i64 = (int64, tag = "4"),
        started_at: i64 = (int64, tag = "5"),
        finished_at: i64 = (int64, tag = "6"),
        exit_code: i32 = (int32, tag = "7"),
        image: Option<ImageName> = (message, optional, tag = "8"),
        image_ref: String = (string, tag = "9"),
        reason: String = (string, tag = "10"),
        labels: Map = (btree_map = "string, string", tag = "12"),
        annotations: Map = (btree_map = "string, string", tag = "13"),
        log_path: String = (string, tag = "15"),
        image_id: String = (string, tag = "17"),
    }
    ContainerStatusAnswer { status: Option<ContainerStatus> = (message, optional, tag = "1"), }
    StatusOfImage { image: Option<ImageName> = (message, optional, tag = "1"), }
    Image {
        id: String = (string, tag = "1"),
        repo_tags: Vec<String> = (string, repeated, tag = "2"),
        size: u64 = (uint64, tag = "4"),
        spec: Option<ImageName> = (message, optional, tag = "7"),
    }
    ImageStatusAnswer { image: Option<Image> = (message, optional, tag = "1"), }
}
