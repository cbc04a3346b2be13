//! Tests `epilogue-agent check` as its user runs it. The program runs against a private bus with a
//! double of logind, a double of the container runtime, and a directory for the host's files.

mod api;
mod leave;

use std::fs;
use std::path::Path;

use doubles::bus::PrivateBus;
use doubles::cri::{Call, CriDouble, Fault, Script};
use doubles::login1::{Candour, Down, Lock, Login1, State};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

/// A host: its files and its bus.
struct Host {
    bus: PrivateBus,
    root: TempDir,
}

/// The program's output and exit code.
struct Printed {
    stdout: String,
    stderr: String,
    code: i32,
}

impl Host {
    fn start() -> Self {
        let root = tempfile::tempdir().expect("must be creatable");
        Self { bus: PrivateBus::start(root.path()), root }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        let dir = path.parent().expect("must lie in a directory");
        fs::create_dir_all(dir).expect("the root must be writable");
        fs::write(path, text).expect("the root must be writable");
    }

    async fn logind(&self, delay_seconds: u64) -> Login1 {
        Login1::start(&self.bus.address, self.root.path(), delay_seconds).await
    }

    async fn logind_with(&self, delay_seconds: u64, change: impl FnOnce(&mut State)) -> Login1 {
        let logind = self.logind(delay_seconds).await;
        logind.turn(change);
        logind
    }

    /// A logind of which an agent that enforces holds a lock.
    async fn logind_of_an_agent(&self, delay_seconds: u64) -> Login1 {
        let locks = [lock("epilogue-agent", "delay", 0, 11)];
        self.logind_with(delay_seconds, |logind| logind.locks = numbered(&locks)).await
    }

    /// Starts a container runtime with one running pod.
    async fn containers(&self) -> CriDouble {
        let cri = CriDouble::start(self.root.path());
        cri.pod("a").container("app", Script::Obedient).start().await;
        cri
    }

    /// Writes what the kernel and the disks of a sound host report of pressure.
    fn can_be_measured(&self) {
        let stall = "avg10=0.00 avg60=0.00 avg300=0.00 total=7";
        let stalls = format!("some {stall}\nfull {stall}\n");
        let stat = "anon 1048576\nfile 1048576\ninactive_file 524288\n";
        for (path, text) in [
            ("proc/meminfo", "MemTotal: 4194304 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"),
            ("proc/sys/kernel/pid_max", "32768\n"),
            ("proc/sys/kernel/threads-max", "31768\n"),
            ("proc/loadavg", "0.00 0.00 0.00 1/768 4711\n"),
            ("proc/pressure/io", &stalls),
            ("sys/fs/cgroup/cgroup.controllers", "memory pids\n"),
            ("sys/fs/cgroup/memory.stat", stat),
            ("sys/fs/cgroup/kubepods.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/kubepods.slice/memory.current", "1048576\n"),
            ("sys/fs/cgroup/kubepods.slice/memory.stat", stat),
            ("sys/fs/cgroup/kubepods.slice/memory.pressure", &stalls),
            ("var/lib/kubelet/there", ""),
            ("var/lib/containerd/there", ""),
            ("dev/kmsg", ""),
        ] {
            self.write(path, text);
        }
    }

    async fn check(&self, flags: &[&str]) -> Printed {
        agent(self.root.path(), &[&["check", "-o", "json"], flags].concat()).await
    }
}

/// Runs the program where it cannot reach the machine's own bus.
async fn agent(root: &Path, arguments: &[&str]) -> Printed {
    let output = Command::new(env!("CARGO_BIN_EXE_epilogue-agent"))
        .args(arguments)
        .arg("--root")
        .arg(root)
        .env_remove("DBUS_SYSTEM_BUS_ADDRESS")
        .output()
        .await
        .expect("the program must be startable");
    printed(&output)
}

fn printed(output: &std::process::Output) -> Printed {
    Printed {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().expect("no signal must end the program"),
    }
}

impl Printed {
    fn report(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.stdout, self.stderr))
    }

    /// A check's verdict, and its text with the remedy's.
    fn of(&self, name: &str) -> (String, String) {
        let report = self.report();
        let checks = report["checks"].as_array().expect("checks must be a list");
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("{name} must be checked: {report:#}"));
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("found") + " " + &text("remedy"))
    }

    #[track_caller]
    fn assert(&self, name: &str, verdict: &str, words: &str) {
        let (found_verdict, text) = self.of(name);
        assert_eq!(found_verdict, verdict, "{name}: {text}");
        assert!(text.contains(words), "{words:?} must be in {text:?}");
    }
}

/// Locks as they are listed, none of which can be released.
fn numbered(locks: &[Lock]) -> Vec<(u64, Lock)> {
    locks.iter().map(|lock| (0, lock.clone())).collect()
}

fn lock(who: &str, mode: &str, uid: u32, pid: u32) -> Lock {
    ("shutdown".into(), who.into(), "reasons".into(), mode.into(), uid, pid)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_node_passes_and_its_lock_is_given_back() {
    let host = Host::start();
    let logind = host.logind(40).await;
    let _cri = host.containers().await;
    host.can_be_measured();
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
    let report = printed.report();
    assert_eq!((&report["verdict"], &report["mode"]), (&"ok".into(), &"replace".into()));
    assert_eq!(report["time"]["kill_ms"], 30_850);
    printed.assert("logind", "ok", "org.freedesktop.login1 is :1.");
    printed.assert("lock", "ok", "taken, listed and released");
    let logind = logind.state();
    assert_eq!((logind.taken(), logind.locks), (1, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_shows_each_check_and_the_use_of_the_time() {
    let host = Host::start();
    let _logind = host.logind_of_an_agent(5).await;
    let printed = agent(host.root.path(), &["check", "--pressure=off", "--oom-causes=false"]).await;
    assert_eq!(printed.code, 1, "{}", printed.stderr);
    let lines: Vec<&str> = printed.stdout.lines().collect();
    assert!(lines[0].starts_with("CHECK     VERDICT  FOUND"), "{}", printed.stdout);
    let delay = lines.iter().find(|line| line.starts_with("delay     fail     logind grants 5s"));
    assert!(delay.is_some(), "{}", printed.stdout);
    assert!(printed.stdout.contains("   -> write `InhibitDelayMaxSec=40`"), "{}", printed.stdout);
    assert!(printed.stdout.contains("2.2s to terminate pods"), "{}", printed.stdout);
    let (verdict, docs) = (lines[lines.len() - 2], lines[lines.len() - 1]);
    assert_eq!(verdict, "verdict: fail");
    assert!(delay.is_some_and(|line| line.ends_with("[delay-too-short]")), "{}", printed.stdout);
    assert!(docs.contains("/docs/troubleshooting.html"), "{docs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_bus_or_logind_fails_with_its_remedy() {
    let root = tempfile::tempdir().expect("must be creatable");
    let printed = agent(root.path(), &["check", "-o", "json"]).await;
    assert_eq!(printed.code, 1);
    printed.assert("bus", "fail", "cannot connect to unix:path=");

    let host = Host::start();
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 1);
    printed.assert("bus", "ok", "system_bus_socket");
    printed.assert("logind", "fail", "systemctl start systemd-logind");
    let report = printed.report();
    let last = report["checks"].as_array().and_then(|checks| checks.last());
    assert_eq!(last.expect("must have checks")["name"], "logind");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_of_the_bus_comes_from_the_environment() {
    let host = Host::start();
    let _logind = host.logind(40).await;
    let elsewhere = tempfile::tempdir().expect("must be creatable");
    let output = Command::new(env!("CARGO_BIN_EXE_epilogue-agent"))
        .args(["check", "--root"])
        .arg(elsewhere.path())
        .env("DBUS_SYSTEM_BUS_ADDRESS", &host.bus.address)
        .output()
        .await
        .expect("the program must be startable");
    assert_eq!(printed(&output).code, 0, "{}", printed(&output).stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_too_small_for_the_priority_groups_fails() {
    // logind grants 0, 1, 5 and 60 s. ([AP15])
    for (granted, code) in [(0, 1), (1, 1), (5, 1), (60, 0)] {
        let host = Host::start();
        let _logind = host.logind_of_an_agent(granted).await;
        let printed = host.check(&["--shutdown-grace-period=30s"]).await;
        assert_eq!(printed.code, code, "{granted}: {}", printed.stdout);
        printed.assert("delay", if code == 0 { "ok" } else { "fail" }, "0=30,2000000000=0");
        printed.assert("lock", "ok", "listed and released");
    }
    let host = Host::start();
    let _logind = host.logind(11).await;
    let printed = host.check(&["--shutdown-grace-period-by-pod-priority=0=1"]).await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_that_an_agent_would_raise_does_not_fail() {
    let host = Host::start();
    let _logind = host.logind(5).await;
    let _cri = host.containers().await;
    host.can_be_measured();
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
    assert_eq!(printed.report()["verdict"], "warn");
    printed.assert("delay", "warn", "no agent holds a lock here: it observes, or does not run");
    printed.assert("delay", "warn", "an agent with --shutdown=enforce raises it at its start");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_remedy_for_the_delay_merges_what_others_request() {
    let host = Host::start();
    let conf = |seconds| format!("[Login]\nInhibitDelayMaxSec={seconds}\n");
    host.write("etc/systemd/logind.conf.d/99-kubelet.conf", &conf(60));
    host.write("usr/lib/systemd/logind.conf.d/unattended-upgrades.conf", &conf(30));
    let _logind = host.logind_of_an_agent(30).await;
    let printed = host.check(&[]).await;
    printed.assert("delay", "fail", "write `InhibitDelayMaxSec=60` below `[Login]` into /etc/");

    host.write("etc/systemd/logind.conf.d/zz-epilogue.conf", &conf(60));
    let printed = host.check(&[]).await;
    printed.assert("delay", "fail", "zz-epilogue.conf asks for 60s already: run `systemctl kill");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelets_lock_decides_the_mode() {
    let host = Host::start();
    host.write("proc/4242/comm", "kubelet\n");
    let locks = vec![lock("kubelet", "delay", 0, 4242), lock("apt", "delay", 0, 9)];
    let logind = host.logind_with(60, |logind| logind.locks = numbered(&locks)).await;
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
    assert_eq!(printed.report()["mode"], "assist");
    printed.assert("kubelet", "ok", "held by kubelet, uid 0, pid 4242");
    printed.assert("holders", "ok", "apt (pid 9: reasons)");
    assert_eq!(logind.state().locks, numbered(&locks), "what others hold must stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_lock_is_not_the_kubelets() {
    let host = Host::start();
    let locks = vec![lock("kubelet", "delay", 1000, 5), lock("backup", "block", 0, 6)];
    let _logind = host.logind_with(60, |logind| logind.locks = numbered(&locks)).await;
    let printed = host.check(&[]).await;
    assert_eq!((printed.code, &printed.report()["verdict"]), (0, &"warn".into()));
    assert_eq!(printed.report()["mode"], "replace");
    printed.assert("kubelet", "warn", "is not root's");
    printed.assert("holders", "warn", "blocked by backup");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_lock_fails_with_the_remedy_for_its_cause() {
    let host = Host::start();
    let logind = host.logind_with(60, |logind| logind.denies = true).await;
    let printed = host.check(&[]).await;
    assert_eq!((printed.code, logind.state().taken()), (1, 0));
    printed.assert("lock", "fail", "Permission denied run as uid 0");

    let host = Host::start();
    let _logind = host.logind_with(60, |logind| logind.down = Some(Down::AtOnce)).await;
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 1);
    printed.assert("shutdown", "warn", "the node is shutting down now");
    printed.assert("lock", "fail", "a shutdown is in progress");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_shutdown_is_a_warning() {
    let host = Host::start();
    let scheduled = ("reboot".to_owned(), 1_000_000);
    let _logind = host.logind_with(60, |logind| logind.scheduled = scheduled).await;
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
    printed.assert("schedule", "warn", "reboot is scheduled in 0s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_command_line_says_flag_and_remedy() {
    let root = tempfile::tempdir().expect("must be creatable");
    let printed = agent(
        root.path(),
        &["check", "--shutdown-grace-period=5s", "--shutdown-grace-period-critical-pods=6s"],
    )
    .await;
    assert_eq!(printed.code, 2);
    assert!(printed.stderr.contains("lower the first or raise the second"), "{}", printed.stderr);
    assert_eq!(printed.stdout, "");

    let output = Command::new(env!("CARGO_BIN_EXE_epilogue-agent")).output().await;
    let help = output.expect("the program must be startable");
    let text = String::from_utf8_lossy(&help.stderr);
    assert!(text.contains("Usage: epilogue-agent <COMMAND>") && text.contains("check"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_container_runtime_is_asked_how_it_is() {
    let host = Host::start();
    let printed = host.check(&[]).await;
    printed.assert("runtime", "warn", "no container runtime's socket at");
    printed.assert("runtime", "warn", "by --runtime-endpoint unix:///path");

    let cri = host.containers().await;
    let printed = host.check(&[]).await;
    printed.assert("runtime", "ok", "double v0.0.0 at");
    printed.assert("runtime", "ok", "knows 1 pods");

    cri.fault(Call::Status, "", Fault::RefuseAfter(tonic::Code::Ok));
    let printed = host.check(&[]).await;
    printed.assert("runtime", "warn", "not ready: NetworkReady (Injected: the double injects it)");
    cri.mend();

    cri.fault(Call::Any, "", Fault::Hang);
    let printed = host.check(&[]).await;
    assert_eq!(printed.code, 1);
    printed.assert("runtime", "fail", "did not answer Version within 2s");
    cri.mend();

    cri.fault(Call::Any, "", Fault::Refuse(tonic::Code::Unimplemented));
    said_no_cri(&host.check(&[]).await);
}

fn said_no_cri(printed: &Printed) {
    printed.assert("runtime", "warn", "does not speak CRI v1");
    printed.assert("runtime", "warn", "containerRuntimeEndpoint by --runtime-endpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runtimes_socket_comes_from_its_flag() {
    let host = Host::start();
    let socket = host.root.path().join("elsewhere/my.sock");
    let _cri = CriDouble::start_at(&socket);
    let flag = format!("--runtime-endpoint=unix://{}", socket.display());
    let printed = host.check(&[&flag]).await;
    printed.assert("runtime", "warn", "knows 0 pods");
    let printed = host.check(&["--runtime-endpoint=tcp://127.0.0.1:1"]).await;
    assert_eq!(printed.code, 2);
    assert!(printed.stderr.contains("must be unix:///path/of/the.sock"), "{}", printed.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_seen_of_pressure_is_reported_with_a_remedy_for_the_rest() {
    let host = Host::start();
    let printed = host.check(&[]).await;
    printed.assert("pressure", "warn", "cannot measure memory.available, nodefs.available,");
    printed.assert("pressure", "warn", "mount the host's /proc, /sys/fs/cgroup");
    printed.assert("stalls", "warn", "psi=1");
    printed.assert("kernel-log", "ok", "cannot be read");

    host.can_be_measured();
    let printed = host.check(&["--eviction-hard=memory.available<150Mi,pid.available<5%"]).await;
    printed.assert("pressure", "ok", "memory.available 4094Mi of 4Gi");
    printed.assert("pressure", "ok", "pid.available 31k of 31768");
    // The kernel accepts no trigger on a plain file of a directory.
    printed.assert("stalls", "ok", "pods for memory: the counter is polled");
    printed.assert("stalls", "ok", "the node for disks: the counter is polled");
    printed.assert("thresholds", "ok", "before the kubelet's defaults");
    printed.assert("kernel-log", "ok", "which process each OOM kill hit");

    let flags = ["--pressure=enforce", "--eviction-hard=memory.available<100Mi"];
    host.check(&flags).await.assert("thresholds", "warn", "comes first for memory.available");
    host.check(&["--pressure=off"]).await.assert("pressure", "ok", "--pressure=off");
    let printed = host.check(&["--eviction-hard=memory<1Gi"]).await;
    assert_eq!(printed.code, 2);
    assert!(printed.stderr.contains("expected one of memory.available"), "{}", printed.stderr);
}
