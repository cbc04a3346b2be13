//! The table of scenarios: a Job, what its pods do, what a user does meanwhile, and when to
//! compare.
//!
//! It leaves out intended differences (`rg DIVERGES`): timing, events, and how many failures a sync
//! counts at once. Upstream's backoff is at least 10 s, so no scenario has more than one. A pod
//! whose end terminates the others ends after 4 s. So the others run by then even if all scenarios
//! begin at once on two busy cores. Where a rule is about a wait, a row names how long it takes at
//! least.

use kube::api::DeleteParams;
use lab::bed::{JobBuilder, JobState, job};
use serde_json::{Value, json};

/// One row.
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// Without its labels and `managedBy`.
    pub(crate) job: JobBuilder,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
    /// The least seconds from its creation to its end: with us, and with upstream.
    pub(crate) takes_s: (f64, f64),
}

/// An action on a Job.
#[derive(Debug)]
pub(crate) enum Step {
    /// Creates a pod without an owner, with the Job's label, before the Job.
    StrayPod,
    /// Waits.
    Reaches(fn(&JobState) -> bool),
    /// Waits until so many pods are ready, none terminates, and so many have failed.
    Settles {
        ready: u32,
        failed: u32,
    },
    /// Changes fields of its spec.
    Change(Value),
    /// Changes its status, which is its controller's.
    Status(Value),
    /// Changes the status of its only pod, as the pod's kubelet.
    PodStatus(Value),
    /// Waits until a pod that failed so many seconds ago still has its finalizer, uncounted.
    Keeps {
        seconds: i64,
    },
    /// Deletes any one of its pods.
    DeletePod,
    Delete(DeleteParams),
}

/// When to compare.
pub(crate) enum End {
    /// After the last step.
    Now,
    Finished,
    Holds(fn(&JobState) -> bool),
    /// The Job is gone and has released its pods.
    Gone,
}

fn row(name: &'static str, job: JobBuilder) -> Scenario {
    Scenario {
        name: name.to_owned(),
        job,
        steps: Vec::new(),
        end: End::Finished,
        takes_s: (0., 0.),
    }
}

impl Scenario {
    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    fn end(self, end: End) -> Self {
        Self { end, ..self }
    }

    fn takes(self, ours: f64, upstream: f64) -> Self {
        Self { takes_s: (ours, upstream), ..self }
    }
}

/// What a backoff of 10 s takes at least: the API's times are whole seconds.
const BACKOFF_S: f64 = 9.0;

pub(crate) fn all() -> Vec<Scenario> {
    [plain(), failures(), failure_policies(), ends(), indexes(), kept(), changes(), ownership()]
        .into_iter()
        .flatten()
        .collect()
}

fn pods(name: &str, parallelism: u32, completions: u32) -> JobBuilder {
    job(name).spec("parallelism", parallelism).spec("completions", completions)
}

fn plain() -> Vec<Scenario> {
    let long = "a-job-with-a-name-that-is-too-long-for-names-of-pods-to-hold-it";
    let long_indexed = "an-indexed-job-with-a-name-too-long-for-names-of-pods-of-it";
    vec![
        row("three-in-pairs", pods("three-in-pairs", 2, 3)),
        // Upstream waits a second after each change of a pod. ([Q3])
        row("one-by-one", pods("one-by-one", 1, 5)).takes(0., 4.),
        row("work-queue", pods("work-queue", 3, 0).spec("completions", json!(null))),
        row("nothing-to-do", job("nothing-to-do").spec("completions", 0)),
        row(
            "nothing-suspended",
            job("nothing-suspended").spec("completions", 0).spec("suspend", true),
        ),
        row("no-parallelism", pods("no-parallelism", 0, 2))
            .end(End::Holds(|state| state.ready == Some(0) && state.started)),
        row(long, pods(long, 1, 1)),
        row(long_indexed, job(long_indexed).indexed(2)),
        row("rich-template", job("rich-template").indexed(2))
            .with_template(&[("hostname", json!("mine")), ("subdomain", json!("sub"))]),
        row("rich-plain", pods("rich-plain", 1, 2)).with_template(&[("hostname", json!("mine"))]),
    ]
}

impl Scenario {
    /// Sets everything in a template that a controller might change or lose.
    fn with_template(mut self, fields: &[(&str, Value)]) -> Self {
        let env = json!([{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]);
        let containers = json!([
            {"name": "main", "image": "none", "env": [{"name": "A", "value": "a"}]},
            {"name": "other", "image": "none", "env": env, "resources": {"limits": {"cpu": "1"}}},
        ]);
        self.job = self
            .job
            .pod_metadata("finalizers", json!(["example.com/mine"]))
            .pod_metadata("annotations", json!({"example.com/note": "kept"}))
            .pod("containers", containers)
            .pod("initContainers", json!([{"name": "first", "image": "none"}]))
            .pod("terminationGracePeriodSeconds", 7)
            .pod("priority", 0)
            .pod("tolerations", json!([{"key": "spot", "operator": "Exists"}]));
        for (field, value) in fields {
            self.job = self.job.pod(field, value.clone());
        }
        self
    }
}

fn failures() -> Vec<Scenario> {
    let restarting = |name: &str| job(name).pod("restartPolicy", "OnFailure");
    let deleted = |name: &'static str, policy: &str, exit: i32| {
        let script = format!("hang on-term={exit} after=500ms times=1; succeed");
        let job = job(name).spec("podReplacementPolicy", policy).script(&script);
        row(name, job).step(Step::Reaches(|state| state.ready == Some(1))).step(Step::DeletePod)
    };
    vec![
        row("one-retry", job("one-retry").script("fail times=1; succeed"))
            .takes(BACKOFF_S, BACKOFF_S),
        row("too-many", job("too-many").spec("backoffLimit", 1).script("fail exit=3")),
        row(
            "survivors",
            job("survivors")
                .indexed(3)
                .spec("backoffLimit", 0)
                .script("index=0: fail after=4s; index=1: succeed; hang on-term=143 after=500ms"),
        ),
        row("restarts", restarting("restarts").script("fail times=2; succeed")),
        row(
            "too-many-restarts",
            restarting("too-many-restarts").spec("backoffLimit", 2).script("fail"),
        ),
        row("deadline", pods("deadline", 2, 2).spec("activeDeadlineSeconds", 2).script("hang")),
        ended_later(),
        row("no-time", job("no-time").spec("activeDeadlineSeconds", 0).script("hang")),
        // Nothing else happens to it when its time is over.
        row("deadline-later", job("deadline-later").script("hang"))
            .step(Step::Reaches(|state| state.ready == Some(1)))
            .step(Step::Change(json!({"activeDeadlineSeconds": 15}))),
        deleted("deleted-failed", "Failed", 1),
        deleted("deleted-failed-exits-0", "Failed", 0),
        deleted("deleted-either", "TerminatingOrFailed", 1),
        // Not with exit 0: whether the batch of a second sees the pod terminating is a race.
    ]
}

/// The clock of its node is ahead: upstream's backoff begins when the container ended, as it says
/// ([D3]); ours begins at once. ([D2])
fn ended_later() -> Scenario {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(15);
    let at = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ended = json!({"terminated": {"exitCode": 1, "finishedAt": at}});
    let main = json!({"name": "main", "image": "none", "imageID": "", "ready": false,
                      "restartCount": 0, "state": ended});
    row("ended-later", job("ended-later").script("pending times=1; succeed"))
        .step(Step::Reaches(|state| state.active == 1))
        .step(Step::PodStatus(json!({"phase": "Failed", "containerStatuses": [main]})))
        .takes(BACKOFF_S, 2. * BACKOFF_S)
}

fn failure_policies() -> Vec<Scenario> {
    let on_exit = |action: &str, code: i32| {
        let codes = json!({"containerName": "main", "operator": "In", "values": [code]});
        json!({"action": action, "onExitCodes": codes})
    };
    let on_disruption =
        |action: &str| json!({"action": action, "onPodConditions": [{"type": "DisruptionTarget"}]});
    let rules = |rules: &[Value]| json!({"rules": rules});
    let per_index = |name: &str| job(name).indexed(3).spec("backoffLimitPerIndex", 1);
    vec![
        row(
            "fail-job-by-code",
            job("fail-job-by-code")
                .indexed(2)
                .spec("podFailurePolicy", rules(&[on_exit("Ignore", 1), on_exit("FailJob", 42)]))
                .script("index=1: fail exit=42 after=4s; hang on-term=0 after=500ms"),
        ),
        row(
            "fail-job-by-condition",
            job("fail-job-by-condition")
                .spec("podFailurePolicy", rules(&[on_disruption("FailJob")]))
                .script("disrupt after=200ms"),
        ),
        row(
            "ignored-disruption",
            job("ignored-disruption")
                .spec("backoffLimit", 0)
                .spec("podFailurePolicy", rules(&[on_disruption("Ignore")]))
                .script("disrupt times=1; succeed"),
        ),
        row(
            "counted",
            job("counted")
                .spec("backoffLimit", 0)
                .spec("podFailurePolicy", rules(&[on_exit("Count", 3), on_exit("Ignore", 3)]))
                .script("fail exit=3"),
        ),
        row(
            "fail-index",
            per_index("fail-index")
                .spec("podFailurePolicy", rules(&[on_exit("FailIndex", 42)]))
                .script("index=1: fail exit=42; succeed"),
        ),
        row(
            "ignored-on-an-index",
            per_index("ignored-on-an-index")
                .spec("podFailurePolicy", rules(&[on_disruption("Ignore")]))
                .script("index=2: disrupt times=1; succeed"),
        ),
    ]
}

/// What decides where several ends are due, or one is stored.
fn ends() -> Vec<Scenario> {
    let codes = json!({"containerName": "main", "operator": "In", "values": [42]});
    let rules = json!({"rules": [{"action": "FailJob", "onExitCodes": codes}]});
    let at = "2026-01-01T00:00:00Z";
    let by_hand = json!([{"type": "FailureTarget", "status": "True", "reason": "Mine",
        "message": "written by hand", "lastProbeTime": at, "lastTransitionTime": at}]);
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    let status = |phase: &str, ready: &str, other: Value| {
        let container = |name: &str, state: Value| {
            json!({"name": name, "image": "none", "imageID": "", "ready": false, "restartCount": 0,
                   "state": state})
        };
        json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}],
               "containerStatuses": [container("main", ended(42)), container("other", other)]})
    };
    let container = |name: &str| json!({"name": name, "image": "none"});
    let script = "index=1: fail after=4s; hang on-term=143 after=500ms";
    vec![
        row(
            "rule-and-limit",
            job("rule-and-limit")
                .spec("backoffLimit", 0)
                .spec("podFailurePolicy", rules.clone())
                .script("fail exit=42"),
        ),
        row(
            "limit-and-indexes",
            job("limit-and-indexes")
                .indexed(3)
                .spec("backoffLimitPerIndex", 0)
                .spec("maxFailedIndexes", 0)
                .spec("backoffLimit", 0)
                .script(script),
        ),
        row("stored-end", pods("stored-end", 2, 2).script("hang on-term=143 after=500ms"))
            .step(Step::Reaches(|state| state.ready == Some(2)))
            .step(Step::Status(json!({"conditions": by_hand}))),
        row("listed-before", job("listed-before").script("hang"))
            .step(Step::Reaches(|state| state.ready == Some(1)))
            .step(Step::Status(json!({"uncountedTerminatedPods": {"failed": ["of-a-former-pod"]}})))
            .end(End::Holds(|state| (state.failed, state.active) == (1, 1))),
        // A container of a pod that runs decides nothing.
        row(
            "code-of-a-running-pod",
            job("code-of-a-running-pod")
                .spec("podFailurePolicy", rules)
                .pod("containers", json!([container("main"), container("other")]))
                .script("pending"),
        )
        .step(Step::Reaches(|state| state.active == 1))
        .step(Step::PodStatus(status("Running", "True", json!({"running": {"startedAt": at}}))))
        .step(Step::Reaches(|state| state.ready == Some(1) && state.conditions.is_empty()))
        .step(Step::PodStatus(status("Failed", "False", ended(0)))),
    ]
}

/// Fails at once, for ever.
pub(crate) fn ignored_loop() -> JobBuilder {
    let codes = json!({"containerName": "main", "operator": "In", "values": [42]});
    let rule = json!({"action": "Ignore", "onExitCodes": codes});
    job("ignored-loop").spec("podFailurePolicy", json!({"rules": [rule]})).script("fail exit=42")
}

/// Its first index waits for its backoff, and the second one is free.
pub(crate) fn waiting_index() -> JobBuilder {
    let job = job("waiting-index").indexed(2).spec("parallelism", 1);
    job.spec("backoffLimitPerIndex", 1).script("index=0: fail times=1; succeed")
}

fn indexes() -> Vec<Scenario> {
    let policy = |rule: Value| json!({"rules": [rule]});
    vec![
        row("seven-by-three", pods("seven-by-three", 3, 7).spec("completionMode", "Indexed")),
        row(
            "index-limit",
            job("index-limit")
                .indexed(3)
                .spec("backoffLimitPerIndex", 1)
                .script("index=0: fail times=1; index=2: fail; succeed"),
        )
        .takes(BACKOFF_S, BACKOFF_S),
        // The failure waits for a replacement, and counts against the Job's limit at once.
        row(
            "both-limits",
            job("both-limits")
                .indexed(3)
                .spec("backoffLimitPerIndex", 5)
                .spec("backoffLimit", 0)
                .script("index=1: fail after=4s; hang on-term=143 after=500ms"),
        ),
        row(
            "failed-indexes",
            job("failed-indexes")
                .indexed(4)
                .spec("backoffLimitPerIndex", 0)
                .spec("maxFailedIndexes", 1)
                .script("index=0: succeed; index=1-2: fail after=4s; hang"),
        ),
        row(
            "leader",
            job("leader")
                .indexed(3)
                .spec("successPolicy", policy(json!({"succeededIndexes": "0"})))
                .script("index=0: succeed after=4s; hang on-term=143 after=500ms"),
        ),
        row(
            "enough",
            job("enough")
                .indexed(4)
                .spec("successPolicy", policy(json!({"succeededCount": 2})))
                .script("index=1,3: succeed after=4s; hang"),
        ),
    ]
}

/// A failed pod of an index waits for its replacement, or for a Job that may have one.
fn kept() -> Vec<Scenario> {
    let per_index = |name: &'static str| {
        let job = job(name).indexed(2).spec("backoffLimitPerIndex", 1);
        row(name, job.script("index=0: fail after=4s times=1; hang on-term=143 after=100ms"))
            .step(Step::Keeps { seconds: 3 })
    };
    let replaced = |state: &JobState| (state.failed, state.active, state.ready) == (1, 2, Some(2));
    vec![
        per_index("kept-in-backoff").end(End::Holds(replaced)),
        per_index("kept-while-idle")
            .step(Step::Change(json!({"parallelism": 0})))
            .step(Step::Keeps { seconds: 14 })
            .step(Step::Change(json!({"parallelism": 2})))
            .end(End::Holds(replaced)),
    ]
}

fn changes() -> Vec<Scenario> {
    let suspend = |suspend: bool| Step::Change(json!({"suspend": suspend}));
    vec![
        row("created-suspended", job("created-suspended").spec("suspend", true))
            .end(End::Holds(|state| state.conditions == ["Suspended"])),
        row("resumed", job("resumed").indexed(2).script("hang times=1; succeed"))
            .step(Step::Reaches(|state| state.ready == Some(2)))
            .step(suspend(true))
            .step(Step::Reaches(|state| {
                state.conditions == ["Suspended"] && state.terminating == Some(0)
            }))
            .step(suspend(false)),
        row("shrunk", job("shrunk").indexed(4).script("index=0-1: succeed; hang"))
            .step(Step::Reaches(|state| (state.succeeded, state.ready) == (2, Some(2))))
            .step(Step::Change(json!({"parallelism": 2, "completions": 2}))),
        row("grown", job("grown").indexed(2).script("index=0: hang; succeed"))
            .step(Step::Reaches(|state| (state.succeeded, state.ready) == (1, Some(1))))
            .step(Step::Change(json!({"parallelism": 4, "completions": 4})))
            .end(End::Holds(|state| (state.succeeded, state.ready) == (3, Some(1)))),
        // An index beyond completions is forgotten, and runs again.
        row(
            "shrunk-and-grown",
            job("shrunk-and-grown").indexed(3).script("index=2: succeed times=1; hang"),
        )
        .step(Step::Reaches(|state| (state.succeeded, state.ready) == (1, Some(2))))
        .step(Step::Change(json!({"parallelism": 2, "completions": 2})))
        .step(Step::Reaches(|state| (state.succeeded, state.ready) == (0, Some(2))))
        .step(Step::Change(json!({"parallelism": 3, "completions": 3})))
        .end(End::Holds(|state| (state.succeeded, state.ready) == (0, Some(3)))),
        row("spares-the-ready", pods("spares-the-ready", 4, 9).script("hang times=2; not-ready"))
            .step(Step::Reaches(|state| (state.active, state.ready) == (4, Some(2))))
            .step(Step::Change(json!({"parallelism": 2})))
            .end(End::Holds(|state| {
                (state.active, state.ready, state.terminating) == (2, Some(2), Some(0))
            })),
        row("slowed", pods("slowed", 4, 9).script("hang"))
            .step(Step::Reaches(|state| state.ready == Some(4)))
            .step(Step::Change(json!({"parallelism": 1})))
            .end(End::Holds(|state| (state.active, state.terminating) == (1, Some(0)))),
    ]
}

fn ownership() -> Vec<Scenario> {
    let selecting = |name: &'static str| {
        let labels = json!({"scenario": name});
        job(name).spec("manualSelector", true).spec("selector", json!({"matchLabels": labels}))
    };
    vec![
        row("selecting", selecting("selecting")),
        row("adopting", selecting("adopting").script("hang"))
            .step(Step::StrayPod)
            .end(End::Holds(|state| state.ready == Some(1))),
        // The stray has no index.
        row("unindexed", selecting("unindexed").indexed(2).script("hang"))
            .step(Step::StrayPod)
            .end(End::Holds(|state| {
                (state.active, state.ready, state.terminating) == (2, Some(2), Some(0))
            })),
        row("orphaning", pods("orphaning", 2, 2).script("hang"))
            .step(Step::Reaches(|state| state.ready == Some(2)))
            .step(Step::Delete(DeleteParams::orphan()))
            .end(End::Gone),
    ]
}
