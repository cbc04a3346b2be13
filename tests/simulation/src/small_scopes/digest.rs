//! Digests a state, so that states which differ in names only are one. Pods are numbered by their
//! age. Of versions only the order counts: how far a watch is behind, and whether what a process
//! has read is still current.

mod groups;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use controller_core::job::{Call, Memory, Step, Versions};
use controller_core::orphans::Orphans;
use controller_core::view::{Job, Phase, Pod, Uid, Version};
use epilogue_common::names::job_condition::{COMPLETE, FAILED};
use epilogue_common::names::pod_condition::PENDING_TIMEOUT;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};

use super::history::Knowledge;
use super::kubelet::is_disrupted;
use super::model::State;
use super::process::{Process, Work, now, wait_of};
use super::scope::{JobKind, Scope, key};
use super::watches::Kind;
use crate::controller::api::{Api, Sighting};
use crate::controller::described;

/// The digest of a state.
pub(super) fn of(state: &State, scope: &Scope) -> u64 {
    let mut names: Vec<&Uid> = state.api.pods.keys().chain(state.history.pods.keys()).collect();
    names.extend(state.in_hand(scope).map(|pod| &pod.uid));
    names.sort_unstable();
    names.dedup();
    let mut all = Digest { scope, state, names: &names, words: Vec::with_capacity(256) };
    all.world();
    let parts: Vec<Vec<u64>> = state
        .processes
        .iter()
        .map(|process| {
            let mut digest = Digest { scope, state, names: &names, words: Vec::with_capacity(128) };
            digest.process(process);
            digest.words
        })
        .collect();
    let mut wire: Vec<Vec<u64>> = state
        .wire
        .iter()
        .map(|sent| {
            let mut digest = Digest { scope, state, names: &names, words: Vec::new() };
            digest.call(&sent.call);
            digest.read(&sent.job);
            if matches!(sent.call.step, Step::Create(_)) || finishes(&sent.call) {
                digest.knowledge(&sent.by);
            }
            digest.words
        })
        .collect();
    wire.sort_unstable();
    let mut hasher = DefaultHasher::new();
    (all.words, parts, wire).hash(&mut hasher);
    hasher.finish()
}

struct Digest<'a> {
    scope: &'a Scope,
    state: &'a State,
    names: &'a [&'a Uid],
    words: Vec<u64>,
}

impl Digest<'_> {
    fn put(&mut self, word: impl Into<u64>) {
        self.words.push(word.into());
    }

    fn uid(&mut self, uid: &Uid) {
        // One that no object has: only forgotten pods, which are all alike.
        let place = self.names.binary_search(&uid).unwrap_or(usize::MAX >> 1);
        self.words.push(place as u64);
    }

    fn uids<'b>(&mut self, uids: impl IntoIterator<Item = &'b Uid>) {
        let mut uids: Vec<&Uid> = uids.into_iter().collect();
        uids.sort_unstable();
        self.put(uids.len() as u64);
        for uid in uids {
            self.uid(uid);
        }
    }

    fn world(&mut self) {
        let state = self.state;
        let left = state.left;
        for count in [left.crashes, left.lost_replies, left.late_watches, left.endings] {
            self.put(count);
        }
        self.status(&state.job().status);
        for pod in state.api.pods.values() {
            self.pod(pod);
            self.put(state.running.contains(&pod.uid));
        }
        for workload in state.api.workloads.values() {
            self.workload(workload);
        }
        for group in state.api.pod_groups.values() {
            self.pod_group(group);
        }
        for (uid, record) in &state.history.pods {
            self.uid(uid);
            self.put(record.succeeded.is_some());
            self.put(record.failed);
            self.put(record.stripped);
            self.put(record.excess);
            self.put(record.counted.is_some());
            if self.scope.pods_are_refused() {
                self.put(record.turned);
                self.put(record.completed);
            }
        }
    }

    fn status(&mut self, status: &JobStatus) {
        for count in
            [status.active, status.ready, status.terminating, status.succeeded, status.failed]
        {
            self.put(count.map_or(0, |count| u64::from(count.unsigned_abs()) + 1));
        }
        self.put(status.start_time.is_some());
        for text in [&status.completed_indexes, &status.failed_indexes] {
            self.text(text.as_deref().unwrap_or("-"));
        }
        let lists = status.uncounted_terminated_pods.as_ref();
        for list in
            [lists.and_then(|it| it.succeeded.as_ref()), lists.and_then(|it| it.failed.as_ref())]
        {
            let uids: Vec<Uid> =
                list.into_iter().flatten().map(|uid| Uid::from(uid.as_str())).collect();
            self.uids(&uids);
        }
        for condition in status.conditions.iter().flatten() {
            self.text(&condition.type_);
            self.put(condition.status == "True");
            self.text(condition.reason.as_deref().unwrap_or_default());
        }
    }

    fn text(&mut self, text: &str) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        self.words.push(hasher.finish());
    }

    /// All that a plan for the Job of this scope reads of a pod, but for its version. Times stand
    /// still.
    fn pod(&mut self, pod: &Pod) {
        let Pod { uid, deletion, tracked, node, phase, index, failures, .. } = pod;
        self.uid(uid);
        self.put(*phase as u64);
        self.put(deletion.map_or(0, |it| it.grace_seconds.unsigned_abs() + 1));
        self.put(index.map_or(0, |index| u64::from(index) + 1));
        self.put(failures.total());
        let pending_too_long = self.scope.kind == JobKind::PendingTimeout;
        let flags = [
            *tracked,
            node.is_some() && !pod.is_terminal(),
            self.scope.kind == JobKind::IgnoresDisruptions && is_disrupted(pod),
            pending_too_long && pod.has_condition(PENDING_TIMEOUT),
            self.scope.pods_are_refused()
                && pod.phase == Phase::Failed
                && pod.containers.is_empty(),
        ];
        // The younger of two pods goes first; one of the same second is as old.
        self.age(pod.created.filter(|_| pod.is_active()));
        self.age(pod.shown_running_since.filter(|_| self.scope.replaces_failed_only()));
        if self.scope.is_gang() {
            self.put(pod.group.is_some());
        }
        if self.scope.is_disrupted_whole() {
            self.put(pod.attempt);
            self.put(is_disrupted(pod));
        }
        self.put(flags.into_iter().fold(0_u64, |bits, flag| bits << 1 | u64::from(flag)));
    }

    fn wait(&mut self, wait: Option<SignedDuration>) {
        let wait = wait.unwrap_or_default().as_millis();
        self.put(u64::try_from(wait).unwrap_or_default());
    }

    /// A wait that has just begun differs from none.
    fn since(&mut self, began: Option<Timestamp>) {
        let now = now(&self.state.api, self.scope).time;
        let begun = SignedDuration::from_millis(1);
        self.wait(began.map(|began| now.duration_since(began) + begun));
    }

    fn age(&mut self, time: Option<Timestamp>) {
        let age = time.map(|time| self.state.api.now.duration_since(time).as_secs());
        self.put(age.map_or(0, |age| u64::try_from(age).unwrap_or_default() + 1));
    }

    /// A pod as a process has read it.
    fn read_pod(&mut self, pod: &Pod) {
        let current = self.state.api.pods.get(&pod.uid).is_some_and(|it| it.version == pod.version);
        self.put(current);
        if current { self.uid(&pod.uid) } else { self.pod(pod) }
    }

    /// A Job as a process has read it.
    fn read(&mut self, job: &Arc<Job>) {
        let current = self.state.job().version == job.version;
        self.put(current);
        if !current {
            self.status(&job.status);
        }
    }

    fn process(&mut self, process: &Process) {
        self.put(process.syncs_left.map_or(0, |left| u64::from(left) + 1));
        self.put(process.queued);
        // The next sync decides anew how long to wait.
        self.wait(process.wake.filter(|_| !process.queued));
        let mut orphans: Vec<Option<&Uid>> = process
            .orphans
            .iter()
            .map(|item| match item {
                Orphans::Pod(_, uid) => Some(uid),
                Orphans::OfJob(_) => None,
            })
            .collect();
        orphans.sort_unstable();
        for item in orphans {
            match item {
                Some(uid) => self.uid(uid),
                None => self.put(u64::MAX),
            }
        }
        for &kind in Kind::of(self.scope) {
            self.put(process.watch(kind).late);
        }
        self.held_back(process);
        let now = now(&self.state.api, self.scope);
        if let Some(snapshot) = process.state.input(&key(), &now) {
            self.read(&snapshot.job);
            self.put(snapshot.pods.len() as u64);
            for pod in snapshot.pods.iter_with_strays() {
                self.read_pod(pod);
            }
            self.memory(process, &snapshot.memory);
            self.groups(snapshot.groups.as_ref());
        }
        for (_, awaited) in process.state.waiting() {
            self.behind_all(process, awaited);
        }
        for (uid, record) in &self.state.history.pods {
            if record.created > process.watch(Kind::Pods).version
                && record.creator == Some(process.number)
            {
                self.uid(uid);
            }
        }
        if let Some(work) = &process.work {
            self.work(process, work);
        }
    }

    /// The events that late watches hold back.
    fn held_back(&mut self, process: &Process) {
        let Api { job_log, pod_log, workload_log, pod_group_log, .. } = &self.state.api;
        for sighting in &job_log[process.watch(Kind::Jobs).position..] {
            if let Sighting::Shown(job) = sighting {
                self.read(job);
                self.behind(process, Kind::Pods, job.version);
            }
        }
        for sighting in &pod_log[process.watch(Kind::Pods).position..] {
            match sighting {
                Sighting::Shown(pod) => self.read_pod(pod),
                Sighting::Gone(pod, _) => {
                    self.put(7_u64);
                    self.uid(&pod.uid);
                }
            }
        }
        // No one is deleted, as the Job is not.
        let held = &workload_log[process.watch(Kind::Workloads).position..];
        held.iter().filter_map(Sighting::shown).for_each(|it| self.workload(it));
        let held = &pod_group_log[process.watch(Kind::PodGroups).position..];
        held.iter().filter_map(Sighting::shown).for_each(|it| self.pod_group(it));
    }

    /// How many events a watch has to show until it has come to a version.
    fn behind(&mut self, process: &Process, kind: Kind, version: Version) {
        let is_shown = version <= process.watch(kind).version;
        let older = || process.older_held_back(kind, version, &self.state.api);
        self.put(if is_shown { 0 } else { older() as u64 + 1 });
    }

    fn behind_all(&mut self, process: &Process, versions: &Versions) {
        let Versions { jobs, pods, workloads, pod_groups } = *versions;
        self.behind(process, Kind::Jobs, jobs);
        self.behind(process, Kind::Pods, pods);
        if self.scope.is_gang() {
            self.behind(process, Kind::Workloads, workloads);
            self.behind(process, Kind::PodGroups, pod_groups);
        }
    }

    /// All fields are named, so that a new one is not left out by mistake. Backoff is zero, and no
    /// annotation has a problem.
    fn memory(&mut self, process: &Process, memory: &Memory) {
        let Memory {
            expectations,
            creation_in_doubt,
            removed_finalizers,
            // No pod of these scopes is rejected, no node of them boots, and none has notice.
            marking_since: _,
            boots: _,
            noticed: _,
            refused_claims,
            uncounted_pods,
            completed_pods,
            finished,
            counts_wait_since,
            backoff: _,
            backoff_in_doubt: _,
            // It decides the words of a failure alone.
            ends: _,
            status_needs_spec,
            reported: _,
            written,
            counted,
        } = memory;
        self.uids(&expectations.deleted);
        let exists = |uid: &&Uid| process.state.pod(uid).is_some();
        self.uids(removed_finalizers.iter().filter(exists));
        let ended = |uid: &&Uid| process.state.pod(uid).is_some_and(|pod| pod.is_terminal());
        self.uids(uncounted_pods.iter().filter(ended));
        if self.scope.pods_are_refused() {
            self.uids(completed_pods.iter().filter(exists));
        }
        self.uids(refused_claims.keys().filter(exists));
        self.put(*finished);
        self.put(*status_needs_spec);
        self.put(*creation_in_doubt);
        self.since(*counts_wait_since);
        self.behind_all(process, written);
        match counted.filter(|(version, _)| *version > written.jobs) {
            Some((version, _)) => self.behind(process, Kind::Pods, version),
            None => self.put(0_u64),
        }
    }

    fn work(&mut self, process: &Process, work: &Work) {
        let facts = &work.plan.facts;
        if self.state.is_in_vain(work, self.scope) {
            return self.put(u64::MAX);
        }
        self.read(work.progress.job());
        self.wait(wait_of(&work.plan));
        let by = Knowledge { process: process.number, shown: work.shown };
        let in_status = |(call, _): &&(Call, bool)| {
            call.step.status().is_some() || matches!(call.step, Step::RemoveFinalizer(_))
        };
        let answers = work.answered.iter();
        if let Some(plan) = work.progress.status_plan() {
            self.uids(plan.release.iter().map(|pod| &pod.uid));
            let tracked = facts.census.tracked().filter(|pod| work.counts(pod));
            self.uids(tracked.map(|pod| &pod.uid));
            if let Some(end) = &plan.settle.end {
                self.text(&end.reason);
                self.knowledge(&by);
            }
            self.calls(&work.calls, answers.filter(in_status));
        } else if work.is_in_status() {
            if work.calls.iter().any(finishes) {
                self.knowledge(&by);
            }
            self.calls(&work.calls, [].iter());
        } else {
            self.read(&facts.job);
            self.put(facts.expectations_satisfied);
            self.since(facts.counts_wait_since);
            if self.scope.is_gang() {
                self.text(&work.plan.group.to_string());
            }
            self.put(facts.census.pods.len() as u64);
            for pod in facts.census.pods.iter() {
                self.read_pod(pod);
            }
            self.uids(facts.census.tracked().map(|pod| &pod.uid));
            self.knowledge(&by);
            if work.calls.iter().any(|call| call.step == Step::ConfirmPods) {
                self.newer_than(work.plan.confirms.unwrap_or_default());
            }
            self.calls(&work.calls, answers);
        }
    }

    /// Calls on their way, and calls that were answered, in no order.
    fn calls<'b>(&mut self, sent: &[Call], answered: impl Iterator<Item = &'b (Call, bool)>) {
        let sent = sent.iter().map(|call| (call, 0_u64));
        let answered = answered.map(|(call, ok)| (call, 1 + u64::from(*ok)));
        let mut calls: Vec<Vec<u64>> = sent
            .chain(answered)
            .map(|(call, answer)| {
                let words = vec![answer];
                let mut digest = Digest { words, ..*self };
                digest.call(call);
                digest.words
            })
            .collect();
        calls.sort_unstable();
        self.words.extend(calls.into_iter().flatten());
    }

    /// Which pods a process could know when it planned, and which successes.
    fn knowledge(&mut self, by: &Knowledge) {
        for record in self.state.history.pods.values() {
            self.put(by.covers(record));
            self.put(record.succeeded.is_some_and(|at| at <= by.shown));
        }
    }

    /// How the versions of the pods compare to this one.
    fn newer_than(&mut self, version: Version) {
        for pod in self.state.api.pods.values() {
            self.put(pod.version > version);
        }
    }

    fn call(&mut self, call: &Call) {
        match &call.step {
            Step::ConfirmJob => self.put(1_u64),
            Step::Claim(claim) => {
                self.put(2_u64);
                self.read_pod(&claim.pod);
            }
            Step::Create(draft) => {
                self.put(3_u64);
                self.put(draft.index.map_or(0, |index| u64::from(index) + 1));
                self.put(draft.failures.map_or(0, |it| u64::from(it.total()) + 1));
                if self.scope.is_gang() {
                    self.put(draft.group.is_some());
                }
            }
            Step::Strip(pod) => {
                self.put(4_u64);
                self.uid(&pod.uid);
            }
            Step::Delete(pod, version) => {
                self.put(5_u64);
                self.uid(&pod.uid);
                let stored = self.state.api.pods.get(&pod.uid).map(|stored| stored.version);
                self.put(match version {
                    None => 0_u64,
                    Some(_) if *version == stored => 1,
                    Some(_) => 2,
                });
            }
            Step::FailPending(pod) => {
                self.put(6_u64);
                self.read_pod(pod);
            }
            Step::WriteStatus(status) | Step::WriteWholeStatus(status) => {
                self.put(7_u64);
                self.put(u64::from(matches!(call.step, Step::WriteWholeStatus(_))));
                self.status(status);
            }
            Step::RemoveFinalizer(pod) => {
                self.put(8_u64);
                self.uid(&pod.uid);
            }
            Step::ConfirmPods => self.put(9_u64),
            Step::MarkFault(fault) => {
                self.put(10_u64);
                self.read_pod(&fault.pod);
            }
            Step::Group(step) => {
                self.put(11_u64);
                self.text(&described(&call.step));
                self.drafted_size(step);
            }
        }
    }
}

/// Whether it writes a terminal condition.
fn finishes(call: &Call) -> bool {
    let Some(status) = call.step.status() else { return false };
    let terminal = |it: &JobCondition| it.type_ == COMPLETE || it.type_ == FAILED;
    status.conditions.iter().flatten().any(terminal)
}
