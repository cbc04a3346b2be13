//! A namespace whose Jobs cannot be changed, as on a control plane that cannot be configured.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams, PostParams};
use lab::bed::{JobBuilder, SOON};
use lab::{eventually, install};
use serde_json::json;

use super::{bed, ending, recipe};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_labelled_namespace_gives_its_unchanged_jobs_to_our_controller() {
    let bed = bed().await;
    install::apply_opt_in_policies(bed.client()).await.expect("the policies are installed");
    let [namespace, manifest] = &recipe("opt-in")[..] else { panic!("two objects") };
    assert_eq!(manifest["metadata"]["namespace"], namespace["metadata"]["name"]);
    assert!(manifest["spec"]["managedBy"].is_null());
    // The test has a namespace of its own.
    let labels = json!({"metadata": {"labels": namespace["metadata"]["labels"]}});
    let namespaces: Api<Namespace> = Api::all(bed.client().clone());
    let labels = Patch::Merge(labels);
    let labelled = namespaces.patch(bed.namespace(), &PatchParams::default(), &labels).await;
    labelled.expect("the namespace is labelled");
    let job = JobBuilder::from(manifest.clone()).metadata("namespace", bed.namespace());
    let job = job.script("fail exit=1 times=1; succeed");

    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let draft = async || {
        let created = bed.api().create(&dry, &job.clone().build()).await;
        let spec = created.expect("a dry run").spec.expect("a spec");
        (spec.managed_by, spec.pod_replacement_policy)
    };
    let ours = ("epilogue.dev/job-controller".to_owned(), "Failed".to_owned());
    let expected = (Some(ours.0), Some(ours.1));
    eventually("the policies hold", SOON, draft, |seen| *seen == expected).await;
    bed.create(job).await;
    let state = bed.finished("unchanged", SOON).await;
    assert_eq!(ending(&state), (Some("Complete"), 1, 1));
    bed.stop().await;
}
