//! Lists the pods that the runtime knows, from the labels of their sandboxes.

use std::collections::BTreeMap;

use agent_core::pod::{PodSource, PodUid};
use agent_core::protocol::action::PodRef;

use super::wire::{
    POD_NAME_LABEL, POD_NAMESPACE_LABEL, POD_UID_LABEL, PodSandbox, PodSandboxState,
    SOURCE_ANNOTATION,
};

/// A pod that the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// The pod. The UID of a static pod is the kubelet's own, not that of the mirror pod in the
    /// API.
    pub pod: PodRef,
    /// Where the kubelet got the pod from; `None` where the sandbox does not say.
    pub source: Option<PodSource>,
    /// Whether any of its sandboxes is ready.
    pub sandbox_ready: bool,
}

/// The pods of these sandboxes, in the order of their UIDs. Leaves out sandboxes that the kubelet
/// did not make.
pub(super) fn of(sandboxes: Vec<PodSandbox>) -> Vec<KnownPod> {
    let mut pods: BTreeMap<String, KnownPod> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(known) = known(&sandbox) else { continue };
        let ready = known.sandbox_ready;
        let pod = pods.entry(known.pod.uid.0.clone()).or_insert(known);
        pod.sandbox_ready |= ready;
    }
    pods.into_values().collect()
}

fn known(sandbox: &PodSandbox) -> Option<KnownPod> {
    let label = |name: &str| sandbox.labels.get(name).cloned();
    let source = match sandbox.annotations.get(SOURCE_ANNOTATION).map(String::as_str) {
        Some("api") => Some(PodSource::Api),
        Some(_) => Some(PodSource::Static),
        None => None,
    };
    Some(KnownPod {
        pod: PodRef {
            namespace: label(POD_NAMESPACE_LABEL)?,
            name: label(POD_NAME_LABEL)?,
            uid: PodUid(label(POD_UID_LABEL)?),
        },
        source,
        sandbox_ready: sandbox.state() == PodSandboxState::Ready,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(uid: &str, state: PodSandboxState, source: Option<&str>) -> PodSandbox {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        PodSandbox {
            state: state.into(),
            labels: BTreeMap::from([
                pair(POD_UID_LABEL, uid),
                pair(POD_NAME_LABEL, "name"),
                pair(POD_NAMESPACE_LABEL, "space"),
            ]),
            annotations: source.map(|source| pair(SOURCE_ANNOTATION, source)).into_iter().collect(),
            ..PodSandbox::default()
        }
    }

    #[test]
    fn a_pod_is_known_once_and_ready_if_any_sandbox_is() {
        use PodSandboxState::{NotReady, Ready};
        let pods = of(vec![
            sandbox("b", NotReady, Some("api")),
            sandbox("b", Ready, Some("api")),
            sandbox("b", NotReady, Some("api")),
            sandbox("a", NotReady, Some("file")),
            sandbox("c", Ready, None),
            PodSandbox::default(),
        ]);
        let seen: Vec<_> = pods
            .iter()
            .map(|pod| (pod.pod.uid.0.as_str(), pod.source, pod.sandbox_ready))
            .collect();
        let expected = [
            ("a", Some(PodSource::Static), false),
            ("b", Some(PodSource::Api), true),
            ("c", None, true),
        ];
        assert_eq!(seen, expected);
        assert_eq!((pods[0].pod.namespace.as_str(), pods[0].pod.name.as_str()), ("space", "name"));
    }
}
