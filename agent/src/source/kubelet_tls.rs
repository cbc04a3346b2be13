//! Asks the kubelet's main port over TLS, and shows the token to the kubelet alone: the port must
//! show a certificate of the kubelet's directory, or one that the cluster signed for this node.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::kubelet::Access;
use crate::host::Host;
use crate::ports::Socket;

/// Below the kubelet's directory: the certificate that the cluster signed, and the one that the
/// kubelet signed itself. The files may hold keys, too; those are not read.
const FILES: [&str; 2] = ["pki/kubelet-server-current.pem", "pki/kubelet.crt"];

/// By what the kubelet's certificate is known.
#[derive(Debug)]
pub(super) struct Known {
    /// The certificates in its directory, as far as they can be read.
    pinned: Vec<CertificateDer<'static>>,
    /// What verifies one that the cluster's authorities signed, and the name of this node.
    signed: Option<(Arc<WebPkiServerVerifier>, ServerName<'static>)>,
    provider: Arc<CryptoProvider>,
}

impl Known {
    /// What is known of the kubelet whose directory this is.
    pub(super) fn of(host: &Host, directory: &str, access: &Access) -> Self {
        let read = |file: &&str| std::fs::read(host.path(&format!("{directory}/{file}"))).ok();
        let pinned = FILES
            .iter()
            .filter_map(read)
            .flat_map(|text| CertificateDer::pem_slice_iter(&text).flatten().collect::<Vec<_>>());
        let provider = Arc::new(ring::default_provider());
        let signed = signed(access, &provider);
        Self { pinned: pinned.collect(), signed, provider }
    }
}

/// What verifies a certificate of the cluster, if its authorities are known.
fn signed(
    access: &Access,
    provider: &Arc<CryptoProvider>,
) -> Option<(Arc<WebPkiServerVerifier>, ServerName<'static>)> {
    let mut roots = RootCertStore::empty();
    let authorities = access.authorities.iter().map(|der| CertificateDer::from(der.as_slice()));
    roots.add_parsable_certificates(authorities);
    let name = ServerName::try_from(access.node.clone()).ok()?;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Some((verifier.build().ok()?, name))
}

/// The connection behind TLS, to a port whose certificate is known.
pub(super) async fn secure(
    stream: Box<dyn Socket>,
    address: SocketAddr,
    known: Known,
) -> io::Result<impl Socket> {
    let config = ClientConfig::builder_with_provider(Arc::clone(&known.provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(known))
        .with_no_client_auth();
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

impl ServerCertVerifier for Known {
    /// Takes one of the directory's certificates, whatever name it has and however old it is: the
    /// kubelet renews its files itself. Takes another one if the cluster signed it for this node.
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pinned.iter().any(|known| known.as_ref() == shown.as_ref()) {
            return Ok(ServerCertVerified::assertion());
        }
        let Some((verifier, node)) = &self.signed else {
            return Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ));
        };
        verifier.verify_server_cert(shown, intermediates, node, ocsp, now)
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
