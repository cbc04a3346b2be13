//! Reads what only pod GC and disruption need of a pod, in few bytes: all pods of the cluster have
//! it.

use std::sync::Arc;

use jiff::Timestamp;

/// What only pod GC and disruption read of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcFacts {
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it is the mirror of a static pod.
    pub is_static: bool,
    /// Whether a kubelet starts the pod again that has lost its sandbox, as at a boot: its own
    /// restartPolicy decides, not those of its containers. ([W20])
    pub survives_sandbox: bool,
    pub(super) running_since: WholeSecond,
    pub(super) last_start: WholeSecond,
    pub(super) finished: WholeSecond,
    pub(super) rare: Option<Box<Rare>>,
}

/// What few pods have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rare {
    pub(super) reason: Option<Arc<str>>,
    pub(super) deadline: Option<Timestamp>,
    pub(super) target: Option<Target>,
    pub(super) ended: Option<Arc<str>>,
    pub(super) oom_killed: Option<Arc<str>>,
    pub(super) unscheduled: Option<Arc<str>>,
    /// Only of a pod with a `DisruptionTarget`.
    pub(super) ends_at: Option<Timestamp>,
    /// Only of a pod with a `DisruptionTarget`.
    pub(super) first_start: Option<Timestamp>,
}

/// The condition `DisruptionTarget` of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether its status is `True`.
    pub stands: bool,
    /// `reason`.
    pub reason: Arc<str>,
    /// What its `message` says of a kubelet's reason, which has several.
    pub says: Said,
    /// `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

/// Why a kubelet terminates a pod, as far as its message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Said {
    /// The node shuts down.
    Shutdown,
    /// The node is short of a resource.
    Pressure,
    /// A critical pod takes its place.
    Preemption,
    /// The node went down, or lost its containers.
    Loss,
    /// Anything else.
    #[default]
    Other,
}

impl Said {
    /// Reads the message of a condition. The agent writes those of the kubelet. ([SD16])
    pub fn read(message: &str) -> Self {
        const STARTS: [(&str, Said); 6] = [
            ("Pod was terminated in response to imminent node shutdown", Said::Shutdown),
            ("The node was low on resource", Said::Pressure),
            ("The node had condition", Said::Pressure),
            ("Pod was preempted by Kubelet", Said::Preemption),
            ("Pod was lost when its node went down", Said::Loss),
            ("Pod lost its sandbox", Said::Loss),
        ];
        let of = STARTS.into_iter().find(|(start, _)| message.starts_with(start));
        of.map_or(Self::Other, |(_, said)| said)
    }
}

/// A time of the API, which may be absent. The API keeps whole seconds, so that 8 bytes do where an
/// `Option<Timestamp>` takes 24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeSecond(i64);

impl WholeSecond {
    const ABSENT: Self = Self(i64::MIN);

    pub(super) fn new(time: Option<Timestamp>) -> Self {
        time.map_or(Self::ABSENT, |time| Self(time.as_second()))
    }

    fn get(self) -> Option<Timestamp> {
        Timestamp::from_second(self.0).ok()
    }
}

impl Default for WholeSecond {
    fn default() -> Self {
        Self::ABSENT
    }
}

impl GcFacts {
    /// The earliest start of the regular containers that run; `None` if none runs.
    pub fn running_since(&self) -> Option<Timestamp> {
        self.running_since.get()
    }

    /// The latest start of any container, as far as the status shows.
    pub fn last_start(&self) -> Option<Timestamp> {
        self.last_start.get()
    }

    /// When the last container ended; only of terminal pods.
    pub fn finished(&self) -> Option<Timestamp> {
        self.finished.get()
    }

    /// `status.reason`.
    pub fn reason(&self) -> Option<&str> {
        self.rare.as_ref()?.reason.as_deref()
    }

    /// When its `activeDeadlineSeconds` end.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.deadline
    }

    /// The condition `DisruptionTarget`.
    pub fn target(&self) -> Option<&Target> {
        self.rare.as_ref()?.target.as_ref()
    }

    /// By when its containers end, as its agent announced with the mark.
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.ends_at
    }

    /// The earliest start of any container; only of a pod with a `DisruptionTarget`.
    pub fn first_start(&self) -> Option<Timestamp> {
        self.rare.as_ref()?.first_start
    }

    /// The reason of a true `epilogue.dev/Ended`: the controller's evidence in place of a kubelet.
    pub fn ended(&self) -> Option<&str> {
        self.rare.as_ref()?.ended.as_deref()
    }

    /// The reason of a true `epilogue.dev/OOMKilled`.
    pub fn oom_killed(&self) -> Option<&str> {
        self.rare.as_ref()?.oom_killed.as_deref()
    }

    /// The reason of a false `PodScheduled`.
    pub fn unscheduled(&self) -> Option<&str> {
        self.rare.as_ref()?.unscheduled.as_deref()
    }
}
