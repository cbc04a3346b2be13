//! The lab's certificate authority and the identities that it signs. It knows only its own two file
//! names; `kubeconfig` makes kubeconfigs.

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::error::LabError;

/// Names of the API server: this machine, the in-cluster service (by name and by the first address
/// of the service range), and this machine as a QEMU guest sees it.
pub const API_SERVER_NAMES: [&str; 6] = [
    "127.0.0.1",
    "localhost",
    "kubernetes.default",
    "kubernetes.default.svc",
    "10.0.2.2",
    "10.96.0.1",
];

/// A certificate with its key, both PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The key, PKCS#8.
    pub key: String,
}

/// The certificate authority that every server and client of one lab trusts.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Creates a new one and stores it as `ca.crt` and `ca.key` in `dir`.
    pub fn create(dir: &Path) -> Result<Self, LabError> {
        let key = KeyPair::generate()?;
        let certificate = authority_params().self_signed(&key)?.pem();
        write_secret(&dir.join("ca.key"), &key.serialize_pem())?;
        write_secret(&dir.join("ca.crt"), &certificate)?;
        Ok(Self { issuer: Issuer::new(authority_params(), key), certificate })
    }

    /// Opens the one that [`Authority::create`] stored in `dir`.
    pub fn open(dir: &Path) -> Result<Self, LabError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).map_err(LabError::file("read", path))
        };
        let key = KeyPair::from_pem(&read("ca.key")?)?;
        let certificate = read("ca.crt")?;
        Ok(Self { issuer: Issuer::new(authority_params(), key), certificate })
    }

    /// The authority's own certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// An identity for the API server.
    pub fn api_server(&self) -> Result<Identity, LabError> {
        let mut params = CertificateParams::new(API_SERVER_NAMES.map(String::from))?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// An identity for another server, by its name.
    pub fn server(&self, name: &str) -> Result<Identity, LabError> {
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "webhooks");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// An identity for a client: the API takes `user` and `group` from the certificate's CN and O.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, LabError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The identity of the kubelet of node `name`, as the Node authorizer knows it.
    pub fn node(&self, name: &str) -> Result<Identity, LabError> {
        self.client(&format!("system:node:{name}"), Some("system:nodes"))
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, LabError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

/// The same each time, so that an opened authority signs under the name in its certificate.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "epilogue-lab");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

/// A fresh key pair for service-account tokens (ECDSA P-256): private and public part, PEM.
pub fn service_account_key() -> Result<(String, String), LabError> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Writes a file that only its owner may read.
pub fn write_secret(path: &Path, content: &str) -> Result<(), LabError> {
    use std::io::Write as _;
    std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .map_err(LabError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opened_authority_is_the_one_that_was_created() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let created = Authority::create(dir.path()).expect("create");
        let opened = Authority::open(dir.path()).expect("open");
        assert_eq!(created.certificate(), opened.certificate());
        let node = opened.node("n1").expect("issue");
        assert!(node.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(node.key.starts_with("-----BEGIN PRIVATE KEY-----"));
    }
}
