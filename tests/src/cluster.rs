//! Access to a running cluster, ours or a foreign one: clients by identity. Starts nothing.

use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};

use crate::error::LabError;
use crate::kubeconfig;
use crate::pki::Authority;

/// Names the kubeconfig of the cluster to test against, set by `cargo lab test` or by hand.
pub const KUBECONFIG_ENV: &str = "EPILOGUE_LAB_KUBECONFIG";
/// Names the state directory of the lab behind it; absent for a foreign cluster.
pub const DIR_ENV: &str = "EPILOGUE_LAB_DIR";

/// Longer than any test or soak; the lab ends first.
const TOKEN_LIFETIME_SECONDS: i64 = 12 * 3600;

/// A running cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubeconfig: PathBuf,
    lab_dir: Option<PathBuf>,
}

impl Cluster {
    /// The cluster of an administrator's kubeconfig, and the state directory if it is a lab's.
    pub fn new(kubeconfig: impl Into<PathBuf>, lab_dir: Option<PathBuf>) -> Self {
        Self { kubeconfig: kubeconfig.into(), lab_dir }
    }

    /// The cluster that `cargo lab test` started for all suites of tier 3.
    ///
    /// Fails if no cluster is given: a suite that skipped itself silently would look like one that
    /// passed. The message names `suite`.
    pub fn of_tests(suite: &str) -> Result<Self, LabError> {
        let kubeconfig = std::env::var_os(KUBECONFIG_ENV)
            .ok_or_else(|| LabError::NoControlPlane { suite: suite.to_owned() })?;
        Ok(Self::new(kubeconfig, std::env::var_os(DIR_ENV).map(PathBuf::from)))
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The state directory of the lab behind it; none for a foreign cluster.
    pub fn lab_dir(&self) -> Option<&Path> {
        self.lab_dir.as_deref()
    }

    /// Directory for the files of a test's programs. It is in the lab's own directory, which other
    /// labs leave alone while it runs and its logs are worth keeping.
    pub fn files(&self, name: &str) -> PathBuf {
        let foreign = || std::env::temp_dir().join(format!("epilogue-lab-{}", std::process::id()));
        self.lab_dir.clone().unwrap_or_else(foreign).join("programs").join(name)
    }

    /// A client that may do everything (`system:masters`).
    pub async fn admin_client(&self) -> Result<kube::Client, LabError> {
        kubeconfig::client(kubeconfig::read(&self.kubeconfig)?, &self.kubeconfig).await
    }

    /// A token of an existing service account, by TokenRequest.
    pub async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<String, LabError> {
        self.bound_token(namespace, name, None).await
    }

    /// The same, bound to a Pod that runs under the account, or to a Node. It names the node, and
    /// becomes invalid with the object.
    pub async fn bound_token(
        &self,
        namespace: &str,
        name: &str,
        bound_to: Option<BoundObjectReference>,
    ) -> Result<String, LabError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin_client().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_LIFETIME_SECONDS),
                bound_object_ref: bound_to,
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .map_err(LabError::api(format!("request a token of {namespace}/{name}")))?;
        let token = answer.status.and_then(|status| status.token);
        Ok(token.expect("a TokenRequest's answer must hold a token"))
    }

    /// A client with the rights of the service account `namespace`/`name` and nothing more.
    pub async fn service_account_client(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<kube::Client, LabError> {
        self.token_client(&self.service_account_token(namespace, name).await?).await
    }

    /// A client with this token and nothing more.
    pub async fn token_client(&self, token: &str) -> Result<kube::Client, LabError> {
        let kubeconfig = kubeconfig::with_token(kubeconfig::read(&self.kubeconfig)?, token);
        kubeconfig::client(kubeconfig, &self.kubeconfig).await
    }

    /// Writes a kubeconfig of that service account to `path`, for a program of ours.
    pub async fn write_service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        path: &Path,
    ) -> Result<(), LabError> {
        let token = self.service_account_token(namespace, name).await?;
        let kubeconfig = kubeconfig::with_token(kubeconfig::read(&self.kubeconfig)?, &token);
        kubeconfig::write(path, &kubeconfig)
    }

    /// Writes a kubeconfig of the kubelet of `node` to `path`. Only a lab of ours can do so.
    pub fn write_node_kubeconfig(&self, node: &str, path: &Path) -> Result<(), LabError> {
        crate::pki::write_secret(path, &self.node_kubeconfig(node)?)
    }

    /// A client with the identity of the kubelet of `node`. Only a lab of ours can do so.
    pub async fn node_client(&self, node: &str) -> Result<kube::Client, LabError> {
        let text = self.node_kubeconfig(node)?;
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&text).map_err(|source| {
            LabError::Kubeconfig { path: self.kubeconfig.clone(), source: source.into() }
        })?;
        kubeconfig::client(kubeconfig, &self.kubeconfig).await
    }

    fn node_kubeconfig(&self, node: &str) -> Result<String, LabError> {
        let lab_dir = self.lab_dir.as_deref().ok_or(LabError::ForeignCluster)?;
        let authority = Authority::open(&lab_dir.join("pki"))?;
        let admin = kubeconfig::read(&self.kubeconfig)?;
        let server = admin
            .clusters
            .into_iter()
            .find_map(|named| named.cluster?.server)
            .expect("a lab's kubeconfig must name its server");
        Ok(kubeconfig::render(&server, authority.certificate(), &authority.node(node)?))
    }
}
