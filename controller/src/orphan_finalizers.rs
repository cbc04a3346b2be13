//! Removes the tracking finalizer from pods that no Job will count.

use std::collections::HashMap;
use std::sync::Arc;

use controller_core::event_series::Regarding;
use controller_core::job::refused_release;
use controller_core::orphans::Orphans;
use controller_core::view::{JobKey, Pod, Uid};
use epilogue_common::outcome::{Failure, FailureKind};

use crate::dispatch::Dispatch;
use crate::events::Recorder;
use crate::execute::Executor;
use crate::planner::Stopwatch;
use crate::workqueue::{Process, Queue};

/// Dependencies of a worker.
#[derive(Debug)]
pub(crate) struct Cleaner {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) manage_all_jobs: bool,
}

impl Process<Orphans> for Cleaner {
    async fn process(&self, _: &Queue<Orphans>, item: &Orphans) {
        self.free(item).await;
    }

    async fn panicked(&self, queue: &Queue<Orphans>, item: &Orphans, failure: Failure) {
        self.dispatch.panicked("orphans", item, &failure);
        queue.add_failed(item.clone(), &failure);
    }
}

impl Cleaner {
    /// Each pod of a whole Job that keeps its finalizer is queued by itself, with backoff. ([O1])
    async fn free(&self, item: &Orphans) {
        let mut plans = Stopwatch::default();
        let pods = plans.time(|| self.dispatch.orphans(item, self.manage_all_jobs));
        self.dispatch.planned("orphans", item, &plans);
        let (pods, mut kept) = self.without_live_job(pods).await;
        let outcomes = self.executor.remove_finalizers(&pods).await;
        kept.extend(pods.into_iter().zip(outcomes).filter_map(|(pod, outcome)| {
            let failure = outcome.err().filter(|it| it.kind != FailureKind::NotFound)?;
            self.report(&pod, &failure);
            Some((pod, failure))
        }));
        let Some((_, failure)) = kept.first() else {
            self.dispatch.orphans.forget(item);
            return;
        };
        let entry = |pod: &Pod| match item {
            Orphans::Pod(..) => item.clone(),
            Orphans::OfJob(_) => Orphans::Pod(Arc::clone(&pod.namespace), pod.uid.clone()),
        };
        let orphans = &self.dispatch.orphans;
        let retries = kept.iter().map(|(pod, failure)| orphans.add_failed(entry(pod), failure));
        let retry_s = retries.min().unwrap_or_default().as_secs_f64();
        let others = kept.len() - 1;
        tracing::info!(?item, error = %failure, others, retry_s, "finalizers not removed");
    }

    /// Tells of a refused removal on the pod, because its Job is gone.
    fn report(&self, pod: &Pod, failure: &Failure) {
        if let Some(event) = refused_release([(pod, failure)]) {
            self.recorder.record_of(Regarding::of_pod(pod), event);
        }
    }

    /// Returns the pods whose Job is gone from the API too, and the others with the reason why each
    /// is kept. A watch may lag behind. The Job may also belong to another controller, which still
    /// counts its pods.
    ///
    /// DIVERGES(upstream): upstream trusts its cache. ([O2])
    async fn without_live_job(
        &self,
        pods: Vec<Arc<Pod>>,
    ) -> (Vec<Arc<Pod>>, Vec<(Arc<Pod>, Failure)>) {
        let mut verdicts: HashMap<Uid, Result<(), Failure>> = HashMap::new();
        let (mut free, mut kept) = (Vec::new(), Vec::new());
        for pod in pods {
            let Some(owner) = &pod.owner else {
                free.push(pod);
                continue;
            };
            if !verdicts.contains_key(&owner.uid) {
                let key = JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&owner.name));
                let verdict = self.is_gone(&key, &owner.uid).await;
                verdicts.insert(owner.uid.clone(), verdict);
            }
            match verdicts[&owner.uid].clone() {
                Ok(()) => free.push(pod),
                Err(failure) => kept.push((pod, failure)),
            }
        }
        (free, kept)
    }

    /// Returns `Ok` if the Job is gone or finished, and otherwise why the pod is kept.
    async fn is_gone(&self, key: &JobKey, uid: &Uid) -> Result<(), Failure> {
        // The cache offers only pods of finished Jobs, and a Job stays finished.
        if self.dispatch.knows(key, uid) {
            return Ok(());
        }
        match self.executor.live_job(key).await {
            Ok(live) if live.uid == *uid => {
                let message = format!("Job {key} is there, which the watch does not show");
                Err(Failure::new(FailureKind::Conflict, message))
            }
            Ok(_) => Ok(()),
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller_core::orphans::FormerJob;
    use controller_core::view::WireJob;
    use epilogue_runtime::clock::Clock;
    use epilogue_runtime::lease::Identity;
    use epilogue_runtime::watch::WatchEvent;
    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use prometheus::Registry;
    use serde_json::{Value, json};
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    use crate::metrics::Metrics;

    /// Builds a cleaner for a pod of Job `a`, which no watch has shown. The API answers a read of
    /// the Job with `code` and `job`. Also returns the log of calls.
    fn cleaner(code: u16, job: Value) -> (Cleaner, Arc<Mutex<Vec<String>>>) {
        let pod = json!({"metadata": {"uid": "pod"}});
        cleaner_with((code, job), (200, pod))
    }

    /// The same, where the API answers a patch of the pod with `patched`.
    fn cleaner_with(
        (code, job): (u16, Value),
        patched: (u16, Value),
    ) -> (Cleaner, Arc<Mutex<Vec<String>>>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&calls);
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock().push(format!("{} {}", request.method(), request.uri().path()));
            let is_read = request.method() == Method::GET;
            let (code, body) = if is_read { (code, job.clone()) } else { patched.clone() };
            let body = Body::from(body.to_string().into_bytes());
            async move { Response::builder().status(code).body(body) }
        });
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a",
                           "controller": true});
        let pod = json!({"metadata": {"name": "pod", "namespace": "default", "uid": "pod",
                         "finalizers": ["batch.kubernetes.io/job-tracking"],
                         "ownerReferences": [owner]}});
        let dispatch = Dispatch::for_tests(None);
        dispatch.open(true);
        dispatch.pod(WatchEvent::ListBegins);
        dispatch.pod(WatchEvent::Shown(serde_json::from_value(pod).expect("must be a pod")));
        dispatch.pod(WatchEvent::ListEnds("1".to_owned()));
        let (client, dispatch) = (Client::new(service, "default"), Arc::new(dispatch));
        let executor = Executor::new(client.clone(), Arc::clone(&dispatch), Clock::MACHINE);
        let executor = Arc::new(executor);
        let identity = Identity { name: "test".to_owned(), clock: Clock::MACHINE };
        let metrics = Metrics::new(&Registry::new()).expect("must register");
        let recorder = Recorder::new(client, identity, metrics);
        let cleaner = Cleaner { dispatch, executor, recorder, manage_all_jobs: false };
        (cleaner, calls)
    }

    const READ: &str = "GET /apis/batch/v1/namespaces/default/jobs/a";
    const PATCH: &str = "PATCH /api/v1/namespaces/default/pods/pod";

    #[tokio::test]
    async fn a_pod_whose_job_only_the_watch_does_not_show_keeps_its_finalizer() {
        let (cleaner, calls) = cleaner(200, json!({"metadata": {"name": "a", "uid": "uid-a"}}));
        cleaner.free(&Orphans::Pod("ns".into(), "pod".into())).await;
        assert_eq!(*calls.lock(), [READ]);
        assert_eq!(cleaner.dispatch.orphans.figures().tally.retries, 1, "it is checked again");
    }

    #[tokio::test]
    async fn a_pod_whose_job_is_gone_or_another_one_is_freed() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                            "reason": "NotFound", "message": "gone", "code": 404});
        let namesake = json!({"metadata": {"name": "a", "uid": "uid-b"}});
        for (code, job) in [(404, status), (200, namesake)] {
            let (cleaner, calls) = cleaner(code, job);
            cleaner.free(&Orphans::Pod("ns".into(), "pod".into())).await;
            assert_eq!(*calls.lock(), [READ, PATCH]);
            assert_eq!(cleaner.dispatch.orphans.figures().tally.retries, 0);
        }
    }

    #[tokio::test]
    async fn a_refused_removal_is_reported_on_the_pod_whose_job_is_gone() {
        let status = |code: u16, reason: &str, message: &str| {
            (
                code,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                          "reason": reason, "message": message, "code": code}),
            )
        };
        let refused = status(403, "Forbidden", "denied request: not this pod");
        let (cleaner, _) = cleaner_with(status(404, "NotFound", "gone"), refused);
        cleaner.free(&Orphans::Pod("ns".into(), "pod".into())).await;
        assert_eq!(cleaner.dispatch.orphans.figures().tally.retries, 1);
        let event = cleaner.recorder.next_for_tests().expect("an event");
        assert_eq!(event.regarding.kind.names(), ("v1", "Pod"));
        assert_eq!(event.event.reason, "FailedRelease");
        assert!(event.event.message.contains("not this pod"), "{}", event.event.message);
    }

    #[tokio::test]
    async fn each_pod_of_a_former_job_that_was_not_freed_is_queued_by_itself() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                            "reason": "Forbidden", "message": "no", "code": 403});
        let (cleaner, calls) = cleaner(403, status);
        let job = json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
            "spec": {"selector": {"matchLabels": {"job": "a"}}},
        });
        let job = WireJob::parse(job).and_then(WireJob::view).expect("must be a Job");
        cleaner.free(&Orphans::OfJob(FormerJob::of(&job))).await;
        assert_eq!(*calls.lock(), [READ]);
        assert_eq!(cleaner.dispatch.orphans.figures().tally.retries, 1);
        // It waits for a second first.
        let token = CancellationToken::new();
        let next =
            tokio::time::timeout(Duration::from_secs(30), cleaner.dispatch.orphans.take(&token))
                .await;
        assert_eq!(next, Ok(Some(Orphans::Pod("default".into(), "pod".into()))));
    }

    #[tokio::test]
    async fn where_the_api_does_not_say_the_pod_waits() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                            "reason": "Forbidden", "message": "no", "code": 403});
        let (cleaner, calls) = cleaner(403, status);
        cleaner.free(&Orphans::Pod("ns".into(), "pod".into())).await;
        assert_eq!(*calls.lock(), [READ]);
        assert_eq!(cleaner.dispatch.orphans.figures().tally.retries, 1);
    }
}
