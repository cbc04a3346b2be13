//! Judges every write by the API's own log, not by what the controller believes. Each pod is
//! counted once; no pod too many; no end too early.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_core::job::ClaimKind;
use controller_core::view::{Job, Phase, Pod, Uid, Version};
use epilogue_common::names::job_condition;
use k8s_openapi::api::batch::v1::JobStatus;

use super::api::{Api, Sighting};
use super::indexes::Indexes;
use super::release_rules::{self, Standing};
use super::situations::{Counts, Met};

/// The ledger's records, and the violations that it found.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) violations: Vec<String>,
    /// How often each situation was met.
    pub(super) met: Counts,
    /// Whether two processes have led at the same time.
    pub(super) two_leaders: bool,
    pods: BTreeMap<Uid, Record>,
    accounts: BTreeMap<Uid, Account>,
}

/// Everything that was ever true of a pod.
#[derive(Clone, Debug, Default)]
struct Record {
    owners: BTreeSet<Uid>,
    index: Option<u32>,
    /// Failures of its index before it, from its annotations.
    failures: u32,
    ended_failed: bool,
    stripped: bool,
    succeeded: bool,
    /// Failed, or being deleted.
    failed: bool,
    /// Does not count against limits of live pods: the process that leads could not know of it.
    ///
    /// These are: a pod whose creation was never answered (lost reply, crash, deposed leader), and
    /// one that a user or the garbage collector took from its Job or gave to it. A controller that
    /// reads at one time and creates at a later one cannot exclude the former; upstream makes them
    /// too.
    exempt: bool,
    /// A user or the garbage collector took it from its Job or gave it to one; afterwards nothing
    /// in the API shows its history.
    meddled: bool,
}

/// The counts of one Job.
#[derive(Clone, Debug, Default)]
struct Account {
    counted: BTreeSet<Uid>,
    /// Whether an exempt pod may have done work that other pods then repeated.
    loose: bool,
    /// Whether a user changed the number of indexes: the ledger forgets the indexes beyond. ([I7])
    resized: bool,
    /// The newest version of its status whose write got no reply. A process that plans from an
    /// older version cannot know that write; its own next write is refused.
    unanswered: Version,
}

impl Ledger {
    /// The API's log shows a pod.
    pub(super) fn saw(&mut self, sighting: &Sighting<Pod>) {
        let (Sighting::Shown(pod) | Sighting::Gone(pod, _)) = sighting;
        let record = self.pods.entry(pod.uid.clone()).or_default();
        if let Some(owner) = &pod.owner {
            record.owners.insert(owner.uid.clone());
        }
        record.index = pod.index;
        record.failures = pod.failures.total();
        record.ended_failed |= pod.phase == Phase::Failed;
        record.succeeded |= pod.phase == Phase::Succeeded;
        record.failed |= pod.phase == Phase::Failed || pod.deletion.is_some();
    }

    pub(super) fn pods_seen(&self) -> usize {
        self.pods.len()
    }

    pub(super) fn is_exempt(&self, pod: &Uid) -> bool {
        self.pods.get(pod).is_some_and(|record| record.exempt)
    }

    /// A user takes a pod from a Job or gives it to one.
    pub(super) fn estranged(&mut self, pod: &Pod) {
        self.met(Met::UserEstranges);
        self.exempt(&pod.uid, pod.owner.as_ref().map(|owner| &owner.uid));
        self.pods.entry(pod.uid.clone()).or_default().meddled = true;
    }

    /// A user changes the number of a Job's indexes.
    pub(super) fn resized(&mut self, job: &Uid) {
        self.accounts.entry(job.clone()).or_default().resized = true;
    }

    /// The reply to a write of a Job's status was lost.
    pub(super) fn unanswered(&mut self, job: &Job) {
        self.met(Met::StatusUnanswered);
        self.accounts.entry(job.uid.clone()).or_default().unanswered = job.version;
    }

    /// The owner of its Job accepts that a pod may still run.
    pub(super) fn exempt_from_life(&mut self, pod: &Uid) {
        self.exempt(pod, None);
    }

    fn is_meddled(&self, pod: &Uid) -> bool {
        self.pods.get(pod).is_some_and(|record| record.meddled)
    }

    fn exempt(&mut self, pod: &Uid, job: Option<&Uid>) {
        self.pods.entry(pod.clone()).or_default().exempt = true;
        if let Some(job) = job {
            self.accounts.entry(job.clone()).or_default().loose = true;
        }
    }

    /// Counts a situation.
    pub(super) fn met(&mut self, what: Met) {
        self.met.count(what as usize);
    }

    fn violate(&mut self, problem: String) {
        self.violations.push(problem);
    }

    /// A pod was created for a Job as `planned`. `sure`: by the process that leads.
    pub(super) fn created(&mut self, api: &Api, planned: &Job, pod: &Arc<Pod>, sure: bool) {
        self.saw(&Sighting::Shown(Arc::clone(pod)));
        if !sure {
            self.exempt(&pod.uid, Some(&planned.uid));
            return;
        }
        self.met(Met::Creation);
        self.joined(api, planned, pod);
        self.begun_anew(api, planned, pod);
        self.not_too_many(api, planned, pod);
        let loose = self
            .accounts
            .get(&planned.uid)
            .is_some_and(|account| account.loose || planned.version < account.unanswered);
        // The view of another process may lack for a moment what one leader has counted.
        if self.two_leaders || loose {
            return;
        }
        self.failures_remembered(planned, pod);
        if let Some(job) = api.job(&planned.uid) {
            self.not_in_vain(api, planned, job, pod);
        }
    }

    /// With the new pod there are no more live pods than the parallelism that the Job was planned
    /// for. A plan made before a user scaled down may still use the old one. If only failed pods
    /// are replaced, terminating ones count as live. An index has no other live pod.
    fn not_too_many(&mut self, api: &Api, planned: &Job, pod: &Pod) {
        let only_failed = planned.replaces_failed_only();
        let live: Vec<&Arc<Pod>> = api
            .pods_of(&planned.uid)
            .filter(|each| each.is_active() || (only_failed && each.is_terminating()))
            .filter(|each| !self.is_exempt(&each.uid))
            .collect();
        let parallelism = usize::try_from(planned.spec.parallelism).unwrap_or(0);
        let twins = live.iter().filter(|each| each.index == pod.index).count();
        let count = live.len();
        let terminates = live.iter().any(|each| each.is_terminating());
        if count == parallelism {
            self.met(Met::FullParallelism);
        }
        if terminates {
            self.met(Met::WhileTerminating);
        }
        if count > parallelism {
            self.violate(format!(
                "{} has {count} live pods with parallelism {parallelism}",
                planned.key
            ));
        }
        if planned.is_indexed() && twins > 1 {
            self.violate(format!("{} has {twins} live pods of index {:?}", planned.key, pod.index));
        }
    }

    /// With `backoffLimitPerIndex`, a pod starts with more failures than each earlier failed pod of
    /// its index: a forgotten failure is a retry too many.
    ///
    /// Exception: a pod of the index was deleted as excess, or by suspension. The failures are
    /// written on the newest pod alone and go with it, as upstream.
    fn failures_remembered(&mut self, planned: &Job, pod: &Pod) {
        let of_index: Vec<&Record> = self
            .pods
            .iter()
            .filter(|(uid, record)| {
                **uid != pod.uid
                    && record.index == pod.index
                    && record.owners.contains(&planned.uid)
            })
            .map(|(_, record)| record)
            .collect();
        let resized = self.accounts.get(&planned.uid).is_some_and(|account| account.resized);
        let lost = resized || of_index.iter().any(|it| it.stripped || it.meddled || it.exempt);
        let before = of_index.iter().filter(|record| record.ended_failed);
        let most = before.map(|record| record.failures + 1).max().unwrap_or(0);
        if planned.is_indexed() && !of_index.is_empty() {
            self.met(Met::IndexAgain);
        }
        if planned.spec.backoff_limit_per_index.is_none() || lost {
            return;
        }
        if most > 0 {
            self.met(Met::FailuresRemembered);
        }
        if pod.failures.total() < most {
            let problem = format!(
                "{} forgets failures of index {:?}: {} of {most}",
                planned.key,
                pod.index,
                pod.failures.total()
            );
            self.violate(problem);
        }
    }

    /// No pod is created for a finished Job, for a finished index, or for a success that already
    /// exists.
    fn not_in_vain(&mut self, api: &Api, planned: &Job, job: &Job, pod: &Pod) {
        for kind in [job_condition::SUCCESS_CRITERIA_MET, job_condition::FAILURE_TARGET] {
            if job.true_condition(kind).is_some() {
                self.violate(format!("{} gets a pod although it has {kind}", job.key));
            }
        }
        let bound = planned.index_bound().min(job.index_bound());
        if job.is_indexed() {
            // A user may have taken the index away since.
            let Some(index) = pod.index.filter(|index| *index < bound) else { return };
            for (what, text) in [
                ("completed", &job.status.completed_indexes),
                ("failed", &job.status.failed_indexes),
            ] {
                if Indexes::of(text.as_deref()).contains(index) {
                    self.violate(format!("{} gets a pod for index {index}, {what}", job.key));
                }
            }
        } else if let Some(completions) = planned.spec.completions {
            let uncounted = listed(&job.status).0;
            let succeeded = api.pods_of(&job.uid).filter(|pod| {
                pod.tracked
                    && !self.is_meddled(&pod.uid)
                    && (pod.deletion.is_none() || planned.replaces_failed_only())
                    && pod.phase == Phase::Succeeded
                    && !listed(&job.status).1.contains(&pod.uid)
                    && !uncounted.contains(&pod.uid)
            });
            let active = api.pods_of(&job.uid).filter(|pod| pod.is_active());
            let active = active.filter(|pod| !self.is_meddled(&pod.uid)).count();
            let done = number(job.status.succeeded) + uncounted.len() + succeeded.count();
            let completions = usize::try_from(completions).unwrap_or(0);
            if active + done == completions {
                self.met(Met::LastCompletion);
            }
            if active + done > completions {
                self.violate(format!(
                    "{} has {active} active pods, {done} successes, completions {completions}",
                    job.key
                ));
            }
        }
    }

    /// A finalizer was removed so that a pod deleted as excess is not counted.
    pub(super) fn stripped(&mut self, pod: &Uid) {
        self.met(Met::Stripped);
        self.pods.entry(pod.clone()).or_default().stripped = true;
    }

    /// A claim succeeded.
    pub(super) fn claimed(&mut self, pod: &Pod, job: &Job, kind: ClaimKind) {
        if kind == ClaimKind::Adopt {
            self.estranged(pod);
        }
        let counted = |account: &Account| account.counted.contains(&pod.uid);
        let checked = kind == ClaimKind::Track && !self.is_meddled(&pod.uid);
        if checked {
            self.met(Met::Tracked);
        }
        if checked && self.accounts.get(&job.uid).is_some_and(counted) {
            self.violate(format!("{} is tracked again after it was counted", pod.uid));
        }
    }

    /// The queue of orphans is about to remove the finalizer of a pod.
    pub(super) fn orphaned(&mut self, api: &Api, seen: &Pod) {
        let Some(pod) = api.pods.get(&seen.uid).filter(|pod| pod.tracked) else { return };
        let Some(owner) = &pod.owner else { return };
        self.met(Met::ReleaseOrphan);
        if api.job(&owner.uid).is_some_and(|job| !job.is_finished()) {
            self.violate(format!("{} of a running Job loses its finalizer as an orphan", pod.uid));
        }
    }

    /// A sync is about to remove the finalizer of a pod, `seen` as it planned.
    pub(super) fn finalizer_removed(&mut self, api: &Api, planned: &Job, seen: &Pod) {
        let tracked = api.pods.get(&seen.uid).is_some_and(|pod| pod.tracked);
        let checked = tracked && !self.is_meddled(&seen.uid);
        let Some(job) = api.job(&planned.uid).filter(|_| checked) else { return };
        let counted = |account: &Account| account.counted.contains(&seen.uid);
        self.met(match seen.phase {
            Phase::Succeeded => Met::ReleaseSucceeded,
            Phase::Failed => Met::ReleaseFailed,
            _ => Met::ReleaseUnended,
        });
        self.lost_alone(api, planned, seen);
        let (succeeded, failed) = listed(&job.status);
        let standing = Standing {
            accounted: self.accounts.get(&job.uid).is_some_and(counted)
                || succeeded.contains(&seen.uid)
                || failed.contains(&seen.uid),
            succeeds: job.true_condition(job_condition::SUCCESS_CRITERIA_MET).is_some(),
            fails: job.true_condition(job_condition::FAILURE_TARGET).is_some(),
        };
        if let Some(problem) = release_rules::problem(planned, job, seen, standing) {
            self.violate(format!("{} of {} loses its finalizer: {problem}", seen.uid, job.key));
        }
    }

    /// A status was written. `sure`: by the process that leads.
    pub(super) fn wrote(&mut self, api: &Api, job: &Arc<Job>, new: &JobStatus, sure: bool) {
        let old = &job.status;
        let ((old_succeeded, old_failed), (new_succeeded, new_failed)) = (listed(old), listed(new));
        for uid in new_succeeded.difference(&old_succeeded) {
            self.listed(job, new, uid, true);
        }
        for uid in new_failed.difference(&old_failed) {
            self.listed(job, new, uid, false);
        }
        let settled_failed: Vec<&Uid> = old_failed.difference(&new_failed).collect();
        let settled_succeeded: Vec<&Uid> = old_succeeded.difference(&new_succeeded).collect();
        for uid in settled_failed.iter().chain(&settled_succeeded) {
            self.settled(api, job, uid);
        }
        let more = |new: Option<i32>, old: Option<i32>| new.unwrap_or(0) - old.unwrap_or(0);
        if more(new.failed, old.failed) != settled_failed.len() as i32 {
            self.violate(format!("{}: failed moves without its UIDs", job.key));
        }
        if job.is_indexed() {
            self.indexes(job, new);
        } else if more(new.succeeded, old.succeeded) != settled_succeeded.len() as i32 {
            self.violate(format!("{}: succeeded moves without its UIDs", job.key));
        }
        self.met_conditions(old, new);
        // What a process that was deposed could know of, the small scopes judge.
        if sure {
            self.ends(api, job, new);
        }
    }

    /// A UID is listed in `uncountedTerminatedPods`: it will be counted.
    fn listed(&mut self, job: &Job, new: &JobStatus, uid: &Uid, success: bool) {
        let record = self.pods.get(uid).cloned().unwrap_or_default();
        let fails = has_condition(new, job_condition::FAILURE_TARGET);
        self.met(match success {
            true => Met::ListsSucceeded,
            false if record.ended_failed => Met::ListsFailed,
            false => Met::ListsTerminating,
        });
        let counted = |account: &Account| account.counted.contains(uid);
        if self.accounts.get(&job.uid).is_some_and(counted) && !record.meddled {
            self.violate(format!("{uid} of {} is counted twice", job.key));
        }
        if !record.owners.contains(&job.uid) {
            self.violate(format!("{uid} is counted by {}, which never owned it", job.key));
        }
        if success && !record.succeeded {
            self.violate(format!("{uid} of {} counts as succeeded and did not", job.key));
        }
        if !success && !record.failed && !fails {
            self.violate(format!("{uid} of {} counts as failed and did not", job.key));
        }
    }

    /// A UID has moved into a counter.
    fn settled(&mut self, api: &Api, job: &Job, uid: &Uid) {
        if self.is_meddled(uid) {
            return;
        }
        if api.pods.get(uid).is_some_and(|pod| pod.tracked && pod.is_owned_by(&job.uid)) {
            self.violate(format!("{uid} of {} is counted and has its finalizer", job.key));
        }
        self.met(Met::Counted);
        let account = self.accounts.entry(job.uid.clone()).or_default();
        if !account.counted.insert(uid.clone()) {
            self.violate(format!("{uid} of {} is counted twice", job.key));
        }
    }

    /// A succeeded pod that is not counted as failed completes its index; only a user takes it
    /// back, by scaling down. A failed pod fails its index.
    fn indexes(&mut self, job: &Job, new: &JobStatus) {
        let read = |field: &Option<String>| Indexes::of(field.as_deref());
        let (old_set, new_set) =
            (read(&job.status.completed_indexes), read(&new.completed_indexes));
        // Where the API forbids a decrease, the counter may exceed a set that shrank.
        let elastic = job.spec.completions == Some(job.spec.parallelism);
        let kept = !elastic && new.succeeded == job.status.succeeded;
        if number(new.succeeded) != new_set.count() && !kept {
            self.violate(format!("{}: succeeded is not the number of indexes", job.key));
        }
        let failed = listed(new).1;
        let counted = self.accounts.get(&job.uid).map(|it| it.counted.clone()).unwrap_or_default();
        let by = |index: u32, success: bool| {
            self.pods.iter().any(|(uid, record)| {
                let fits = if success { record.succeeded } else { record.failed };
                let elsewhere = success && (failed.contains(uid) || counted.contains(uid));
                fits && !elsewhere
                    && record.index == Some(index)
                    && record.owners.contains(&job.uid)
            })
        };
        let (mut problems, mut met) = (Vec::new(), Vec::new());
        for index in 0..job.index_bound() {
            if new_set.contains(index) && !old_set.contains(index) {
                met.push(Met::IndexCompletes);
            }
            if new_set.contains(index) && !old_set.contains(index) && !by(index, true) {
                problems.push(format!("{}: index {index} completes by no pod", job.key));
            }
            if old_set.contains(index) && !new_set.contains(index) {
                problems.push(format!("{}: index {index} is taken back", job.key));
            }
        }
        let (old_set, new_set) = (read(&job.status.failed_indexes), read(&new.failed_indexes));
        for index in 0..job.index_bound() {
            if new_set.contains(index) && !old_set.contains(index) {
                met.push(Met::IndexFails);
            }
            if new_set.contains(index) && !old_set.contains(index) && !by(index, false) {
                problems.push(format!("{}: index {index} fails by no pod", job.key));
            }
        }
        self.violations.extend(problems);
        for situation in met {
            self.met(situation);
        }
    }

    /// No terminal condition while a pod lives that the leading process could know of.
    fn ends(&mut self, api: &Api, job: &Job, new: &JobStatus) {
        let ended = |status: &JobStatus| {
            [job_condition::COMPLETE, job_condition::FAILED]
                .iter()
                .any(|kind| has_condition(status, kind))
        };
        if !ended(new) || ended(&job.status) {
            return;
        }
        let live: Vec<&Uid> = api
            .pods_of(&job.uid)
            .filter(|pod| !pod.is_terminal() && !self.is_exempt(&pod.uid))
            .map(|pod| &pod.uid)
            .collect();
        if !live.is_empty() {
            let problem = format!("{} is finished while {live:?} live", job.key);
            self.violations.push(problem);
        }
    }
}

/// `uncountedTerminatedPods`: succeeded, failed.
fn listed(status: &JobStatus) -> (BTreeSet<Uid>, BTreeSet<Uid>) {
    let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let set = |list: Option<Vec<String>>| list.into_iter().flatten().map(Uid::from).collect();
    (set(lists.succeeded), set(lists.failed))
}

fn number(count: Option<i32>) -> usize {
    usize::try_from(count.unwrap_or(0)).unwrap_or(0)
}

pub(super) fn has_condition(status: &JobStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|each| each.type_ == kind && each.status == "True")
}
