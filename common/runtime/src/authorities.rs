//! Trusts the certificate authorities of a file, which may change while the program runs: when a
//! cluster's authority is rotated, the kubelet renews the file in each pod.

use std::path::PathBuf;
use std::sync::Arc;

use kube::config::Kubeconfig;
use kube::{Config, Error};
use parking_lot::Mutex;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

/// Where a pod has the authorities of its cluster.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// The file in which a pod's service account has the authorities.
pub(crate) fn in_pod() -> PathBuf {
    IN_POD.into()
}

/// The file that the current context of a kubeconfig names, if it names one.
pub(crate) fn of(kubeconfig: &Kubeconfig) -> Option<PathBuf> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|it| it.name == *current)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|it| it.name == context.cluster)?;
    cluster.cluster.as_ref()?.certificate_authority.as_ref().map(PathBuf::from)
}

/// Lets a TLS configuration trust what the file holds by then. Where the server's certificate need
/// not be verified, or the system's authorities count, nothing changes.
pub(crate) fn follow(tls: &mut ClientConfig, config: &Config, file: PathBuf) -> Result<(), Error> {
    let Some(roots) = config.root_cert.as_ref().filter(|_| !config.accept_invalid_certs) else {
        return Ok(());
    };
    let provider = Arc::clone(tls.crypto_provider());
    let roots = roots.iter().map(|root| CertificateDer::from(root.as_slice()));
    let verifier = verifier_of(roots, &provider).map_err(|error| Error::Service(error.into()))?;
    let trusted = Mutex::new(Trusted { pem: std::fs::read(&file).unwrap_or_default(), verifier });
    tls.dangerous().set_certificate_verifier(Arc::new(Authorities { file, provider, trusted }));
    Ok(())
}

/// The authorities of a file.
#[derive(Debug)]
struct Authorities {
    file: PathBuf,
    provider: Arc<CryptoProvider>,
    trusted: Mutex<Trusted>,
}

/// What is trusted now.
#[derive(Debug)]
struct Trusted {
    /// The file's content.
    pem: Vec<u8>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl Authorities {
    fn verifier(&self) -> Arc<WebPkiServerVerifier> {
        Arc::clone(&self.trusted.lock().verifier)
    }

    /// Reads the file again. `None` if it is as it was, or holds no authority.
    fn renewed(&self) -> Option<Arc<WebPkiServerVerifier>> {
        let path = self.file.display();
        let read = std::fs::read(&self.file);
        let pem = read.inspect_err(|error| tracing::warn!(%path, %error, "cannot be read")).ok()?;
        let mut trusted = self.trusted.lock();
        if trusted.pem == pem {
            return None;
        }
        let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let verifier = roots.map_err(|error| error.to_string());
        match verifier.and_then(|roots| verifier_of(roots, &self.provider)) {
            Ok(verifier) => {
                tracing::info!(%path, "the certificate authorities were read again");
                *trusted = Trusted { pem, verifier: Arc::clone(&verifier) };
                Some(verifier)
            }
            Err(error) => {
                tracing::warn!(%path, error, "no certificate authorities; the former ones stay");
                None
            }
        }
    }
}

impl ServerCertVerifier for Authorities {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let verify = |verifier: &WebPkiServerVerifier| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        verify(&self.verifier())
            .or_else(|error| self.renewed().map_or(Err(error), |verifier| verify(&verifier)))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.verifier().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.verifier().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

/// A verifier that trusts these authorities.
fn verifier_of<'a>(
    roots: impl IntoIterator<Item = CertificateDer<'a>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    let builder = WebPkiServerVerifier::builder_with_provider(store.into(), Arc::clone(provider));
    builder.build().map_err(|error| error.to_string())
}
