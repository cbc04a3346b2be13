//! Names each finding of `kubectl epilogue doctor`, `explain`, `lint`, `leave` and `report`, and of
//! `epilogue-agent check`. A code is also the heading in `docs/troubleshooting.md` that explains
//! the finding.

use std::fmt;

use serde::{Serialize, Serializer};

/// Address of the page with one heading per code.
pub const DOCS: &str = "https://epilogue.dev/docs/troubleshooting.html";

/// Defines the codes, each with its text.
macro_rules! codes {
    ($($name:ident = $text:literal,)*) => {
        /// Identifies what a finding means. Texts may change, codes do not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "docs/troubleshooting.md explains each code")]
        pub enum FindingCode {
            $($name,)*
        }

        impl FindingCode {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as it is printed.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    // kubectl epilogue doctor: pods
    NodeSilentNoProof = "node-silent-no-proof",
    KubeletSilent = "kubelet-silent",
    PodSlowUnderLiveKubelet = "pod-slow-under-live-kubelet",
    PodOnNodeShuttingDown = "pod-on-node-shutting-down",
    PodNodeNotRead = "pod-node-not-read",
    PodGcOverdue = "pod-gc-overdue",
    PodKeptByKubelet = "pod-kept-by-kubelet",
    FinalizerJobGone = "finalizer-job-gone",
    FinalizerJobFinished = "finalizer-job-finished",
    FinalizerNoJob = "finalizer-no-job",
    FinalizerNotRemoved = "finalizer-not-removed",
    PodNotCounted = "pod-not-counted",
    PodHeldByFinalizers = "pod-held-by-finalizers",
    StaleDisruptionTarget = "stale-disruption-target",
    // kubectl epilogue doctor: Jobs
    ManagedByMisspelled = "managed-by-misspelled",
    ManagedByUnknown = "managed-by-unknown",
    ManagedByNotRunning = "managed-by-not-running",
    JobNotTakenUp = "job-not-taken-up",
    ControllerWithoutLeader = "controller-without-leader",
    NamespaceNotWatched = "namespace-not-watched",
    GangSchedulingOff = "gang-scheduling-off",
    // kubectl epilogue doctor: namespaces
    OptInWithoutPolicy = "opt-in-without-policy",
    OptInValueUnknown = "opt-in-value-unknown",
    // kubectl epilogue doctor: nodes
    TaintWithoutShutdown = "taint-without-shutdown",
    StateOfEarlierBoot = "state-of-earlier-boot",
    ShutdownOverdue = "shutdown-overdue",
    StateUnreadable = "state-unreadable",
    // kubectl epilogue doctor: what it could not read
    PodsNotRead = "pods-not-read",
    JobsNotRead = "jobs-not-read",
    NodesNotRead = "nodes-not-read",
    LeasesNotRead = "leases-not-read",
    NamespacesNotRead = "namespaces-not-read",
    PolicyBindingsNotRead = "policy-bindings-not-read",
    NothingToJudge = "nothing-to-judge",
    NodeNotFound = "node-not-found",
    NamespaceNotFound = "namespace-not-found",
    // kubectl epilogue doctor NODE
    KubeletNeverReported = "kubelet-never-reported",
    NodeNotReady = "node-not-ready",
    NodeConditionTrue = "node-condition-true",
    KubeletLeaseStale = "kubelet-lease-stale",
    KubeletLeaseMissing = "kubelet-lease-missing",
    KubeletLeaseNotRead = "kubelet-lease-not-read",
    BootIdUnknown = "boot-id-unknown",
    AgentMissing = "agent-missing",
    AgentNotReady = "agent-not-ready",
    AgentOnHost = "agent-on-host",
    AgentNotRead = "agent-not-read",
    LockNotHeld = "lock-not-held",
    LogindNotUsed = "logind-not-used",
    DelayTooShort = "delay-too-short",
    ReadinessMissing = "readiness-missing",
    StateMissing = "state-missing",
    NodeShuttingDown = "node-shutting-down",
    NodeDrained = "node-drained",
    OutOfServiceOnReadyNode = "out-of-service-on-ready-node",
    AgentEventWarning = "agent-event-warning",
    BarePods = "bare-pods",
    NodePodsNotRead = "node-pods-not-read",
    // epilogue-agent check: bus and logind
    BusUnreachable = "bus-unreachable",
    LogindMissing = "logind-missing",
    LogindNoAnswer = "logind-no-answer",
    ShutdownInProgress = "shutdown-in-progress",
    ShutdownScheduled = "shutdown-scheduled",
    DelayFileWantsMore = "delay-file-wants-more",
    KubeletLockNotRoot = "kubelet-lock-not-root",
    KubeletLockOrphaned = "kubelet-lock-orphaned",
    ShutdownBlocked = "shutdown-blocked",
    LockRefused = "lock-refused",
    LockNotListed = "lock-not-listed",
    LockNotReleased = "lock-not-released",
    // epilogue-agent check: kubelet and runtime
    KubeletDown = "kubelet-down",
    KubeletShutdownNotArmed = "kubelet-shutdown-not-armed",
    RuntimeNotFound = "runtime-not-found",
    RuntimeNoAnswer = "runtime-no-answer",
    RuntimeNotReady = "runtime-not-ready",
    ClockBehindRuntime = "clock-behind-runtime",
    RuntimeWithoutPods = "runtime-without-pods",
    // epilogue-agent check: the API
    ApiNoAnswer = "api-no-answer",
    ApiForbidden = "api-forbidden",
    NodeNameWrong = "node-name-wrong",
    DisruptionTargetRefused = "disruption-target-refused",
    ApiSlow = "api-slow",
    ApiOnThisNode = "api-on-this-node",
    // epilogue-agent check: pressure
    SignalNotMeasured = "signal-not-measured",
    StallsNotSeen = "stalls-not-seen",
    ThresholdsOverlap = "thresholds-overlap",
    KubeletThresholdsUnknown = "kubelet-thresholds-unknown",
    KernelLogUnreadable = "kernel-log-unreadable",
    // kubectl epilogue explain
    ManagedElsewhere = "managed-elsewhere",
    CompletionModeUnknown = "completion-mode-unknown",
    WatchBehind = "watch-behind",
    JobFinished = "job-finished",
    JobFailing = "job-failing",
    JobSucceeding = "job-succeeding",
    LastPods = "last-pods",
    JobBeingDeleted = "job-being-deleted",
    JobSuspended = "job-suspended",
    ActivePods = "active-pods",
    TerminatingPods = "terminating-pods",
    PodCannotStart = "pod-cannot-start",
    PodUnscheduled = "pod-unscheduled",
    PodBackoff = "pod-backoff",
    QuotaExceeded = "quota-exceeded",
    PodsRefused = "pods-refused",
    ImageNotPulled = "image-not-pulled",
    VolumeOrConfigMissing = "volume-or-config-missing",
    JobDeadline = "job-deadline",
    IndexBackoff = "index-backoff",
    SchedulingGroup = "scheduling-group",
    PodIndexInvalid = "pod-index-invalid",
    PodKeptForIndex = "pod-kept-for-index",
    PodUntracked = "pod-untracked",
    FailureIgnored = "failure-ignored",
    FailureMatchesNoRule = "failure-matches-no-rule",
    ReplacementWaits = "replacement-waits",
    // kubectl epilogue leave
    JobLeftActive = "job-left-active",
    JobLeftSuspended = "job-left-suspended",
    JobLeftFinished = "job-left-finished",
    JobHandedOver = "job-handed-over",
    CronJobLeft = "cron-job-left",
    FinalizerLeft = "finalizer-left",
    FinalizerKept = "finalizer-kept",
    AnnotationLeft = "annotation-left",
    NodeStateLeft = "node-state-left",
    InstallationLeft = "installation-left",
    KindNotRead = "kind-not-read",
    // kubectl epilogue lint: rules of a podFailurePolicy
    ConditionTypeUnknown = "condition-type-unknown",
    ConditionStatusInvalid = "condition-status-invalid",
    DisruptionTargetNotTrue = "disruption-target-not-true",
    RuleWithoutMatch = "rule-without-match",
    RuleShadowed = "rule-shadowed",
    ContainerUnknown = "container-unknown",
    ExitCodesInvalid = "exit-codes-invalid",
    SidecarExitCode = "sidecar-exit-code",
    // kubectl epilogue lint: limits and pods
    IgnoreUnlimited = "ignore-unlimited",
    DisruptionFailsJob = "disruption-fails-job",
    NeedsIndexed = "needs-indexed",
    NeedsBackoffLimitPerIndex = "needs-backoff-limit-per-index",
    RestartPolicyInvalid = "restart-policy-invalid",
    OnFailureInvalid = "on-failure-invalid",
    ReplacementPolicyInvalid = "replacement-policy-invalid",
    DeadlineBelowGrace = "deadline-below-grace",
    ValueInvalid = "value-invalid",
    ParallelismOverQuota = "parallelism-over-quota",
    // kubectl epilogue lint: gangs
    GangNotMade = "gang-not-made",
    SchedulingWithoutEffect = "scheduling-without-effect",
    MinCountOverParallelism = "min-count-over-parallelism",
    MinCountOverCompletions = "min-count-over-completions",
    // kubectl epilogue lint: annotations
    AnnotationUnknown = "annotation-unknown",
    AnnotationInvalid = "annotation-invalid",
    AnnotationWithoutEffect = "annotation-without-effect",
    // kubectl epilogue lint: what it could not read
    CronJobsNotRead = "cron-jobs-not-read",
    QuotasNotRead = "quotas-not-read",
    // kubectl epilogue report: pods and Jobs
    StatusMissingNodeGone = "status-missing-node-gone",
    StatusMissingNodeRebooted = "status-missing-node-rebooted",
    StatusMissingNodeSilent = "status-missing-node-silent",
    StatusMissingTerminating = "status-missing-terminating",
    StatusMissingPodDeleted = "status-missing-pod-deleted",
    FailureWithoutDisruptionTarget = "failure-without-disruption-target",
    DisruptionReported = "disruption-reported",
    JobFailedByDisruptions = "job-failed-by-disruptions",
    JobWaitsForLostPod = "job-waits-for-lost-pod",
    // kubectl epilogue report: what it cannot know
    EventsNotRead = "events-not-read",
    EventsWindow = "events-window",
    EvictionCauseUnknown = "eviction-cause-unknown",
    PodsCollected = "pods-collected",
    JobsExpired = "jobs-expired",
    MetricsNotIncluded = "metrics-not-included",
    PhasesNotMeasured = "phases-not-measured",
}

impl fmt::Display for FindingCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for FindingCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The line below a list of findings that says where the codes are explained.
pub fn docs_line() -> String {
    format!("each [code] is explained at {DOCS}#CODE")
}
