//! Finds pods that exceed their own limits of local storage. They terminate without
//! `DisruptionTarget`, because a limit set by the user is no disruption. ([EV26])

use super::usage::{ContainerUsage, DiskLayout, PodUsage};
use crate::quantity::Quantity;

/// A limit that a pod exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Name of the signal in metrics.
    pub signal: &'static str,
    /// Message of the status and of the event; ends with a blank.
    pub message: String,
}

/// The first limit that the pod exceeds, in the order volume, pod, container. Critical pods are
/// exempt.
pub fn exceeded(pod: &PodUsage, layout: DiskLayout) -> Option<Exceeded> {
    if pod.critical {
        return None;
    }
    volume(pod).or_else(|| whole(pod)).or_else(|| container(pod, layout))
}

fn volume(pod: &PodUsage) -> Option<Exceeded> {
    let volume = pod.empty_dirs.iter().find(|volume| volume.used > volume.limit)?;
    let limit = Quantity::bytes(volume.limit);
    Some(Exceeded {
        signal: "emptydirfs.limit",
        message: format!(
            "Usage of EmptyDir volume \"{}\" exceeds the limit \"{limit}\". ",
            volume.name
        ),
    })
}

/// The pod's limit is the sum of its regular containers' limits; each of them needs one.
fn whole(pod: &PodUsage) -> Option<Exceeded> {
    let limits: Option<Vec<_>> = regular(pod).map(|container| container.storage_limit).collect();
    let limit =
        limits.filter(|limits| !limits.is_empty())?.into_iter().fold(0, u64::saturating_add);
    (pod.disk?.sum() > limit).then(|| Exceeded {
        signal: "ephemeralpodfs.limit",
        message: format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            Quantity::bytes(limit)
        ),
    })
}

fn container(pod: &PodUsage, layout: DiskLayout) -> Option<Exceeded> {
    let used = |container: &ContainerUsage| {
        let rootfs = if layout == DiskLayout::DedicatedImages { 0 } else { container.rootfs? };
        Some(container.logs?.saturating_add(rootfs))
    };
    let sidecars = pod.containers.iter().filter(|container| container.sidecar);
    regular(pod).chain(sidecars).find_map(|container| {
        let limit = container.storage_limit?;
        (used(container)? > limit).then(|| Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {} exceeded its local ephemeral storage limit \"{}\". ",
                container.name,
                Quantity::bytes(limit)
            ),
        })
    })
}

fn regular(pod: &PodUsage) -> impl Iterator<Item = &ContainerUsage> {
    pod.containers.iter().filter(|container| !container.init)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PodUid;
    use crate::pressure::usage::{DiskUsage, EmptyDir};

    const MI: u64 = 1 << 20;

    fn pod(limits: &[Option<u64>], used: u64) -> PodUsage {
        let container = |(index, limit): (usize, &Option<u64>)| ContainerUsage {
            name: format!("c{index}"),
            rootfs: Some(used * MI),
            logs: Some(2 * MI),
            storage_limit: limit.map(|limit| limit * MI),
            ..ContainerUsage::default()
        };
        PodUsage {
            uid: PodUid("uid-a".into()),
            name: "a".into(),
            priority: 0,
            critical: false,
            memory: None,
            memory_request: 0,
            memory_request_of_pod: false,
            tasks: None,
            disk: Some(DiskUsage { rootfs: used * MI, logs: 0, volumes: 0 }),
            inodes: None,
            storage_request: 0,
            containers: limits.iter().enumerate().map(container).collect(),
            empty_dirs: Vec::new(),
        }
    }

    fn message(pod: &PodUsage, layout: DiskLayout) -> String {
        exceeded(pod, layout).map_or_else(String::new, |exceeded| exceeded.message)
    }

    #[test]
    fn the_first_limit_that_is_exceeded_is_reported() {
        // Volume, pod, container: the first limit that is exceeded counts. ([EV26])
        use DiskLayout::{DedicatedImages, Single};
        let volume = |used, limit| EmptyDir { name: "v".into(), used, limit };
        let with_volume = |used| PodUsage {
            empty_dirs: vec![volume(1, 2), volume(used, 5 * MI)],
            ..pod(&[Some(1)], 100)
        };
        let table = [
            (
                with_volume(5 * MI + 1),
                Single,
                "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". ",
            ),
            (
                with_volume(5 * MI),
                Single,
                "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
            ),
            (pod(&[Some(10), Some(20)], 30), Single, {
                "Container c0 exceeded its local ephemeral storage limit \"10Mi\". "
            }),
            (pod(&[Some(10), Some(20)], 30), DedicatedImages, ""),
            (
                pod(&[Some(10), Some(20)], 31),
                DedicatedImages,
                "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi. ",
            ),
            // A container without a limit removes the pod's limit, but not the limits of the other
            // containers.
            (pod(&[None, Some(20)], 31), Single, {
                "Container c1 exceeded its local ephemeral storage limit \"20Mi\". "
            }),
            (pod(&[None], 999), Single, ""),
            (pod(&[], 999), Single, ""),
            (PodUsage { critical: true, ..pod(&[Some(1)], 9) }, Single, ""),
        ];
        for (row, (pod, layout, expected)) in table.into_iter().enumerate() {
            assert_eq!(message(&pod, layout), expected, "row {row}");
        }
        let mut init = pod(&[Some(1)], 9);
        init.containers[0].init = true;
        assert_eq!(message(&init, Single), "", "an init container that ends does not count");
        assert_eq!(exceeded(&pod(&[Some(1)], 9), Single).expect("must be").signal, {
            "ephemeralpodfs.limit"
        });
    }

    #[test]
    fn a_sidecar_above_its_own_limit_is_reported() {
        // The kubelet enforces it since 1.37. ([EV26])
        let mut with_sidecar = pod(&[None, Some(10)], 8);
        let sidecar = &mut with_sidecar.containers[1];
        (sidecar.init, sidecar.sidecar) = (true, true);
        assert_eq!(message(&with_sidecar, DiskLayout::Single), "", "8 Mi and 2 Mi of logs");
        with_sidecar.containers[1].logs = Some(2 * MI + 1);
        let found = exceeded(&with_sidecar, DiskLayout::Single).expect("must be exceeded");
        assert_eq!(found.signal, "ephemeralcontainerfs.limit");
        assert_eq!(
            found.message,
            "Container c1 exceeded its local ephemeral storage limit \"10Mi\". "
        );
    }
}
