//! Runs a controller of another project next to ours, on loopback: the program, its objects and its
//! rights are those of its Go module. Nothing of it is in this repository.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::control_plane::Reserved;
use crate::error::LabError;
use crate::eventually::eventually;
use crate::pki::{Authority, write_secret};
use crate::process::{Process, Program};
use crate::{go_module, install, kustomize};

/// The kustomization of an installation, in the module.
const INSTALLATION: &str = "config/default";
/// The laboratory runs the program itself, and no server answers for an APIService.
const LEFT_OUT: [&str; 2] = ["Deployment", "APIService"];
/// Making keys takes a moment on a busy machine.
const CERTIFIED_WITHIN: Duration = Duration::from_mins(1);

/// A controller of another project.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    /// Its name: the directory of its `go.mod` below `tests`, and the prefix of its objects.
    pub name: &'static str,
    /// The Go module that has its manifests.
    pub module: &'static str,
    /// Its program.
    pub package: &'static str,
    /// Whether it makes the certificate of its webhooks; else the laboratory does.
    pub certifies: bool,
}

impl Neighbour {
    /// The namespace of its installation.
    pub fn namespace(&self) -> String {
        format!("{}-system", self.name)
    }

    /// The directory of its Go module.
    pub async fn directory(&self) -> Result<PathBuf, LabError> {
        go_module::directory(self.name, self.module).await
    }

    /// Installs it, and starts it with this configuration and the rights of its account. Its
    /// webhooks may refuse requests for a moment.
    pub async fn start(
        &self,
        cluster: &Cluster,
        configuration: &Value,
    ) -> Result<Process, LabError> {
        let program = go_module::program(self.name, self.package).await?;
        let dir = cluster.files(self.name);
        let certificates = dir.join("certificates");
        std::fs::create_dir_all(&certificates).map_err(LabError::file("create", &certificates))?;
        let reserved = Reserved::any()?;
        let port = reserved.port();
        let authority = self.certify(cluster, &certificates)?;
        self.install(cluster, port, authority.as_deref()).await?;
        let kubeconfig = dir.join("kubeconfig");
        let account = format!("{}-controller-manager", self.name);
        let namespace = self.namespace();
        cluster.write_service_account_kubeconfig(&namespace, &account, &kubeconfig).await?;
        let mut configuration = configuration.clone();
        configuration["webhook"] = json!({"host": Ipv4Addr::LOCALHOST.to_string(), "port": port,
                                          "certDir": certificates});
        let path = dir.join("configuration.yaml");
        // YAML takes all of JSON.
        write_secret(&path, &configuration.to_string())?;
        let arguments = [format!("--config={}", path.display())];
        let log = dir.join("log");
        let program =
            Program::new(self.name, &program, arguments, &log).env("KUBECONFIG", kubeconfig);
        drop(reserved);
        let process = Process::spawn_program(&program)?;
        if self.certifies {
            self.mount_certificate(cluster, &certificates).await?;
        }
        Ok(process)
    }

    /// The name of its webhooks, as the API server knows them.
    fn server_name(&self) -> String {
        format!("{}-webhook-service.{}.svc", self.name, self.namespace())
    }

    /// Writes a certificate of the lab's authority. Returns that of the authority.
    fn certify(&self, cluster: &Cluster, dir: &Path) -> Result<Option<String>, LabError> {
        if self.certifies {
            return Ok(None);
        }
        let lab = cluster.lab_dir().ok_or(LabError::ForeignCluster)?;
        let authority = Authority::open(&lab.join("pki"))?;
        let identity = authority.server(&self.server_name())?;
        write_secret(&dir.join("tls.crt"), &identity.certificate)?;
        write_secret(&dir.join("tls.key"), &identity.key)?;
        Ok(Some(authority.certificate().to_owned()))
    }

    /// Applies its objects. The Service of its webhooks leads to this port of the machine.
    async fn install(
        &self,
        cluster: &Cluster,
        port: u16,
        authority: Option<&str>,
    ) -> Result<(), LabError> {
        let client = cluster.admin_client().await?;
        let installation = self.directory().await?.join(INSTALLATION);
        let mut objects = kustomize::render(&installation).await?;
        objects.sort_by_key(|object| object["kind"] != "Namespace");
        for mut object in objects {
            let kind = object["kind"].as_str().unwrap_or_default();
            if LEFT_OUT.contains(&kind) {
                continue;
            }
            if kind == "Service" {
                object["spec"] = json!({"type": "ExternalName", "externalName": "localhost"});
            }
            lead_webhooks(&mut object, port, authority);
            install::apply_object(&client, &object).await?;
        }
        Ok(())
    }

    /// Writes the certificate from its Secret into its directory, as a kubelet does.
    async fn mount_certificate(&self, cluster: &Cluster, dir: &Path) -> Result<(), LabError> {
        let client = cluster.admin_client().await?;
        let secrets: Api<Secret> = Api::namespaced(client, &self.namespace());
        let name = format!("{}-webhook-server-cert", self.name);
        let data = async || {
            let secret = secrets.get(&name).await.ok();
            secret.and_then(|secret| secret.data).unwrap_or_default()
        };
        let data = eventually("a certificate", CERTIFIED_WITHIN, data, |data| {
            ["tls.crt", "tls.key"].iter().all(|file| data.contains_key(*file))
        });
        for (file, ByteString(content)) in data.await {
            write_secret(&dir.join(file), &String::from_utf8_lossy(&content))?;
        }
        Ok(())
    }
}

/// Sets the port, and the authority to trust, wherever the object says how to call a webhook.
fn lead_webhooks(object: &mut Value, port: u16, authority: Option<&str>) {
    match object {
        Value::Array(items) => {
            for item in items {
                lead_webhooks(item, port, authority);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "clientConfig" && value["service"].is_object() {
                    value["service"]["port"] = port.into();
                    if let Some(authority) = authority {
                        value["caBundle"] = json!(ByteString(authority.as_bytes().to_vec()));
                    }
                } else {
                    lead_webhooks(value, port, authority);
                }
            }
        }
        _ => {}
    }
}
