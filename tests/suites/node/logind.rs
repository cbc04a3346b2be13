//! The lighter world: a real logind without a kubelet.

use std::process::Stdio;
use std::time::Duration;

use lab::paths::LabDir;
use lab::vm::Logind;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::world::kit;

const SOON: Duration = Duration::from_secs(30);

async fn start(name: &str) -> (Logind, tempfile::TempDir) {
    let images = LabDir::of_workspace().images();
    let kit = kit().await;
    let dir = tempfile::Builder::new().prefix(name).tempdir_in(&images).expect("a directory");
    let logind = Logind::start(&kit, dir.path(), &images).await;
    (logind.unwrap_or_else(|error| panic!("{error}: {error:?}")), dir)
}

#[tokio::test]
async fn delay_lock_holds_the_poweroff_and_sees_its_announcement() {
    let (mut logind, _dir) = start("lock").await;
    logind
        .run(
            "printf '[Login]\\nInhibitDelayMaxSec=30\\n' > /etc/systemd/logind.conf.d/lab.conf && \
             systemctl kill --signal=HUP systemd-logind",
        )
        .await
        .expect("a longer delay");
    let what = ["--what=shutdown", "--mode=delay", "--who=lab", "--why=test"];
    let lock = [&what[..], &["sleep", "1000"]].concat();
    let mut lock = logind.command("systemd-inhibit", &lock).spawn().expect("a lock");
    let locks = async || logind.run("systemd-inhibit --list --no-legend").await.expect("list");
    lab::eventually("the lock is held", SOON, locks, |list| list.contains("lab")).await;

    let matching = "type='signal',member='PrepareForShutdown'";
    let mut monitor = logind
        .command("dbus-monitor", &["--system", matching])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a monitor");
    let lines = BufReader::new(monitor.stdout.take().expect("a pipe"));
    let mut lines = lines.lines();
    // Its own name, acquired: it listens.
    lines.next_line().await.expect("read").expect("a line");

    logind.run("systemd-run --quiet --no-block systemctl poweroff").await.expect("poweroff");
    let announced = async {
        while let Some(line) = lines.next_line().await.expect("read") {
            if line.trim() == "boolean true" {
                return;
            }
        }
        panic!("the monitor ended without the announcement");
    };
    tokio::time::timeout(SOON, announced).await.expect("PrepareForShutdown(true)");
    let preparing = logind
        .run(
            "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
             org.freedesktop.login1.Manager PreparingForShutdown",
        )
        .await
        .expect("the lock holds the power-off: it still answers");
    assert_eq!(preparing, "b true\n");
    lock.kill().await.expect("release the lock");
    logind.off().await.expect("off");
}
