//! Makes the plans of a sync, and measures them. The plan of a Job with many pods is made on
//! another thread than the one that keeps the lease and the watches.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use controller_core::job::{Answer, Call, Progress, Settings, SkipReason, SyncInput, plan_pods};
use controller_core::state::Snapshot;
use epilogue_common::outcome::Outcome;
use jiff::Timestamp;

/// From this number of pods on, a plan is made on another thread. It takes milliseconds then, and
/// the way to another thread takes microseconds.
pub(crate) const MANY_PODS: usize = 5_000;

/// Returns what is wrong with the plan for an input.
pub(crate) type Check = fn(&SyncInput<'_>) -> Result<(), String>;

/// Makes the plans of syncs.
#[derive(Debug)]
pub(crate) struct Planner {
    settings: Arc<Settings>,
    /// Checks each plan before it is carried out (`--check-plans`).
    check: Option<Check>,
    many_pods: usize,
}

/// How long the plans of one key take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    /// All of them.
    pub(crate) total: Duration,
    /// The longest one that kept the thread from all else, or would have.
    pub(crate) longest: Duration,
}

impl Planner {
    /// Plans by these settings; for this number of pods and more, on another thread.
    pub(crate) fn new(settings: Settings, check: Option<Check>, many_pods: usize) -> Self {
        Self { settings: Arc::new(settings), check, many_pods }
    }

    /// Makes the first plan of a sync. Returns why the sync does nothing, if so.
    pub(crate) async fn begin(
        &self,
        snapshot: &Arc<Snapshot>,
        now: Timestamp,
        plans: &mut Stopwatch,
    ) -> (Option<SkipReason>, Progress) {
        if !self.is_large(snapshot) {
            return plans.time(|| begun(snapshot, &self.settings, self.check, now));
        }
        let (snapshot, settings) = (Arc::clone(snapshot), Arc::clone(&self.settings));
        let check = self.check;
        plans.elsewhere(move || begun(&snapshot, &settings, check, now)).await
    }

    /// Takes the outcome of a call, which may lead to the second plan.
    pub(crate) async fn go_on(
        &self,
        snapshot: &Snapshot,
        mut progress: Progress,
        (call, outcome): (Call, Outcome<Answer>),
        plans: &mut Stopwatch,
    ) -> Progress {
        if !self.is_large(snapshot) || !progress.ends_stage() {
            plans.time(|| progress.done(&call, outcome));
            return progress;
        }
        let done = move || {
            progress.done(&call, outcome);
            progress
        };
        plans.elsewhere(done).await
    }

    fn is_large(&self, snapshot: &Snapshot) -> bool {
        snapshot.pods.len_with_strays() >= self.many_pods
    }
}

fn begun(
    snapshot: &Snapshot,
    settings: &Settings,
    check: Option<Check>,
    now: Timestamp,
) -> (Option<SkipReason>, Progress) {
    let input = SyncInput {
        job: &snapshot.job,
        pods: &snapshot.pods,
        memory: &snapshot.memory,
        groups: snapshot.groups.as_ref(),
        seen: snapshot.seen,
        now,
        settings,
        counts_max: snapshot.counts_max,
    };
    let plan = plan_pods(&input);
    let (job, uid) = (&snapshot.job.key, &snapshot.job.uid);
    tracing::debug!(%job, %uid, %plan, "planned");
    // A skipped plan is not checked: its input may be outdated. ([S1], [S5]) A check creates pods
    // from the template.
    if let Some(check) = check
        && plan.skip.is_none()
        && !snapshot.job.source.is_unkept()
        && let Err(problem) = check(&input)
    {
        tracing::error!(%job, %uid, problem, "the plan does not hold");
    }
    (plan.skip, Progress::new(plan, settings))
}

impl Stopwatch {
    /// Measures this.
    pub(crate) fn time<T>(&mut self, plan: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let made = plan();
        self.add(begun.elapsed());
        made
    }

    /// Does and measures this on another thread. A panic goes on here.
    async fn elsewhere<T: Send + 'static>(
        &mut self,
        plan: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let timed = move || {
            let begun = Instant::now();
            (plan(), begun.elapsed())
        };
        match tokio::task::spawn_blocking(timed).await {
            Ok((made, took)) => {
                self.add(took);
                made
            }
            Err(error) => match error.try_into_panic() {
                Ok(payload) => resume_unwind(payload),
                // The runtime ends, and all that it runs is dropped.
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn add(&mut self, took: Duration) {
        self.total += took;
        self.longest = self.longest.max(took);
    }
}
