//! Tests the laboratory itself: `lab node` reaches a machine, and leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::eventually;
use lab::paths::LabDir;

use crate::stage;
use crate::world::kit;

const SOON: Duration = Duration::from_secs(30);

/// Processes that name `dir` in their command line or work in it, as all processes of a lab do,
/// including QEMU and the shared connections to it.
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

#[test]
fn killed_lab_leaves_no_machine_and_was_reachable_till_then() {
    stage::play(module_path!(), async |_: &mut Option<()>| kill_a_lab().await);
}

async fn kill_a_lab() {
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
