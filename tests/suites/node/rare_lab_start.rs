//! Tests the laboratory itself: `lab up` installs the agent and takes a kubelet's configuration, and
//! `lab node start` starts a machine again.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::observe_until;

use crate::stage;
use crate::world::kit;

/// QEMU ends at once.
const OFF_WITHIN: Duration = Duration::from_secs(30);

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn machine_that_lost_its_power_starts_again_with_its_disk_its_agent_and_its_kubelet() {
    stage::play(module_path!(), async |_: &mut Option<()>| cut_and_start().await);
}

async fn cut_and_start() {
    kit().await;
    let name = format!("start-{:04x}", rand::random::<u16>());
    let config = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(config.path(), "maxPods: 47\nevictionHard: {memory.available: 51Mi}\n")
        .expect("must be writable");
    let config = format!("--kubelet-config={}", config.path().display());
    let mut up = lab(&["up", "--name", &name, "--node", "vm", "--agent", "host", &config])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the lab must be startable");
    let mut lines = BufReader::new(up.stdout.take().expect("a pipe")).lines();
    let ready = lines.any(|line| line.is_ok_and(|line| line.starts_with("node vm-1 is Ready")));
    assert!(ready, "lab up ended: {:?}", up.wait());

    let node = format!("{name}/vm-1");
    let done = |arguments: &[&str]| {
        let output = lab(arguments).output().expect("the lab must be startable");
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let said = |arguments: &[&str]| {
        let (succeeded, text) = done(arguments);
        assert!(succeeded, "{arguments:?}: {text}");
        text
    };
    let run = |command: &str| said(&["node", "ssh", &node, command]);
    let boot_id = "cat /proc/sys/kernel/random/boot_id";
    let first = run(boot_id);
    run("echo kept > /root/kept && sync");
    let (succeeded, why) = done(&["node", "start", &node]);
    assert!(!succeeded && why.contains("is not off"), "{why}");

    said(&["node", "cut", &node]);
    let is_on = async || done(&["node", "ssh", &node, "true"]);
    let off = observe_until(OFF_WITHIN, is_on, |(is_on, _)| !is_on).await;
    off.expect("it must be off");
    let started = said(&["node", "start", &node]);
    assert!(started.contains("vm-1 is Ready"), "{started}");
    assert_ne!(run(boot_id), first);
    assert_eq!(run("cat /root/kept"), "kept\n");
    assert_eq!(run("systemctl is-active epilogue-agent kubelet"), "active\nactive\n");
    let kubelet = run("cat /etc/kubernetes/kubelet.yaml");
    for field in
        ["\"maxPods\": 47", "\"memory.available\": \"51Mi\"", "\"nodefs.available\": \"1%\""]
    {
        assert!(kubelet.contains(field), "{field} must be in {kubelet}");
    }
    assert!(said(&["node", "log", &node]).contains("systemd"));

    said(&["node", "poweroff", &node]);
    let off = observe_until(Duration::from_mins(2), is_on, |(is_on, _)| !is_on).await;
    off.expect("it must power off");
    said(&["down", "--name", &name]);
    up.wait().expect("the lab ends");
}
