//! What every machine starts from, made once and kept under `target/lab/images`: the system's
//! image, the disk of tools, and the snapshot of a machine that has booted.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::accelerator::Accelerator;
use super::disk;
use super::error::VmError;
use super::machine::{self, Boot, Machine};
use crate::binary;
use crate::error::LabError;
use crate::paths::{LabDir, workspace_root};
use crate::process::Program;
use crate::tools;

/// The name of the one container image; its commands: tests/node/container/main.go.
pub const CONTAINER_IMAGE: &str = "lab.local/container:1";

/// Room for file system structures beside the content.
const DISK_SLACK_BYTES: u64 = 24 << 20;

/// Everything that a machine starts from.
#[derive(Clone, Debug)]
pub struct Kit {
    /// The directory of the image: vmlinuz, initrd.img, root.ext4, and the key `id`.
    pub(super) image: PathBuf,
    /// The disk that has kubelet and the container image.
    pub(super) tools: PathBuf,
    /// The disk with the snapshot `booted`, once there.
    pub(super) booted: PathBuf,
    /// How QEMU runs it.
    pub(super) accelerator: Accelerator,
}

impl Kit {
    /// Makes what is missing: all of it takes 1 to 3 minutes, nothing when nothing changed.
    /// Needs root; installs QEMU and the like where it can.
    pub async fn ensure(labs: &LabDir) -> Result<Self, VmError> {
        tools::ensure_for_nodes().await?;
        if !nix::unistd::geteuid().is_root() {
            return Err(VmError::NotRoot);
        }
        binary::ensure(labs).await?;
        let images = labs.images();
        std::fs::create_dir_all(&images).map_err(LabError::file("create", &images))?;
        let lock_path = images.join("lock");
        let lock = File::create(&lock_path).map_err(LabError::file("open", &lock_path))?;
        // Two labs that start at once make it once.
        lock.lock().map_err(LabError::file("lock", &lock_path))?;
        let image = ensure_image(&images).await?;
        let tools = ensure_tools(labs, &images).await?;
        let accelerator = Accelerator::of_this_machine();
        let mut kit = Self { image, tools, booted: PathBuf::new(), accelerator };
        kit.booted = images.join(format!("booted-{}.qcow2", snapshot_key(&kit).await?));
        if !kit.booted.exists() {
            kit.make_snapshot(&images).await?;
        }
        Ok(kit)
    }

    /// The private key of the machine's root.
    pub(super) fn key(&self) -> PathBuf {
        self.image.join("id")
    }

    /// The root of the image, for a container: a file system in a file.
    pub fn root(&self) -> PathBuf {
        self.image.join("root.ext4")
    }

    async fn make_snapshot(&self, images: &Path) -> Result<(), VmError> {
        eprintln!("booting the node's machine for its snapshot ({:?}) …", self.accelerator);
        let dir = images.join("snapshot");
        let empty = images.join("empty");
        std::fs::create_dir_all(&empty).map_err(LabError::file("create", &empty))?;
        let machine = Machine::start(self, &dir, Boot::Cold, &empty).await?;
        machine.shell().run("systemctl is-system-running --wait").await?;
        let import = format!(
            "ctr -n k8s.io images import /opt/tools/container.tar && \
             ctr -n k8s.io images label {CONTAINER_IMAGE} io.cri-containerd.pinned=pinned && sync"
        );
        machine.shell().run(&import).await?;
        let disk = machine.into_snapshot("booted").await?;
        remove_others(images, "booted-");
        std::fs::rename(&disk, &self.booted).map_err(LabError::file("write", &self.booted))?;
        std::fs::remove_dir_all(&dir).map_err(LabError::file("remove", dir))?;
        Ok(())
    }
}

async fn ensure_image(images: &Path) -> Result<PathBuf, VmError> {
    let recipe = workspace_root().join("tests/node/image");
    let image = images.join(format!("image-{}", disk::hash_of(&recipe, "")?));
    if image.exists() {
        return Ok(image);
    }
    eprintln!("making the node's image (about a minute) …");
    let new = images.join("image.new");
    if new.exists() {
        std::fs::remove_dir_all(&new).map_err(LabError::file("remove", &new))?;
    }
    // In namespaces of its own nothing of it, process or mount, outlives the laboratory.
    let mut arguments: Vec<OsString> =
        ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"].map(Into::into).into();
    arguments.extend([recipe.join("make").into(), new.clone().into()]);
    disk::run("unshare", arguments, &images.join("image.log")).await?;
    remove_others(images, "image-");
    std::fs::rename(&new, &image).map_err(LabError::file("write", &image))?;
    Ok(image)
}

async fn ensure_tools(labs: &LabDir, images: &Path) -> Result<PathBuf, VmError> {
    let sources = workspace_root().join("tests/node/container");
    let stamp = labs.bin().join("control-plane.stamp");
    let control_plane = std::fs::read_to_string(&stamp).map_err(LabError::file("read", stamp))?;
    let hash = disk::hash_of(&sources, &control_plane)?;
    let tools = images.join(format!("tools-{hash}.ext4"));
    if tools.exists() {
        return Ok(tools);
    }
    let (content, log) = (images.join("tools"), images.join("tools.log"));
    std::fs::create_dir_all(&content).map_err(LabError::file("create", &content))?;
    let container = content.join("container");
    let arguments: Vec<OsString> = vec![
        "-C".into(),
        sources.into(),
        "build".into(),
        "-trimpath".into(),
        "-ldflags=-s -w".into(),
        "-o".into(),
        container.clone().into(),
        ".".into(),
    ];
    let go = Program::new("go", Path::new("go"), arguments, &log).env("CGO_ENABLED", "0");
    disk::run_program(&go).await?;
    let archive = content.join("container.tar");
    let pack = ["image".into(), archive.into_os_string(), CONTAINER_IMAGE.into()];
    disk::run(&container.display().to_string(), pack, &log).await?;
    let kubelet = content.join("control-plane");
    std::fs::copy(labs.control_plane_binary(), &kubelet)
        .map_err(LabError::file("write", &kubelet))?;
    let bytes = disk::bytes_below(&content)?;
    let size = (bytes + bytes / 10 + DISK_SLACK_BYTES).next_multiple_of(1 << 20);
    let new = images.join("new-tools.ext4");
    disk::of_directory(&new, "tools", &content, size, &log).await?;
    remove_others(images, "tools-");
    std::fs::rename(&new, &tools).map_err(LabError::file("write", &tools))?;
    std::fs::remove_dir_all(&content).map_err(LabError::file("remove", content))?;
    Ok(tools)
}

/// Removes what was made before of the same kind: half a gigabyte each. A machine that runs from
/// it has it open and is not disturbed.
fn remove_others(images: &Path, prefix: &str) {
    let entries = std::fs::read_dir(images).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let path = entry.path();
        // What cannot be removed now is tried again the next time.
        let _ =
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    }
}

/// A snapshot fits the disks, the devices and the QEMU that it was made with.
async fn snapshot_key(kit: &Kit) -> Result<String, VmError> {
    let output = Command::new(machine::QEMU)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|source| LabError::Spawn { program: machine::QEMU.into(), source })?;
    let mut hasher = DefaultHasher::new();
    String::from_utf8_lossy(&output.stdout).hash(&mut hasher);
    (machine::qemu(kit, Path::new(""), Boot::Cold).args, machine::RUN_DISK_BYTES).hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}
