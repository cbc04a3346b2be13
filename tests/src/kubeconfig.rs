//! Writes kubeconfigs for an identity of the lab, or derives them from an existing one.

use std::path::Path;

use k8s_openapi::ByteString;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::error::LabError;
use crate::pki::{self, Identity};

/// A self-contained kubeconfig, so that it can be copied into a virtual machine.
pub fn render(server: &str, authority: &str, identity: &Identity) -> String {
    let bytes = |pem: &str| ByteString(pem.as_bytes().to_vec());
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {
            "server": server,
            "certificate-authority-data": bytes(authority),
        }}],
        "users": [{"name": "lab", "user": {
            "client-certificate-data": bytes(&identity.certificate),
            "client-key-data": bytes(&identity.key),
        }}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    });
    serde_yaml_ng::to_string(&document).expect("plain strings must be YAML")
}

/// The kubeconfig at `path`.
pub fn read(path: &Path) -> Result<Kubeconfig, LabError> {
    Kubeconfig::read_from(path)
        .map_err(|source| LabError::Kubeconfig { path: path.to_owned(), source: source.into() })
}

/// The same cluster with a bearer token in place of any identity.
pub fn with_token(mut kubeconfig: Kubeconfig, token: &str) -> Kubeconfig {
    let auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(auth_info.clone());
    }
    kubeconfig
}

/// The same cluster, with the bearer token that a file holds by then in place of any identity.
pub fn with_token_file(mut kubeconfig: Kubeconfig, path: &Path) -> Kubeconfig {
    let token_file = Some(path.display().to_string());
    let auth_info = AuthInfo { token_file, ..AuthInfo::default() };
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(auth_info.clone());
    }
    kubeconfig
}

/// The same, where the API has this address.
pub fn at(mut kubeconfig: Kubeconfig, server: &str) -> Kubeconfig {
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.server = Some(server.to_owned());
    }
    kubeconfig
}

/// The same, with the authorities that a file holds by then.
pub fn with_authority_file(mut kubeconfig: Kubeconfig, path: &Path) -> Kubeconfig {
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.certificate_authority_data = None;
        cluster.certificate_authority = Some(path.display().to_string());
    }
    kubeconfig
}

/// The same cluster without an identity, for proxies that pass on the identity of their callers.
pub fn without_identity(mut kubeconfig: Kubeconfig) -> Kubeconfig {
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(AuthInfo::default());
    }
    kubeconfig
}

/// Writes it so that only its owner may read it.
pub fn write(path: &Path, kubeconfig: &Kubeconfig) -> Result<(), LabError> {
    let text = serde_yaml_ng::to_string(kubeconfig).map_err(|source| LabError::Document {
        what: path.display().to_string(),
        source: source.into(),
    })?;
    pki::write_secret(path, &text)
}

/// A client for a kubeconfig. Only errors use `path`.
pub async fn client(kubeconfig: Kubeconfig, path: &Path) -> Result<kube::Client, LabError> {
    client_with(kubeconfig, path, true).await
}

/// The same, but it returns the API's 429, 503 and 504 instead of trying again.
pub async fn client_without_retries(
    kubeconfig: Kubeconfig,
    path: &Path,
) -> Result<kube::Client, LabError> {
    client_with(kubeconfig, path, false).await
}

async fn client_with(
    kubeconfig: Kubeconfig,
    path: &Path,
    retries: bool,
) -> Result<kube::Client, LabError> {
    let failed = |source| LabError::Kubeconfig { path: path.to_owned(), source };
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|source| failed(source.into()))?;
    config.default_retry = retries;
    kube::Client::try_from(config).map_err(|source| failed(source.into()))
}
