//! The situations that the worlds of the controller have to meet: each fault, each act of a user,
//! each state in which a verdict can fail, each call that was under way in a crash.

use controller_core::job::Step;
use epilogue_common::names::job_condition;
use k8s_openapi::api::batch::v1::JobStatus;

use super::ledger::{Ledger, has_condition};
use super::world::World;
use crate::tally::situations;

situations! {
    // Faults.
    LostReply: "a reply is lost";
    LostRequest: "a request is lost";
    Refusal: "the API answers with an error";
    Quota: "a quota refuses a pod";
    SlowCall: "a call takes long";
    WatchStalls: "a watch stalls";
    WatchBreaks: "a watch breaks";
    Crash: "the leader crashes";
    SecondLeader: "a second leader begins";
    NodeLost: "a node is lost";
    NodeShutsDown: "a node shuts down";
    PolicyChanges: "the policy of the namespace changes";
    Disruption: "a pod is disrupted";
    ForeignWrite: "another client writes to a Job";
    Skew: "a leader's clock is off";
    DeposedCall: "a call of a deposed leader arrives";

    // Users.
    UserSuspends: "a user suspends or resumes a Job";
    UserScales: "a user scales a Job";
    UserResizes: "a user changes the number of indexes";
    UserSetsDeadline: "a user sets a deadline";
    UserDeletesJob: "a user deletes a Job";
    UserDeletesPod: "a user deletes a pod";
    UserForces: "a user deletes a pod by force";
    UserEstranges: "a user takes a pod from its Job, or gives it to one";

    // Creations.
    Creation: "the leader creates a pod";
    FullParallelism: "a creation reaches the parallelism";
    WhileTerminating: "a pod is created while another terminates that counts as live";
    IndexAgain: "a pod is created for an index that had one";
    FailuresRemembered: "a pod is created for an index whose failures count";
    LastCompletion: "a creation reaches the completions";

    // Scheduling groups.
    GroupMade: "a PodGroup is made";
    GroupFound: "a Workload or PodGroup is found that a lost reply had hidden";
    GroupResized: "a gang follows the size of its Job";
    GroupJoined: "a pod joins a PodGroup";
    GroupLost: "a lost member of a gang is counted, whose other pods have ended";
    GroupAnew: "a pod joins the next attempt of its gang";
    GroupOfDead: "the same where only failed pods are replaced";

    // Counts.
    LostMarked: "a pod that its node lost is marked before it is counted";
    ListsSucceeded: "a succeeded pod is listed";
    ListsFailed: "a failed pod is listed";
    ListsTerminating: "a pod is listed as failed that has not ended";
    Counted: "a pod moves into a counter";
    IndexCompletes: "an index completes";
    IndexFails: "an index fails";
    Completes: "a Job completes";
    Fails: "a Job fails";
    SuccessCriteria: "SuccessCriteriaMet is written";
    FailureTarget: "FailureTarget is written";
    StatusConflict: "a status is refused because the Job has changed";
    StatusUnanswered: "the reply to a status is lost";

    // Finalizers and claims.
    ReleaseSucceeded: "the finalizer of a succeeded pod goes";
    ReleaseFailed: "the finalizer of a failed pod goes";
    ReleaseUnended: "the finalizer of a pod goes that has not ended";
    ReleaseOrphan: "the finalizer of an orphan goes";
    Tracked: "a pod gets its finalizer back";
    Stripped: "a pod is stripped, to be deleted uncounted";

    // Pod GC.
    GcFails: "pod GC fails a pod";
    GcMarks: "pod GC marks a pod";
    GcClears: "pod GC resets a condition, or a taint";
    GcConflict: "a patch of pod GC is refused because the pod has changed";
    GcDeletes: "pod GC deletes a pod";
    NeverScheduled: "pod GC fails by NeverScheduled";
    NodeGone: "pod GC fails by NodeGone";
    OutOfService: "pod GC fails by OutOfService";
    NodeRebooted: "pod GC fails by NodeRebooted";
    NodeDrained: "pod GC fails by NodeDrained";
    ForceFail: "pod GC fails by ForceFail";
    ShutdownEnds: "a pod ends by a shutdown while its condition stands";
    QuietMark: "faults end while a pod of a well node has a condition";
    QuietTaint: "faults end while a well node has a taint";

    // Calls under way in a crash.
    CrashInClaim: "a crash with a claim under way";
    CrashInCreation: "a crash with a creation under way";
    CrashInStrip: "a crash with a strip under way";
    CrashInDeletion: "a crash with a deletion under way";
    CrashInStatus: "a crash with a status under way";
    CrashInRelease: "a crash with the removal of a finalizer under way";
    CrashInConfirm: "a crash with a read under way";
    CrashInGroup: "a crash with a call on a scheduling group under way";
    CrashInCheck: "a crash with a call of pod GC under way";
}

impl Ledger {
    /// Counts the conditions that a status adds.
    pub(super) fn met_conditions(&mut self, old: &JobStatus, new: &JobStatus) {
        let kinds = [
            (job_condition::COMPLETE, Met::Completes),
            (job_condition::FAILED, Met::Fails),
            (job_condition::SUCCESS_CRITERIA_MET, Met::SuccessCriteria),
            (job_condition::FAILURE_TARGET, Met::FailureTarget),
        ];
        for (kind, met) in kinds {
            if has_condition(new, kind) && !has_condition(old, kind) {
                self.met(met);
            }
        }
    }
}

impl World {
    /// Counts a situation.
    pub(super) fn met(&mut self, what: Met) {
        self.ledger.met(what);
    }

    /// Counts the call that was under way when its process crashed.
    pub(super) fn met_crash_in(&mut self, step: &Step) {
        self.met(match step {
            Step::ConfirmJob | Step::ConfirmPods => Met::CrashInConfirm,
            Step::Claim(_) => Met::CrashInClaim,
            Step::Group(_) => Met::CrashInGroup,
            Step::Create(_) => Met::CrashInCreation,
            Step::Strip(_) => Met::CrashInStrip,
            Step::Delete(..) | Step::FailPending(_) | Step::MarkFault(_) => Met::CrashInDeletion,
            Step::WriteStatus(_) | Step::WriteWholeStatus(_) => Met::CrashInStatus,
            Step::RemoveFinalizer(_) => Met::CrashInRelease,
        });
    }

    /// Counts the evidence by which pod GC failed a pod.
    pub(super) fn met_evidence(&mut self, reason: Option<&str>) {
        self.met(match reason {
            Some("NeverScheduled") => Met::NeverScheduled,
            Some("NodeGone") => Met::NodeGone,
            Some("OutOfService") => Met::OutOfService,
            Some("NodeRebooted") => Met::NodeRebooted,
            Some("NodeDrained") => Met::NodeDrained,
            Some("ForceFail") => Met::ForceFail,
            _ => return,
        });
    }
}
