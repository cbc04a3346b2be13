//! Reads disk usage from the runtime: the CRI v1 messages for that, written by hand as in `wire`,
//! and the calls.

use std::collections::BTreeMap;
use std::time::Duration;

use super::client::Client;
use super::error::CriError;

/// More than a runtime needs on a node whose disk is busy. The caller waits less long.
const STATS_TIME_MAX: Duration = Duration::from_secs(30);

/// `ImageFsInfo`'s request.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ImageFsInfoRequest {}

/// `ImageFsInfo`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ImageFsInfoResponse {
    /// Where images lie; the first entry counts. ([EV4])
    #[prost(message, repeated, tag = "1")]
    pub image_filesystems: Vec<FilesystemUsage>,
    /// Where writable layers lie.
    #[prost(message, repeated, tag = "2")]
    pub container_filesystems: Vec<FilesystemUsage>,
}

/// Usage of a file system.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilesystemUsage {
    /// The file system.
    #[prost(message, optional, tag = "2")]
    pub fs_id: Option<FilesystemIdentifier>,
    /// Used bytes.
    #[prost(message, optional, tag = "3")]
    pub used_bytes: Option<Number>,
    /// Used inodes.
    #[prost(message, optional, tag = "4")]
    pub inodes_used: Option<Number>,
}

/// A file system.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilesystemIdentifier {
    /// A directory on it, as a path of the host.
    #[prost(string, tag = "1")]
    pub mountpoint: String,
}

/// A number that may be missing.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Number {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// `ListContainerStats`'s request: of all containers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainerStatsRequest {}

/// `ListContainerStats`'s answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListContainerStatsResponse {
    /// The running containers.
    #[prost(message, repeated, tag = "1")]
    pub stats: Vec<ContainerStats>,
}

/// Usage of one container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerStats {
    /// The container.
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<ContainerAttributes>,
    /// Its writable layer.
    #[prost(message, optional, tag = "4")]
    pub writable_layer: Option<FilesystemUsage>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAttributes {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The kubelet's labels.
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
}

impl Client {
    /// Where images and writable layers lie.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, CriError> {
        self.read(ImageFsInfoRequest {}).await
    }

    /// Usage of containers. A runtime takes longer for this than to list them.
    pub async fn container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        Ok(self.read_within(ListContainerStatsRequest {}, STATS_TIME_MAX).await?.stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn from_hex<M: Message + Default>(text: &str) -> M {
        let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("must be hex");
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digits).collect();
        M::decode(bytes.as_slice()).expect("must be the message")
    }

    // The bytes below have all fields of the published definition, with those that the agent does
    // not read.

    #[test]
    fn file_systems_are_read_as_the_published_definition_writes_them() {
        let reported: ImageFsInfoResponse =
            from_hex("0a10080112040a022f611a02080522020807120612040a022f62");
        let fs_id = |path: &str| Some(FilesystemIdentifier { mountpoint: path.into() });
        let images = FilesystemUsage {
            fs_id: fs_id("/a"),
            used_bytes: Some(Number { value: 5 }),
            inodes_used: Some(Number { value: 7 }),
        };
        assert_eq!(reported.image_filesystems, [images]);
        assert_eq!(reported.container_filesystems.len(), 1);
        assert_eq!(reported.container_filesystems[0].fs_id, fs_id("/b"));
    }

    #[test]
    fn stats_are_read_as_the_published_definition_writes_them() {
        let attributes = "0a190a02633112030a016d1a060a016c12013122060a0161120132";
        let [cpu, memory, swap, io] = ["12020801", "1a020801", "2a020801", "32020801"];
        let stats = format!("{attributes}{cpu}{memory}22041a020805{swap}{io}");
        let reported: ListContainerStatsResponse =
            from_hex(&format!("0a{:02x}{stats}", stats.len() / 2));
        let expected = ContainerStats {
            attributes: Some(ContainerAttributes {
                id: "c1".into(),
                labels: BTreeMap::from([("l".into(), "1".into())]),
            }),
            writable_layer: Some(FilesystemUsage {
                used_bytes: Some(Number { value: 5 }),
                ..FilesystemUsage::default()
            }),
        };
        assert_eq!(reported.stats, [expected]);
        assert!(ListContainerStatsRequest {}.encode_to_vec().is_empty());
    }
}
