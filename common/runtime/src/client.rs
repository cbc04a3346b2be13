//! The API client: where its configuration comes from, what it calls itself, how long it waits.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderValue, header};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;
use tower::buffer::Buffer;
use tower::layer::layer_fn;

use crate::rate_limit::{RateLimit, RateLimited};

/// The kubelet sets it in every container; its presence means that we run in a pod.
const IN_CLUSTER_ENV: &str = "KUBERNETES_SERVICE_HOST";

/// How long a connection may take to come about; the API is a few hops away.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long a started reply may pause. Watches carry a bookmark about once a minute.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// Requests that wait for the one connection pool; more wait at their caller.
const QUEUE_LENGTH_MAX: usize = 1024;

/// How to reach the API.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A kubeconfig file (`--kubeconfig`). Without it: the pod's service account, and outside of
    /// a pod the files that kubectl would read.
    pub kubeconfig: Option<PathBuf>,
    /// What we call ourselves, such as `epilogue-controller/0.1.0`: the API's audit log and its
    /// field managers show it.
    pub user_agent: String,
    /// How requests are limited.
    pub rate_limit: RateLimit,
}

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The file cannot be read as a kubeconfig.
    #[error("cannot read the kubeconfig {0} (--kubeconfig)")]
    ReadKubeconfig(PathBuf, #[source] kube::config::KubeconfigError),
    /// The file's current context cannot be used.
    #[error("cannot use the current context of {0} (--kubeconfig)")]
    UseKubeconfig(PathBuf, #[source] kube::config::KubeconfigError),
    /// The pod's service account cannot be used.
    #[error("cannot use the pod's service account; mount its token, or give --kubeconfig")]
    InCluster(#[source] kube::config::InClusterError),
    /// There is no configuration where kubectl would look.
    #[error("no cluster to talk to; give --kubeconfig, or set KUBECONFIG")]
    Default(#[source] kube::config::KubeconfigError),
    /// The name is no HTTP header value.
    #[error("user agent {0:?} cannot be sent")]
    UserAgent(String, #[source] header::InvalidHeaderValue),
    /// The configuration's certificates, keys or addresses are not usable.
    #[error("cannot make a client for {0}")]
    Build(String, #[source] kube::Error),
}

/// The configuration that the options lead to, for those who need more than a client.
pub async fn config(options: &ClientOptions) -> Result<Config, ClientError> {
    let in_cluster = std::env::var_os(IN_CLUSTER_ENV).is_some();
    let mut config = match &options.kubeconfig {
        Some(path) => from_file(path).await?,
        None if in_cluster => Config::incluster().map_err(ClientError::InCluster)?,
        None => Config::from_kubeconfig(&KubeConfigOptions::default())
            .await
            .map_err(ClientError::Default)?,
    };
    let agent = HeaderValue::from_str(&options.user_agent)
        .map_err(|source| ClientError::UserAgent(options.user_agent.clone(), source))?;
    config.headers.push((header::USER_AGENT, agent));
    config.connect_timeout = Some(CONNECT_MAX);
    config.read_timeout = Some(SILENCE_MAX);
    config.reset_reader_on_write = true;
    // The built-in policy repeats a 504, whose request may have been carried out: a pod that is
    // created by `generateName` would be created twice. `Paced` repeats in its place.
    config.default_retry = false;
    Ok(config)
}

/// A client for the cluster that the options name. Sends nothing yet.
pub async fn connect(options: &ClientOptions) -> Result<Client, ClientError> {
    let config = config(options).await?;
    let url = config.cluster_url.to_string();
    let builder =
        ClientBuilder::try_from(config).map_err(|source| ClientError::Build(url, source))?;
    let rate_limit = options.rate_limit.clone();
    let layer = layer_fn(move |inner| {
        let shared: Buffer<http::Request<Body>, _> = Buffer::new(inner, QUEUE_LENGTH_MAX);
        RateLimited::new(shared, rate_limit.clone())
    });
    Ok(builder.with_layer(&layer).build())
}

async fn from_file(path: &PathBuf) -> Result<Config, ClientError> {
    let kubeconfig = Kubeconfig::read_from(path)
        .map_err(|source| ClientError::ReadKubeconfig(path.clone(), source))?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|source| ClientError::UseKubeconfig(path.clone(), source))
}
