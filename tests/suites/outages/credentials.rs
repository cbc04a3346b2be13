//! Tests a controller whose token and whose authority are replaced in their files while it works.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::DeleteParams;
use lab::control_plane::Part;
use lab::eventually::observe_until;
use lab::pki::{Authority, Identity};
use lab::{audit, eventually, install, kubeconfig};

use super::stage::{Ground, LATER, Stage};

/// How often Jobs are created, at half a second each, until a token is refused.
const ROUNDS_MAX: usize = 200;

/// What the log says of a file that was read again.
const TOKEN_READ: &str = "the token was read again";
const AUTHORITIES_READ: &str = "the certificate authorities were read again";
/// What the log says of calls that fail.
const REFUSED: &str = "Unauthorized";
const UNKNOWN: &str = "invalid peer certificate";

/// The API server's name for the controller, whose certificate changes.
const NAME: &str = "localhost";
const CERTIFICATE: &str = "served.crt";
const KEY: &str = "served.key";

/// The kubelet replaces a file so that no reader sees half of it.
fn replace(file: &Path, content: &str) {
    let next = file.with_extension("next");
    std::fs::write(&next, content).expect("must be writable");
    std::fs::rename(next, file).expect("must be movable");
}

fn count(stage: &Stage, words: &str) -> usize {
    stage.log().matches(words).count()
}

/// The tokens, by their IDs, with which the API has accepted requests of our controller.
fn tokens_used(stage: &Stage) -> BTreeSet<String> {
    let entries = audit::entries(stage.control_plane.cluster());
    let ids = entries.lines().filter_map(|line| {
        let id = line.split_once("credential-id\":[\"")?.1;
        Some(id.split('"').next()?.to_owned())
    });
    ids.collect()
}

/// Once its Secret is gone, the API refuses a token after 10 s at most, for which it keeps it.
async fn delete_secret(client: &kube::Client, name: &str) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), install::NAMESPACE);
    secrets.delete(name, &DeleteParams::default()).await.expect("the Secret is deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_on_when_the_token_is_replaced() {
    let ground = Ground::lay().await;
    let client = ground.control_plane.admin_client().await.expect("a client");
    let mut tokens = Vec::new();
    for name in ["first", "second", "third"] {
        tokens.push(ground.controller_token(Some(name)).await);
    }
    let file = ground.control_plane.dir().join("token");
    replace(&file, &tokens[0]);
    let config = kubeconfig::with_token_file(ground.kubeconfig(), &file);
    let flag = ground.write_kubeconfig(&config);
    let mut stage = ground.stage(6, &[&flag]).await;
    stage.progress(20).await;

    // The file is there first, as with a kubelet: no call fails.
    replace(&file, &tokens[1]);
    delete_secret(&client, "first").await;
    stage.progress_until("the second token", |stage| count(stage, TOKEN_READ) == 1).await;
    stage.progress(20).await;
    assert_eq!(count(&stage, REFUSED), 0, "{}", stage.log());
    assert_eq!(tokens_used(&stage).len(), 2);

    // The file is late. New Jobs come until the API has forgotten the token.
    delete_secret(&client, "second").await;
    for round in 0.. {
        let refused = async || count(&stage, REFUSED) > 0;
        if observe_until(Duration::from_millis(500), refused, |it| *it).await.is_ok() {
            break;
        }
        assert!(round < ROUNDS_MAX, "the second token is still valid");
        stage.create_jobs(1).await;
    }
    assert!(stage.stands_still().await, "the refusals met no work");
    replace(&file, &tokens[2]);
    stage.all_are_exact_and_as_scripted().await;
    assert_eq!(tokens_used(&stage).len(), 3);
    stage.stop().await;
}

/// The API server answers under two names: the controller knows it by another than the nodes and
/// the test, whose authority stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_on_when_the_authority_is_replaced() {
    let ground = Ground::lay().await;
    let dir = ground.control_plane.dir().to_owned();
    let former = std::fs::read_to_string(dir.join("pki/ca.crt")).expect("a certificate");
    let file = dir.join("trusted.crt");
    replace(&file, &former);
    let server = ground.control_plane.server().replace("127.0.0.1", NAME);
    let config = kubeconfig::with_token(ground.kubeconfig(), &ground.controller_token(None).await);
    let config = kubeconfig::with_authority_file(kubeconfig::at(config, &server), &file);
    let flag = ground.write_kubeconfig(&config);
    let mut stage = ground.stage(6, &[&flag]).await;
    stage.progress(20).await;

    // The file has both in time: no connection fails for that.
    let ((second, of_second), (third, of_third)) =
        (authority(&dir, "second"), authority(&dir, "third"));
    let pair = format!("{},{}", dir.join(CERTIFICATE).display(), dir.join(KEY).display());
    stage.control_plane.add_api_server_flag(format!("--tls-sni-cert-key={pair}:{NAME}"));
    replace(&file, &format!("{former}{second}"));
    serve(&mut stage, &of_second).await;
    stage.progress_until("both", |stage| count(stage, AUTHORITIES_READ) == 1).await;
    stage.progress(20).await;
    assert_eq!(count(&stage, UNKNOWN), 0, "{}", stage.log());

    // The file is late.
    stage.create_jobs(6).await;
    stage.progress(5).await;
    serve(&mut stage, &of_third).await;
    let unknown = async || count(&stage, UNKNOWN);
    eventually("the third is unknown", LATER, unknown, |count| *count > 0).await;
    assert!(stage.stands_still().await, "the fault met no work");
    replace(&file, &third);
    stage.all_are_exact_and_as_scripted().await;
    assert_eq!(count(&stage, AUTHORITIES_READ), 2);
    stage.stop().await;
}

/// An authority's own certificate, and one of it for the API server.
fn authority(dir: &Path, name: &str) -> (String, Identity) {
    let dir = dir.join(name);
    std::fs::create_dir_all(&dir).expect("its directory");
    let authority = Authority::create(&dir).expect("an authority");
    (authority.certificate().to_owned(), authority.api_server().expect("an identity"))
}

/// Starts kube-apiserver anew, with this certificate for [`NAME`].
async fn serve(stage: &mut Stage, identity: &Identity) {
    let dir = stage.control_plane.dir();
    let (certificate, key) = (dir.join(CERTIFICATE), dir.join(KEY));
    std::fs::write(&certificate, &identity.certificate).expect("must be writable");
    std::fs::write(&key, &identity.key).expect("must be writable");
    stage.restart(Part::ApiServer).await;
}
