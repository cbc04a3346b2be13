//! Serves `/metrics` over the network by HTTPS, for bearers that the API server knows and allows.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use kube::Client;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::review::{Reviewer, Verdict};

/// The source of the certificate.
#[derive(Clone, Debug)]
pub enum Certificate {
    /// Self-signed at the start: traffic is encrypted, but the server is not authenticated.
    SelfSigned,
    /// `tls.crt` and `tls.key` in this directory. Both are read for each connection, so that a
    /// rotated certificate needs no restart.
    Directory(PathBuf),
}

/// Why a certificate is not usable.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file is not readable, or not PEM.
    #[error("cannot read the {what} in {path}: {why}; it must be PEM, in tls.crt and tls.key")]
    Read {
        /// `certificate` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reader's error.
        why: String,
    },
    /// Certificate and key do not match, or their type is unknown.
    #[error("the certificate cannot be served: {0}")]
    Use(String),
}

impl Certificate {
    /// Builds an acceptor, and fails if the certificate is not usable now.
    pub(super) fn acceptor(&self) -> Result<Acceptor, CertificateError> {
        let made = match self {
            Self::SelfSigned => Some(tls(vec![], None)?),
            Self::Directory(_) => None,
        };
        let acceptor = Acceptor { certificate: self.clone(), made };
        acceptor.current()?;
        Ok(acceptor)
    }
}

/// Accepts TLS connections with the current certificate.
pub(super) struct Acceptor {
    certificate: Certificate,
    made: Option<TlsAcceptor>,
}

impl Acceptor {
    pub(super) fn current(&self) -> Result<TlsAcceptor, CertificateError> {
        match (&self.made, &self.certificate) {
            (Some(made), _) => Ok(made.clone()),
            (None, Certificate::Directory(directory)) => {
                let read = |what, path: PathBuf, why: &dyn std::fmt::Display| {
                    CertificateError::Read { what, path, why: why.to_string() }
                };
                let path = directory.join("tls.crt");
                let chain = CertificateDer::pem_file_iter(&path)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .map_err(|error| read("certificate", path, &error))?;
                let path = directory.join("tls.key");
                let key = PrivateKeyDer::from_pem_file(&path)
                    .map_err(|error| read("key", path, &error))?;
                tls(chain, Some(key))
            }
            (None, Certificate::SelfSigned) => tls(vec![], None),
        }
    }
}

/// Builds an acceptor; without a key it makes a self-signed certificate.
fn tls(
    chain: Vec<CertificateDer<'static>>,
    key: Option<PrivateKeyDer<'static>>,
) -> Result<TlsAcceptor, CertificateError> {
    let unusable = |error: &dyn std::fmt::Display| CertificateError::Use(error.to_string());
    let (chain, key) = if let Some(key) = key {
        (chain, key)
    } else {
        let made = rcgen::generate_simple_self_signed(["epilogue".to_owned()])
            .map_err(|error| unusable(&error))?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        (vec![made.cert.der().clone()], key.into())
    };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|it| it.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable(&error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Routes `/metrics` behind the review of the bearer.
pub(super) fn router(client: Client, metrics: MethodRouter) -> Router {
    let reviewer = Arc::new(Reviewer::new(client));
    Router::new().route("/metrics", metrics).layer(from_fn_with_state(reviewer, reviewed))
}

async fn reviewed(State(reviewer): State<Arc<Reviewer>>, request: Request, next: Next) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION);
    let authorization = authorization.and_then(|it| it.to_str().ok()).map(str::to_owned);
    match reviewer.review(authorization.as_deref()).await {
        Verdict::Allowed => next.run(request).await,
        Verdict::Unauthenticated => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
            "give a bearer token that the API server knows\n",
        )
            .into_response(),
        Verdict::Forbidden => (
            StatusCode::FORBIDDEN,
            "the bearer needs the verb get on the nonResourceURL /metrics\n",
        )
            .into_response(),
        Verdict::Unknown => {
            (StatusCode::SERVICE_UNAVAILABLE, "the API server cannot say who asks; try again\n")
                .into_response()
        }
    }
}
