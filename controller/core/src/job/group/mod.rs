//! Decides in which scheduling group the pods of a Job are: which Workload and PodGroup it needs,
//! what is to be made of them, and what their sizes should be. (W2 to W7)
//!
//! The API's objects are the memory: a group is made for a Job that has never started, and found
//! again by its controller and by the Workload that it names.

pub(super) mod body;
mod names;
pub(super) mod recovery;
mod size;
pub(super) mod stage;

use std::fmt;
use std::sync::Arc;

use epilogue_common::names::job_condition::SUSPENDED;
use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;

use super::facts::Facts;
use super::pods::PodStage;
use super::verdict::Verdict;
use crate::view::{
    GroupTemplate, Job, JobScheduling, PodGroup, SchedulingSpec, TypedReference, Uid, Workload,
};
pub use size::{Resize, Resized};
use size::{min_count, size};

/// How long a Job that names a template waits for the Workload of its parent.
///
/// DIVERGES(upstream): upstream starts the pods ungrouped at once. Its own watch may not show the
/// Workload yet, which the parent made a moment before, and the gang is lost for good. (W6)
const WORKLOAD_AWAITED_MAX: SignedDuration = SignedDuration::from_secs(60);

/// The scheduling objects that concern a Job, as the watches show them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobGroups {
    /// Workloads that the Job controls and that name it.
    pub workloads: Vec<Arc<Workload>>,
    /// The Workload that names the controller of the Job.
    pub of_parent: Option<Arc<Workload>>,
    /// PodGroups that the Job controls.
    pub pod_groups: Vec<Arc<PodGroup>>,
}

/// What a sync does about the scheduling group of its Job's pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum GroupPlan {
    /// Nothing: the pods are scheduled one by one, or as others say.
    #[default]
    Nothing,
    /// New pods join this group; first, sizes follow those of the Job.
    Join(Arc<SchedulingGroup>, Vec<Resize>),
    /// The group is created first.
    Create(WorkloadPlan),
    /// The Workload of a parent, or its template, is awaited so long. The sync does nothing else.
    Await(String, SignedDuration),
    /// The Job asks for a group, and new pods are scheduled one by one.
    Alone(String),
    /// The Job asks for what cannot be made. The sync does nothing else.
    Refuse(String),
}

/// Where the PodGroup's template is.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadPlan {
    /// In a Workload that is created first.
    Create(WorkloadDraft),
    /// In this Workload.
    Of(PodGroupDraft),
}

/// A PodGroup, as pods name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulingGroup {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// The attempt of new members, where the group is disrupted as a whole.
    pub attempt: Option<u32>,
}

/// One call on the scheduling group of a Job.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupStep {
    /// Create the Workload of the Job.
    CreateWorkload(WorkloadDraft),
    /// Read the Workload of this name, which exists already.
    FindWorkload(String),
    /// Create the PodGroup of the Job.
    CreatePodGroup(PodGroupDraft),
    /// Read the PodGroup of this name, which exists already.
    FindPodGroup(String),
    /// Change the size of a gang.
    Resize(Resize),
}

/// A Workload to create, as far as `spec.scheduling` does not say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadDraft {
    /// `metadata.name`.
    pub name: String,
    /// `name` of its only template.
    pub template: String,
    /// `minCount` of the gang, if it is one.
    pub min_count: Option<i32>,
}

/// A PodGroup to create.
#[derive(Clone, Debug, PartialEq)]
pub struct PodGroupDraft {
    /// `metadata.name`.
    pub name: String,
    /// The Workload that has its template.
    pub workload: Arc<Workload>,
    /// The template.
    pub template: GroupTemplate,
    /// Whether the Workload is the Job's own, and with it an owner of the PodGroup.
    pub is_own: bool,
}

/// Which objects this controller makes for a Job. (W2)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management<'a> {
    /// None: the pods have a group already, or the controller of the Job sees to it.
    Nothing,
    /// A Workload and a PodGroup.
    Both,
    /// A PodGroup by this template of the parent's Workload.
    PodGroup(&'a str),
}

impl JobGroups {
    /// Those of these objects, all of the Job's namespace, that concern it.
    pub fn of(
        job: &Job,
        workloads: impl IntoIterator<Item = Arc<Workload>>,
        pod_groups: impl IntoIterator<Item = Arc<PodGroup>>,
    ) -> Self {
        let own = TypedReference::of_job(&job.key.name);
        let parent = job.scheduling.as_ref().and_then(|it| it.controller.as_ref());
        let (mut groups, is_its) =
            (Self::default(), |owner: &Option<Uid>| owner.as_ref() == Some(&job.uid));
        for workload in workloads {
            let names = |it: &TypedReference| workload.controller.as_ref() == Some(it);
            if names(&own) && is_its(&workload.owner) {
                groups.workloads.push(workload);
            } else if parent.is_some_and(names) {
                groups.of_parent.get_or_insert(workload);
            }
        }
        let its = pod_groups.into_iter().filter(|group| is_its(&group.owner));
        groups.pod_groups = its.collect();
        groups
    }
}

impl Management<'_> {
    /// That of this Job.
    pub fn of(job: &Job) -> Management<'_> {
        let Some(scheduling) = &job.scheduling else { return Management::Both };
        let JobScheduling { has_own_group, controller, group_template, .. } = &**scheduling;
        match (controller, group_template) {
            _ if *has_own_group => Management::Nothing,
            (None, _) => Management::Both,
            (Some(_), Some(template)) => Management::PodGroup(template),
            (Some(_), None) => Management::Nothing,
        }
    }
}

/// Decides about the group. A Job that ends makes no new pods.
pub(super) fn decide(
    facts: &Facts,
    groups: Option<&JobGroups>,
    verdict: Option<&Verdict>,
) -> GroupPlan {
    let job = &*facts.job;
    let Some(groups) = groups.filter(|_| verdict.is_none() && !job.deleting) else {
        return GroupPlan::Nothing;
    };
    let is_new = is_new(facts);
    match Management::of(job) {
        Management::Nothing => GroupPlan::Nothing,
        Management::Both => own(facts, groups, is_new),
        Management::PodGroup(template) => delegated(facts, groups, template, is_new),
    }
}

/// Whether the Job has never started. Only then a group is made: a Job that started without one,
/// before gang scheduling was switched on, goes on without. (W4)
///
/// DIVERGES(upstream): a Job that asks for a group gets one whenever it has no pods. Upstream runs
/// it without for good, also where a restore of etcd has undone the group and not the start.
fn is_new(facts: &Facts) -> bool {
    let (job, status) = (&facts.job, &facts.job.status);
    let asks = || job.scheduling.as_ref().is_some_and(|it| it.asks_for_group());
    let is_unstarted = status.start_time.is_none()
        && status.succeeded.unwrap_or(0) == 0
        && status.failed.unwrap_or(0) == 0
        && job.condition(SUSPENDED).is_none();
    facts.census.pods.is_empty() && (is_unstarted || asks())
}

/// A Job that is the root: it has a Workload of its own.
fn own(facts: &Facts, groups: &JobGroups, is_new: bool) -> GroupPlan {
    let job = &*facts.job;
    let spec = job.scheduling.as_ref().and_then(|it| it.spec.as_ref());
    if let Some(problem) = spec.and_then(problem) {
        return if is_new { GroupPlan::Refuse(problem) } else { of_pods(facts) };
    }
    let wanted = spec.and_then(SchedulingSpec::gang).map(|gang| min_count(job, gang));
    // Another replica may have made both, and no watch shows them yet: then they are found. After a
    // restore of etcd they may be gone.
    let is_made = is_new || of_pods(facts) != GroupPlan::Nothing;
    let workload = match &*groups.workloads {
        [] if is_made => return GroupPlan::Create(WorkloadPlan::Create(draft(job, wanted))),
        [] => return GroupPlan::Nothing,
        [only] => only,
        many => return GroupPlan::Alone(format!("it controls {} Workloads", many.len())),
    };
    let name = &workload.key.1;
    let [template] = &*workload.templates else {
        let count = workload.templates.len();
        let problem = format!("Workload {name} has {count} podGroupTemplates and must have one");
        return if is_new { GroupPlan::Refuse(problem) } else { GroupPlan::Alone(problem) };
    };
    let of_workload = groups.pod_groups.iter().filter(|it| it.workload.as_deref() == Some(&**name));
    match &*of_workload.collect::<Vec<_>>() {
        [] if is_made => GroupPlan::Create(WorkloadPlan::Of(pod_group(workload, template, true))),
        [] => GroupPlan::Nothing,
        [only] => {
            let workload = Resize::of_workload(workload, template, wanted);
            let pod_group = Resize::of_pod_group(only, size(facts, only, wanted));
            join(only, workload.into_iter().chain(pod_group).collect())
        }
        many => GroupPlan::Alone(format!("it controls {} PodGroups", many.len())),
    }
}

/// A Job whose parent has the Workload, and leaves the PodGroup to us. (W6)
fn delegated(facts: &Facts, groups: &JobGroups, template: &str, is_new: bool) -> GroupPlan {
    let job = &*facts.job;
    let lacks = |what: String| {
        let waited =
            job.created.map_or(SignedDuration::MAX, |created| facts.now.duration_since(created));
        let left = WORKLOAD_AWAITED_MAX.saturating_sub(waited);
        let waits = is_new && left > SignedDuration::ZERO;
        if waits { GroupPlan::Await(what, left) } else { GroupPlan::Alone(what) }
    };
    let Some(workload) = &groups.of_parent else {
        return lacks("no Workload names the controller of the Job".to_owned());
    };
    let name = &workload.key.1;
    let Some(template) = workload.template(template) else {
        return lacks(format!("Workload {name} has no podGroupTemplate {template}"));
    };
    let mut existing = groups.pod_groups.iter();
    if let Some(group) = existing.find(|it| it.workload.as_deref() == Some(&**name)) {
        let size = size(facts, group, template.min_count);
        join(group, Resize::of_pod_group(group, size).into_iter().collect())
    } else {
        let draft = pod_group(workload, template, false);
        let draft = if is_new { Some(draft) } else { draft.of_pods(facts) };
        draft.map_or(GroupPlan::Nothing, |it| GroupPlan::Create(WorkloadPlan::Of(it)))
    }
}

/// The Job's own group, if pods of it are in that. Only the name that follows from the Job's UID
/// counts: a pod that the Job has adopted may be in the group of another.
fn of_pods(facts: &Facts) -> GroupPlan {
    let own = draft(&facts.job, None);
    let name = names::pod_group(&own.name, &own.template);
    let mut groups = facts.census.pods.iter().filter_map(|pod| pod.group.as_ref());
    groups.find(|group| ***group == *name).map_or(GroupPlan::Nothing, |group| {
        let name = Arc::clone(group);
        GroupPlan::Join(Arc::new(SchedulingGroup { name, attempt: None }), Vec::new())
    })
}

/// What `spec.scheduling` asks for that this controller does not know. The API takes exactly one
/// member of each, so one without any is of a later API.
///
/// DIVERGES(upstream): upstream takes an unknown policy for `basic`, and an unknown mode for none.
/// The Job would run without what its owner asked for. (W3)
fn problem(spec: &SchedulingSpec) -> Option<String> {
    let policy = spec.scheduling_policy.as_ref();
    let mode = spec.disruption_mode.as_ref();
    let field = if policy.is_some_and(|it| it.basic.is_none() && it.gang.is_none()) {
        "schedulingPolicy"
    } else if mode.is_some_and(|it| it.single.is_none() && it.all.is_none()) {
        "disruptionMode"
    } else {
        return None;
    };
    Some(format!("spec.scheduling.{field} asks for what this version does not know"))
}

fn draft(job: &Job, min_count: Option<i32>) -> WorkloadDraft {
    WorkloadDraft {
        name: names::workload(&job.key.name, job.uid.as_str()),
        template: names::template(&job.key.name),
        min_count,
    }
}

pub(super) fn pod_group(
    workload: &Arc<Workload>,
    template: &GroupTemplate,
    is_own: bool,
) -> PodGroupDraft {
    PodGroupDraft {
        name: names::pod_group(&workload.key.1, &template.name),
        workload: Arc::clone(workload),
        template: template.clone(),
        is_own,
    }
}

fn join(group: &PodGroup, resizes: Vec<Resize>) -> GroupPlan {
    GroupPlan::Join(Arc::new(SchedulingGroup::of(group)), resizes)
}

impl SchedulingGroup {
    /// That of this PodGroup, for its first members.
    pub(super) fn of(group: &PodGroup) -> Self {
        let attempt = group.is_disrupted_whole.then_some(0);
        Self { name: Arc::clone(&group.key.1), attempt }
    }
}

impl PodGroupDraft {
    /// The same under a name that no sibling has.
    ///
    /// DIVERGES(upstream): Jobs that follow the same template, such as the replicas of a JobSet,
    /// get the same name from upstream, and all but the first wait for ever. Later versions of
    /// upstream have the Job in the name, too. (W6)
    pub(super) fn of_sibling(self, job: &Job) -> Option<Self> {
        let (workload, uid) = (&self.workload.key.1, job.uid.as_str());
        let name = names::pod_group_of_sibling(workload, &self.template.name, uid);
        (name != self.name).then_some(Self { name, ..self })
    }

    /// The one of both whose name pods of the Job have, if any: no watch shows it yet, or a restore
    /// of etcd has undone it.
    fn of_pods(self, facts: &Facts) -> Option<Self> {
        let named = |it: &Self| {
            let mut groups = facts.census.pods.iter().filter_map(|pod| pod.group.as_deref());
            groups.any(|group| group == it.name)
        };
        let of_sibling = || self.clone().of_sibling(&facts.job).filter(named);
        if named(&self) { Some(self) } else { of_sibling() }
    }
}

impl GroupPlan {
    /// Whether the sync ends with it: no pod is made, and no status written.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Await(..) | Self::Refuse(_))
    }

    /// The same for pods that are created now, in the attempt of the group that is theirs. With it,
    /// they begin with the failures of those before them.
    pub(super) fn for_new_pods(self, facts: &Facts, stage: &mut PodStage) -> Self {
        match (self, stage) {
            (Self::Join(group, resizes), PodStage::Create(drafts)) if group.attempt.is_some() => {
                let attempt = Some(recovery::next_attempt(&facts.census, &group.name));
                let group = SchedulingGroup { name: Arc::clone(&group.name), attempt };
                recovery::inherit_failures(&facts.job, &facts.census, &group, drafts);
                Self::Join(Arc::new(group), resizes)
            }
            (other, _) => other,
        }
    }
}

impl GroupStep {
    /// Whether its body repeats what the Job keeps for its writes.
    pub(super) fn repeats_source(&self) -> bool {
        matches!(self, Self::CreateWorkload(_))
    }

    /// Whether it reads only.
    pub fn reads(&self) -> bool {
        matches!(self, Self::FindWorkload(_) | Self::FindPodGroup(_))
    }

    /// The step that follows once this one has failed: an earlier call, whose reply was lost, may
    /// have created the object.
    pub(super) fn instead(&self, failure: &Failure) -> Option<Self> {
        let exists = failure.kind == FailureKind::AlreadyExists;
        match self {
            Self::CreateWorkload(draft) if exists => Some(Self::FindWorkload(draft.name.clone())),
            Self::CreatePodGroup(draft) if exists => Some(Self::FindPodGroup(draft.name.clone())),
            _ => None,
        }
    }
}

impl fmt::Display for GroupStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateWorkload(draft) => write!(formatter, "creates Workload {}", draft.name),
            Self::FindWorkload(name) => write!(formatter, "reads Workload {name}"),
            Self::CreatePodGroup(draft) => write!(formatter, "creates PodGroup {}", draft.name),
            Self::FindPodGroup(name) => write!(formatter, "reads PodGroup {name}"),
            Self::Resize(resize) => write!(formatter, "changes {resize}"),
        }
    }
}

impl fmt::Display for GroupPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => formatter.write_str("no scheduling group"),
            Self::Join(group, resizes) => {
                write!(formatter, "pods join PodGroup {}", group.name)?;
                resizes.iter().try_for_each(|it| write!(formatter, "; {it}"))
            }
            Self::Create(WorkloadPlan::Create(draft)) => {
                write!(formatter, "create Workload {} and its PodGroup", draft.name)
            }
            Self::Create(WorkloadPlan::Of(draft)) => {
                write!(formatter, "create PodGroup {}", draft.name)
            }
            Self::Await(what, left) => write!(formatter, "{what}; awaited for {left:#} more"),
            Self::Alone(why) => write!(formatter, "pods are scheduled one by one: {why}"),
            Self::Refuse(problem) => formatter.write_str(problem),
        }
    }
}
