//! Runs our controller behind a proxy that can hold its watches.

use kube::config::Kubeconfig;
use lab::bed::SOON;
use lab::controller::{Controller, Setup};
use lab::proxy::Proxy;
use lab::{Cluster, eventually, kubeconfig};
use serde_json::json;

/// Starts both; returns once the caches of the controller are filled.
pub(crate) async fn start(
    cluster: &Cluster,
    client: &kube::Client,
    setup: Setup,
) -> (Controller, Proxy) {
    let proxy = Proxy::start(client.clone()).await.expect("a proxy");
    std::fs::create_dir_all(&setup.dir).expect("its directory");
    let path = setup.dir.join("proxy.kubeconfig");
    kubeconfig::write(&path, &plain(&proxy.url())).expect("a kubeconfig");
    let setup = setup.argument(&format!("--kubeconfig={}", path.display()));
    let controller = Controller::start(cluster, &setup).await.expect("our controller");
    let log = async || std::fs::read_to_string(controller.log()).unwrap_or_default();
    eventually("its caches", SOON, log, |log| log.contains("caches are filled")).await;
    (controller, proxy)
}

/// A kubeconfig with one cluster that needs no credentials.
fn plain(server: &str) -> Kubeconfig {
    let cluster = json!({"name": "proxy", "cluster": {"server": server}});
    let context = json!({"name": "proxy", "context": {"cluster": "proxy"}});
    Kubeconfig {
        clusters: vec![serde_json::from_value(cluster).expect("must be a cluster")],
        contexts: vec![serde_json::from_value(context).expect("must be a context")],
        current_context: Some("proxy".to_owned()),
        ..Kubeconfig::default()
    }
}
