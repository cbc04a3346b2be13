//! Creates a namespace per test, with a random name and what pods need, and deletes it at the end.

use k8s_openapi::api::core::v1;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};

use crate::cluster::Cluster;
use crate::control_plane::default_service_account;
use crate::error::LabError;

/// A namespace `t-<random>`. Deleted by [`Namespace::finish`], or when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    cluster: Cluster,
    finished: bool,
}

impl Namespace {
    /// Creates it, with its service account `default`.
    pub async fn create(cluster: &Cluster) -> Result<Self, LabError> {
        let name = format!("t-{:08x}", rand::random::<u32>());
        let client = cluster.admin_client().await?;
        let object = v1::Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..v1::Namespace::default()
        };
        Api::<v1::Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .map_err(LabError::api(format!("create the namespace {name}")))?;
        let namespace = Self { name, cluster: cluster.clone(), finished: false };
        default_service_account(&client, &namespace.name).await?;
        Ok(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Deletes it, unless it is gone. The namespace controller, if one runs, deletes its content;
    /// this does not wait for it.
    pub async fn finish(mut self) -> Result<(), LabError> {
        self.finished = true;
        delete(&self.cluster, &self.name).await
    }
}

impl Drop for Namespace {
    /// For tests that fail or just end: the same from a thread of its own. A drop may happen inside
    /// a runtime and cannot wait there.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (cluster, name) = (self.cluster.clone(), self.name.clone());
        let deletion = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(delete(&cluster, &name)).map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            }
        });
        if let Ok(Err(error)) = deletion.join() {
            eprintln!("the namespace {} stays behind: {error}", self.name);
        }
    }
}

async fn delete(cluster: &Cluster, name: &str) -> Result<(), LabError> {
    let namespaces = Api::<v1::Namespace>::all(cluster.admin_client().await?);
    match namespaces.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer.map(drop).map_err(LabError::api(format!("delete the namespace {name}"))),
    }
}
