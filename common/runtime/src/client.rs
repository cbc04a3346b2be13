//! Builds the API client: configuration, user agent, HTTP/2, timeouts and rate limit.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as Connections;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder};

use crate::authorities;
use crate::rate_limit::{Backlog, RateLimit, RateLimited};
use crate::token_file::TokenFile;

/// The kubelet sets this variable in every container; its presence means that we run in a pod.
const IN_CLUSTER_ENV: &str = "KUBERNETES_SERVICE_HOST";

/// Connect timeout; the API server is a few hops away.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long a started reply may pause. Watches send a bookmark about once a minute.
const SILENCE_MAX: Duration = Duration::from_mins(5);

/// How many bytes of one reply may be on the way. A list of 100,000 pods has 200 MB.
const STREAM_WINDOW: u32 = 4 << 20;
/// How many bytes of all replies of a connection may be on the way.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// A connection without a frame for this long is asked for a sign of life, which a network that
/// drops packets in silence does not give: client-go's figures.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_REPLY_MAX: Duration = Duration::from_secs(15);

/// Sends requests, and gives the replies as they come.
type Sender = BoxCloneSyncService<http::Request<Body>, http::Response<Incoming>, BoxError>;

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

/// The file with the certificate authorities of the configuration that the options give, if there
/// is one that may change.
pub fn authorities(options: &ClientOptions) -> Result<Option<PathBuf>, ClientError> {
    match &options.kubeconfig {
        Some(path) => Ok(authorities::of(&read_kubeconfig(path)?)),
        None => Ok(std::env::var_os(IN_CLUSTER_ENV).map(|_| authorities::in_pod())),
    }
}

/// Builds a client for the cluster that the options name. Sends nothing yet.
pub async fn connect(options: &ClientOptions) -> Result<Client, ClientError> {
    Ok(connect_limited(options).await?.0)
}

/// Builds a client as [`connect`] does, and returns what tells whether its requests wait for the
/// limit.
pub async fn connect_limited(options: &ClientOptions) -> Result<(Client, Backlog), ClientError> {
    let config = config(options).await?;
    let url = config.cluster_url.to_string();
    let namespace = config.default_namespace.clone();
    let sender = sender(&config, authorities(options)?);
    let sender = sender.map_err(|source| ClientError::Build(url, source))?;
    let limited = RateLimited::new(sender, options.rate_limit.clone());
    let backlog = limited.backlog();
    Ok((ClientBuilder::new(limited, namespace).build(), backlog))
}

/// Sends requests with the configuration's address, credentials and headers. It is `kube`'s own
/// stack but for HTTP/2, which `kube` does not offer: one connection then carries all calls and
/// watches, and one read takes in the replies of several calls; and but for a token file.
fn sender(config: &Config, authorities: Option<PathBuf>) -> Result<Sender, kube::Error> {
    if config.proxy_url.is_some() {
        // Refuses a proxy that this build cannot use.
        ClientBuilder::try_from(config.clone())?;
    }
    let connector = connector(config, authorities, HttpConnector::new())?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connections: Connections<_, Body> = Connections::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_REPLY_MAX)
        .build(connector);
    let token = TokenFile::of(config)?;
    let auth = if token.is_none() { config.auth_layer()? } else { None };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(token)
        .option_layer(auth)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(BoxCloneSyncService::new(service))
}

/// Connects by TLS over `tcp`, and by TCP alone where the address says `http`. HTTP/2 is what
/// server and client agree on in the TLS handshake; else it is HTTP/1.1. If there is a file with
/// [`authorities`], they are those of the file at the time of a handshake.
pub fn connector<R>(
    config: &Config,
    authorities: Option<PathBuf>,
    mut tcp: HttpConnector<R>,
) -> Result<HttpsConnector<HttpConnector<R>>, kube::Error> {
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut tls = config.rustls_client_config()?;
    if let Some(file) = authorities {
        authorities::follow(&mut tls, config, file)?;
    }
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone())
            .map_err(|error| kube::Error::Service(Box::new(error)))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(tcp))
}

fn read_kubeconfig(path: &PathBuf) -> Result<Kubeconfig, ClientError> {
    Kubeconfig::read_from(path).map_err(|source| ClientError::ReadKubeconfig(path.clone(), source))
}

async fn from_file(path: &PathBuf) -> Result<Config, ClientError> {
    let kubeconfig = read_kubeconfig(path)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|source| ClientError::UseKubeconfig(path.clone(), source))
}
