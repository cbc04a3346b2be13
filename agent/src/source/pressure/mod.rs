//! What is measured of the node and of its pods, from files of the host. Each part reads and says
//! what it could not read; what follows is the core's to say.

mod disk;
mod filesystems;
mod memory;
pub mod psi;
mod sampler;
mod walk;

pub(crate) use self::disk::is_name;
pub use self::disk::{ContainerLayer, DiskMeter};
pub use self::filesystems::{DiskSample, DiskSampler, FilesystemPaths};
pub use self::memory::{MemoryUse, memory_of_pods, tasks_of_pods};
pub use self::sampler::Sampler;

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use agent_core::pressure::observe::{self, Psi};

/// The kubelet's directory unless it is told another; the node's file system is that of it.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Where the kubelet keeps the logs of containers.
pub const LOGS_DIR: &str = "/var/log/pods";
/// No file of the kernel that is read here comes near it.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// A pressure file is some 150 bytes.
const PRESSURE_BYTES_MAX: usize = 512;

/// A file of the kernel, at most so much of it as any has.
fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4 << 10);
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// A pressure file that is open.
fn psi_of(file: &File) -> io::Result<Psi> {
    let mut bytes = [0; PRESSURE_BYTES_MAX];
    let read = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..read]);
    observe::psi(&text).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A file that cannot be read, in a phrase.
fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
