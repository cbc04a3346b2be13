//! Runs upstream's kubelet, which is no double, on doubles of what it needs: a bus, a container
//! runtime. It runs in namespaces of its own, and sees the machine's files, but writes none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::{Duration, Instant, sleep};

use crate::bus::WITHOUT_DESCRIPTORS;
use crate::cri::CriDouble;
use crate::pod_runtime::PodRuntime;

const POLL: Duration = Duration::from_millis(20);

/// The name of its node where no API knows it.
const NODE: &str = "test";
/// The directory of static pods.
const MANIFESTS: &str = "kubelet/manifests";
/// The directory of device plugins' sockets.
pub(crate) const DEVICE_PLUGINS: &str = "kubelet/device-plugins";
/// It begins a pass over what its node is short of every 10 s.
const SAYS_WITHIN: Duration = Duration::from_mins(1);

/// Puts the directories that a kubelet writes to, and the settings of the kernel, on files of its
/// own; then becomes the kubelet. Arguments: the directory, the kubelet, its arguments.
const SCRIPT: &str = r#"
set -eu
dir=$1
shift
mount --make-rprivate /
for path in /var/lib /etc/systemd; do mount -t tmpfs none $path; done
mkdir -p /var/lib/kubelet/device-plugins
mount --bind "$dir/kubelet/device-plugins" /var/lib/kubelet/device-plugins
mkdir -p /etc/systemd/logind.conf.d
mount --bind "$dir/etc/systemd/logind.conf.d" /etc/systemd/logind.conf.d
setting() {
    [ -e "/proc/sys/$1" ] || return 0
    echo "$2" >"$dir/setting-$(basename "$1")"
    mount --bind "$dir/setting-$(basename "$1")" "/proc/sys/$1"
}
setting vm/overcommit_memory 1
setting vm/panic_on_oom 0
setting kernel/panic 10
setting kernel/panic_on_oops 1
setting kernel/keys/root_maxkeys 1000000
setting kernel/keys/root_maxbytes 25000000
exec "$@"
"#;

/// A kubelet that runs.
#[derive(Debug)]
pub struct Kubelet {
    child: Child,
    log: PathBuf,
    _runtime: Option<CriDouble>,
}

impl Kubelet {
    /// Starts it on a bus, with these fields of its configuration.
    pub fn start(dir: &Path, bus: &str, fields: &Value) -> Self {
        Self::with_images(dir, bus, fields, Some(&dir.display().to_string()))
    }

    /// Starts it where the images lie in this directory, if the runtime says where.
    pub fn with_images(dir: &Path, bus: &str, fields: &Value, images: Option<&str>) -> Self {
        let runtime = CriDouble::start_at(&dir.join("kubelet/runtime.sock"));
        let images: Vec<&str> = images.into_iter().collect();
        runtime.set_images(&images);
        Self { _runtime: Some(runtime), ..Self::spawn(dir, bus, NODE, fields) }
    }

    /// Starts it on a runtime that runs pods: those of its manifests, and those that the API binds
    /// to this node if there is a [`kubeconfig`].
    pub fn with_pods(
        dir: &Path,
        bus: &str,
        node: &str,
        fields: &Value,
        _runtime: &PodRuntime,
    ) -> Self {
        Self::spawn(dir, bus, node, fields)
    }

    fn spawn(dir: &Path, bus: &str, node: &str, fields: &Value) -> Self {
        for path in ["etc/systemd/logind.conf.d", DEVICE_PLUGINS] {
            fs::create_dir_all(dir.join(path)).expect("must be creatable");
        }
        let log = dir.join("kubelet/log");
        let stderr = fs::File::create(&log).expect("must be creatable");
        // It must be in the network of whom it asks, or who asks it.
        let kubeconfig = kubeconfig(dir);
        let is_apart = fields["enableServer"] != true && !kubeconfig.exists();
        let spaces: &[&str] = if is_apart { &["--mount", "--net"] } else { &["--mount"] };
        let api = kubeconfig.exists().then(|| format!("--kubeconfig={}", kubeconfig.display()));
        let child = Command::new("bash")
            .args(["-c", WITHOUT_DESCRIPTORS, "bash", "unshare"])
            .args(spaces)
            .args(["bash", "-c", SCRIPT, "bash"])
            .arg(dir)
            .arg(program())
            .args(arguments(dir, fields))
            .args(api)
            .arg(format!("--hostname-override={node}"))
            // It removes what a runtime names by a relative path.
            .current_dir(dir)
            .env("DBUS_SYSTEM_BUS_ADDRESS", bus)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn();
        let child = child.expect("bash must be installed");
        Self { child, log, _runtime: None }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it must run")
    }

    /// Waits until its log says this so many times.
    pub async fn says(&self, words: &str, times: usize) {
        let end = Instant::now() + SAYS_WITHIN;
        while self.log().matches(words).count() < times {
            assert!(Instant::now() < end, "no {words:?} in {}", self.log());
            sleep(POLL).await;
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it.
    pub async fn stop(mut self) {
        self.kill().await;
    }

    /// Ends it; another may take its place.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("it must be ours");
    }
}

/// The file with its way to the API.
pub fn kubeconfig(dir: &Path) -> PathBuf {
    dir.join("kubelet/kubeconfig")
}

/// A runtime that runs pods.
pub fn pod_runtime(dir: &Path) -> PodRuntime {
    fs::create_dir_all(dir.join(MANIFESTS)).expect("must be creatable");
    PodRuntime::start_at(&dir.join("kubelet/runtime.sock"), dir)
}

/// Writes the manifest of a static pod with one container.
pub fn write_pod(dir: &Path, name: &str, priority: Option<i32>) {
    let container = json!({"name": "main", "image": "none", "imagePullPolicy": "Never"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "hostNetwork": true, "priority": priority},
    });
    write(&dir.join(MANIFESTS).join(format!("{name}.json")), &pod.to_string());
}

/// What a kubelet says before it ends because of its configuration.
pub async fn refusal(fields: &Value) -> String {
    let dir = tempfile::tempdir().expect("must be creatable");
    let output = Command::new(program())
        .args(arguments(dir.path(), fields))
        .kill_on_drop(true)
        .output()
        .await
        .expect("the kubelet must start");
    assert!(!output.status.success(), "{fields} must be refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The program that `cargo lab` has built.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test must know its program");
    let bin = test.ancestors().map(|it| it.join("lab/bin")).find(|it| it.is_dir());
    let bin = bin.expect("`cargo lab test` makes target/lab/bin");
    let entries = fs::read_dir(&bin).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found: Vec<PathBuf> =
        entries.filter(|path| name(path).starts_with("kubelet-1.")).collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        panic!("no kubelet in {}; `cargo lab test elogind` builds it", bin.display())
    })
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("must lie in a directory")).expect("must be writable");
    fs::write(path, text).expect("must be writable");
}

/// Its arguments, with a configuration that needs no cgroups, swap or server.
fn arguments(dir: &Path, fields: &Value) -> Vec<String> {
    let path = |name: &str| dir.join("kubelet").join(name).display().to_string();
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", path("runtime.sock")),
        "cgroupsPerQOS": false, "enforceNodeAllocatable": [], "failCgroupV1": false,
        "failSwapOn": false, "enableServer": false, "healthzPort": 0, "oomScoreAdj": 0,
        "makeIPTablesUtilChains": false, "podLogsDir": path("pods"),
        "volumePluginDir": path("plugins"),
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "staticPodPath": dir.join(MANIFESTS).display().to_string(), "fileCheckFrequency": "1s",
    });
    for (field, value) in fields.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    write(&dir.join("kubelet/config.json"), &config.to_string());
    vec![
        "kubelet".to_owned(),
        format!("--config={}", path("config.json")),
        format!("--root-dir={}", path("root")),
        format!("--cert-dir={}", path("pki")),
        "--v=3".to_owned(),
    ]
}
