//! Asks the kubelet's main port over TLS, and shows the token to the kubelet alone: where its
//! certificates can be read in its directory, the port must show one of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
};

use crate::host::Host;
use crate::ports::Socket;

/// Below the kubelet's directory: the certificate that the cluster signed, and the one that the
/// kubelet signed itself. The files may hold keys, too; those are not read.
const FILES: [&str; 2] = ["pki/kubelet-server-current.pem", "pki/kubelet.crt"];

/// The certificates in the kubelet's directory; empty where none can be read.
pub(super) fn certificates(host: &Host, directory: &str) -> Vec<CertificateDer<'static>> {
    let read = |file: &&str| std::fs::read(host.path(&format!("{directory}/{file}"))).ok();
    let texts = FILES.iter().filter_map(read);
    texts
        .flat_map(|text| CertificateDer::pem_slice_iter(&text).flatten().collect::<Vec<_>>())
        .collect()
}

/// The connection behind TLS. Without certificates, any is taken.
pub(super) async fn secure(
    stream: Box<dyn Socket>,
    address: SocketAddr,
    certificates: Vec<CertificateDer<'static>>,
) -> io::Result<impl Socket> {
    let provider = Arc::new(ring::default_provider());
    let pinned = Pinned { certificates, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Takes one of these certificates, whatever name it has and however old it is: the kubelet
/// renews its files itself.
#[derive(Debug)]
struct Pinned {
    certificates: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_known = |known: &CertificateDer<'_>| known.as_ref() == shown.as_ref();
        if self.certificates.is_empty() || self.certificates.iter().any(is_known) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
