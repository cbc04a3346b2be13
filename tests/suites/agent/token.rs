//! Tests an agent whose token is replaced in its file while it runs, and whose former token the API
//! refuses by the time of a shutdown.

use lab::agent::{Ends, Setup, Site};
use lab::eventually;

use super::{SOON, cluster};

const PODS: usize = 12;
/// What the log says of a file that was read again.
const TOKEN_READ: &str = "the token was read again";

async fn start() -> Site {
    Site::start(&cluster(), Setup { revocable_token: true, ..Setup::default() }).await
}

async fn all_end_as_failed_and_disrupted(site: &Site) {
    site.released().await;
    let ends = site.until("all have ended", |ends| ends.ended == PODS).await;
    let Ends { disrupted, ended_unmarked, deleted, .. } = ends;
    assert_eq!((disrupted, ended_unmarked, deleted), (PODS, 0, PODS));
    site.until_metric("shutdown_unreported_pods", 0.0).await;
    let log = std::fs::read_to_string(site.log()).expect("the agent's log");
    assert!(log.contains(TOKEN_READ), "{log}");
}

/// As with a kubelet, which renews the file before the token expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pods_end_as_failed_and_disrupted_after_the_token_was_replaced() {
    let site = start().await;
    site.replace_token().await;
    site.revoke_token().await;
    site.shut_down().await;
    all_end_as_failed_and_disrupted(&site).await;
    site.stop().await;
}

/// The file is late: the first calls of the shutdown are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pods_end_as_failed_and_disrupted_if_the_token_is_replaced_in_the_shutdown() {
    let site = start().await;
    site.revoke_token().await;
    site.shut_down().await;
    let refused = "api_calls_total{action=\"patch-status\",result=\"other\"}";
    let see = async || site.metric(refused).await;
    eventually("the API refuses marks", SOON, see, |count| count.is_some_and(|it| it > 0.0)).await;
    site.replace_token().await;
    all_end_as_failed_and_disrupted(&site).await;
    site.stop().await;
}
