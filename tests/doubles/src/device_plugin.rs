//! Provides a device plugin for a real kubelet: it registers a resource and grants every device.
//! The field numbers are those of the published definition (`v1beta1`).

use std::convert::Infallible;
use std::fs;
use std::path::Path;

use epilogue_agent::cri::wire::Call;
use futures::StreamExt as _;
use futures::future::ready;
use futures::stream::{once, pending};
use http::uri::PathAndQuery;
use tokio::runtime::Runtime;
use tokio::time::{Duration, Instant, sleep};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::WITHIN;
use crate::cri::{serve, unary};
use crate::kubelet::DEVICE_PLUGINS;

/// The name of its socket.
const SOCKET: &str = "double.sock";
const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
const REGISTER: &str = "/v1beta1.Registration/Register";
const POLL: Duration = Duration::from_millis(20);

/// A device plugin that runs. It ends when it is dropped.
#[derive(Debug)]
pub struct DevicePlugin {
    server: Option<Runtime>,
}

/// A message of whose fields none is read or set.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct RegisterRequest {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    resource: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Device {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    health: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Devices {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Empty>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Empty>,
}

impl Call for Empty {
    type Answer = Self;
    const NAME: &'static str = "GetDevicePluginOptions";
    const PATH: &'static str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
}

impl Call for AllocateRequest {
    type Answer = AllocateResponse;
    const NAME: &'static str = "Allocate";
    const PATH: &'static str = "/v1beta1.DevicePlugin/Allocate";
}

impl DevicePlugin {
    /// Starts one with a single device, and registers it with the kubelet of this directory as soon
    /// as that listens.
    pub async fn register(dir: &Path, resource: &str) -> Self {
        let plugins = dir.join(DEVICE_PLUGINS);
        let end = Instant::now() + WITHIN;
        loop {
            // A kubelet that starts removes the sockets of its plugins.
            let _ = fs::remove_file(plugins.join(SOCKET));
            let server = serve(&plugins.join(SOCKET), tower::service_fn(answer));
            let plugin = Self { server: Some(server) };
            match announce(&plugins.join("kubelet.sock"), resource).await {
                Ok(()) => return plugin,
                Err(error) => assert!(Instant::now() < end, "{resource}: {error}"),
            }
            drop(plugin);
            sleep(POLL).await;
        }
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        self.server.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn announce(kubelet: &Path, resource: &str) -> Result<(), Status> {
    let failed = |error: tonic::transport::Error| Status::from_error(error.into());
    let endpoint = Endpoint::from_shared(format!("unix:{}", kubelet.display())).map_err(failed)?;
    let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.map_err(failed)?);
    grpc.ready().await.map_err(failed)?;
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: SOCKET.to_owned(),
        resource: resource.to_owned(),
    };
    let codec = ProstCodec::<RegisterRequest, Empty>::default();
    grpc.unary(Request::new(request), PathAndQuery::from_static(REGISTER), codec).await.map(drop)
}

async fn answer(request: http::Request<Body>) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(match path.as_str() {
        LIST_AND_WATCH => {
            let service = tower::service_fn(|_: Request<Empty>| {
                let device = Device { id: "first".to_owned(), health: "Healthy".to_owned() };
                let all = Devices { devices: vec![device] };
                // The list does not change, and the stream lasts as long as the plugin.
                let stream = once(ready(Ok::<_, Status>(all))).chain(pending());
                ready(Ok::<_, Status>(Response::new(stream)))
            });
            let codec = ProstCodec::<Devices, Empty>::default();
            tonic::server::Grpc::new(codec).server_streaming(service, request).await
        }
        Empty::PATH => unary(request, |sent: Empty| ready(Ok(sent))).await,
        AllocateRequest::PATH => {
            unary(request, |sent: AllocateRequest| {
                ready(Ok(AllocateResponse { containers: sent.containers }))
            })
            .await
        }
        _ => Status::unimplemented(path).into_http(),
    })
}
