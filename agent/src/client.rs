//! Makes the API's clients: one to read, one for the writes of a shutdown. Each has its own
//! connection, so that no list and no event delays a write. Never limits a request, and repeats
//! only one whose token was replaced: the core decides the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use epilogue_runtime::token_file::TokenFile;
use http::{HeaderMap, Response, header};
use hyper::body::Incoming;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use kube::Client;
use kube::client::ConfigExt as _;
use thiserror::Error;
use tower::{BoxError, ServiceBuilder};

use crate::link::{ConnectError, Link, Target, Took};

/// The reply's time is too old if the reply took longer than this.
const FRESH_MAX: Duration = Duration::from_millis(400);

/// Called with the API server's clock whenever a reply carries it.
pub type OnServerTime = Arc<dyn Fn(Timestamp) + Send + Sync>;

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The configuration names no server that the agent can connect to.
    #[error("cannot make a connection to the API")]
    Target(#[source] ConnectError),
    /// The configuration's credentials or headers are unusable.
    #[error("cannot use the credentials for the API")]
    Credentials(#[source] kube::Error),
}

/// A client and its standing connection.
#[derive(Clone)]
pub struct LinkedClient {
    /// The client that sends requests.
    pub client: Client,
    link: Link,
}

impl LinkedClient {
    /// Makes a client that has a connection as soon as `keep` runs. The authorities may be in a
    /// file that changes.
    pub fn new(
        config: &kube::Config,
        authorities: Option<PathBuf>,
        on_time: OnServerTime,
    ) -> Result<Self, ClientError> {
        let target = Target::new(config, authorities).map_err(ClientError::Target)?;
        let link = Link::new(target);
        let token = TokenFile::of(config).map_err(ClientError::Credentials)?;
        let auth = if token.is_none() { config.auth_layer() } else { Ok(None) };
        let auth = auth.map_err(ClientError::Credentials)?;
        let headers = config.extra_headers_layer().map_err(ClientError::Credentials)?;
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(token)
            .option_layer(auth)
            .layer(headers)
            .map_response(move |reply: Response<Incoming>| {
                let took = reply.extensions().get::<Took>();
                let fresh = took.is_some_and(|took| took.0 <= FRESH_MAX);
                if let Some(time) = server_time(reply.headers()).filter(|_| fresh) {
                    on_time(time);
                }
                reply
            })
            .map_err(BoxError::from)
            .service(link.clone());
        Ok(Self { client: Client::new(service, &config.default_namespace), link })
    }

    /// Keeps the connection open for as long as it runs.
    pub async fn keep(self) {
        self.link.keep().await;
    }
}

/// The server's clock from its reply, to the second.
fn server_time(headers: &HeaderMap) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new();
    let text = headers.get(header::DATE)?.to_str().ok()?;
    PARSER.parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_server_s_clock_is_read_from_its_replies() {
        let mut headers = HeaderMap::new();
        assert_eq!(server_time(&headers), None);
        headers.insert(header::DATE, HeaderValue::from_static("Sat, 21 Nov 2026 16:58:38 GMT"));
        let expected = "2026-11-21T16:58:38Z".parse().expect("must be a time");
        assert_eq!(server_time(&headers), Some(expected));
        headers.insert(header::DATE, HeaderValue::from_static("yesterday"));
        assert_eq!(server_time(&headers), None);
    }
}
