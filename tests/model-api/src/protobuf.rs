//! Speaks the API's protobuf for pods, Jobs, their lists and refusals, in both directions. A field
//! that the table lacks is an error: nothing is left out in silence.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The content type of an object.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// How each object begins.
pub(crate) const MAGIC: &[u8] = b"k8s\0";
/// The messages, a line each and indented ones after it: each field with its tag, `*` if it is
/// repeated or `%` if it is a map, and its type: a string, an integer, a bool, or a message. From
/// `generated.proto` of Kubernetes 1.37, without volumes, affinity, probes and the like.
const TABLE: &str = "\
Pod: metadata=1ObjectMeta spec=2PodSpec status=3PodStatus
PodSpec: initContainers=20*Container containers=2*Container restartPolicy=3s
  terminationGracePeriodSeconds=4i activeDeadlineSeconds=5i dnsPolicy=6s nodeSelector=7%s
  serviceAccountName=8s serviceAccount=9s automountServiceAccountToken=21b nodeName=10s
  hostNetwork=11b hostPID=12b hostIPC=13b shareProcessNamespace=27b
  securityContext=14PodSecurityContext hostname=16s subdomain=17s schedulerName=19s
  tolerations=22*Toleration priorityClassName=24s priority=25i
  readinessGates=28*PodReadinessGate runtimeClassName=29s enableServiceLinks=30b
  preemptionPolicy=31s overhead=32%Quantity setHostnameAsFQDN=35b hostUsers=37b
  schedulingGates=38*PodSchedulingGate resources=40ResourceRequirements hostnameOverride=41s
  schedulingGroup=43PodSchedulingGroup
PodSchedulingGroup: podGroupName=1s
PodSchedulingGate: name=1s
PodStatus: observedGeneration=17i phase=1s conditions=2*PodCondition message=3s reason=4s
  nominatedNodeName=11s hostIP=5s hostIPs=16*HostIP podIP=6s podIPs=12*PodIP startTime=7Time
  initContainerStatuses=10*ContainerStatus containerStatuses=8*ContainerStatus qosClass=9s
  ephemeralContainerStatuses=13*ContainerStatus resize=14s allocatedResources=19%Quantity
  resources=20ResourceRequirements
PodCondition: type=1s observedGeneration=7i status=2s lastProbeTime=3Time
  lastTransitionTime=4Time reason=5s message=6s
Container: name=1s image=2s command=3*s args=4*s workingDir=5s env=7*EnvVar
  resources=8ResourceRequirements restartPolicy=24s terminationMessagePath=13s
  terminationMessagePolicy=20s imagePullPolicy=14s stdin=16b stdinOnce=17b tty=18b
ContainerStatus: name=1s state=2ContainerState lastState=3ContainerState ready=4b
  restartCount=5i image=6s imageID=7s containerID=8s started=9b allocatedResources=10%Quantity
  resources=11ResourceRequirements stopSignal=15s
ContainerState: waiting=1ContainerStateWaiting running=2ContainerStateRunning
  terminated=3ContainerStateTerminated
ContainerStateRunning: startedAt=1Time
ContainerStateTerminated: exitCode=1i signal=2i reason=3s message=4s startedAt=5Time
  finishedAt=6Time containerID=7s
ContainerStateWaiting: reason=1s message=2s
ResourceRequirements: limits=1%Quantity requests=2%Quantity
EnvVar: name=1s value=2s valueFrom=3EnvVarSource
EnvVarSource: fieldRef=1ObjectFieldSelector
ObjectFieldSelector: apiVersion=1s fieldPath=2s
PodIP: ip=1s
HostIP: ip=1s
Toleration: key=1s operator=2s value=3s effect=4s tolerationSeconds=5i
PodTemplateSpec: metadata=1ObjectMeta spec=2PodSpec
Job: metadata=1ObjectMeta spec=2JobSpec status=3JobStatus
JobSpec: parallelism=1i completions=2i activeDeadlineSeconds=3i
  podFailurePolicy=11PodFailurePolicy successPolicy=16SuccessPolicy backoffLimit=7i
  backoffLimitPerIndex=12i maxFailedIndexes=13i selector=4LabelSelector manualSelector=5b
  template=6PodTemplateSpec ttlSecondsAfterFinished=8i completionMode=9s suspend=10b
  podReplacementPolicy=14s managedBy=15s scheduling=17JobSchedulingConfiguration
JobSchedulingConfiguration: schedulingPolicy=1SchedulingPolicy
  schedulingConstraints=2SchedulingConstraints disruptionMode=3DisruptionMode
  resourceClaims=4*ResourceClaim
SchedulingPolicy: basic=1Nothing gang=2GangSchedulingPolicy
GangSchedulingPolicy: minCount=1i
SchedulingConstraints: topology=1*TopologyConstraint
TopologyConstraint: key=1s
DisruptionMode: single=1Nothing all=2Nothing
ResourceClaim: name=1s resourceClaimName=2s resourceClaimTemplateName=3s
JobStatus: conditions=1*JobCondition startTime=2Time completionTime=3Time active=4i succeeded=5i
  failed=6i terminating=11i completedIndexes=7s failedIndexes=10s
  uncountedTerminatedPods=8UncountedTerminatedPods ready=9i
JobCondition: type=1s status=2s lastProbeTime=3Time lastTransitionTime=4Time reason=5s
  message=6s
UncountedTerminatedPods: succeeded=1*s failed=2*s
PodFailurePolicy: rules=1*PodFailurePolicyRule
PodFailurePolicyRule: name=4s action=1s onExitCodes=2PodFailurePolicyOnExitCodesRequirement
  onPodConditions=3*PodFailurePolicyOnPodConditionsPattern
PodFailurePolicyOnExitCodesRequirement: containerName=1s operator=2s values=3*i
PodFailurePolicyOnPodConditionsPattern: type=1s status=2s
SuccessPolicy: rules=1*SuccessPolicyRule
SuccessPolicyRule: succeededIndexes=1s succeededCount=2i
LabelSelector: matchLabels=1%s matchExpressions=2*LabelSelectorRequirement
LabelSelectorRequirement: key=1s operator=2s values=3*s
ObjectMeta: name=1s generateName=2s namespace=3s uid=5s resourceVersion=6s generation=7i
  creationTimestamp=8Time deletionTimestamp=9Time deletionGracePeriodSeconds=10i labels=11%s
  annotations=12%s ownerReferences=13*OwnerReference finalizers=14*s
OwnerReference: apiVersion=5s kind=1s name=3s uid=4s controller=6b blockOwnerDeletion=7b
Status: metadata=1ListMeta status=2s message=3s reason=4s details=5StatusDetails code=6i
StatusDetails: name=1s group=2s kind=3s uid=6s causes=4*StatusCause retryAfterSeconds=5i
StatusCause: reason=1s message=2s field=3s
ListMeta: selfLink=1s resourceVersion=2s continue=3s remainingItemCount=4i
PodSecurityContext: runAsUser=2i runAsGroup=6i runAsNonRoot=3b supplementalGroups=4*i
  supplementalGroupsPolicy=12s fsGroup=5i fsGroupChangePolicy=9s seLinuxChangePolicy=13s
PodReadinessGate: conditionType=1s
PodList: metadata=1ListMeta items=2*Pod
JobList: metadata=1ListMeta items=2*Job
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    One,
    Many,
    Map,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    tag: u64,
    card: Card,
    of: &'static str,
}

/// A field's content on the wire.
enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Whether the table has objects of this kind, such as `Pod` or `PodList`.
pub(crate) fn knows(kind: &str) -> bool {
    messages().contains_key(kind)
}

/// An object in its envelope, by its `kind`.
///
/// # Panics
///
/// If the table lacks a field.
pub fn object(object: &Value) -> Vec<u8> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let mut meta = Vec::new();
    put_bytes(&mut meta, 1, version.as_bytes());
    put_bytes(&mut meta, 2, kind.as_bytes());
    let mut bytes = MAGIC.to_vec();
    put_bytes(&mut bytes, 1, &meta);
    put_bytes(&mut bytes, 2, &message(kind, object));
    bytes
}

/// An event of a watch: a frame with its length.
pub(crate) fn frame(event: &Value) -> Vec<u8> {
    let (mut raw, mut bytes) = (Vec::new(), Vec::new());
    put_bytes(&mut raw, 1, &object(&event["object"]));
    put_bytes(&mut bytes, 1, event["type"].as_str().unwrap_or_default().as_bytes());
    put_bytes(&mut bytes, 2, &raw);
    let length = u32::try_from(bytes.len()).expect("must fit in 4 bytes");
    [length.to_be_bytes().as_slice(), &bytes].concat()
}

/// Reads an object in its envelope. The error is a phrase.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin as protobuf does")?;
    let (mut meta, mut raw) = (&[][..], &[][..]);
    each(rest, |tag, content| {
        match (tag, content) {
            (1, Content::Bytes(bytes)) => meta = bytes,
            (2, Content::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
        Ok(())
    })?;
    let (mut version, mut kind) = (String::new(), String::new());
    each(meta, |tag, content| {
        if let Content::Bytes(bytes) = content {
            let text = if tag == 1 { &mut version } else { &mut kind };
            *text = String::from_utf8_lossy(bytes).into_owned();
        }
        Ok(())
    })?;
    let mut object = read_message(&kind, raw)?;
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    Ok(object)
}

fn messages() -> &'static BTreeMap<&'static str, Vec<Field>> {
    static MESSAGES: OnceLock<BTreeMap<&str, Vec<Field>>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let (mut all, mut last) = (BTreeMap::<_, Vec<Field>>::new(), "");
        for word in TABLE.split_whitespace() {
            match word.strip_suffix(':') {
                Some(name) => last = name,
                None => all.entry(last).or_default().push(Field::parse(word)),
            }
        }
        all
    })
}

fn fields(message: &str) -> &'static [Field] {
    messages().get(message).map_or(&[], Vec::as_slice)
}

impl Field {
    fn parse(word: &'static str) -> Self {
        let (name, rest) = word.split_once('=').expect("must have a tag");
        let end = rest.find(|it: char| !it.is_ascii_digit()).expect("must have a type");
        let (tag, rest) = rest.split_at(end);
        let (card, of) = match rest.as_bytes()[0] {
            b'*' => (Card::Many, &rest[1..]),
            b'%' => (Card::Map, &rest[1..]),
            _ => (Card::One, rest),
        };
        Self { name, tag: tag.parse().expect("must be a number"), card, of }
    }

    fn put(self, out: &mut Vec<u8>, value: &Value) {
        match self.card {
            Card::One => put(out, self.tag, self.of, value),
            Card::Many => {
                let values = value.as_array().into_iter().flatten();
                values.for_each(|value| put(out, self.tag, self.of, value));
            }
            Card::Map => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.as_bytes());
                    put(&mut entry, 2, self.of, value);
                    put_bytes(out, self.tag, &entry);
                }
            }
        }
    }

    fn take(self, into: &mut Map<String, Value>, content: &Content<'_>) -> Result<(), String> {
        if self.card == Card::Map {
            let Content::Bytes(entry) = content else { return Err(self.odd()) };
            let (mut key, mut value) = (String::new(), Value::from(""));
            each(entry, |tag, content| {
                let text = tag == 1;
                let found = read_value(if text { "s" } else { self.of }, &content)?;
                if text {
                    found.as_str().unwrap_or_default().clone_into(&mut key);
                } else {
                    value = found;
                }
                Ok(())
            })?;
            let map = into.entry(self.name).or_insert_with(|| json!({}));
            map[key] = value;
            return Ok(());
        }
        let value = read_value(self.of, content)?;
        if self.card == Card::Many {
            let list = into.entry(self.name).or_insert_with(|| json!([]));
            list.as_array_mut().ok_or_else(|| self.odd())?.push(value);
        } else if value != "" {
            // Go shows no empty text.
            into.insert(self.name.to_owned(), value);
        }
        Ok(())
    }

    fn odd(self) -> String {
        format!("{} is malformed", self.name)
    }
}

fn message(kind: &str, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let known = fields(kind);
    for (name, value) in object.as_object().into_iter().flatten() {
        match known.iter().find(|field| field.name == name) {
            _ if value.is_null() => {}
            Some(field) => field.put(&mut out, value),
            None if matches!(name.as_str(), "kind" | "apiVersion") => {}
            None => panic!("the table of protobuf lacks {kind}.{name}"),
        }
    }
    out
}

fn put(out: &mut Vec<u8>, tag: u64, of: &str, value: &Value) {
    match of {
        "s" => put_bytes(out, tag, value.as_str().unwrap_or_default().as_bytes()),
        "b" => put_number(out, tag, u64::from(value == true)),
        "i" => put_number(out, tag, value.as_i64().unwrap_or(0).cast_unsigned()),
        "Time" => {
            let time = value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
            let seconds = time.map_or(0, Timestamp::as_second).cast_unsigned();
            let mut message = Vec::new();
            put_number(&mut message, 1, seconds);
            put_bytes(out, tag, &message);
        }
        "Quantity" => {
            let mut message = Vec::new();
            let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            put_bytes(&mut message, 1, text.as_bytes());
            put_bytes(out, tag, &message);
        }
        kind => put_bytes(out, tag, &message(kind, value)),
    }
}

fn put_bytes(out: &mut Vec<u8>, tag: u64, bytes: &[u8]) {
    put_varint(out, tag << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_number(out: &mut Vec<u8>, tag: u64, number: u64) {
    put_varint(out, tag << 3);
    put_varint(out, number);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read_message(kind: &str, bytes: &[u8]) -> Result<Value, String> {
    let (known, mut object) = (fields(kind), Map::new());
    each(bytes, |tag, content| {
        let field = known.iter().find(|field| field.tag == tag);
        field.ok_or(format!("{kind} has no tag {tag}"))?.take(&mut object, &content)
    })?;
    Ok(object.into())
}

fn read_value(of: &str, content: &Content<'_>) -> Result<Value, String> {
    let (mut seconds, mut text) = (0, String::new());
    Ok(match (of, content) {
        ("b", Content::Number(number)) => (*number != 0).into(),
        ("i", Content::Number(number)) => number.cast_signed().into(),
        ("s", Content::Bytes(bytes)) => String::from_utf8_lossy(bytes).into(),
        ("Time", Content::Bytes(bytes)) => {
            each(bytes, |tag, content| {
                if let (1, Content::Number(number)) = (tag, content) {
                    seconds = number.cast_signed();
                }
                Ok(())
            })?;
            let time = Timestamp::from_second(seconds).map_err(|error| error.to_string())?;
            time.to_string().into()
        }
        ("Quantity", Content::Bytes(bytes)) => {
            each(bytes, |_, content| {
                if let Content::Bytes(bytes) = content {
                    text = String::from_utf8_lossy(bytes).into_owned();
                }
                Ok(())
            })?;
            text.into()
        }
        (kind, Content::Bytes(bytes)) => read_message(kind, bytes)?,
        (kind, Content::Number(_)) => {
            return Err(format!("invalid {kind}: expected bytes, found a number"));
        }
    })
}

/// Calls this for each field of a message.
fn each<'a>(
    mut bytes: &'a [u8],
    mut call: impl FnMut(u64, Content<'a>) -> Result<(), String>,
) -> Result<(), String> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let content = match key & 7 {
            0 => Content::Number(varint(&mut bytes)?),
            2 => {
                let length = varint(&mut bytes)? as usize;
                let (content, rest) = bytes.split_at_checked(length).ok_or("it breaks off")?;
                bytes = rest;
                Content::Bytes(content)
            }
            other => return Err(format!("the wire type {other} is not used")),
        };
        call(key >> 3, content)?;
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or("it breaks off")?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if *first < 0x80 {
            return Ok(number);
        }
    }
    Err("a number is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_the_same_in_both_formats() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "uid": "u", "labels": {"k": "v", "empty": ""},
                "creationTimestamp": "2026-11-20T00:00:05Z", "finalizers": ["f"],
                "ownerReferences": [{"kind": "Job", "name": "j", "controller": false}],
            },
            "spec": {
                "restartPolicy": "Never", "priority": -5,
                "containers": [{"name": "main", "resources": {"requests": {"memory": "64Mi"}}}],
            },
            "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]},
        });
        assert_eq!(read(&object(&pod)), Ok(pod.clone()));
        let list = json!({
            "apiVersion": "v1", "kind": "PodList",
            "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}],
        });
        assert_eq!(read(&object(&list)), Ok(list));
        let bytes = object(&pod);
        for end in 0..bytes.len() {
            assert_ne!(read(&bytes[..end]).ok(), Some(pod.clone()), "{end}");
        }
    }

    #[test]
    #[should_panic(expected = "lacks PodSpec.volumes")]
    fn a_field_that_the_table_lacks_is_no_silent_loss() {
        object(&json!({"kind": "Pod", "spec": {"volumes": []}}));
    }
}
