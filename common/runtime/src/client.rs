//! Builds the API client: configuration, user agent, timeouts and rate limit.

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

/// The kubelet sets this variable in every container; its presence means that we run in a pod.
const IN_CLUSTER_ENV: &str = "KUBERNETES_SERVICE_HOST";

/// Connect timeout; the API server is a few hops away.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long a started reply may pause. Watches send a bookmark about once a minute.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// Maximum of requests that queue for the one connection pool; others wait in their caller.
const QUEUE_LENGTH_MAX: usize = 1024;

/// How to reach the API.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A kubeconfig file (`--kubeconfig`). Without it: the pod's service account, or outside of a
    /// pod the files that kubectl reads.
    pub kubeconfig: Option<PathBuf>,
    /// The user agent, such as `epilogue-controller/0.1.0`. The API's audit log and its field
    /// managers show it.
    pub user_agent: String,
    /// How requests are limited.
    pub rate_limit: RateLimit,
}

/// Why a client could not be built.
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
    /// kubectl's default files have no usable configuration.
    #[error("no cluster to talk to; give --kubeconfig, or set KUBECONFIG")]
    Default(#[source] kube::config::KubeconfigError),
    /// The user agent is not a valid HTTP header value.
    #[error("user agent {0:?} cannot be sent")]
    UserAgent(String, #[source] header::InvalidHeaderValue),
    /// The configuration's certificates, keys or addresses are not usable.
    #[error("cannot make a client for {0}")]
    Build(String, #[source] kube::Error),
}

/// Returns the configuration that the options give, for callers that need more than a client.
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
    // The built-in policy retries a 504, whose request may have been carried out: a pod with
    // `generateName` would be created twice. `RateLimited` retries instead.
    config.default_retry = false;
    Ok(config)
}

/// Builds a client for the cluster that the options name. Sends nothing yet.
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
