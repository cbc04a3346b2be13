//! A Spark driver as a Job. A double of the driver creates executors: pods whose owner is the
//! driver's pod.

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use lab::bed::{Bed, SOON, has_finalizer, is_active};
use lab::eventually;
use lab::nodes::SCRIPT_ANNOTATION;
use serde_json::json;

use super::{bed, evict, job, name};

const JOB: &str = "spark-pi";
const EXECUTORS: &str = "spark-role=executor";

async fn executor(bed: &Bed, driver: &Pod, number: u32) {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name(driver),
                       "uid": driver.metadata.uid, "controller": true});
    let pod = json!({
        "metadata": {"name": format!("{}-exec-{number}", name(driver)), "ownerReferences": [owner],
                     "labels": {"spark-role": "executor", "app": JOB},
                     "annotations": {SCRIPT_ANNOTATION: "hang"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "executor", "image": "none"}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    bed.api::<Pod>().create(&PostParams::default(), &pod).await.expect("an executor is created");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_are_not_the_jobs_pods_and_go_with_their_driver() {
    let bed = bed().await;
    let account = json!({"metadata": {"name": "spark"}});
    let account = serde_json::from_value(account).expect("an account");
    let accounts = bed.api::<ServiceAccount>();
    accounts.create(&PostParams::default(), &account).await.expect("the account is created");
    bed.create(job("spark-driver").script("hang")).await;
    bed.reaches(JOB, SOON, |state| state.ready == Some(1)).await;
    let first = bed.pods(JOB).await.remove(0);
    for number in [1, 2] {
        executor(&bed, &first, number).await;
    }
    let executors = bed.pods_with(EXECUTORS).await;
    assert!(executors.len() == 2 && !executors.iter().any(has_finalizer), "not the Job's");

    evict(&bed, name(&first)).await;
    let drivers = async || bed.pods(JOB).await.into_iter().filter(is_active).collect::<Vec<_>>();
    let is_other = |pods: &Vec<Pod>| pods.len() == 1 && name(&pods[0]) != name(&first);
    let second = eventually("another driver", SOON, drivers, is_other).await.remove(0);
    bed.reaches(JOB, SOON, |state| state.ready == Some(1)).await;
    executor(&bed, &second, 1).await;
    let executors = async || bed.pods_with(EXECUTORS).await.len();
    eventually("executors of an evicted driver are gone", SOON, executors, |n| *n == 1).await;
    let state = bed.state(JOB).await;
    assert_eq!((state.active, state.failed), (1, 0), "only the driver counts");

    bed.delete(JOB, DeleteParams::foreground()).await;
    let left = async || bed.pods_with(&format!("app={JOB}")).await.len();
    eventually("drivers and executors are gone", SOON, left, |left| *left == 0).await;
    bed.stop().await;
}
