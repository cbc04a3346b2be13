//! Gives the agent a token in a file of its own, as in a pod, and replaces it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Resource;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use super::site::Setup;
use crate::install::{AGENT, AGENTS_NAMESPACE, OBSERVER};
use crate::{Cluster, eventually, install, kubeconfig, pki};

/// The API keeps a token that it has accepted for 10 s.
const REFUSED_WITHIN: Duration = Duration::from_mins(2);

/// The agent's token.
#[derive(Debug)]
pub(super) struct Token {
    cluster: Cluster,
    node: String,
    /// Where the agent reads it.
    file: PathBuf,
    first: String,
    account: Account,
}

/// Whose token it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    Acts,
    Observes,
}

impl Account {
    /// That of an agent with these arguments.
    fn of(arguments: &[String]) -> Self {
        let observes = arguments.iter().any(|argument| argument == "--mode=observe");
        if observes { Self::Observes } else { Self::Acts }
    }

    fn name(self) -> String {
        match self {
            Self::Acts => AGENT.to_owned(),
            Self::Observes => format!("{AGENT}{OBSERVER}"),
        }
    }
}

impl Token {
    /// Writes the first token, and a kubeconfig for this server with it at `path`. The token is
    /// bound to a Pod of the agent, and valid while that exists; or else to the Node, as that of a
    /// service of the host. The agent shows only a token of a file to a kubelet. Returns once the
    /// API server enforces the agents' policies on it.
    pub(super) async fn write(
        cluster: &Cluster,
        node: &str,
        server: &str,
        path: &Path,
        setup: &Setup,
    ) -> Self {
        let (of_pod, account) = (setup.revocable_token, Account::of(&setup.arguments));
        let (cluster, file) = (cluster.clone(), path.with_extension("token"));
        let client = cluster.admin_client().await.expect("a client");
        let bound =
            if of_pod { of_a_pod(&client, node).await } else { of_node(&client, node).await };
        let token = cluster.bound_token(AGENTS_NAMESPACE, &account.name(), Some(bound)).await;
        let first = token.expect("a token");
        pki::write_secret(&file, &first).expect("the token");
        let config = kubeconfig::read(cluster.kubeconfig_path()).expect("a kubeconfig");
        let config = kubeconfig::at(kubeconfig::with_token_file(config, &file), server);
        kubeconfig::write(path, &config).expect("a kubeconfig");
        if account == Account::Acts {
            let agent = cluster.token_client(&first).await.expect("a client");
            install::policies_bind(agent, node).await.expect("the policies bind the agent");
        }
        Self { cluster, node: node.to_owned(), file, first, account }
    }

    /// Writes another token, which is bound to the Node. No reader sees half of it.
    pub(super) async fn replace(&self) {
        let client = self.cluster.admin_client().await.expect("a client");
        let bound = of_node(&client, &self.node).await;
        let name = self.account.name();
        let token = self.cluster.bound_token(AGENTS_NAMESPACE, &name, Some(bound)).await;
        let next = self.file.with_extension("next");
        pki::write_secret(&next, &token.expect("a token")).expect("the token");
        std::fs::rename(next, &self.file).expect("must be movable");
    }

    /// Deletes the Pod of the first token; returns once the API refuses it.
    pub(super) async fn revoke(&self) {
        let client = self.cluster.admin_client().await.expect("a client");
        let pods: Api<Pod> = Api::namespaced(client, AGENTS_NAMESPACE);
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete(&self.node, &at_once).await.expect("the Pod is deleted");
        let former = self.cluster.token_client(&self.first).await.expect("a client");
        let nodes: Api<Node> = Api::all(former);
        let code = async || match nodes.get(&self.node).await {
            Err(kube::Error::Api(status)) => status.code,
            _ => 0,
        };
        eventually("the first token is refused", REFUSED_WITHIN, code, |code| *code == 401).await;
    }
}

async fn of_node(client: &kube::Client, node: &str) -> BoundObjectReference {
    let object = Api::<Node>::all(client.clone()).get(node).await.expect("the node");
    bound("Node", node, object.meta().uid.clone())
}

/// A Pod under the agent's account, of the node's name. No kubelet of the laboratory runs it.
async fn of_a_pod(client: &kube::Client, node: &str) -> BoundObjectReference {
    let pods: Api<Pod> = Api::namespaced(client.clone(), AGENTS_NAMESPACE);
    let pod = json!({
        "metadata": {"name": node},
        "spec": {
            "nodeName": node, "serviceAccountName": AGENT, "automountServiceAccountToken": false,
            "containers": [{"name": "agent", "image": "none"}],
        },
    });
    let pod = serde_json::from_value(pod).expect("must be a pod");
    let pod = pods.create(&PostParams::default(), &pod).await.expect("the agent's Pod");
    bound("Pod", node, pod.metadata.uid)
}

fn bound(kind: &str, name: &str, uid: Option<String>) -> BoundObjectReference {
    BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        uid,
    }
}
