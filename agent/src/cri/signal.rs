//! Signals the main process of a container. CRI has no call for that, and containerd's own API has
//! one, on the same socket.

use epilogue_common::end_signal::Signal;

use super::client::Client;
use super::error::CriError;
use super::wire::{Call, Empty};

/// The namespace of containerd in which its CRI plugin keeps the containers.
const NAMESPACE: &str = "k8s.io";

/// `Kill` of containerd's `services.tasks.v1`: without an exec id, of the main process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KillRequest {
    /// The container's id, which is CRI's.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The signal's number.
    #[prost(uint32, tag = "3")]
    pub signal: u32,
}

impl Call for KillRequest {
    type Answer = Empty;
    const NAME: &'static str = "Kill";
    const PATH: &'static str = "/containerd.services.tasks.v1.Tasks/Kill";
    const HEADER: Option<(&'static str, &'static str)> = Some(("containerd-namespace", NAMESPACE));
}

/// Sends the signal, and returns when it is sent.
pub(super) async fn send(client: &Client, id: &str, signal: Signal) -> Result<(), CriError> {
    let request = KillRequest { container_id: id.to_owned(), signal: signal.number() };
    match client.read(request).await {
        Ok(Empty {}) => Ok(()),
        Err(error) if error.is_unimplemented() => Err(CriError::NoSignals),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn request_has_the_published_field_numbers() {
        let request = KillRequest { container_id: "c1".into(), signal: Signal::Usr1.number() };
        assert_eq!(request.encode_to_vec(), [0x0a, 2, b'c', b'1', 0x18, 10]);
    }
}
