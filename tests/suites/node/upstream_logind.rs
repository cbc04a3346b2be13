//! Tests a real logind without a kubelet, for the behaviour that the agent relies on.

use std::process::Stdio;
use std::time::Duration;

use lab::paths::LabDir;
use lab::vm::Logind;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::world::kit;

const SOON: Duration = Duration::from_secs(30);

const PREPARING: &str = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
                         org.freedesktop.login1.Manager PreparingForShutdown";
const DELAY: &str = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
                     org.freedesktop.login1.Manager InhibitDelayMaxUSec";
const LOCKS: &str = "systemd-inhibit --list --no-legend";
const POWEROFF: &str = "systemd-run --quiet --no-block systemctl poweroff";

async fn start(name: &str) -> (Logind, tempfile::TempDir) {
    let runs = LabDir::of_workspace().runs();
    std::fs::create_dir_all(&runs).expect("a directory");
    let kit = kit().await;
    let dir = tempfile::Builder::new().prefix(name).tempdir_in(&runs).expect("a directory");
    let logind = Logind::start(&kit, dir.path(), &runs).await;
    (logind.unwrap_or_else(|error| panic!("{error}: {error:?}")), dir)
}

/// Starts logind with a delay of ten minutes, longer than any wait here. The child holds a lock on
/// it until it is killed.
async fn start_with_lock(name: &str) -> (Logind, Child, tempfile::TempDir) {
    let (logind, dir) = start(name).await;
    allow_delay(&logind, "lab.conf", 600).await;
    delay_becomes(&logind, 600).await;
    let what = ["--what=shutdown", "--mode=delay", "--who=lab", "--why=test"];
    let lock = [&what[..], &["sleep", "1000"]].concat();
    let lock = logind.command("systemd-inhibit", &lock).spawn().expect("a lock");
    let locks = async || logind.run(LOCKS).await.expect("list");
    lab::eventually("the lock is held", SOON, locks, |list| list.contains("lab")).await;
    (logind, lock, dir)
}

async fn allow_delay(logind: &Logind, file: &str, seconds: u32) {
    let write = format!(
        "printf '[Login]\\nInhibitDelayMaxSec={seconds}\\n' > /etc/systemd/logind.conf.d/{file} && \
         systemctl kill --kill-whom=main --signal=HUP systemd-logind"
    );
    logind.run(&write).await.expect("a drop-in");
}

async fn delay_becomes(logind: &Logind, seconds: u32) {
    let delay = async || logind.run(DELAY).await.expect("the delay");
    let wanted = format!("t {seconds}000000\n");
    lab::eventually("the delay is granted", SOON, delay, |said| *said == wanted).await;
}

/// The signals PrepareForShutdown, as they arrive.
struct Announcements {
    lines: Lines<BufReader<ChildStdout>>,
    _monitor: Child,
}

impl Announcements {
    async fn listen(logind: &Logind) -> Self {
        let matching = "type='signal',member='PrepareForShutdown'";
        let mut monitor = logind
            .command("dbus-monitor", &["--system", matching])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a monitor");
        let mut lines = BufReader::new(monitor.stdout.take().expect("a pipe")).lines();
        // It has acquired its own name, so it listens.
        lines.next_line().await.expect("read").expect("a line");
        Self { lines, _monitor: monitor }
    }

    async fn next(&mut self) -> bool {
        let next = async {
            while let Some(line) = self.lines.next_line().await.expect("read") {
                match line.trim() {
                    "boolean true" => return true,
                    "boolean false" => return false,
                    _ => {}
                }
            }
            panic!("the monitor ended without an announcement");
        };
        tokio::time::timeout(SOON, next).await.expect("PrepareForShutdown")
    }
}

#[tokio::test]
async fn delay_lock_holds_the_poweroff_and_sees_its_announcement() {
    let (mut logind, mut lock, _dir) = start_with_lock("lock").await;
    let mut announcements = Announcements::listen(&logind).await;
    logind.run(POWEROFF).await.expect("poweroff");
    assert!(announcements.next().await);
    let preparing = logind.run(PREPARING).await;
    assert_eq!(preparing.expect("the lock holds the power-off: it still answers"), "b true\n");
    lock.kill().await.expect("release the lock");
    logind.off().await.expect("off");
}

/// A late or repeated request gets no lock. ([LD5])
#[tokio::test]
async fn lock_is_refused_while_a_shutdown_is_delayed() {
    let (logind, _lock, _dir) = start_with_lock("late").await;
    let mut announcements = Announcements::listen(&logind).await;
    logind.run(POWEROFF).await.expect("poweroff");
    assert!(announcements.next().await);
    let late = "systemd-inhibit --what=shutdown --mode=delay --who=late --why=test true 2>&1";
    let refused = logind.run(&format!("{late} || true")).await.expect("run");
    println!("OUTCOME a second lock: {refused}");
    assert!(refused.contains("already running"), "{refused}");
    let sleep = late.replace("--what=shutdown", "--what=sleep");
    logind.run(&sleep).await.expect("a lock on something else is given");
}

/// logind sends no `false`; only the property shows it. The lock is still held. ([LD7])
#[tokio::test]
async fn restarted_logind_forgets_a_delayed_shutdown_and_keeps_the_locks() {
    let (logind, _lock, _dir) = start_with_lock("forgets").await;
    let mut announcements = Announcements::listen(&logind).await;
    logind.run(POWEROFF).await.expect("poweroff");
    assert!(announcements.next().await);
    logind.run("systemctl restart systemd-logind").await.expect("restart");
    assert_eq!(logind.run(PREPARING).await.expect("it answers"), "b false\n");
    let locks = logind.run(LOCKS).await.expect("list");
    assert!(locks.contains("lab"), "{locks}");
    // The next signal announces the next shutdown; it is not the end of this one.
    logind.run(POWEROFF).await.expect("poweroff");
    assert!(announcements.next().await);
}

/// `false` revokes a shutdown whose target cannot be started any more. ([LD4])
#[tokio::test]
async fn shutdown_whose_target_cannot_start_is_taken_back() {
    let (logind, mut lock, _dir) = start_with_lock("back").await;
    let mut announcements = Announcements::listen(&logind).await;
    logind.run(POWEROFF).await.expect("poweroff");
    assert!(announcements.next().await);
    logind.run("systemctl mask --runtime --quiet poweroff.target").await.expect("mask");
    lock.kill().await.expect("release the lock");
    assert!(!announcements.next().await);
    assert_eq!(logind.run(PREPARING).await.expect("it answers"), "b false\n");
}

/// The last name wins, not the largest value, and not the newest file. ([LD8])
#[tokio::test]
async fn drop_in_with_the_last_name_decides_on_the_delay() {
    let (logind, _dir) = start("names").await;
    delay_becomes(&logind, 5).await;
    allow_delay(&logind, "99-kubelet.conf", 40).await;
    delay_becomes(&logind, 40).await;
    allow_delay(&logind, "unattended-upgrades-logind-maxdelay.conf", 30).await;
    delay_becomes(&logind, 30).await;
    allow_delay(&logind, "99-kubelet.conf", 60).await;
    allow_delay(&logind, "zz-epilogue.conf", 50).await;
    delay_becomes(&logind, 50).await;
}

/// Writes what a service sees when it is asked to end, and stays for a while.
const WITNESS: &str = r#"
cat > /run/witness <<'EOF'
#!/bin/sh
manager="org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
trap 'echo "first process: $(cat /proc/1/comm)" > /run/seen
timeout 2 busctl get-property $manager SystemState >> /run/seen 2>&1
timeout 2 $ANNOUNCED >> /run/seen 2>&1
echo all >> /run/seen
sleep 10' TERM
touch /run/witness.ready
while :; do sleep 0.1; done
EOF
chmod +x /run/witness
systemd-run --quiet --unit=witness --property=After=dbus.service --property=KillMode=mixed \
    /run/witness
until test -e /run/witness.ready; do sleep 0.1; done
"#;

/// Ends the container by this command, which logind does not announce, although a lock is held, and
/// returns what the witness saw.
async fn unannounced_end(name: &str, command: &str) -> String {
    let (logind, _lock, _dir) = start_with_lock(name).await;
    let witness = WITNESS.replace("$ANNOUNCED", PREPARING);
    logind.run(&witness).await.expect("the witness");
    logind.run(&format!("systemd-run --quiet --no-block {command}")).await.expect("an end");
    // No command can be run for a moment now and then.
    let seen = async || logind.run("cat /run/seen").await.unwrap_or_default();
    let all = |seen: &String| seen.contains("all");
    let seen = lab::eventually("the witness is asked to end", SOON, seen, all).await;
    println!("OUTCOME {command}: {seen}");
    seen
}

/// A target that is started past logind. ([LD14])
#[tokio::test]
async fn stop_of_the_system_past_logind_shows_in_systemd_s_state() {
    let seen = unannounced_end("past", "systemctl start poweroff.target").await;
    assert!(seen.contains("first process: systemd\n"), "{seen}");
    assert!(seen.contains("s \"stopping\""), "{seen}");
    // logind may have been stopped already.
    assert!(!seen.contains("b true"), "{seen}");
}

/// No unit is stopped, and no systemd is left to ask. ([LD15])
#[tokio::test]
async fn forced_stop_of_the_system_shows_in_the_first_process_s_name() {
    let seen = unannounced_end("forced", "systemctl --force poweroff").await;
    assert!(seen.contains("first process: systemd-shutdow\n"), "{seen}");
    assert!(!seen.contains("stopping"), "{seen}");
}
