//! The laboratory itself: the machine is what the tests take it for, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::eventually;
use lab::paths::LabDir;

use crate::world::{World, kit, turn};

const SOON: Duration = Duration::from_secs(30);

/// Played by `live_kubelet`.
pub(crate) async fn node_is_ready_and_runs_what_a_real_one_does(world: &World) {
    let said = world
        .node
        .run(
            "systemctl is-system-running; stat -f -c %T /sys/fs/cgroup; test -e /proc/pressure/memory \
             && echo psi; busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
             org.freedesktop.login1.Manager PreparingForShutdown",
        )
        .await
        .expect("run");
    assert_eq!(said, "running\ncgroup2fs\npsi\nb false\n");
    world.run(&[world.pod("a", &["pause"]), world.pod("b", &["pause"]).host_network()]).await;
}

/// Processes that name `dir` in their command line or work in it, as all of a lab's do: QEMU and
/// the shared connections to it too.
fn processes_of(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc must be readable").flatten();
    entries
        .filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let inside = std::fs::read_link(entry.path().join("cwd"));
            let inside = inside.is_ok_and(|cwd| cwd.starts_with(dir));
            (inside || line.contains(&*dir.to_string_lossy())).then_some(line)
        })
        .collect()
}

#[tokio::test]
async fn lab_that_is_killed_leaves_no_machine_and_until_then_lab_node_reaches_it() {
    let _turn = turn().await;
    kit().await;
    let name = format!("killed-{:04x}", rand::random::<u16>());
    let lab = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.args(arguments).stdin(Stdio::null());
        command
    };
    let mut up = lab(&["up", "--name", &name, "--node", "vm"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the lab must be startable");
    let mut lines = BufReader::new(up.stdout.take().expect("a pipe")).lines();
    let ready = lines.any(|line| line.is_ok_and(|line| line.starts_with("node vm-1 is Ready")));
    assert!(ready, "lab up ended: {:?}", up.wait());

    let node = format!("{name}/vm-1");
    let said = |arguments: &[&str]| {
        let output = lab(arguments).output().expect("the lab must be startable");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(said(&["node", "ssh", &node, "hostname"]), "node\n");
    said(&["node", "pause", &node]);
    said(&["node", "resume", &node]);
    assert!(said(&["node", "log", &node]).contains("systemd"));

    let dir = LabDir::of_workspace().runs().join(&name);
    assert!(processes_of(&dir).iter().any(|line| line.contains("qemu")));
    up.kill().expect("kill");
    up.wait().expect("wait");
    let none = |left: &Vec<String>| left.is_empty();
    eventually("nothing of it runs", SOON, async || processes_of(&dir), none).await;
}
