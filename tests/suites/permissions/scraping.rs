//! Tests scraping of both programs over the network, which the API server authorises. The rights are
//! those of the component `deploy/kustomize/components/scraping`, not an administrator's.

use std::net::SocketAddr;
use std::time::Duration;

use epilogue_deploy::documents;
use epilogue_runtime::admin::{Admin, BindAddress, Certificate};
use epilogue_runtime::health::Checks;
use http::Request;
use kube::{Client, Config};
use lab::install::{CONTROLLER, NAMESPACE, apply_object};
use lab::paths::workspace_root;
use lab::{Cluster, eventually};
use prometheus::{IntCounter, Registry};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::world::{Token, World};

const SOON: Duration = Duration::from_mins(1);

/// What a scraper with this token gets.
async fn scraped(address: SocketAddr, token: &str) -> Result<String, u16> {
    let mut config = Config::new(format!("https://{address}").parse().expect("a URL"));
    // The program signs its certificate itself.
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(token.to_owned().into());
    let client = Client::try_from(config).expect("a client");
    let request = Request::get("/metrics").body(Vec::new()).expect("a request");
    match client.request_text(request).await {
        Ok(text) => Ok(text),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("{error}"),
    }
}

/// A token of a new account.
async fn account(world: &World, cluster: &Cluster, name: &str) -> String {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name},
    });
    world.done(Call::create(world.path("serviceaccounts"), account)).await;
    cluster.service_account_token(world.namespace(), name).await.expect("a token")
}

#[tokio::test]
async fn only_accounts_that_rbac_allows_scrape_an_agent() {
    let world = World::start(Token::OfPod).await;
    let agent = world.agent.clone();
    assert_scraped(world, agent, "rbac.yaml", "epilogue-agent-metrics-reader").await;
}

#[tokio::test]
async fn only_accounts_that_rbac_allows_scrape_the_controller() {
    let world = World::start(Token::OfPod).await;
    let cluster = Cluster::of_tests("permissions").expect("the suite's cluster");
    let controller = cluster.service_account_client(NAMESPACE, CONTROLLER).await;
    let controller = controller.expect("the controller's client");
    let role = "epilogue-controller-metrics-reader";
    assert_scraped(world, controller, "controller-rbac.yaml", role).await;
}

/// A program with this client and the rights of this file lets in whom the role allows.
async fn assert_scraped(world: World, program: Client, rights: &str, role: &str) {
    let cluster = Cluster::of_tests("permissions").expect("the suite's cluster");
    let component = workspace_root().join("deploy/kustomize/components/scraping").join(rights);
    for object in documents(&component).expect("the rights") {
        apply_object(&world.admin, &object).await.expect("the rights");
    }
    let allowed = account(&world, &cluster, "scraper").await;
    let other = account(&world, &cluster, "other").await;
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let name = format!("scraper-of-{}", world.namespace());
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
        },
        "subjects": [
            {"kind": "ServiceAccount", "name": "scraper", "namespace": world.namespace()},
        ],
    });
    world.done(Call::create(bindings, binding)).await;

    let registry = Registry::new();
    let figure = IntCounter::new("a_figure", "One.").expect("a metric");
    registry.register(Box::new(figure)).expect("registered");
    let admin = Admin::bind(&BindAddress::Off, Checks::new(), Checks::new(), registry).await;
    let address: BindAddress = "127.0.0.1:0".parse().expect("an address");
    let admin = admin.expect("no port").scraped(&address, &Certificate::SelfSigned, program).await;
    let admin = admin.expect("must listen");
    let address = admin.scrape_addr().expect("an address");
    let token = CancellationToken::new();
    let server = tokio::spawn(admin.serve(token.clone()));

    // The API server learns of roles by its own watch.
    let answer = async || scraped(address, &allowed).await;
    let text = eventually("the scraper is let in", SOON, answer, Result::is_ok).await;
    assert!(text.is_ok_and(|text| text.contains("a_figure 0")));
    assert_eq!(scraped(address, &other).await, Err(403));
    assert_eq!(scraped(address, "nonsense").await, Err(401));

    token.cancel();
    server.await.expect("no panic").expect("a good end");
    world.done(Call::delete(format!("{bindings}/{name}"), json!({}))).await;
    world.finish().await;
}
