//! A small server of HTTP: one request on each connection, in the clear or behind a certificate
//! that no authority has signed.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedKey, IsCa, Issuer, KeyPair,
    generate_simple_self_signed,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// Takes connections with a new certificate for this name. Returns it as PEM, too.
pub fn self_signed(name: &str) -> (TlsAcceptor, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([name.to_owned()]).expect("must be signable");
    (acceptor(&cert, &signing_key), cert.pem())
}

/// TLS with a certificate for this name that an authority has signed; and the authority, in DER.
pub fn signed(name: &str) -> (TlsAcceptor, Vec<u8>) {
    let mut authority = CertificateParams::new(Vec::new()).expect("no names must do");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (root, key) = (KeyPair::generate(), KeyPair::generate());
    let (root, key) = (root.expect("must be possible"), key.expect("must be possible"));
    let of_authority = authority.self_signed(&root).expect("must be signable").der().to_vec();
    let issuer = Issuer::new(authority, root);
    let wanted = CertificateParams::new([name.to_owned()]).expect("must be a name");
    let cert = wanted.signed_by(&key, &issuer).expect("must be signable");
    (acceptor(&cert, &key), of_authority)
}

fn acceptor(cert: &Certificate, key: &KeyPair) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("must be a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the default versions must do")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("the certificate must go with its key");
    TlsAcceptor::from(Arc::new(config))
}

/// Serves a connection: calls this with the request, headers included, and sends what it returns.
/// An error of the client is ignored.
pub async fn serve<S>(mut stream: S, answer: impl FnOnce(String) -> String)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let answer = answer(String::from_utf8_lossy(&request).into_owned());
    drop(stream.write_all(answer.as_bytes()).await);
    drop(stream.shutdown().await);
}

/// An answer of HTTP.
pub fn answer(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}
