//! Builds the message of a pod that pressure terminates, byte for byte like the kubelet's, and the
//! annotations of its event. ([EV13], [EV14], [EV15])

use super::signal::Signal;
use super::usage::{ContainerUsage, PodUsage};
use crate::quantity::Quantity;

/// `status.reason` of an evicted pod, and its event's reason.
pub const REASON_EVICTED: &str = "Evicted";

/// Start of the message about a shortage.
pub const MESSAGE_START: &str = "The node was low on resource: ";

/// Message and annotations of one victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Message of the status, of the condition and of the event; each part ends with a blank.
    pub message: String,
    /// The event's annotations.
    pub annotations: Vec<(&'static str, String)>,
}

/// Figures of a shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The threshold, in units of the signal.
    pub threshold: u64,
    /// Available amount, in units of the signal.
    pub available: u64,
}

impl Shortage {
    /// How much is missing, in units of the signal.
    pub fn missing(self) -> u64 {
        self.threshold.saturating_sub(self.available)
    }

    fn describe(self, signal: Signal) -> String {
        let threshold = signal.quantity(self.threshold);
        let available = signal.quantity(self.available);
        format!("Threshold quantity: {threshold}, available: {available}. ")
    }
}

/// Describes a victim; `pod` is `None` without figures of it. ([EV14])
pub fn describe(
    signal: Signal,
    shortage: impl Into<Option<Shortage>>,
    pod: Option<&PodUsage>,
) -> Description {
    let mut message = format!("{MESSAGE_START}{}. ", signal.resource());
    if let Some(shortage) = shortage.into() {
        message += &shortage.describe(signal);
    }
    let Some(pod) = pod else { return Description { message, annotations: Vec::new() } };
    let resource = signal.resource();
    let mut annotations = vec![("starved_resource", resource.to_owned())];
    if let Some(used) = pod_memory(signal, pod) {
        let used = Quantity::bytes(used);
        let request = Quantity::bytes(pod.memory_request);
        message += &sentence("Pod", &pod.name, used, request, resource);
        annotations.push(("offending_pod", pod.name.clone()));
        annotations.push(("offending_pod_usage", used.to_string()));
    }
    let offending = offending(signal, pod);
    for container in &offending {
        let Offending { name, used, request } = container;
        message += &sentence("Container", name, *used, *request, resource);
    }
    let names: Vec<_> = offending.iter().map(|container| container.name).collect();
    let usages: Vec<_> = offending.iter().map(|container| container.used.to_string()).collect();
    annotations.push(("offending_containers", names.join(",")));
    annotations.push(("offending_containers_usage", usages.join(",")));
    Description { message, annotations }
}

fn sentence(kind: &str, name: &str, used: Quantity, request: Quantity, resource: &str) -> String {
    format!(
        "{kind} {name} was using {used}, request is {request}, has larger consumption of \
         {resource}. "
    )
}

/// The pod's own use of memory, if the pod has a memory request of its own.
fn pod_memory(signal: Signal, pod: &PodUsage) -> Option<u64> {
    pod.memory.filter(|_| signal.resource() == "memory" && pod.memory_request_of_pod)
}

/// A container that exceeds its request.
struct Offending<'a> {
    name: &'a str,
    used: Quantity,
    request: Quantity,
}

/// Usage per container exists only for memory and for bytes on disk. ([EV13])
fn offending(signal: Signal, pod: &PodUsage) -> Vec<Offending<'_>> {
    let measure = |container: &ContainerUsage| match signal.resource() {
        "memory" => Some((container.memory?, container.memory_request)),
        "ephemeral-storage" => {
            let used = container.rootfs?.saturating_add(container.logs?);
            Some((used, container.storage_request))
        }
        _ => None,
    };
    let offending = |container| {
        let (used, request) = measure(container)?;
        (used > request).then(|| Offending {
            name: &container.name,
            used: Quantity::bytes(used),
            request: Quantity::bytes(request),
        })
    };
    pod.containers.iter().filter_map(offending).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PodUid;

    const MI: u64 = 1 << 20;

    fn container(name: &str) -> ContainerUsage {
        ContainerUsage { name: name.into(), ..ContainerUsage::default() }
    }

    fn pod(containers: Vec<ContainerUsage>) -> PodUsage {
        PodUsage {
            uid: PodUid("uid-a".into()),
            name: "a".into(),
            priority: 0,
            critical: false,
            memory: Some(700 * MI),
            memory_request: 100 * MI,
            memory_request_of_pod: false,
            tasks: None,
            disk: None,
            inodes: None,
            storage_request: 0,
            containers,
            empty_dirs: Vec::new(),
        }
    }

    fn shortage(threshold: u64, available: u64) -> impl Into<Option<Shortage>> {
        Shortage { threshold, available }
    }

    #[test]
    fn messages_are_the_kubelets() {
        // Byte for byte as the kubelet writes them. ([EV13])
        assert_eq!(
            describe(Signal::MemoryAvailable, shortage(2_048 * MI, 1_500 * MI), None).message,
            "The node was low on resource: memory. Threshold quantity: 2Gi, available: 1500Mi. "
        );
        assert_eq!(
            describe(Signal::PidAvailable, shortage(1_200, 500), None).message,
            "The node was low on resource: pids. Threshold quantity: 1200, available: 500. "
        );
        assert_eq!(
            describe(Signal::NodefsInodesFree, None, None).message,
            "The node was low on resource: inodes. "
        );
        let within = ContainerUsage {
            rootfs: Some(10 * MI),
            logs: Some(0),
            storage_request: 10 * MI,
            ..container("at-request")
        };
        let above = ContainerUsage {
            rootfs: Some(600 * MI),
            logs: Some(100 * MI),
            storage_request: 100 * MI,
            ..container("above-requests")
        };
        let unknown = ContainerUsage { rootfs: Some(600 * MI), ..container("without-logs") };
        let pod = pod(vec![within, above, unknown]);
        let description =
            describe(Signal::ImagefsAvailable, shortage(2_048 * MI, 1_536 * MI), Some(&pod));
        assert_eq!(
            description.message,
            "The node was low on resource: ephemeral-storage. Threshold quantity: 2Gi, \
             available: 1536Mi. Container above-requests was using 700Mi, request is 100Mi, has \
             larger consumption of ephemeral-storage. "
        );
    }

    #[test]
    fn the_event_names_the_offending_containers_alongside_their_usage() {
        // Without figures there are no annotations. ([EV14], [EV15])
        let using = |name: &str, used: u64| ContainerUsage {
            memory: Some(used * MI),
            memory_request: 100 * MI,
            ..container(name)
        };
        let pod = pod(vec![using("a", 300), using("b", 100), using("c", 101)]);
        let one = describe(Signal::MemoryAvailable, None, Some(&pod));
        assert_eq!(
            one.annotations,
            [
                ("starved_resource", "memory".to_owned()),
                ("offending_containers", "a,c".to_owned()),
                ("offending_containers_usage", "300Mi,101Mi".to_owned()),
            ]
        );
        assert_eq!(describe(Signal::MemoryAvailable, None, None).annotations, []);
        let whole = PodUsage { memory_request_of_pod: true, ..pod };
        let whole = describe(Signal::MemoryAvailable, None, Some(&whole));
        assert!(whole.message.contains(
            "Pod a was using 700Mi, request is 100Mi, has larger consumption of memory. \
             Container a was"
        ));
        assert_eq!(whole.annotations[1], ("offending_pod", "a".to_owned()));
        assert_eq!(whole.annotations[2], ("offending_pod_usage", "700Mi".to_owned()));
        let pids = describe(Signal::PidAvailable, shortage(2, 1), Some(&pod_of_none()));
        assert_eq!(pids.annotations[1], ("offending_containers", String::new()));
    }

    fn pod_of_none() -> PodUsage {
        pod(Vec::new())
    }
}
