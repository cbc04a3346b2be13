//! Serves `/livez`, `/readyz` and `/metrics`, read-only. By plain HTTP metrics go to the loopback
//! alone. Other machines read them by HTTPS, with a bearer that may.

mod connections;
mod review;
mod scrape;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kube::Client;
use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::Checks;
use connections::Door;
use scrape::Acceptor;
pub use scrape::{Certificate, CertificateError};

/// Default maximum of open connections.
const CONNECTIONS_MAX: usize = 32;
/// `/livez` fails once the program's runtime has stood still for this long. The pages come from
/// another thread, which would otherwise report health for ever.
const STANDSTILL_MAX: Duration = Duration::from_mins(1);
/// How often the program's runtime reports progress: each wake-up costs an idle program.
const BEAT: Duration = Duration::from_secs(5);
/// Scrapes within this time get the same page, because gathering takes locks that the work needs.
const FIGURES_LAST: Duration = Duration::from_millis(100);

/// The answer to a client of another machine.
const NOT_HERE: &str = "/metrics is served here to the loopback only; other machines read it by \
                        HTTPS, where --scrape-bind-address says";

/// Where to listen (`--metrics-bind-address`): `:8080`, `host:port`, `[v6]:port`, or `0` for
/// nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// The server is disabled.
    Off,
    /// All addresses of the machine, IPv6 and IPv4 if it has both.
    Any(u16),
    /// The name or address of a host.
    Host(String, u16),
}

/// Why the admin server does not run.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The text is not a valid address.
    #[error(
        "invalid address {0:?}: expected :PORT, ADDRESS:PORT or [IPV6]:PORT, such as :8080 (port 0 \
         takes a free one), or 0 to switch the server off"
    )]
    Address(String),
    /// Listening on the address failed.
    #[error("cannot listen on {0}; give another --metrics-bind-address, or 0 for none")]
    Listen(BindAddress, #[source] io::Error),
    /// Listening on the address for probes failed.
    #[error("cannot listen on {0}; give another --health-probe-bind-address, or 0 for none")]
    ListenForProbes(BindAddress, #[source] io::Error),
    /// The server ended by itself.
    #[error("the admin server failed")]
    Serve(#[source] io::Error),
    /// The certificate for scrapers is not usable.
    #[error("cannot serve --scrape-bind-address")]
    Certificate(#[from] CertificateError),
    /// Listening on the scrapers' address failed.
    #[error("cannot listen on {0}; give another --scrape-bind-address, or 0 for none")]
    ListenForScrapers(BindAddress, #[source] io::Error),
}

/// A server that has bound its port and does not answer yet.
pub struct Admin {
    listener: Option<TcpListener>,
    probes: Option<TcpListener>,
    scrapers: Option<(TcpListener, Router, Acceptor)>,
    pages: Arc<Pages>,
    connections_max: usize,
    beat: Arc<Mutex<Instant>>,
}

struct Pages {
    live: Checks,
    ready: Checks,
    registry: Registry,
    figures: Mutex<Option<(Instant, Bytes)>>,
}

impl FromStr for BindAddress {
    type Err = AdminError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || AdminError::Address(text.to_owned());
        if text == "0" {
            return Ok(Self::Off);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        if host.is_empty() {
            return Ok(Self::Any(port));
        }
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let good = match bracketed {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => host.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-'),
        };
        if good { Ok(Self::Host(host.to_owned(), port)) } else { Err(bad()) }
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => formatter.write_str("0"),
            Self::Any(port) => write!(formatter, ":{port}"),
            Self::Host(host, port) => write!(formatter, "{host}:{port}"),
        }
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = (self.local_addr(), self.scrape_addr());
        formatter.debug_tuple("Admin").field(&addresses).finish()
    }
}

impl Admin {
    /// Binds the port. A failing `live` check requests a restart of the process; a failing `ready`
    /// check only says that it does not work yet.
    pub async fn bind(
        address: &BindAddress,
        live: Checks,
        ready: Checks,
        registry: Registry,
    ) -> Result<Self, AdminError> {
        let listener =
            listen(address).await.map_err(|source| AdminError::Listen(address.clone(), source))?;
        let is_open = |bound: SocketAddr| !is_loopback(bound.ip());
        if listener.as_ref().and_then(|it| it.local_addr().ok()).is_some_and(is_open) {
            tracing::warn!(
                metrics_bind_address = %address,
                "{NOT_HERE}; 127.0.0.1 as the host of --metrics-bind-address ends this warning"
            );
        }
        let beat = Arc::new(Mutex::new(Instant::now()));
        let moves = Arc::clone(&beat);
        let live = live.with("runtime", move || moves_still(moves.lock().elapsed()));
        let pages = Arc::new(Pages { live, ready, registry, figures: Mutex::default() });
        let (probes, scrapers, connections_max) = (None, None, CONNECTIONS_MAX);
        Ok(Self { listener, probes, scrapers, pages, connections_max, beat })
    }

    /// Sets the maximum of open connections; one more closes the oldest.
    #[must_use]
    pub fn connections(self, connections_max: usize) -> Self {
        Self { connections_max, ..self }
    }

    /// Also serves `/livez` and `/readyz` at a port that has no metrics, for kubelets.
    pub async fn probed(self, address: &BindAddress) -> Result<Self, AdminError> {
        let listened = listen(address).await;
        let probes =
            listened.map_err(|source| AdminError::ListenForProbes(address.clone(), source))?;
        Ok(Self { probes, ..self })
    }

    /// Also serves `/metrics` over the network: by HTTPS, to bearers that the API server allows.
    pub async fn scraped(
        self,
        address: &BindAddress,
        certificate: &Certificate,
        client: Client,
    ) -> Result<Self, AdminError> {
        let listened = listen(address).await;
        let listened =
            listened.map_err(|source| AdminError::ListenForScrapers(address.clone(), source))?;
        let Some(listener) = listened else { return Ok(self) };
        let router = scrape::router(client, get(metrics).with_state(Arc::clone(&self.pages)));
        let scrapers = Some((listener, router, certificate.acceptor()?));
        Ok(Self { scrapers, ..self })
    }

    /// The bound address for scrapers, if any.
    pub fn scrape_addr(&self) -> Option<SocketAddr> {
        self.scrapers.as_ref()?.0.local_addr().ok()
    }

    /// The bound address for probes, if any.
    pub fn probe_addr(&self) -> Option<SocketAddr> {
        self.probes.as_ref()?.local_addr().ok()
    }

    /// The bound address, if any.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr().ok()
    }

    /// Answers until `token` is cancelled.
    pub async fn serve(self, token: CancellationToken) -> Result<(), AdminError> {
        let max = self.connections_max;
        let probes = probes(Arc::clone(&self.pages));
        let far = probes.clone().route("/metrics", get(no_metrics));
        let near = probes.clone().route("/metrics", get(metrics).with_state(self.pages));
        let door = |listener, near, far| Door { listener, near, far, tls: None, max };
        let local = self.listener.map(|listener| door(listener, near, far));
        let probes = self.probes.map(|listener| door(listener, probes.clone(), probes));
        let scrapers = self.scrapers.map(|(listener, router, tls)| Door {
            tls: Some(tls),
            ..door(listener, router.clone(), router)
        });
        let serving = async {
            let each = |door| connections::serve(door, token.clone());
            tokio::try_join!(each(local), each(probes), each(scrapers)).map(|_| ())
        };
        let mut serving = std::pin::pin!(serving);
        loop {
            tokio::select! {
                ended = &mut serving => return ended.map_err(AdminError::Serve),
                // The beat runs here and not on the connections' thread: it shows that the
                // program's runtime moves.
                () = tokio::time::sleep(BEAT) => *self.beat.lock() = Instant::now(),
            }
        }
    }
}

/// The pages that anyone may read.
fn probes(pages: Arc<Pages>) -> Router {
    Router::new().route("/livez", get(livez)).route("/readyz", get(readyz)).with_state(pages)
}

/// Whether a client with this address is in the server's own network namespace.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn moves_still(stands_for: Duration) -> Result<(), String> {
    if stands_for <= STANDSTILL_MAX {
        return Ok(());
    }
    Err(format!("nothing has moved for {} s: the process must be restarted", stands_for.as_secs()))
}

async fn listen(address: &BindAddress) -> io::Result<Option<TcpListener>> {
    let listener = match address {
        BindAddress::Off => return Ok(None),
        BindAddress::Host(host, port) => TcpListener::bind(format!("{host}:{port}")).await?,
        BindAddress::Any(port) => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
            // A port in use is final; any other error may come from a machine without IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).await?
            }
            listened => listened?,
        },
    };
    Ok(Some(listener))
}

async fn livez(State(pages): State<Arc<Pages>>, uri: Uri) -> Response {
    health(&pages.live, "livez", &uri)
}

async fn readyz(State(pages): State<Arc<Pages>>, uri: Uri) -> Response {
    health(&pages.ready, "readyz", &uri)
}

fn health(checks: &Checks, endpoint: &str, uri: &Uri) -> Response {
    let query = uri.query().unwrap_or_default();
    let verbose = query.split('&').any(|pair| pair == "verbose" || pair.starts_with("verbose="));
    let health = checks.run();
    let status = if health.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, health.page(endpoint, verbose)).into_response()
}

async fn metrics(State(pages): State<Arc<Pages>>) -> Response {
    match pages.figures() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// A 403 would look like a missing right to clients behind the API server's proxy.
async fn no_metrics() -> Response {
    (StatusCode::NOT_FOUND, format!("{NOT_HERE}\n")).into_response()
}

impl Pages {
    fn figures(&self) -> Result<Bytes, prometheus::Error> {
        let mut last = self.figures.lock();
        if let Some((at, text)) = &*last
            && at.elapsed() < FIGURES_LAST
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(TextEncoder::new().encode_to_string(&self.registry.gather())?);
        *last = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn addresses_are_read_as_the_go_programs_read_them() {
        let host = |host: &str, port| BindAddress::Host(host.to_owned(), port);
        let table = [
            ("0", BindAddress::Off),
            (":8080", BindAddress::Any(8080)),
            (":0", BindAddress::Any(0)),
            ("0.0.0.0:8080", host("0.0.0.0", 8080)),
            ("127.0.0.1:0", host("127.0.0.1", 0)),
            ("[::1]:9090", host("[::1]", 9090)),
            ("localhost:9090", host("localhost", 9090)),
        ];
        for (text, address) in table {
            assert_eq!(text.parse::<BindAddress>().ok().as_ref(), Some(&address), "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_remedy() {
        for bad in ["", "8080", "http://:8080", ":http", ":70000", "::1:8080", "[::1:8080", "a b:1"]
        {
            let error = bad.parse::<BindAddress>().expect_err(bad).to_string();
            assert!(error.contains(":PORT") && error.contains("0 to switch"), "{error}");
        }
    }

    #[test]
    fn a_runtime_that_stands_still_is_not_alive() {
        assert_eq!(moves_still(STANDSTILL_MAX), Ok(()));
        let error = moves_still(Duration::from_secs(61)).expect_err("must fail");
        assert!(error.contains("61 s"), "{error}");
    }

    #[test]
    fn only_the_loopback_is_near() {
        let near = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"];
        let far = ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1", "2001:db8::1"];
        let is_near = |text: &&str| is_loopback(text.parse().expect("an address"));
        assert!(near.iter().all(is_near) && !far.iter().any(is_near));
    }

    #[tokio::test]
    async fn a_taken_port_names_the_flag_and_the_remedy() {
        let first = TcpListener::bind("127.0.0.1:0").await.expect("must listen");
        let port = first.local_addr().expect("must have an address").port();
        let address = BindAddress::Host("127.0.0.1".to_owned(), port);
        let bound = Admin::bind(&address, Checks::new(), Checks::new(), Registry::new()).await;
        let error = bound.expect_err("must be taken");
        assert!(error.to_string().contains("--metrics-bind-address"), "{error}");
        assert!(error.source().is_some());
        let off = Admin::bind(&BindAddress::Off, Checks::new(), Checks::new(), Registry::new());
        let error = off.await.expect("no port").probed(&address).await.expect_err("must be taken");
        assert!(error.to_string().contains("--health-probe-bind-address"), "{error}");
    }
}
