//! Maps cgroups to pods and containers by name, and finds them on this host. Knows both of the
//! kubelet's drivers, and the names that all runtimes use.
//!
//! | driver | pod | container |
//! |---|---|---|
//! | systemd | `kubepods-burstable-pod<uid, _ for ->.slice` | `cri-containerd-<id>.scope` |
//! | cgroupfs | `pod<uid>` | `<id>`, `crio-<id>` |
//!
//! Does not read the files in them.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use agent_core::pod::PodUid;

use crate::host::Host;

/// Where the kernel mounts cgroups.
const MOUNT: &str = "/sys/fs/cgroup";
/// Maximum depth of the cgroup of all pods below the mount: a kubelet may run in a slice or a
/// container of its own.
const KUBEPODS_DEPTH_MAX: usize = 4;
/// Maximum number of directories that the search reads.
const DIRS_MAX: usize = 4_096;
/// Maximum number of pods on one node; the kubelet's own limit is far lower.
const PODS_MAX: usize = 16_384;
/// Maximum number of containers of one pod, with the sandbox and remains of crashed ones.
const CONTAINERS_MAX: usize = 1_024;
/// The partition of the system's pods, which has classes of its own (KEP-5894).
const SYSTEM: &str = "system";
/// The cgroups, besides that of all pods, in which pods lie.
const CLASSES: [&str; 3] = ["burstable", "besteffort", SYSTEM];
/// Maximum length of a UID: that of a label's value.
const UID_CHARS_MAX: usize = 63;

/// The pod and container that a cgroup belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The pod.
    pub pod: PodUid,
    /// The runtime's id of the container, or of the pod's sandbox; `None` for the pod's own cgroup.
    pub container_id: Option<String>,
}

/// Reads a cgroup's path from the kernel's log or systemd-oomd. The path may continue below the
/// container. `None` if it is not a pod's.
pub fn place(path: &str) -> Option<Place> {
    let mut names = path.split('/').skip_while(|name| !is_kubepods(name));
    names.next()?;
    let pod = names.find_map(pod_uid)?;
    Some(Place { pod, container_id: names.next().and_then(container_id).map(ToOwned::to_owned) })
}

/// The pod whose cgroup has this name.
pub fn pod_uid(name: &str) -> Option<PodUid> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let fits = (1..=UID_CHARS_MAX).contains(&uid.len()) && uid.chars().all(is_uid);
    fits.then_some(PodUid(uid))
}

/// The container, or the sandbox, whose cgroup has this name, within its pod's.
pub fn container_id(name: &str) -> Option<&str> {
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    // The process with which the runtime monitors each container.
    if scope.contains("-conmon-") {
        return None;
    }
    let id = scope.rsplit_once('-').map_or(scope, |(_, id)| id);
    let is_id = !id.is_empty() && id.chars().all(|letter| letter.is_ascii_alphanumeric());
    is_id.then_some(id)
}

/// Whether this is the name of the cgroup of all pods.
fn is_kubepods(name: &str) -> bool {
    let slice = name.strip_suffix(".slice").unwrap_or(name);
    slice == "kubepods" || (slice.ends_with("-kubepods") && slice.len() != name.len())
}

/// What is not known on a host without cgroup v2.
pub const NO_V2: &str = "the memory of the node and of pods: the host has no cgroup v2";

/// The cgroups of this host. Without cgroup v2 the agent reads none: a kubelet of Kubernetes 1.35
/// or later does not start there unless its `failCgroupV1` is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    mount: PathBuf,
}

/// The cgroup of all pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubepods {
    /// Its directory.
    pub path: PathBuf,
}

/// The cgroup of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCgroup {
    /// The pod.
    pub uid: PodUid,
    /// Its directory.
    pub path: PathBuf,
}

impl Cgroups {
    /// Finds the cgroups under the host's root; `None` without cgroup v2.
    pub fn of(host: &Host) -> Option<Self> {
        let mount = host.path(MOUNT);
        mount.join("cgroup.controllers").exists().then_some(Self { mount })
    }

    /// The root cgroup.
    pub fn root(&self) -> &Path {
        &self.mount
    }

    /// Whether a path that the kernel or systemd-oomd names may be a pod's: any user may make
    /// cgroups with a pod's names in the part that is delegated to him. Below a root of its own, as
    /// in a container, the paths begin elsewhere, and names alone count.
    pub fn may_be_pods(&self, path: &str) -> bool {
        // The kernel's root has no such file.
        if self.mount.join("cgroup.events").exists() {
            return true;
        }
        let path = self.mount.join(path.trim_start_matches('/'));
        self.all_kubepods().iter().any(|kubepods| path.starts_with(&kubepods.path))
    }

    fn all_kubepods(&self) -> Vec<Kubepods> {
        let mut found = Vec::new();
        find_kubepods(&self.mount, &mut found);
        found
    }

    /// The cgroup of all pods. A change of the kubelet's driver leaves several; the one with pods
    /// counts.
    pub fn kubepods(&self) -> Option<Kubepods> {
        let found = self.all_kubepods();
        let with_pods = found.iter().position(Kubepods::has_pods).unwrap_or(0);
        found.into_iter().nth(with_pods)
    }
}

impl Kubepods {
    /// Those of this host; `None` without cgroup v2, or before a kubelet has made them.
    pub fn of(host: &Host) -> Option<Self> {
        Cgroups::of(host)?.kubepods()
    }

    fn has_pods(&self) -> bool {
        self.pods().is_ok_and(|pods| !pods.is_empty())
    }

    /// The pods that exist now. Guaranteed pods lie directly in it, the others one level deeper,
    /// and those of the system's partition below that.
    pub fn pods(&self) -> io::Result<Vec<PodCgroup>> {
        let names = dirs(&self.path, PODS_MAX)?;
        let mut pods = of_pods(&self.path, names);
        for class in self.classes() {
            // A class without pods may vanish at any time.
            let names = dirs(&class, PODS_MAX.saturating_sub(pods.len())).unwrap_or_default();
            pods.extend(of_pods(&class, names));
        }
        pods.truncate(PODS_MAX);
        Ok(pods)
    }

    /// The cgroups of the classes that exist now, and of the system's partition with its own.
    pub fn classes(&self) -> Vec<PathBuf> {
        let mut classes = classes_in(&self.path);
        let partition = |path: &&PathBuf| path.file_name().is_some_and(is_system);
        let inner: Vec<PathBuf> =
            classes.iter().filter(partition).flat_map(|path| classes_in(path)).collect();
        classes.extend(inner);
        classes
    }
}

fn of_pods(dir: &Path, names: Vec<String>) -> Vec<PodCgroup> {
    let pod = |name: String| Some(PodCgroup { uid: pod_uid(&name)?, path: dir.join(&name) });
    names.into_iter().filter_map(pod).collect()
}

fn classes_in(dir: &Path) -> Vec<PathBuf> {
    let names = dirs(dir, PODS_MAX).unwrap_or_default();
    let classes = names.into_iter().filter(|name| CLASSES.contains(&last_part(name)));
    classes.map(|name| dir.join(name)).collect()
}

fn is_system(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| last_part(name) == SYSTEM)
}

impl PodCgroup {
    /// Its containers and its sandbox: the id, and the cgroup.
    pub fn containers(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let names = dirs(&self.path, CONTAINERS_MAX)?;
        let container = |name: String| {
            let id = container_id(&name)?.to_owned();
            Some((id, self.path.join(name)))
        };
        Ok(names.into_iter().filter_map(container).collect())
    }
}

/// The last part of a name by either driver, such as the quality-of-service class.
fn last_part(name: &str) -> &str {
    let slice = name.strip_suffix(".slice").unwrap_or(name);
    slice.rsplit_once('-').map_or(slice, |(_, last)| last)
}

/// Searches breadth first, in the order of names: that finds the usual places at once.
fn find_kubepods(root: &Path, found: &mut Vec<Kubepods>) {
    let (mut level, mut seen) = (vec![root.to_owned()], 0);
    for _ in 0..KUBEPODS_DEPTH_MAX {
        let mut next = Vec::new();
        for dir in level {
            let mut names = dirs(&dir, DIRS_MAX).unwrap_or_default();
            names.sort_unstable();
            seen += 1;
            if seen > DIRS_MAX {
                return;
            }
            for name in names {
                let path = dir.join(&name);
                if is_kubepods(&name) {
                    found.push(Kubepods { path });
                } else {
                    next.push(path);
                }
            }
        }
        if !found.is_empty() {
            return;
        }
        level = next;
    }
}

/// The names of subdirectories, at most `max`; links do not count. A name that is not text belongs
/// to no cgroup of interest.
fn dirs(path: &Path, max: usize) -> io::Result<Vec<String>> {
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = fs::read_dir(path)?.filter_map(Result::ok).filter(is_dir);
    Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).take(max).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const SLICE_UID: &str = "01234567_89ab_cdef_0123_456789abcdef";
    const ID: &str = "a3f5c0de";

    #[test]
    fn a_path_says_whose_it_is_by_either_driver_and_any_runtime() {
        let burstable = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice"
        );
        let table = [
            (burstable.clone(), Some(None)),
            (format!("{burstable}/cri-containerd-{ID}.scope"), Some(Some(ID))),
            (format!("{burstable}/crio-{ID}.scope"), Some(Some(ID))),
            (format!("{burstable}/crio-{ID}.scope/container"), Some(Some(ID))),
            (format!("{burstable}/docker-{ID}.scope/init.scope"), Some(Some(ID))),
            (format!("{burstable}/crio-conmon-{ID}.scope"), Some(None)),
            (format!("/kubepods.slice/kubepods-pod{SLICE_UID}.slice/x-{ID}.scope"), Some(Some(ID))),
            (
                format!(
                    "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                     kubelet-kubepods-besteffort-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope"
                ),
                Some(Some(ID)),
            ),
            (format!("/kubepods/pod{UID}/{ID}"), Some(Some(ID))),
            (format!("/kubepods/burstable/pod{UID}/{ID}/deeper/still"), Some(Some(ID))),
            (format!("kubepods/besteffort/pod{UID}/crio-{ID}"), Some(Some(ID))),
            (format!("/docker/{ID}/kubelet/kubepods/besteffort/pod{UID}"), Some(None)),
            (format!("/sys/fs/cgroup/memory/kubepods/pod{UID}/{ID}"), Some(Some(ID))),
            ("/kubepods.slice".into(), None),
            ("/kubepods/burstable".into(), None),
            (format!("/user.slice/pod{UID}/{ID}"), None),
            (format!("/mykubepods/pod{UID}"), None),
            (format!("/my-kubepods/pod{UID}"), None),
            (format!("/kubepods.slice.d/pod{UID}"), None),
            ("/kubepods/pod".into(), None),
            ("/kubepods/pod../x".into(), None),
            ("/".into(), None),
            (String::new(), None),
            ("////kubepods////".into(), None),
        ];
        for (path, expected) in table {
            let expected = expected.map(|container| Place {
                pod: PodUid(UID.into()),
                container_id: container.map(ToOwned::to_owned),
            });
            assert_eq!(place(&path), expected, "{path}");
        }
    }

    #[test]
    fn the_uid_of_a_static_pod_is_a_hash() {
        let hash = "c63d2d1a29f3f7d6a0a5d0b9a8a7a6a5";
        let slice = format!("kubepods-burstable-pod{hash}.slice");
        assert_eq!(pod_uid(&slice), Some(PodUid(hash.into())));
        assert_eq!(pod_uid(&format!("pod{hash}")), Some(PodUid(hash.into())));
    }

    #[test]
    fn other_names_are_no_pod_and_no_container() {
        let long = format!("pod{}", "a".repeat(UID_CHARS_MAX + 1));
        for name in ["", "pod", "-pod.slice", "podé", "kubepods-burstable.slice", "a.slice", &long]
        {
            assert_eq!(pod_uid(name), None, "{name}");
        }
        for name in ["", ".scope", "a-.scope", "crio-conmon-a.scope", "a b", "x.mount", "é"] {
            assert_eq!(container_id(name), None, "{name}");
        }
    }

    fn host(dirs: &[&str]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().expect("must be creatable");
        fs::create_dir_all(root.path().join("sys/fs/cgroup")).expect("must be creatable");
        for dir in dirs {
            let dir = root.path().join("sys/fs/cgroup").join(dir);
            fs::create_dir_all(dir).expect("must be creatable");
        }
        let controllers = root.path().join("sys/fs/cgroup/cgroup.controllers");
        fs::write(controllers, "memory pids").expect("must be writable");
        let host = Host::new(root.path().to_owned());
        (root, host)
    }

    fn uids(kubepods: &Kubepods) -> Vec<String> {
        let pods = kubepods.pods().expect("must be listable");
        let mut uids: Vec<_> = pods.into_iter().map(|pod| pod.uid.0).collect();
        uids.sort();
        uids
    }

    #[test]
    fn pods_of_all_classes_are_found() {
        let (_root, host) = host(&[
            "system.slice/x.service",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-poda_1.slice/crio-c1.scope",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-podb.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice",
        ]);
        let kubepods = Kubepods::of(&host).expect("must be found");
        assert!(kubepods.path.ends_with("kubelet.slice/kubelet-kubepods.slice"));
        assert_eq!(uids(&kubepods), ["a-1", "b"]);
        let pods = kubepods.pods().unwrap();
        let pod = pods.iter().find(|pod| pod.uid.0 == "a-1").unwrap();
        let containers = pod.containers().unwrap();
        assert_eq!(containers, [("c1".to_owned(), pod.path.join("crio-c1.scope"))]);
    }

    #[test]
    fn a_user_s_cgroup_with_the_names_of_a_pod_is_not_a_pod_s() {
        let (root, host) = host(&["kubepods.slice/kubepods-poda.slice", "kubepods"]);
        let cgroups = || Cgroups::of(&host).expect("must be found");
        let table = [
            ("/kubepods.slice/kubepods-poda.slice/crio-b.scope", true),
            ("/kubepods/burstable/poda", true),
            ("/user.slice/user-1000.slice/user@1000.service/kubepods/poda/b", false),
            ("/user.slice/kubepods.slice/kubepods-poda.slice", false),
            ("/kubepods.slice.d/poda", false),
            ("/", false),
        ];
        for (path, expected) in table {
            assert_eq!(cgroups().may_be_pods(path), expected, "{path}");
        }
        // The mount of a container with a root of its own, whose paths begin above it.
        fs::write(root.path().join("sys/fs/cgroup/cgroup.events"), "").expect("must be writable");
        assert!(cgroups().may_be_pods("/docker/c1/kubepods.slice/kubepods-poda.slice"));
    }

    #[test]
    fn pods_of_the_system_s_partition_are_found_by_either_driver() {
        let (_root, host) = host(&[
            "kubepods/poda",
            "kubepods/system/podb",
            "kubepods/system/burstable/podc",
            "kubepods/burstable/system/podd",
        ]);
        let kubepods = Kubepods::of(&host).expect("must be found");
        assert_eq!(uids(&kubepods), ["a", "b", "c"]);

        let system = "kubepods.slice/kubepods-system.slice";
        let (_root, host) = self::host(&[
            &format!(
                "{system}/kubepods-system-besteffort.slice/kubepods-system-besteffort-pode.slice"
            ),
            &format!("{system}/kubepods-system-podf.slice"),
        ]);
        let kubepods = Kubepods::of(&host).expect("must be found");
        assert_eq!(uids(&kubepods), ["e", "f"]);
        assert_eq!(kubepods.classes().len(), 2);
    }

    #[test]
    fn what_another_driver_left_behind_is_not_taken() {
        let (_root, host) =
            host(&["kubepods.slice/kubepods-burstable.slice", "kubepods/burstable/poda"]);
        let kubepods = Kubepods::of(&host).expect("must be found");
        assert!(kubepods.path.ends_with("cgroup/kubepods"));
        assert_eq!(uids(&kubepods), ["a"]);
    }

    #[test]
    fn a_host_without_pods_or_cgroup_v2_has_none() {
        let (_root, without_pods) = host(&["kubepods"]);
        let kubepods = Kubepods::of(&without_pods).expect("must be found");
        assert_eq!(uids(&kubepods), Vec::<String>::new());
        let (_root, empty) = host(&[]);
        assert!(Cgroups::of(&empty).is_some());
        assert_eq!(Kubepods::of(&empty), None);
        // cgroup v1: a tree for each controller.
        let (root, of_v1) = host(&["memory/kubepods/poda"]);
        fs::remove_file(root.path().join("sys/fs/cgroup/cgroup.controllers")).unwrap();
        assert_eq!(Cgroups::of(&of_v1), None);
        assert_eq!(Kubepods::of(&of_v1), None);
        assert_eq!(Kubepods::of(&Host::new("/nonexistent".into())), None);
    }
}
