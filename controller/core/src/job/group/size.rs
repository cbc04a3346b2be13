//! Decides how many pods a gang has, in its Workload and its PodGroup, and what to change of that.
//! (W3, W5)

use std::fmt;

use crate::job::facts::Facts;
use crate::job::pods;
use crate::view::{GangPolicy, GroupKey, GroupTemplate, Job, PodGroup, Uid, Workload};

/// A change of a gang's `minCount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The object.
    pub object: Resized,
    /// Its namespace and name.
    pub key: GroupKey,
    /// Its UID.
    pub uid: Uid,
    /// The `minCount` that it has.
    pub from: i32,
    /// The `minCount` that it gets.
    pub to: i32,
}

/// The kind of a resized object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resized {
    /// A Workload with one template.
    Workload,
    /// A PodGroup.
    PodGroup,
}

/// The size of a gang: as its Job says, or all pods that run at once. (W3)
pub(super) fn min_count(job: &Job, gang: &GangPolicy) -> i32 {
    gang.min_count.unwrap_or_else(|| job.spec.parallelism.max(1))
}

/// The size of a PodGroup whose Job or template asks for this one. Once some pods have ended for
/// good, and while another is still to be placed, it is not more than the pods that are left.
///
/// DIVERGES(upstream): upstream leaves the size as asked. Once some pods have succeeded, a pod that
/// replaces another is then never placed: the scheduler waits for more pods than there will be.
/// (W5)
pub(super) fn size(facts: &Facts, group: &PodGroup, asked: Option<i32>) -> Option<i32> {
    let (asked, current) = (asked?, group.min_count?);
    let left = pods::can_run(facts).filter(|_| !facts.job.spec.suspend);
    let Some(left) = left else { return Some(asked) };
    let least = asked.min(i32::try_from(left.max(1)).unwrap_or(i32::MAX));
    Some(if pods::awaits_placement(facts) { least } else { current.clamp(least, asked) })
}

impl Resize {
    /// What a Workload needs to have this size.
    pub(super) fn of_workload(
        workload: &Workload,
        template: &GroupTemplate,
        wanted: Option<i32>,
    ) -> Option<Self> {
        let (key, uid) = (workload.key.clone(), workload.uid.clone());
        Self::between(Resized::Workload, (key, uid), template.min_count, wanted)
    }

    /// What a PodGroup needs to have this size.
    pub(super) fn of_pod_group(group: &PodGroup, wanted: Option<i32>) -> Option<Self> {
        let (key, uid) = (group.key.clone(), group.uid.clone());
        Self::between(Resized::PodGroup, (key, uid), group.min_count, wanted)
    }

    /// The policy stays what it is: nothing makes a gang of pods that are scheduled one by one.
    fn between(
        object: Resized,
        (key, uid): (GroupKey, Uid),
        from: Option<i32>,
        to: Option<i32>,
    ) -> Option<Self> {
        let (from, to) = from.zip(to).filter(|(from, to)| from != to)?;
        Some(Self { object, key, uid, from, to })
    }
}

impl fmt::Display for Resize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key: (_, name), from, to, .. } = self;
        write!(formatter, "minCount of {:?} {name} from {from} to {to}", self.object)
    }
}
