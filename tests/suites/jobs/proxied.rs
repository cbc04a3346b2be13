//! Runs our controller behind a proxy that can hold its watches. It has its own rights there, too.

use lab::bed::SOON;
use lab::controller::{Controller, Setup};
use lab::install::{self, CONTROLLER, NAMESPACE};
use lab::proxy::Proxy;
use lab::{Cluster, eventually, kubeconfig};

/// Starts both; returns once the caches of the controller are filled.
pub(crate) async fn start(cluster: &Cluster, setup: Setup) -> (Controller, Proxy) {
    let admin = cluster.admin_client().await.expect("a client");
    install::apply_rights(&admin).await.expect("the rights");
    let path = cluster.kubeconfig_path();
    let config = kubeconfig::without_identity(kubeconfig::read(path).expect("a kubeconfig"));
    let anonymous = kubeconfig::client(config.clone(), path).await.expect("a client");
    let proxy = Proxy::start(anonymous).await.expect("a proxy");
    std::fs::create_dir_all(&setup.dir).expect("its directory");
    let path = setup.dir.join("proxy.kubeconfig");
    let token = cluster.service_account_token(NAMESPACE, CONTROLLER).await.expect("a token");
    let config = kubeconfig::at(kubeconfig::with_token(config, &token), &proxy.url());
    kubeconfig::write(&path, &config).expect("a kubeconfig");
    let setup = setup.argument(&format!("--kubeconfig={}", path.display()));
    let controller = Controller::start(cluster, &setup).await.expect("our controller");
    let log = async || std::fs::read_to_string(controller.log()).unwrap_or_default();
    eventually("its caches", SOON, log, |log| log.contains("caches are filled")).await;
    (controller, proxy)
}
