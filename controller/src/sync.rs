//! Runs one sync of a Job: takes a snapshot, plans, carries out the steps, and records the side
//! effects.

use std::sync::Arc;
use std::time::Duration;

use controller_core::job::{
    EventDraft, MetricEvent, Progress, SideEffect, SkipReason, Step, SyncResult,
};
use controller_core::state::Snapshot;
use controller_core::view::{Job, JobKey};
use epilogue_common::outcome::{Failure, Outcome};
use epilogue_runtime::clock::Clock;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::dispatch::Dispatch;
use crate::events::Recorder;
use crate::execute::Executor;
use crate::metrics::Metrics;
use crate::planner::{Planner, Stopwatch};
use crate::scheduling_api::{GROUP, POD_GROUPS, WORKLOADS};
use crate::workqueue::{Process, Queue};

/// Dependencies of a sync.
#[derive(Debug)]
pub(crate) struct Syncer {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) metrics: Metrics,
    pub(crate) planner: Planner,
    pub(crate) clock: Clock,
}

impl Process<JobKey> for Syncer {
    async fn process(&self, _: &Queue<JobKey>, key: &JobKey) {
        let started = Instant::now();
        let mut plans = Stopwatch::default();
        // The delete event has removed the memory. ([S2])
        let Some(snapshot) = plans.time(|| self.dispatch.input(key)) else {
            self.dispatch.forget(key);
            return;
        };
        let snapshot = Arc::new(snapshot);
        let now = self.clock.now();
        let (skip, progress) = self.planner.begin(&snapshot, now, &mut plans).await;
        let sync_result = self.carry_out(&snapshot, progress, &mut plans).await;
        self.metrics.planned("job", key, &plans);
        // Once all is read anew, the Job is synced again.
        let Some(sync_result) = sync_result else { return };
        let took = started.elapsed();
        match skip {
            None => {
                let ok = sync_result.result.is_ok();
                self.metrics.synced(&snapshot.job, ok, sync_result.action, took);
                self.dispatch.synced(key, took);
            }
            Some(SkipReason::Stale) => self.skip(&snapshot),
            Some(_) => {}
        }
        self.conclude(&snapshot.job, sync_result);
    }

    async fn panicked(&self, queue: &Queue<JobKey>, key: &JobKey, failure: Failure) {
        self.dispatch.panicked("sync", key, &failure);
        if let Some(job) = self.dispatch.job_of(key) {
            let message = format!("The sync of this Job is repeated: {failure}");
            self.recorder.record(&job, EventDraft::warning("InternalError", message));
        }
        queue.add_failed(key.clone(), &failure);
    }
}

impl Syncer {
    /// Makes the calls of a plan, as many at once as the executor allows. `None` if the API has
    /// gone back to an earlier version meanwhile: then the plan is void, no further call is made,
    /// and nothing of it is remembered.
    async fn carry_out(
        &self,
        snapshot: &Snapshot,
        mut progress: Progress,
        plans: &mut Stopwatch,
    ) -> Option<SyncResult> {
        let whole = OnceCell::new();
        let mut unanswered = FuturesUnordered::new();
        loop {
            if self.dispatch.is_void(snapshot) {
                while unanswered.next().await.is_some() {}
                return None;
            }
            self.take_side_effects(&mut progress);
            let at_once = Executor::at_once(progress.job(), progress.creates());
            while unanswered.len() < at_once {
                let Some(call) = progress.next_call() else { break };
                let (job, whole) = (Arc::clone(progress.job()), &whole);
                unanswered.push(async move {
                    let outcome = match self.whole(job, &call.step, whole).await {
                        Ok(job) => self.executor.execute(&job, &call.step).await,
                        Err(failure) => Err(failure),
                    };
                    (call, outcome)
                });
            }
            let Some((call, outcome)) = unanswered.next().await else { break };
            progress = self.planner.go_on(snapshot, progress, (call, outcome), plans).await;
        }
        Some(progress.into_result())
    }

    /// The Job with all that a step repeats of it, which one read gives to all steps of a sync.
    async fn whole(
        &self,
        job: Arc<Job>,
        step: &Step,
        whole: &OnceCell<Arc<Job>>,
    ) -> Outcome<Arc<Job>> {
        if !(step.repeats_source() && job.source.is_unkept()) {
            return Ok(job);
        }
        let read = || {
            self.metrics.template_read();
            self.executor.whole_job(&job)
        };
        whole.get_or_try_init(read).await.cloned()
    }

    fn take_side_effects(&self, progress: &mut Progress) {
        let side_effects = progress.take_side_effects();
        let job = progress.job();
        for side_effect in side_effects {
            match side_effect {
                SideEffect::Remember(change) => self.dispatch.remember(job, change),
                SideEffect::Event(event) => self.recorder.record(job, event),
                SideEffect::Count(metric_event) => {
                    if let MetricEvent::JobFinished { succeeded, reason } = &metric_event {
                        let (key, uid) = (&job.key, &job.uid);
                        tracing::info!(job = %key, %uid, succeeded, reason, "job finished");
                    }
                    self.metrics.count(job, &metric_event);
                }
            }
        }
    }

    /// Repeats the sync once the watches have caught up. ([S1])
    fn skip(&self, snapshot: &Snapshot) {
        let (written, seen) = (snapshot.memory.awaited(), snapshot.seen);
        if written.jobs > seen.jobs {
            self.metrics.stale("batch", "jobs");
        }
        if written.pods > seen.pods {
            self.metrics.stale("", "pods");
        }
        if written.workloads > seen.workloads {
            self.metrics.stale(GROUP, WORKLOADS);
        }
        if written.pod_groups > seen.pod_groups {
            self.metrics.stale(GROUP, POD_GROUPS);
        }
        self.dispatch.await_versions(snapshot);
    }

    /// Retries a failed sync after its backoff; one that comes to its end resets that. ([Q5])
    fn conclude(&self, job: &Job, sync_result: SyncResult) {
        if let Some(wait) = sync_result.requeue_after {
            self.dispatch.wake_after(&job.key, Duration::try_from(wait).unwrap_or_default());
        }
        match &sync_result.result {
            Err(failure) if failure.is_over_quota() => self.dispatch.over_quota(&job.key),
            _ => self.dispatch.within_quota(&job.key),
        }
        match sync_result.result {
            Ok(()) if sync_result.complete => self.dispatch.jobs.forget(&job.key),
            Ok(()) => {}
            Err(failure) => {
                let retry = self.dispatch.jobs.add_failed(job.key.clone(), &failure);
                tracing::info!(
                    job = %job.key,
                    uid = %job.uid,
                    error = %failure,
                    kind = ?failure.kind,
                    retry_s = retry.as_secs_f64(),
                    "sync failed"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use controller_core::job::{Settings, Severity, SyncInput};
    use controller_core::view::{Source, Version, WireJob};
    use epilogue_common::outcome::FailureKind;
    use epilogue_runtime::lease::{Fence, Identity};
    use epilogue_runtime::watch::WatchEvent;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use prometheus::Registry;
    use serde_json::{Value, json};

    type Calls = Arc<Mutex<Vec<String>>>;

    fn pod(name: &str, version: u64, phase: &str) -> Value {
        let labels = json!({"job-name": "a", "batch.kubernetes.io/controller-uid": "uid-a"});
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a",
                           "controller": true});
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels,
                "resourceVersion": version.to_string(), "ownerReferences": [owner],
                "finalizers": ["batch.kubernetes.io/job-tracking"]},
            "status": {"phase": phase},
        })
    }

    fn job(version: u64, status: &Value) -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "uid-a",
                "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"parallelism": 2, "completions": 4, "backoffLimit": 6,
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "uid-a"}},
                "template": {"metadata": {"labels": {
                    "batch.kubernetes.io/controller-uid": "uid-a"}},
                    "spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}},
            "status": status,
        })
    }

    /// A syncer that knows a Job and these pods of it up to version 50. The API gives these
    /// versions to new pods, to a new status and to pods that are patched.
    fn syncer(pods: &[Value], (new, status, patched): (u64, u64, u64)) -> (Syncer, Calls) {
        let calls = Calls::default();
        let log = Arc::clone(&calls);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
            log.lock().push(format!("{method} {}", path.rsplit('/').next().unwrap_or_default()));
            async move {
                let sent = request.into_body().collect_bytes().await.expect("must be there");
                let sent: Value = serde_json::from_slice(&sent).unwrap_or_default();
                let answer = match method.as_str() {
                    "GET" => job(40, &json!({})),
                    "POST" => pod("new", new, "Pending"),
                    "PUT" => job(status, &sent["status"]),
                    _ => pod("old", patched, "Succeeded"),
                };
                Response::builder().body(Body::from(answer.to_string().into_bytes()))
            }
        });
        let client = Client::new(service, "default");
        let dispatch = Arc::new(Dispatch::for_tests(None));
        let known = WireJob::read(&job(40, &json!({})).to_string()).and_then(WireJob::view);
        dispatch.job(WatchEvent::ListBegins);
        dispatch.job(WatchEvent::Shown(known.expect("must be a Job")));
        dispatch.job(WatchEvent::ListEnds("50".to_owned()));
        dispatch.pod(WatchEvent::ListBegins);
        for pod in pods {
            let pod = serde_json::from_value(pod.clone()).expect("must be a pod");
            dispatch.pod(WatchEvent::Shown(pod));
        }
        dispatch.pod(WatchEvent::ListEnds("50".to_owned()));
        for newest in [&dispatch.newest_job, &dispatch.newest_pod] {
            assert!(!newest.answered(0, 50));
        }
        let metrics = Metrics::new(&Registry::new()).expect("must register");
        let identity = Identity { name: "test".to_owned(), clock: Clock::MACHINE };
        let executor = Executor::new(client.clone(), Arc::clone(&dispatch), Clock::MACHINE);
        let settings = Settings { manage_all_jobs: true, ..Settings::default() };
        let syncer = Syncer {
            dispatch,
            executor: Arc::new(executor),
            recorder: Recorder::new(client, identity, metrics.clone()),
            metrics,
            planner: Planner::new(settings, None, usize::MAX),
            clock: Clock::MACHINE,
        };
        (syncer, calls)
    }

    /// What a sync calls, and whether the Job rests after it.
    async fn synced(pods: &[Value], versions: (u64, u64, u64)) -> (Vec<String>, bool) {
        let (syncer, calls) = syncer(pods, versions);
        let key = JobKey::new("default", "a");
        syncer.process(&syncer.dispatch.jobs, &key).await;
        let rests = syncer.dispatch.input(&key).is_none();
        let calls = calls.lock().clone();
        (calls, rests)
    }

    /// A panic in the plan of Job `a`, as none is known.
    fn panics_for_a(input: &SyncInput<'_>) -> Result<(), String> {
        assert_ne!(&*input.job.key.name, "a", "a plan that panics");
        if input.job.spec.suspend { Err("not here".to_owned()) } else { Ok(()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sync_that_panics_costs_its_job_a_backoff_and_no_other_job_anything() {
        let (mut syncer, calls) = syncer(&[], (51, 52, 53));
        let settings = Settings { manage_all_jobs: true, ..Settings::default() };
        syncer.planner = Planner::new(settings, Some(panics_for_a), 0);
        let (dispatch, recorder) = (Arc::clone(&syncer.dispatch), Arc::clone(&syncer.recorder));
        let mut other = job(41, &json!({}));
        other["metadata"]["name"] = json!("b");
        other["metadata"]["uid"] = json!("uid-b");
        let other = WireJob::read(&other.to_string()).and_then(WireJob::view);
        dispatch.open(true);
        dispatch.job(WatchEvent::Shown(other.expect("must be a Job")));
        let token = tokio_util::sync::CancellationToken::new();
        let work = dispatch.jobs.work(&syncer, 5, token.clone());
        let stop = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            token.cancel();
        };
        tokio::join!(work, stop);
        let panics = dispatch.panics();
        assert!((2..6).contains(&panics), "{panics} in 10 s, with backoff; {:?}", calls.lock());
        assert!(calls.lock().iter().any(|call| call == "POST pods"), "{:?}", calls.lock());
        let event = recorder.next_for_tests().expect("there must be one").event;
        assert_eq!((&*event.reason, event.severity), ("InternalError", Severity::Warning));
        assert!(event.message.contains("a plan that panics"), "{}", event.message);
    }

    #[tokio::test]
    #[should_panic(expected = "a panic has left it half changed")]
    async fn a_panic_inside_the_state_ends_the_process() {
        let (syncer, _) = syncer(&[], (51, 52, 53));
        let dispatch = Arc::clone(&syncer.dispatch);
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _state = dispatch.state();
            assert_eq!(1, 2, "an index that does not hold");
        }));
        assert!(broken.is_err());
        let failure = Failure::new(FailureKind::Other, "internal error");
        syncer.panicked(&dispatch.jobs, &JobKey::new("default", "a"), failure).await;
    }

    #[tokio::test]
    async fn without_the_lease_nothing_is_written_and_the_sync_is_repeated() {
        let (syncer, calls) = syncer(&[pod("old", 45, "Succeeded")], (51, 52, 53));
        syncer.executor.set_fence(Fence::closed());
        syncer.dispatch.jobs.open();
        let key = JobKey::new("default", "a");
        syncer.process(&syncer.dispatch.jobs, &key).await;
        assert!(calls.lock().is_empty(), "{:?}", calls.lock());
        assert_eq!(syncer.dispatch.jobs.figures().tally.retries, 1);
        let snapshot = syncer.dispatch.input(&key).expect("the Job is known");
        assert!(!snapshot.memory.creation_in_doubt, "what was not sent is in no doubt");
    }

    #[tokio::test]
    async fn a_sync_stops_at_an_answer_that_is_older_than_what_was_known() {
        let old = [pod("old", 45, "Succeeded")];
        let all = ["POST pods", "POST pods", "PUT status", "PATCH old", "PUT status"];
        for (versions, expected) in [
            ((51, 52, 53), &all[..]),
            // The pods are in another etcd. A patch may change nothing, and a status, too.
            ((151, 52, 45), &all),
            ((51, 40, 46), &all),
            ((49, 52, 53), &all[..1]),
            ((51, 49, 53), &all[..3]),
            ((51, 52, 44), &all[..4]),
        ] {
            let (calls, rests) = synced(&old, versions).await;
            assert_eq!(calls, expected, "{versions:?}");
            assert_eq!(rests, expected != all, "{versions:?}");
        }
    }

    /// The Job as it was planned is read once, for all pods and for the first status.
    #[tokio::test]
    async fn a_job_whose_template_is_not_kept_is_read_when_it_is_needed() {
        let (syncer, calls) = syncer(&[pod("old", 45, "Succeeded")], (51, 52, 53));
        let key = JobKey::new("default", "a");
        let snapshot = syncer.dispatch.input(&key).expect("must be there");
        let source = Source::Unkept { template_size: 100, has_labels: true };
        for (version, first) in [(Version(39), "GET a"), (Version(40), "GET a")] {
            calls.lock().clear();
            let (source, known) = (source.clone(), Job::clone(&snapshot.job));
            let job = Arc::new(Job { source, version, ..known });
            let snapshot = Arc::new(Snapshot { job, ..snapshot.clone() });
            let (now, mut plans) = (syncer.clock.now(), Stopwatch::default());
            let (_, progress) = syncer.planner.begin(&snapshot, now, &mut plans).await;
            let result = syncer.carry_out(&snapshot, progress, &mut plans).await;
            let result = result.expect("nothing is void").result;
            let calls = calls.lock().clone();
            assert_eq!(calls[0], first, "{calls:?}");
            let is_planned = version == Version(40);
            assert_eq!(result.is_ok(), is_planned, "{result:?}");
            let rest = ["POST pods", "POST pods", "PUT status", "PATCH old", "PUT status"];
            assert_eq!(calls[1..] == rest, is_planned, "{calls:?}");
        }
    }
}
