//! Makes what every machine starts from, once for all checkouts, and keeps it in their cache. It is
//! the system's image, the disk of tools, and the snapshot of a booted machine.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;

use super::accelerator::Accelerator;
use super::disk;
use super::error::VmError;
use super::facts;
use super::machine::{self, Boot, Machine};
use super::system::Platform;
use crate::binary;
use crate::cache::{self, Lease};
use crate::debian;
use crate::error::LabError;
use crate::go_module;
use crate::paths::{LabDir, workspace_root};
use crate::process::Program;
use crate::tools;

/// The name of the only container image; its commands: tests/node/container/main.go.
pub const CONTAINER_IMAGE: &str = "lab.local/container:1";

/// The program on the tools' disk that contains the kubelet, and the arguments to call it.
const KUBELET_PROGRAM: &str = "upstream-kubelet";
const KUBELET_ARGUMENTS: &str = "kubelet";

/// The module of containerd and runc where they are not Debian's, and its programs: which has C.
const RUNTIME_MODULE: &str = "node/runtime";
const RUNTIME_PROGRAMS: [(&str, &str, bool); 3] = [
    ("containerd", "github.com/containerd/containerd/v2/cmd/containerd", false),
    (
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        false,
    ),
    ("runc", "github.com/opencontainers/runc", true),
];

/// The modules by the names of Debian's packages.
const RUNTIME_MODULES: [(&str, &str); 2] = [
    ("containerd", "github.com/containerd/containerd/v2"),
    ("runc", "github.com/opencontainers/runc"),
];

/// Room for file system structures in addition to the content.
const DISK_SLACK_BYTES: u64 = 24 << 20;

/// Everything that a machine starts from. Its files stay while it or a clone of it lives.
#[derive(Clone, Debug)]
pub struct Kit {
    /// What the machine runs.
    pub platform: Platform,
    /// The directory of the image: vmlinuz, initrd.img, root.ext4, packages, and the key `id`.
    image: Arc<Lease>,
    /// The disk with the kubelet and the container image.
    tools: Arc<Lease>,
    /// The disk with the snapshot `booted`, once it exists.
    booted: Option<Arc<Lease>>,
    /// How QEMU runs it.
    pub(super) accelerator: Accelerator,
}

impl Kit {
    /// The kit of the suites: [`Kit::of`] the default platform.
    pub async fn ensure(labs: &LabDir) -> Result<Self, VmError> {
        Self::of(labs, Platform::DEFAULT).await
    }

    /// Makes what is missing. All of it takes 1 to 3 minutes; nothing if nothing changed. Needs
    /// root; installs QEMU and the like if possible.
    pub async fn of(labs: &LabDir, platform: Platform) -> Result<Self, VmError> {
        tools::ensure_for_nodes().await?;
        if !nix::unistd::geteuid().is_root() {
            return Err(VmError::NotRoot);
        }
        let images = labs.images();
        let image = Arc::new(ensure_image(&images, platform).await?);
        let tools = Arc::new(ensure_tools(labs, &images, platform).await?);
        let accelerator = Accelerator::of_this_machine();
        let mut kit = Self { platform, image, tools, booted: None, accelerator };
        let key = snapshot_key(&kit).await?;
        let make = async |path: &Path| kit.make_snapshot(path).await;
        let kind = platform.kind("booted", true, true);
        let booted = cache::ensure(&images, &kind, &key, make).await?;
        kit.booted = Some(Arc::new(booted));
        Ok(kit)
    }

    /// A file of the image.
    pub(super) fn image(&self, name: &str) -> PathBuf {
        self.image.path().join(name)
    }

    /// The disk of tools.
    pub(super) fn tools(&self) -> &Path {
        self.tools.path()
    }

    /// The disk of a booted machine, once it exists.
    pub(super) fn booted(&self) -> Option<&Path> {
        self.booted.as_deref().map(Lease::path)
    }

    /// The private key of the machine's root.
    pub(super) fn key(&self) -> PathBuf {
        self.image("id")
    }

    /// The root of the image, for a container: a file system in a file.
    pub fn root(&self) -> PathBuf {
        self.image("root.ext4")
    }

    /// Names and versions of the image's packages, which the tests of upstream's behaviour depend
    /// on.
    pub fn packages(&self) -> Result<Vec<(String, String)>, LabError> {
        let path = self.image("packages");
        let text = std::fs::read_to_string(&path).map_err(LabError::file("read", path))?;
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let mut pairs: Vec<_> =
            pairs.map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
        if self.platform.system.has_own_runtime() {
            let path = runtime_module().join("go.mod");
            let text = std::fs::read_to_string(&path).map_err(LabError::file("read", path))?;
            for (name, version) in &mut pairs {
                let module = RUNTIME_MODULES.iter().find(|(of, _)| of == name);
                let own = module.and_then(|(_, module)| facts::version_in(&text, module));
                *version = own.unwrap_or_else(|| version.clone());
            }
        }
        Ok(pairs)
    }

    /// Boots a machine with its files next to `path`, and leaves its disk at `path`.
    async fn make_snapshot(&self, path: &Path) -> Result<(), VmError> {
        eprintln!("booting the node's machine for its snapshot ({:?}) …", self.accelerator);
        let dir = path.with_extension("machine");
        let payload = dir.join("payload");
        std::fs::create_dir_all(&payload).map_err(LabError::file("create", &payload))?;
        let machine = Machine::start(self, &dir, Boot::Cold, &payload).await?;
        machine.shell().run("systemctl is-system-running --wait").await?;
        let import = format!(
            "ctr -n k8s.io images import /opt/tools/container.tar && \
             ctr -n k8s.io images label {CONTAINER_IMAGE} io.cri-containerd.pinned=pinned && sync"
        );
        machine.shell().run(&import).await?;
        let disk = machine.into_snapshot("booted").await?;
        std::fs::rename(&disk, path).map_err(LabError::file("write", path))?;
        std::fs::remove_dir_all(&dir).map_err(LabError::file("remove", dir))?;
        Ok(())
    }
}

async fn ensure_image(images: &Path, platform: Platform) -> Result<Lease, VmError> {
    let (recipe, system) = (recipe(), platform.system);
    let make = async |path: &Path| {
        eprintln!("making the node's image, {system} (about a minute) …");
        // In namespaces of its own no process or mount of it outlives the laboratory.
        let mut arguments: Vec<OsString> =
            ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"].map(Into::into).into();
        arguments.extend([recipe.join("make").into(), path.into(), system.suite().into()]);
        arguments.extend(system.has_own_runtime().then(|| "own-runtime".into()));
        disk::run("unshare", arguments, &images.join("image.log")).await
    };
    let kind = platform.kind("image", true, false);
    cache::ensure(images, &kind, &disk::hash_of(&recipe, "")?, make).await
}

/// The directory of the image's recipe.
pub(super) fn recipe() -> PathBuf {
    workspace_root().join("tests/node/image")
}

/// The directory of the container's program.
pub(super) fn container() -> PathBuf {
    workspace_root().join("tests/node/container")
}

async fn ensure_tools(labs: &LabDir, images: &Path, platform: Platform) -> Result<Lease, VmError> {
    let kubelet = binary::kubelet(labs, platform.kubernetes).await?;
    let has_own_runtime = platform.system.has_own_runtime();
    let runtime = if has_own_runtime { runtime(labs).await? } else { Vec::new() };
    let mut call = format!("{KUBELET_PROGRAM} {KUBELET_ARGUMENTS}\n{}", kubelet.stamp);
    if has_own_runtime {
        let _ = write!(call, "\n{} seccomp", disk::hash_of(&runtime_module(), "")?);
    }
    let key = disk::hash_of(&container(), &call)?;
    let make = async |path: &Path| make_tools(&kubelet.path, &runtime, path).await;
    cache::ensure(images, &platform.kind("tools", has_own_runtime, true), &key, make).await
}

fn runtime_module() -> PathBuf {
    workspace_root().join("tests").join(RUNTIME_MODULE)
}

/// containerd and runc from their modules. runc has seccomp, as containerd's default profile needs.
async fn runtime(labs: &LabDir) -> Result<Vec<PathBuf>, VmError> {
    tools::ensure_for_runtime().await?;
    debian::ensure(debian::LIBSECCOMP, &labs.libseccomp()).await?;
    let root = labs.libseccomp();
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let include = format!("-I{}", root.join("usr/include").display());
    let link = format!("-L{}", libraries.display());
    let pkg_config = libraries.join("pkgconfig").display().to_string();
    let seccomp = [
        ("GOFLAGS", "-tags=seccomp"),
        ("CGO_CFLAGS", &include),
        ("CGO_LDFLAGS", &link),
        ("PKG_CONFIG_PATH", &pkg_config),
    ];
    let mut built = Vec::new();
    for (name, package, has_c) in RUNTIME_PROGRAMS {
        eprintln!("building {name} (minutes the first time) …");
        built.push(if has_c {
            go_module::program_with_c(RUNTIME_MODULE, package, name, &seccomp).await?
        } else {
            go_module::program_as(RUNTIME_MODULE, package, name).await?
        });
    }
    Ok(built)
}

async fn make_tools(kubelet: &Path, runtime: &[PathBuf], disk: &Path) -> Result<(), VmError> {
    let (content, log) = (disk.with_extension("content"), disk.with_extension("log"));
    std::fs::create_dir_all(&content).map_err(LabError::file("create", &content))?;
    let program = content.join("container");
    let mut arguments: Vec<OsString> = vec!["-C".into(), container().into(), "build".into()];
    arguments.extend(["-trimpath", "-ldflags=-s -w", "-o"].map(Into::into));
    arguments.extend([program.clone().into(), ".".into()]);
    let go = Program::new("go", Path::new("go"), arguments, &log).env("CGO_ENABLED", "0");
    disk::run_program(&go).await?;
    let archive = content.join("container.tar");
    let pack = ["image".into(), archive.into_os_string(), CONTAINER_IMAGE.into()];
    disk::run(&program.display().to_string(), pack, &log).await?;
    let there = content.join(KUBELET_PROGRAM);
    std::fs::copy(kubelet, &there).map_err(LabError::file("write", there))?;
    write_kubelet_script(&content.join("kubelet"))?;
    for program in runtime {
        let there = content.join(program.file_name().unwrap_or_default());
        std::fs::copy(program, &there).map_err(LabError::file("write", there))?;
    }
    let bytes = disk::bytes_below(&content)?;
    let size = (bytes + bytes / 10 + DISK_SLACK_BYTES).next_multiple_of(1 << 20);
    disk::of_directory(disk, "tools", &content, size, &log).await?;
    std::fs::remove_dir_all(&content).map_err(LabError::file("remove", content))?;
    std::fs::remove_file(&log).map_err(LabError::file("remove", log))?;
    Ok(())
}

/// The unit calls `/opt/tools/kubelet`, whichever program contains it.
fn write_kubelet_script(path: &Path) -> Result<(), LabError> {
    use std::os::unix::fs::PermissionsExt as _;
    let script =
        format!("#!/bin/sh\nexec /opt/tools/{KUBELET_PROGRAM} {KUBELET_ARGUMENTS} \"$@\"\n");
    std::fs::write(path, script).map_err(LabError::file("write", path))?;
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, executable).map_err(LabError::file("write", path))
}

/// A snapshot fits the disks, the devices, the processor and the QEMU that it was made with.
async fn snapshot_key(kit: &Kit) -> Result<String, VmError> {
    let output = Command::new(machine::QEMU)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|source| LabError::Spawn { program: machine::QEMU.into(), source })?;
    let mut key = String::from_utf8_lossy(&output.stdout).into_owned();
    // Paths of image and tools are among the arguments, and contain their hashes.
    let arguments = machine::qemu(kit, Path::new(""), Boot::Cold).args;
    let _ = write!(key, "{arguments:?} {}", machine::RUN_DISK_BYTES);
    key.push_str(&kit.accelerator.processor());
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}
