//! The memory of a node and of its pods, as files of the kernel below the node's root. It grows as
//! an annotation of each pod says; the kernel kills what reaches its limit, or the largest pod when
//! none is left.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// The annotation of a pod that says how its memory grows.
pub(super) const PLAN: &str = "world.epilogue.dev/memory";
pub(super) const MIB: u64 = 1 << 20;
/// What the node has.
const CAPACITY: u64 = 2_048 * MIB;
/// What is not of pods.
const OF_SYSTEM: u64 = 1_024 * MIB;
/// Below this, pods wait for memory.
const STALLS_BELOW: u64 = 160 * MIB;
/// How long pods wait for memory in each second, in µs.
const STALL_PER_SECOND: u64 = 150_000;
/// Time between two changes.
pub(super) const TICK: Duration = Duration::from_millis(500);
const PER_SECOND: u64 = 2;
/// The files of all cgroups.
const CGROUPS: &str = "sys/fs/cgroup";
const PODS: &str = "sys/fs/cgroup/kubepods";

/// How a pod's memory grows, in MiB.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Plan {
    /// How much it uses at most.
    peak: u64,
    /// By how much it grows in each second.
    rise: u64,
    /// The limit of its container.
    limit: Option<u64>,
}

/// Why the kernel has killed a pod's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its container was at its limit.
    Limit,
    /// The node had no memory left.
    Node,
}

/// A kill by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kill {
    pub(super) at: Timestamp,
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) cause: Cause,
}

/// What the node and its running pods used at a moment, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) at: Timestamp,
    pub(super) available: u64,
    pub(super) used: BTreeMap<String, u64>,
}

/// What a node's memory was like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) kills: Vec<Kill>,
}

/// What the files show wrong, so that an agent which reads them errs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The pods that use little seem to use much.
    Usage,
    /// The node seems to be short of memory.
    Available,
}

/// The memory of a node.
#[derive(Debug)]
pub(super) struct Memory {
    root: PathBuf,
    wrong: Option<Wrong>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<String, Pod>,
    /// For how long pods have waited, in µs.
    stalled: u64,
    history: History,
}

#[derive(Debug)]
struct Pod {
    name: String,
    container: String,
    plan: Plan,
    used: u64,
    shown: u64,
    kills: u64,
    ooms: u64,
    /// Ticks since its processes ended; `None` while they run.
    ended: Option<u32>,
}

impl Memory {
    /// The memory of a node without pods.
    pub(super) fn new(root: &Path, wrong: Option<Wrong>) -> Self {
        let memory = Self { root: root.to_owned(), wrong, state: Mutex::default() };
        let total = CAPACITY >> 10;
        let meminfo = format!("MemTotal: {total} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n");
        memory.write("proc/meminfo", &meminfo);
        memory.write("proc/loadavg", "0.10 0.20 0.30 2/345 6789\n");
        memory.write("proc/sys/kernel/pid_max", "32768\n");
        memory.write("proc/sys/kernel/threads-max", "63432\n");
        memory.write("proc/pressure/io", &psi(0));
        memory.write("proc/pressure/memory", &psi(0));
        for dir in ["var/lib/kubelet/pods", "var/lib/containerd/layers", "var/log/pods"] {
            std::fs::create_dir_all(root.join(dir)).expect("must be made");
        }
        memory.write(&format!("{CGROUPS}/cgroup.controllers"), "cpu memory pids\n");
        std::fs::create_dir_all(root.join(PODS).join("burstable")).expect("must be made");
        let state = State::default();
        memory.show_node(&state);
        memory.usage(PODS, 0);
        memory.write(&format!("{PODS}/memory.max"), "max\n");
        memory
    }

    /// The processes of a pod have started, in this container of the runtime.
    pub(super) fn start(&self, pod: &Value, uid: &str, container: &str) {
        let text = pod["metadata"]["annotations"][PLAN].as_str().unwrap_or("{}");
        let plan = serde_json::from_str(text).expect("must be a plan");
        let pod = Pod {
            name: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            container: container.to_owned(),
            plan,
            used: 0,
            shown: 0,
            kills: 0,
            ooms: 0,
            ended: None,
        };
        let of_pod = of_pod(uid);
        self.write(&format!("{of_pod}/memory.pressure"), &psi(0));
        self.write(&format!("{of_pod}/memory.max"), "max\n");
        let of_container = format!("{of_pod}/{container}");
        let limit = plan.limit.map_or("max".to_owned(), |limit| (limit * MIB).to_string());
        self.write(&format!("{of_container}/memory.max"), &limit);
        self.write(&format!("{of_container}/cgroup.events"), "populated 1\n");
        self.count(uid, &pod);
        for cgroup in [&of_pod, &of_container] {
            self.usage(cgroup, 0);
        }
        self.lock().pods.insert(uid.to_owned(), pod);
    }

    /// The processes of a pod have ended.
    pub(super) fn end(&self, uid: &str) {
        let mut state = self.lock();
        let Some(pod) = state.pods.get_mut(uid).filter(|pod| pod.ended.is_none()) else { return };
        (pod.used, pod.ended) = (0, Some(0));
        let of_container = format!("{}/{}", of_pod(uid), pod.container);
        self.write(&format!("{of_container}/cgroup.events"), "populated 0\n");
        self.show(&mut state);
    }

    /// Lets the memory grow. Returns the pods whose processes the kernel kills.
    pub(super) fn tick(&self, now: Timestamp) -> Vec<String> {
        let mut state = self.lock();
        self.remove_ended(&mut state);
        let mut killed = Vec::new();
        for (uid, pod) in state.pods.iter_mut().filter(|(_, pod)| pod.ended.is_none()) {
            let peak = pod.plan.limit.unwrap_or(u64::MAX).min(pod.plan.peak) * MIB;
            pod.used = peak.min(pod.used + pod.plan.rise * MIB / PER_SECOND);
            if pod.plan.limit.is_some_and(|limit| pod.used >= limit * MIB) && pod.kills == 0 {
                killed.push((uid.clone(), Cause::Limit));
            }
        }
        if state.available() == 0 {
            let alive = state.pods.iter().filter(|(_, pod)| pod.kills == 0);
            let largest = alive.max_by_key(|(_, pod)| pod.used);
            killed.extend(largest.map(|(uid, _)| (uid.clone(), Cause::Node)));
        }
        for (uid, cause) in &killed {
            let Some(pod) = state.pods.get_mut(uid) else { continue };
            pod.kills += 1;
            pod.ooms += u64::from(*cause == Cause::Limit);
            self.count(uid, pod);
            let (uid, name) = (uid.clone(), pod.name.clone());
            state.history.kills.push(Kill { at: now, uid, name, cause: *cause });
        }
        if state.available() < STALLS_BELOW {
            state.stalled += STALL_PER_SECOND / PER_SECOND;
            self.write(&format!("{PODS}/memory.pressure"), &psi(state.stalled));
        }
        self.show(&mut state);
        let used = state.running().map(|(uid, pod)| (uid.clone(), pod.used)).collect();
        let snapshot = Snapshot { at: now, available: state.available(), used };
        state.history.snapshots.push(snapshot);
        killed.into_iter().map(|(uid, _)| uid).collect()
    }

    /// What it was like until now.
    pub(super) fn history(&self) -> History {
        self.lock().history.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// The runtime removes a container soon after its end, and the kubelet then the pod's cgroup.
    fn remove_ended(&self, state: &mut State) {
        let mut gone = Vec::new();
        for (uid, pod) in &mut state.pods {
            let Some(ticks) = &mut pod.ended else { continue };
            *ticks += 1;
            let of_pod = self.root.join(of_pod(uid));
            match *ticks {
                1 => {}
                2 => std::fs::remove_dir_all(of_pod.join(&pod.container)).expect("must be there"),
                _ => {
                    std::fs::remove_dir_all(of_pod).expect("must be there");
                    gone.push(uid.clone());
                }
            }
        }
        for uid in gone {
            state.pods.remove(&uid);
        }
    }

    /// Shows what has changed.
    fn show(&self, state: &mut State) {
        let is_wrong = self.wrong == Some(Wrong::Usage);
        let mut has_changed = false;
        for (uid, pod) in &mut state.pods {
            let used = if is_wrong { CAPACITY - pod.used } else { pod.used };
            if std::mem::replace(&mut pod.shown, used) == used || pod.ended > Some(1) {
                continue;
            }
            has_changed = true;
            let of_pod = of_pod(uid);
            self.usage(&of_pod, used);
            self.usage(&format!("{of_pod}/{}", pod.container), used);
        }
        if has_changed {
            self.show_node(state);
            self.usage(PODS, state.used());
        }
    }

    fn show_node(&self, state: &State) {
        let is_wrong = self.wrong == Some(Wrong::Available);
        let used = if is_wrong { CAPACITY - MIB } else { OF_SYSTEM + state.used() };
        let text = format!("anon {used}\nfile 0\ninactive_file 0\n");
        self.write(&format!("{CGROUPS}/memory.stat"), &text);
        self.write(&format!("{PODS}/memory.pressure"), &psi(state.stalled));
    }

    fn usage(&self, cgroup: &str, bytes: u64) {
        self.write(&format!("{cgroup}/memory.current"), &format!("{bytes}\n"));
        self.write(&format!("{cgroup}/memory.stat"), &format!("anon {bytes}\ninactive_file 0\n"));
    }

    /// Shows the kills of a pod: the container first, as the kernel counts upwards.
    fn count(&self, uid: &str, pod: &Pod) {
        let of_pod = of_pod(uid);
        let of_container = format!("{of_pod}/{}", pod.container);
        let text = |ooms: u64| format!("max {ooms}\noom {ooms}\noom_kill {}\n", pod.kills);
        let here = [(&of_container, pod.ooms), (&of_pod, 0)];
        for (cgroup, ooms) in here {
            self.write(&format!("{cgroup}/memory.events.local"), &text(ooms));
            self.write(&format!("{cgroup}/memory.events"), &text(pod.ooms));
        }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
            std::fs::create_dir_all(dir).expect("must be made");
        }
        std::fs::write(path, text).expect("must be writable");
    }
}

impl State {
    fn running(&self) -> impl Iterator<Item = (&String, &Pod)> {
        self.pods.iter().filter(|(_, pod)| pod.ended.is_none())
    }

    fn used(&self) -> u64 {
        self.pods.values().map(|pod| pod.used).sum()
    }

    fn available(&self) -> u64 {
        (CAPACITY - OF_SYSTEM).saturating_sub(self.used())
    }
}

/// The cgroup of a pod.
fn of_pod(uid: &str) -> String {
    format!("{PODS}/burstable/pod{uid}")
}

/// The text of a pressure file.
fn psi(total: u64) -> String {
    let mut text = String::new();
    for what in ["some", "full"] {
        writeln!(text, "{what} avg10=0.00 avg60=0.00 avg300=0.00 total={total:020}")
            .expect("a String takes all");
    }
    text
}
