//! Makes the message of a pod from the message of a template.
//!
//! The API merges a message that is appended to another: the last scalar and the last entry of a
//! map win, lists grow, and messages inside merge in turn. So what the pod adds stands behind the
//! bytes of the template, and no field needs to be known to be kept. Only the index variable stands
//! before them.

use std::sync::Arc;

use epilogue_common::names::{COMPLETION_INDEX_ENV, TRACKING_FINALIZER};
use prost::Message;
use prost::bytes::Bytes;

use super::{AVOID_WEIGHT, Additions, NODE_NAME, index_path};
use crate::view::{EntryMessage, Job, retain};

/// The tags of the template's metadata that a pod gets: labels, annotations, finalizers.
const META_KEPT: [u32; 3] = [11, 12, 14];
/// The tags of the spec that [`Containers`] has.
const CONTAINERS: [u32; 2] = [2, 20];

/// A pod or a template, in undecoded parts.
#[derive(Clone, PartialEq, Message)]
struct Parts {
    #[prost(bytes = "bytes", tag = "1")]
    metadata: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    spec: Bytes,
}

/// The part of the template's metadata that decides what a pod adds.
#[derive(Clone, PartialEq, Message)]
struct MetaPeek {
    #[prost(message, repeated, tag = "11")]
    labels: Vec<()>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    finalizers: Vec<Bytes>,
}

/// The containers of a spec, undecoded.
#[derive(Clone, PartialEq, Message)]
struct Containers {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    containers: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "20")]
    init_containers: Vec<Bytes>,
}

/// The variables of a container, of which only the names are read.
#[derive(Clone, PartialEq, Message)]
struct EnvPeek {
    #[prost(message, repeated, tag = "7")]
    env: Vec<NamePeek>,
}

#[derive(Clone, PartialEq, Message)]
struct NamePeek {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct MetaMessage {
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(message, repeated, tag = "11")]
    labels: Vec<EntryMessage>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<EntryMessage>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerMessage>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct OwnerMessage {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, tag = "6")]
    controller: bool,
    #[prost(bool, tag = "7")]
    block_owner_deletion: bool,
}

#[derive(Clone, PartialEq, Message)]
struct SpecMessage {
    #[prost(string, optional, tag = "16")]
    hostname: Option<String>,
    #[prost(message, optional, tag = "18")]
    affinity: Option<AffinityMessage>,
    #[prost(message, optional, tag = "43")]
    scheduling_group: Option<GroupMessage>,
}

/// The part of the template's spec that a Workload repeats.
#[derive(Clone, PartialEq, Message)]
struct PriorityPeek {
    #[prost(bytes = "vec", tag = "24")]
    class: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct GroupMessage {
    #[prost(string, tag = "1")]
    pod_group_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct AffinityMessage {
    #[prost(message, optional, tag = "1")]
    nodes: Option<NodeAffinityMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeAffinityMessage {
    #[prost(message, repeated, tag = "2")]
    preferred: Vec<PreferenceMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct PreferenceMessage {
    #[prost(int32, tag = "1")]
    weight: i32,
    #[prost(message, optional, tag = "2")]
    preference: Option<TermMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct TermMessage {
    #[prost(message, repeated, tag = "2")]
    match_fields: Vec<RequirementMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct RequirementMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    operator: String,
    #[prost(string, repeated, tag = "3")]
    values: Vec<String>,
}

/// A container's variable.
#[derive(Clone, PartialEq, Message)]
struct EnvMessage {
    #[prost(message, repeated, tag = "7")]
    env: Vec<VariableMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct VariableMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "3")]
    value_from: Option<ValueSourceMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueSourceMessage {
    #[prost(message, optional, tag = "1")]
    field: Option<FieldMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldMessage {
    #[prost(string, tag = "2")]
    path: String,
}

/// `spec.priorityClassName` of the template.
pub(super) fn priority_class(template: &Bytes) -> String {
    let class = read::<PriorityPeek>(&read::<Parts>(template).spec).class;
    String::from_utf8_lossy(&class).into_owned()
}

/// Whether the template has a label.
pub(super) fn has_labels(template: &Bytes) -> bool {
    !read::<MetaPeek>(&read::<Parts>(template).metadata).labels.is_empty()
}

/// The message of a pod: the template's, with the additions behind it.
pub(super) fn pod_message(template: &Bytes, additions: &Additions<'_>) -> Vec<u8> {
    let Parts { metadata, spec } = read(template);
    let finalizers = read::<MetaPeek>(&metadata).finalizers;
    let mut metadata = retain(&metadata, |tag| META_KEPT.contains(&tag));
    append(&mut metadata, &meta_message(additions, &finalizers));
    let mut spec = match additions.hostname {
        Some(_) => with_index_variables(&spec),
        None => spec.to_vec(),
    };
    let affinity = (!additions.avoid.is_empty()).then(|| affinity_message(additions.avoid));
    let scheduling_group =
        additions.group.map(|it| GroupMessage { pod_group_name: it.name.to_string() });
    let hostname = additions.hostname.clone();
    append(&mut spec, &SpecMessage { hostname, affinity, scheduling_group });
    Parts { metadata: metadata.into(), spec: spec.into() }.encode_to_vec()
}

/// Reads a message of which [`Job::decode`] has read the outer form. A container may still be
/// malformed; it then goes to the API as it is.
fn read<T: Message + Default>(message: &Bytes) -> T {
    T::decode(message.clone()).unwrap_or_default()
}

fn append(bytes: &mut Vec<u8>, message: &impl Message) {
    message.encode(bytes).expect("a vector grows");
}

fn meta_message(additions: &Additions<'_>, finalizers: &[Bytes]) -> MetaMessage {
    let entries = |all: &[(&str, String)]| -> Vec<EntryMessage> {
        let entry = |(key, value): &(&str, String)| EntryMessage {
            key: (*key).into(),
            value: value.clone().into(),
        };
        all.iter().map(entry).collect()
    };
    let is_tracked = finalizers.iter().any(|each| each == TRACKING_FINALIZER.as_bytes());
    MetaMessage {
        generate_name: additions.generate_name.clone(),
        labels: entries(&additions.labels),
        annotations: entries(&additions.annotations),
        owner_references: vec![owner_message(additions.job)],
        finalizers: (!is_tracked).then(|| TRACKING_FINALIZER.to_owned()).into_iter().collect(),
    }
}

fn owner_message(job: &Job) -> OwnerMessage {
    OwnerMessage {
        kind: "Job".to_owned(),
        name: job.key.name.to_string(),
        uid: job.uid.to_string(),
        api_version: "batch/v1".to_owned(),
        controller: true,
        block_owner_deletion: true,
    }
}

fn affinity_message(avoid: &[Arc<str>]) -> AffinityMessage {
    let requirement = RequirementMessage {
        key: NODE_NAME.to_owned(),
        operator: "NotIn".to_owned(),
        values: avoid.iter().map(ToString::to_string).collect(),
    };
    let preference = Some(TermMessage { match_fields: vec![requirement] });
    let preferred = vec![PreferenceMessage { weight: AVOID_WEIGHT, preference }];
    AffinityMessage { nodes: Some(NodeAffinityMessage { preferred }) }
}

/// The spec with the variable in each container. Lists of messages do not merge element by element,
/// so both lists of containers are written anew.
fn with_index_variables(spec: &Bytes) -> Vec<u8> {
    let mut containers: Containers = read(spec);
    let lists = [&mut containers.containers, &mut containers.init_containers];
    for container in lists.into_iter().flatten() {
        *container = with_index_variable(container);
    }
    let mut all = retain(spec, |tag| !CONTAINERS.contains(&tag));
    append(&mut all, &containers);
    all
}

fn with_index_variable(container: &Bytes) -> Bytes {
    let has_index = |it: &NamePeek| it.name == COMPLETION_INDEX_ENV.as_bytes();
    if read::<EnvPeek>(container).env.iter().any(has_index) {
        return container.clone();
    }
    let field = Some(FieldMessage { path: index_path() });
    let variable = VariableMessage {
        name: COMPLETION_INDEX_ENV.to_owned(),
        value_from: Some(ValueSourceMessage { field }),
    };
    // The entries of a list keep their order on the wire, so the variable becomes the first one.
    let mut message = EnvMessage { env: vec![variable] }.encode_to_vec();
    message.extend_from_slice(container);
    message.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{PodDraft, pod_body};
    use crate::view::{FailureCounts, Source, UnknownFields, WireJob, WirePod};
    use serde_json::json;

    /// A field that no message here has.
    const UNKNOWN: &[u8] = &[0xa2, 0x06, 0x01, b'u'];
    const INDEX: &str = "batch.kubernetes.io/job-completion-index";

    /// A container with a variable of this name.
    fn container(variable: &str) -> Bytes {
        let name = variable.to_owned();
        let env = vec![VariableMessage { name, value_from: None }];
        [&EnvMessage { env }.encode_to_vec(), UNKNOWN].concat().into()
    }

    fn template(metadata: &MetaMessage) -> Bytes {
        let containers = Containers {
            containers: vec![container("A"), container(COMPLETION_INDEX_ENV)],
            init_containers: vec![Bytes::from_static(UNKNOWN)],
        };
        let mut spec = UNKNOWN.to_vec();
        append(&mut spec, &containers);
        append(
            &mut spec,
            &SpecMessage {
                hostname: Some("mine".into()),
                affinity: Some(affinity_message(&["theirs".into()])),
                scheduling_group: None,
            },
        );
        let metadata = metadata.encode_to_vec().into();
        Parts { metadata, spec: spec.into() }.encode_to_vec().into()
    }

    fn job(template: Bytes) -> Job {
        let job = json!({"metadata": {"name": "j", "uid": "job-uid"}});
        let job = WireJob::parse(job).and_then(WireJob::view).expect("must be a Job");
        let (metadata, status_unknown) = (Bytes::new(), UnknownFields::default());
        Job { source: Source::Protobuf { metadata, template, status_unknown }, ..job }
    }

    fn labelled() -> MetaMessage {
        let entry = |key: &str| EntryMessage { key: key.into(), value: "theirs".into() };
        MetaMessage {
            generate_name: "x-".into(),
            labels: vec![entry("a"), entry(INDEX)],
            annotations: vec![entry("b")],
            owner_references: vec![OwnerMessage {
                kind: "Other".into(),
                ..OwnerMessage::default()
            }],
            finalizers: vec!["example.com/mine".into()],
        }
    }

    /// The message of the pod, and the pod that a reader sees.
    fn pod(template: &Bytes, draft: &PodDraft) -> (Parts, WirePod) {
        let job = job(template.clone());
        let additions = Additions::of(&job, draft);
        let parts = Parts::decode(&*pod_message(template, &additions)).expect("must be a pod");
        (parts, pod_body(&job, draft).pod().expect("must be a pod"))
    }

    #[test]
    fn a_pod_is_the_template_with_owner_and_finalizer() {
        let template = template(&labelled());
        let (parts, pod) = pod(&template, &PodDraft::default());
        assert_eq!(parts.spec, read::<Parts>(&template).spec);
        let metadata: MetaMessage = read(&parts.metadata);
        assert_eq!(metadata.generate_name, "j-");
        assert_eq!(metadata.labels.len(), 2);
        assert_eq!(metadata.finalizers, ["example.com/mine", TRACKING_FINALIZER]);
        let owners = pod.metadata.owner_references.expect("owners");
        let [owner] = &*owners else { panic!("{owners:?}") };
        assert_eq!((&*owner.kind, &*owner.name, &*owner.uid), ("Job", "j", "job-uid"));
        assert_eq!((&*owner.api_version, owner.controller), ("batch/v1", Some(true)));
    }

    #[test]
    fn a_pod_of_an_index_knows_it() {
        let failures = Some(FailureCounts { counted: 2, ignored: 0 });
        let draft = PodDraft { index: Some(3), failures, ..PodDraft::default() };
        let (parts, pod) = pod(&template(&labelled()), &draft);
        let labels = pod.metadata.labels.expect("labels");
        assert_eq!((&*labels["a"], &*labels[INDEX]), ("theirs", "3"));
        let annotations = pod.metadata.annotations.expect("annotations");
        assert_eq!((&*annotations["b"], &*annotations[INDEX]), ("theirs", "3"));
        assert_eq!(annotations["batch.kubernetes.io/job-index-failure-count"], "2");
        let spec: SpecMessage = read(&parts.spec);
        assert_eq!(spec.hostname.as_deref(), Some("j-3"));
        assert!(parts.spec.starts_with(UNKNOWN));
        let containers: Containers = read(&parts.spec);
        let names = |container: &Bytes| -> Vec<String> {
            assert!(container.windows(UNKNOWN.len()).any(|part| part == UNKNOWN));
            read::<EnvMessage>(container).env.into_iter().map(|it| it.name).collect()
        };
        let all: Vec<_> = containers.containers.iter().map(names).collect();
        assert_eq!(all, [vec![COMPLETION_INDEX_ENV, "A"], vec![COMPLETION_INDEX_ENV]]);
        let init: Vec<_> = containers.init_containers.iter().map(names).collect();
        assert_eq!(init, [[COMPLETION_INDEX_ENV]]);
    }

    #[test]
    fn nodes_to_avoid_join_the_template_s_own() {
        let draft = PodDraft { avoid: vec!["n1".into()], ..PodDraft::default() };
        let (parts, _) = pod(&template(&labelled()), &draft);
        let affinity = read::<SpecMessage>(&parts.spec).affinity.expect("an affinity");
        let terms = affinity.nodes.expect("of nodes").preferred;
        let nodes =
            |it: PreferenceMessage| it.preference.expect("one").match_fields[0].values.clone();
        let nodes: Vec<_> = terms.into_iter().map(nodes).collect();
        assert_eq!(nodes, [["theirs"], ["n1"]]);
    }

    #[test]
    fn a_template_has_labels_or_makes_no_pods() {
        assert!(has_labels(&template(&labelled())));
        for bare in [template(&MetaMessage::default()), Bytes::new()] {
            assert!(!has_labels(&bare));
        }
        let tracked = vec![TRACKING_FINALIZER.to_owned(), "z".to_owned()];
        let own = MetaMessage { finalizers: tracked.clone(), ..MetaMessage::default() };
        let (parts, _) = pod(&template(&own), &PodDraft::default());
        assert_eq!(read::<MetaMessage>(&parts.metadata).finalizers, tracked);
    }

    #[test]
    fn odd_templates_do_no_harm() {
        let whole = template(&labelled());
        let draft = PodDraft { index: Some(0), avoid: vec!["n".into()], ..PodDraft::default() };
        for end in 0..whole.len() {
            let job = job(whole.slice(..end));
            assert!(pod_body(&job, &draft).into_bytes().starts_with(b"k8s\0"), "{end}");
        }
    }
}
