//! Waits until a control plane is ready: its ports, its API and what pods need in it.

use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::net::TcpStream;

use super::flags::Layout;
use crate::error::LabError;
use crate::eventually::observe_until;
use crate::kubeconfig;
use crate::process::Process;

/// Twenty times what a quiet machine needs.
const WITHIN: Duration = Duration::from_mins(1);

/// Waits until a server accepts connections on `port`.
pub(super) async fn listens(process: &mut Process, port: u16) -> Result<(), LabError> {
    wait(process, async || {
        let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        connected.map(drop).map_err(|error| error.to_string())
    })
    .await
}

/// Waits until `/readyz` says so, which includes the default RBAC roles.
pub(super) async fn api_answers(process: &mut Process, layout: &Layout) -> Result<(), LabError> {
    let path = layout.kubeconfig("admin");
    let client = kubeconfig::client(kubeconfig::read(&path)?, &path).await?;
    wait(process, async || {
        let request = http::Request::get("/readyz").body(Vec::new()).expect("must be a request");
        client.request_text(request).await.map(drop).map_err(|error| error.to_string())
    })
    .await
}

async fn wait(
    process: &mut Process,
    ask: impl AsyncFn() -> Result<(), String>,
) -> Result<(), LabError> {
    let (name, log) = (process.record().name.clone(), process.log().to_owned());
    tokio::select! {
        end = process.ended() => Err(end),
        answer = observe_until(WITHIN, &ask, Result::is_ok) => answer
            .map(drop)
            .map_err(|last| LabError::NotReady {
                name,
                within: WITHIN,
                last: last.expect_err("an answer that did not hold must be an error"),
                log,
            }),
    }
}

/// Creates the service account `default`, as the service account controller would.
///
/// The admission plugin ServiceAccount refuses pods without it. The plugin stays on, so that pods
/// have the same fields (mounted token, account name) as on a real cluster, with or without
/// kube-controller-manager.
pub(crate) async fn default_service_account(
    client: &kube::Client,
    namespace: &str,
) -> Result<(), LabError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let account = ServiceAccount {
        metadata: ObjectMeta { name: Some("default".into()), ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    // The namespace `default` itself appears a moment after the API is ready.
    let create = || async {
        match accounts.create(&PostParams::default(), &account).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop),
        }
    };
    observe_until(WITHIN, create, |created| !is_missing(created))
        .await
        .unwrap_or_else(|last| last)
        .map_err(LabError::api(format!("create the service account {namespace}/default")))
}

fn is_missing(created: &Result<(), kube::Error>) -> bool {
    matches!(created, Err(kube::Error::Api(status)) if status.code == 404)
}
