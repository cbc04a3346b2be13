//! Runs the image's systemd and logind in a container, up in about a second, for tests that use
//! logind only. It has no kubelet: the container has the control groups of this machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::error::VmError;
use super::kit::Kit;
use crate::error::LabError;
use crate::eventually::observe_until;
use crate::process::{Process, Program};

const UP_WITHIN: Duration = Duration::from_secs(30);
const OFF_WITHIN: Duration = Duration::from_mins(1);

/// Mounts the image's root with a writable layer, both only in this process's namespace, and boots
/// it. Masked units would fail or wait in the container, which does not need them.
const BOOT: &str = r#"
set -eu
dir=$1 root=$2 shared=$3
mkdir -p "$dir/image" "$dir/layer" "$dir/root"
mount -o loop,ro "$root" "$dir/image"
mount -t tmpfs layer "$dir/layer"
mkdir "$dir/layer/upper" "$dir/layer/work"
layers="lowerdir=$dir/image,upperdir=$dir/layer/upper,workdir=$dir/layer/work"
mount -t overlay overlay -o "$layers" "$dir/root"
for unit in containerd kubelet systemd-remount-fs systemd-modules-load systemd-networkd ssh; do
    ln -sf /dev/null "$dir/root/etc/systemd/system/$unit.service"
done
rm -f "$dir/root/etc/systemd/journald.conf.d/node.conf" "$dir/root/etc/fstab"
mkdir -p "$dir/root/etc/systemd/logind.conf.d"
exec systemd-nspawn --directory="$dir/root" --boot --register=no --keep-unit --private-network \
    --machine=logind --console=pipe --bind-ro="$shared:/shared"
"#;

/// A running systemd with its logind. Dropping it kills everything.
#[derive(Debug)]
pub struct Logind {
    dir: PathBuf,
    process: Process,
    /// The container's first process, as a pid of this machine.
    init: u32,
}

impl Logind {
    /// Starts it with its files in `dir`; `shared` appears inside as `/shared`, read-only. Returns
    /// when logind answers.
    pub async fn start(kit: &Kit, dir: &Path, shared: &Path) -> Result<Self, VmError> {
        std::fs::create_dir_all(dir).map_err(LabError::file("create", dir))?;
        // A process namespace around nspawn: if only nspawn were killed, its systemd would stay.
        let options = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
        let mut args: Vec<OsString> = options.map(Into::into).into();
        args.extend(["sh", "-c", BOOT, "logind"].map(Into::into));
        args.extend([dir.into(), kit.root().into(), shared.into()]);
        let program = Program::new("systemd-nspawn", Path::new("unshare"), args, &dir.join("log"));
        let mut process = Process::spawn_program(&program)?;
        let pid = process.pid();
        let ask = async || match init_below(pid) {
            Some(init) => answers(init).await.map(|()| init),
            None => Err("no systemd yet".to_owned()),
        };
        let answer = tokio::select! {
            ended = process.ended() => return Err(ended.into()),
            answer = observe_until(UP_WITHIN, ask, Result::is_ok) => answer,
        };
        let late = |last| VmError::Late {
            what: "logind in a container".to_owned(),
            within: UP_WITHIN,
            last,
            dir: dir.to_owned(),
        };
        let init = answer
            .and_then(|init| init.map_err(Err))
            .map_err(|last| late(last.err().unwrap_or_default()))?;
        Ok(Self { dir: dir.to_owned(), process, init })
    }

    /// A program of the container, run inside; the caller configures its output. It ends with the
    /// caller or the container.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        enter(self.init, program, args)
    }

    /// Runs a command line inside to its end and returns its output.
    pub async fn run(&self, command: &str) -> Result<String, VmError> {
        let output = self.command("sh", &["-c", command]).output().await;
        let output =
            output.map_err(|source| LabError::Spawn { program: "nsenter".into(), source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(VmError::Command {
            command: command.to_owned(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Waits until it has powered itself off.
    pub async fn off(&mut self) -> Result<(), VmError> {
        match tokio::time::timeout(OFF_WITHIN, self.process.ended()).await {
            Ok(LabError::Ended { status, .. }) if status.success() => Ok(()),
            Ok(error) => Err(error.into()),
            Err(_) => Err(VmError::Late {
                what: "power-off of the container".to_owned(),
                within: OFF_WITHIN,
                last: "it runs".to_owned(),
                dir: self.dir.clone(),
            }),
        }
    }
}

/// A program that enters a process namespace forks, and the fork would outlive it. A lock that the
/// fork holds would stay when the program is killed.
fn enter(init: u32, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--all", "--target", &init.to_string(), "--"]);
    command.args(["setpriv", "--pdeathsig=KILL", program]).args(args);
    command.kill_on_drop(true);
    command
}

async fn answers(init: u32) -> Result<(), String> {
    let manager = ["org.freedesktop.login1", "/org/freedesktop/login1"];
    let property = ["org.freedesktop.login1.Manager", "InhibitDelayMaxUSec"];
    let args = [&["get-property"], &manager[..], &property[..]].concat();
    match enter(init, "busctl", &args).output().await {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The systemd that nspawn started, somewhere below `pid`: it has that name, and is not nspawn
/// itself.
fn init_below(pid: u32) -> Option<u32> {
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let mut pids = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
    pids.find_map(|child: u32| {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        if name.trim() == "systemd" { Some(child) } else { init_below(child) }
    })
}
