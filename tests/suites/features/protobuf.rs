//! Compares what is read of pods from the API's two formats.

use controller_core::view::{self, Interner, Pod, WirePod};
use epilogue_runtime::watch::Read;
use epilogue_runtime::watch::wire::{Format, page};
use http::{Request, header};
use kube::client::Body;
use lab::bed::{Bed, job};
use serde_json::json;

use super::{NO_BACKOFF, bed};

const READ: Read<WirePod> = Read { json: view::read, protobuf: Some(WirePod::decode) };

/// Lists the pods of the bed in the format that `accept` asks for.
async fn listed(bed: &Bed, accept: &str, expected: Format) -> Vec<Pod> {
    let request = Request::get(format!("/api/v1/namespaces/{}/pods", bed.namespace()))
        .header(header::ACCEPT, accept)
        .body(Body::empty())
        .expect("a path must make a request");
    let response = bed.client().send(request).await.expect("the API must answer");
    let format = Format::of(response.headers());
    assert_eq!(format, expected);
    let body = response.into_body().collect_bytes().await.expect("the body must come");
    let page = page(format, &body, &READ).expect("must be a list");
    assert!(!page.version.is_empty());
    let mut interner = Interner::default();
    let read = |object: Result<WirePod, _>| object.expect("must be readable").view(&mut interner);
    page.objects.into_iter().map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_read_alike_from_protobuf_and_json() {
    let bed = bed(&[NO_BACKOFF]).await;
    let mixed = "index=0: succeed; index=1: fail exit=137; index=2: hang; index=3: disrupt";
    let mixed = job("mixed").indexed(5).spec("backoffLimit", 20).script(&format!("{mixed}; ready"));
    let sidecar = json!([{"name": "side", "image": "none", "restartPolicy": "Always"},
                         {"name": "once", "image": "none"}]);
    let mixed = mixed.pod("initContainers", sidecar).pod("activeDeadlineSeconds", 600);
    bed.create(mixed).await;
    bed.create(job("waits").script("waiting=ImagePullBackOff")).await;
    bed.create(job("going").script("hang on-term=143 after=60s")).await;
    bed.pods_reach("mixed", <[_]>::len, |count| *count >= 5).await;
    let going = bed.pods_with("batch.kubernetes.io/job-name=going").await;
    bed.delete_pod(going[0].metadata.name.as_deref().unwrap_or_default()).await;
    // Pods change all the time: two lists of the same versions are compared.
    for _ in 0..50 {
        let json = listed(&bed, "application/json", Format::Json).await;
        let both = "application/vnd.kubernetes.protobuf,application/json";
        let protobuf = listed(&bed, both, Format::Protobuf).await;
        let versions = |all: &[Pod]| -> Vec<_> {
            all.iter().map(|pod| (pod.uid.clone(), pod.version)).collect()
        };
        if versions(&json) != versions(&protobuf) {
            continue;
        }
        assert_eq!(protobuf, json);
        let has = |what: &dyn Fn(&Pod) -> bool| json.iter().any(what);
        assert!(has(&|pod| pod.deletion.is_some()), "{json:?}");
        assert!(has(&|pod| pod.containers.iter().any(|it| it.terminated.is_some())), "{json:?}");
        assert!(has(&|pod| pod.index == Some(4) && pod.node.is_some()), "{json:?}");
        return;
    }
    panic!("the pods never stood still between two lists");
}
