//! One virtual machine: QEMU's process, its disks, the shell. Knows nothing of Kubernetes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::disk;
use super::error::VmError;
use super::kit::Kit;
use super::monitor;
use super::record::Record;
use super::shell::{self, Shell};
use crate::error::LabError;
use crate::eventually::{observe_costly_until, observe_until};
use crate::process::{Process, Program};

pub(super) const QEMU: &str = "qemu-system-x86_64";

/// Room for programs and configuration of one run; part of the snapshot, so the same for all.
pub(super) const RUN_DISK_BYTES: u64 = 384 << 20;

/// Priority over other work of this session. The programs inside have the timeouts of a real
/// machine. Emulated alongside builds, they would hit timeouts that no node hits.
const NICE: [&str; 3] = ["-n", "-10", "env"];

/// Enough for a kubelet with 110 pods; only the used part is allocated.
const MEMORY_MB: u32 = 2048;

/// Five times what an emulated machine takes on two idle processors.
const BOOT_WITHIN: Duration = Duration::from_secs(150);
const MONITOR_WITHIN: Duration = Duration::from_secs(30);
/// Time for one ssh handshake with a machine that starts everything else meanwhile. A cancelled
/// handshake costs the machine as much, and the next one the same again.
const KNOCK_WITHIN: Duration = Duration::from_mins(1);

/// How a machine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// From the kernel on, in 14 seconds; with a boot id of its own.
    Cold,
    /// From the snapshot, in 3 seconds; all share a boot id until they reboot.
    Snapshot,
}

/// A running machine. Dropping it kills it as by a power cut, and removes its disks.
#[derive(Debug)]
pub struct Machine {
    dir: PathBuf,
    shell: Shell,
    qemu: Process,
    /// How often its journal had reported ssh as usable, at the last use.
    boots: usize,
    /// Keeps the disks below its own while it runs.
    kit: Kit,
}

impl Machine {
    /// Starts it with its files in `dir`, and `payload` on its read-only third disk (`/dev/vdc`);
    /// returns when a command can be run.
    pub async fn start(kit: &Kit, dir: &Path, boot: Boot, payload: &Path) -> Result<Self, VmError> {
        std::fs::create_dir_all(dir).map_err(LabError::file("create", dir))?;
        remove_disks(dir);
        // Left by an earlier machine in the same directory: this one would append to its logs.
        for log in ["console.log", "journal.log", monitor::SOCKET, shell::SOCKET] {
            let _ = std::fs::remove_file(dir.join(log));
        }
        let log = dir.join("disks.log");
        disk::of_directory(&dir.join("run.ext4"), "run", payload, RUN_DISK_BYTES, &log).await?;
        let own = dir.join("disk.qcow2");
        match kit.booted() {
            Some(booted) => {
                std::fs::copy(booted, &own).map(drop).map_err(LabError::file("write", &own))?;
            }
            None => create_overlay(&kit.root(), &own, &log).await?,
        }
        let mut qemu = Process::spawn_program(&qemu(kit, dir, boot))?;
        let port = ssh_port(dir, &mut qemu).await?;
        if boot == Boot::Snapshot {
            // QEMU has them open: no file stays, however it and this process end.
            remove_disks(dir);
        }
        let shell = Shell::new(dir, &kit.key(), port);
        let kit = kit.clone();
        let mut machine = Self { dir: dir.to_owned(), shell, qemu, boots: 0, kit };
        match boot {
            Boot::Cold => machine.booted(BOOT_WITHIN).await?,
            Boot::Snapshot => {
                machine.answers(BOOT_WITHIN).await?;
                machine.set_clock().await?;
            }
        }
        machine.write_record()?;
        Ok(machine)
    }

    /// Starts it again after its end, from its own disk: only after [`Boot::Cold`], which keeps it.
    /// Returns when a command can be run. Its earlier journal is `journal-before.log` then.
    pub async fn start_again(&mut self) -> Result<(), VmError> {
        if self.qemu.check().is_ok() {
            return Err(VmError::Runs(self.dir.clone()));
        }
        for socket in [monitor::SOCKET, shell::SOCKET] {
            let _ = std::fs::remove_file(self.dir.join(socket));
        }
        // QEMU empties its logs at its start.
        let (journal, kept) = (self.dir.join("journal.log"), self.dir.join("journal-before.log"));
        std::fs::rename(&journal, &kept).map_err(LabError::file("rename", &journal))?;
        self.boots = 0;
        self.qemu = Process::spawn_program(&qemu(&self.kit, &self.dir, Boot::Cold))?;
        let port = ssh_port(&self.dir, &mut self.qemu).await?;
        self.shell = Shell::new(&self.dir, &self.kit.key(), port);
        self.booted(BOOT_WITHIN).await?;
        self.write_record()
    }

    fn write_record(&self) -> Result<(), VmError> {
        let qemu = self.qemu.record().clone();
        let record = Record { qemu, ssh_arguments: self.shell.arguments() };
        Ok(record.write(&self.dir)?)
    }

    /// Whether its kernel reports a processor lockup, as happens once in many starts with emulation
    /// on busy processors.
    pub fn has_locked_up(&self) -> bool {
        let console = std::fs::read(self.dir.join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&console).contains("BUG: soft lockup")
    }

    /// The directory of its console, journal, sockets and disks.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The shell of the machine.
    pub fn shell(&self) -> &Shell {
        &self.shell
    }

    /// QEMU's pid.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    /// Waits until a command can be run, or fails when QEMU ends.
    pub async fn answers(&mut self, within: Duration) -> Result<(), VmError> {
        let shell = self.shell.clone();
        let knock =
            async || match tokio::time::timeout(KNOCK_WITHIN, shell.try_run("true", &[])).await {
                Ok(Ok(output)) if output.status.success() => String::new(),
                Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
        tokio::select! {
            ended = self.qemu.ended() => Err(ended.into()),
            answered = observe_costly_until(within, knock, String::is_empty) => {
                answered.map(drop).map_err(|last| self.late("ssh", within, &last))
            }
        }
    }

    /// A random id that the kernel makes at each boot.
    pub async fn boot_id(&self) -> Result<String, VmError> {
        Ok(self.shell.run("cat /proc/sys/kernel/random/boot_id").await?.trim().to_owned())
    }

    /// Requests a power-off, which takes as long as logind's locks delay it, and returns.
    pub async fn begin_poweroff(&self) -> Result<(), VmError> {
        self.begin("systemctl poweroff").await
    }

    /// Requests a reboot and returns.
    pub async fn begin_reboot(&self) -> Result<(), VmError> {
        self.begin("systemctl reboot").await
    }

    /// The command's own end may be lost with the machine, so that its start is what counts.
    async fn begin(&self, command: &str) -> Result<(), VmError> {
        self.shell.run(&format!("systemd-run --quiet --no-block --collect {command}")).await?;
        Ok(())
    }

    /// Whether it has ended.
    pub fn is_off(&self) -> bool {
        !self.qemu.record().is_alive()
    }

    /// Waits until the machine is off: QEMU's process ends by itself.
    pub async fn off(&mut self, within: Duration) -> Result<(), VmError> {
        match tokio::time::timeout(within, self.qemu.ended()).await {
            Ok(LabError::Ended { status, .. }) if status.success() => Ok(()),
            Ok(error) => Err(error.into()),
            Err(_) => Err(self.late("power-off", within, &self.last_of_journal())),
        }
    }

    /// Waits until it has booted once more. Its journal shows when ssh is usable: a connection that
    /// comes too early costs it seconds.
    async fn booted(&mut self, within: Duration) -> Result<(), VmError> {
        let journal = self.dir.join("journal.log");
        let boots = async || boots_in(&std::fs::read(&journal).unwrap_or_default());
        let before = self.boots;
        let seen = tokio::select! {
            ended = self.qemu.ended() => return Err(ended.into()),
            seen = observe_until(within, boots, |boots| *boots > before) => seen,
        };
        self.boots = seen.map_err(|_| self.late("boot", within, &self.last_of_journal()))?;
        // ssh would wait for the connection to the previous boot. If the socket is missing, nothing
        // is lost.
        let _ = std::fs::remove_file(self.dir.join(shell::SOCKET));
        self.answers(within).await
    }

    /// Waits until its user space has started once more, with or without its kernel.
    pub async fn restarted(&mut self, within: Duration) -> Result<(), VmError> {
        self.booted(within).await
    }

    /// Waits for the end of a reboot, recognised by its boot id.
    pub async fn rebooted(&mut self, before: &str, within: Duration) -> Result<(), VmError> {
        self.booted(within).await?;
        match self.boot_id().await? {
            id if id != before => Ok(()),
            id => Err(self.late("reboot", within, &format!("its boot id is still {id}"))),
        }
    }

    /// Kills it at once, with no chance to do anything: a power cut.
    pub async fn cut(&mut self) {
        self.qemu.kill().await;
    }

    /// Presses its reset button: a power cut after which the power comes back.
    pub async fn reset(&self) -> Result<(), VmError> {
        monitor::execute(&self.dir, "system_reset", json!({})).await.map(drop)
    }

    /// Stops its processors: from outside, the same as a network cut or a frozen host.
    pub async fn pause(&self) -> Result<(), VmError> {
        monitor::execute(&self.dir, "stop", json!({})).await.map(drop)
    }

    /// Resumes a paused machine.
    pub async fn resume(&self) -> Result<(), VmError> {
        monitor::execute(&self.dir, "cont", json!({})).await.map(drop)
    }

    /// Sets its clock by ours: after a snapshot it is behind by the snapshot's age.
    pub async fn set_clock(&self) -> Result<(), VmError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let command = format!("date --set=@{}.{:03}", now.as_secs(), now.subsec_millis());
        self.shell.run(&command).await.map(drop)
    }

    /// Stops it and returns the disk, with the machine's state as snapshot `name` inside.
    pub(super) async fn into_snapshot(mut self, name: &str) -> Result<PathBuf, VmError> {
        self.pause().await?;
        let answer = monitor::human(&self.dir, &format!("savevm {name}")).await?;
        if !answer.is_empty() {
            return Err(VmError::Monitor { command: "savevm".into(), answer });
        }
        monitor::execute(&self.dir, "quit", json!({})).await?;
        self.off(MONITOR_WITHIN).await?;
        let (disk, kept) = (self.dir.join("disk.qcow2"), self.dir.join("snapshot.qcow2"));
        std::fs::rename(&disk, &kept).map_err(LabError::file("write", &kept))?;
        Ok(kept)
    }

    fn late(&self, what: &str, within: Duration, last: &str) -> VmError {
        VmError::Late {
            what: what.to_owned(),
            within,
            last: last.to_owned(),
            dir: self.dir.clone(),
        }
    }

    fn last_of_journal(&self) -> String {
        let journal = std::fs::read(self.dir.join("journal.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&journal);
        let lines: Vec<&str> = text.lines().rev().take(12).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Machine {
    /// Dropping its process kills QEMU; only files that it had open may remain.
    fn drop(&mut self) {
        remove_disks(&self.dir);
    }
}

/// A gigabyte and more, without any use once the machine is gone.
fn remove_disks(dir: &Path) {
    for disk in ["disk.qcow2", "run.ext4"] {
        // An error means that the file does not exist.
        let _ = std::fs::remove_file(dir.join(disk));
    }
}

/// How often sshd has begun to listen, by the journal.
fn boots_in(journal: &[u8]) -> usize {
    let text = String::from_utf8_lossy(journal);
    text.lines().filter(|line| line.contains("]: Server listening on 0.0.0.0 port 22.")).count()
}

async fn create_overlay(root: &Path, disk: &Path, log: &Path) -> Result<(), VmError> {
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"].map(Into::into);
    let paths = [root.as_os_str().to_owned(), disk.as_os_str().to_owned()];
    disk::run("qemu-img", create.into_iter().chain(paths), log).await
}

/// The command line. A snapshot fits only the devices that it was made with.
pub(super) fn qemu(kit: &Kit, dir: &Path, boot: Boot) -> Program {
    let image = |name: &str| kit.image(name).display().to_string();
    let drive = |id: &str, file: &str, options: &str| {
        let file = file.replace(',', ",,");
        [
            "-drive".to_owned(),
            format!("id={id},if=none,file={file},{options}"),
            "-device".to_owned(),
            format!("virtio-blk-pci,drive={id}"),
        ]
    };
    let read_only = "format=raw,readonly=on";
    // Paths are relative to the machine's directory: a socket's path must be short.
    let mut args = NICE.map(str::to_owned).to_vec();
    args.extend(["-C".to_owned(), dir.display().to_string(), QEMU.to_owned()]);
    args.extend(["-machine", "q35,usb=off,vmport=off", "-smp", "2"].map(Into::into));
    args.extend(kit.accelerator.arguments().map(Into::into));
    args.extend(["-m".into(), MEMORY_MB.to_string()]);
    args.extend(["-nodefaults", "-no-user-config", "-display", "none"].map(Into::into));
    args.extend(["-kernel".into(), image("vmlinuz"), "-initrd".into(), image("initrd.img")]);
    // Emulation caches translated code by virtual address: if each start has other addresses, a
    // program's start takes three times as long. The clock uses the processor's counter. The kernel
    // distrusts an emulated counter, and every clock read would call the emulator, one processor at
    // a time. The processor's string instructions are off: emulation steps through them one by one.
    let kernel = "console=ttyS0 quiet psi=1 systemd.unified_cgroup_hierarchy=1 net.ifnames=0 \
                  panic=-1 norandmaps mitigations=off tsc=reliable clearcpuid=rep_good";
    args.extend(["-append".into(), kernel.into(), "-serial".into(), "file:console.log".into()]);
    args.extend(drive("root", "disk.qcow2", "format=qcow2,cache=unsafe"));
    args.extend(drive("tools", &kit.tools().display().to_string(), read_only));
    args.extend(drive("run", "run.ext4", read_only));
    let others = [
        "-netdev",
        // Port 0: the kernel picks one, and QEMU reports which.
        "user,id=net,hostfwd=tcp:127.0.0.1:0-10.0.2.15:22",
        "-device",
        "virtio-net-pci,netdev=net",
        "-device",
        "virtio-rng-pci",
        "-device",
        "virtio-serial-pci",
        "-chardev",
        "file,id=journal,path=journal.log",
        "-device",
        "virtconsole,chardev=journal",
    ];
    args.extend(others.map(Into::into));
    args.extend(["-qmp".into(), format!("unix:{},server=on,wait=off", monitor::SOCKET)]);
    if boot == Boot::Snapshot {
        args.extend(["-loadvm", "booted"].map(Into::into));
    }
    Program::new(QEMU, Path::new("nice"), args, &dir.join("qemu.log"))
}

async fn ssh_port(dir: &Path, qemu: &mut Process) -> Result<u16, VmError> {
    let ask = async || match monitor::human(dir, "info usernet").await {
        Ok(answer) => monitor::forwarded_port(&answer, 22).ok_or(answer),
        Err(error) => Err(error.to_string()),
    };
    tokio::select! {
        ended = qemu.ended() => Err(ended.into()),
        answer = observe_until(MONITOR_WITHIN, ask, Result::is_ok) => {
            answer.and_then(|port| port.map_err(Err)).map_err(|last| VmError::Late {
                what: "the machine's monitor".to_owned(),
                within: MONITOR_WITHIN,
                last: last.err().unwrap_or_default(),
                dir: dir.to_owned(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_of_sshd_is_a_boot() {
        let line = |text: &str| format!("[    1.886064] sshd[174]: {text}\n");
        let boot =
            line("Server listening on 0.0.0.0 port 22.") + &line("Server listening on :: port 22.");
        assert_eq!(boots_in(b""), 0);
        assert_eq!(boots_in(boot.as_bytes()), 1);
        assert_eq!(boots_in((boot.clone() + &line("Accepted publickey") + &boot).as_bytes()), 2);
    }
}
