//! Runs a real node: systemd, logind, containerd and kubelet in a virtual machine of QEMU, or
//! logind alone in a container. Only a real node can show how a node ends.
//!
//! [`Kit`] has the cached parts, [`Machine`] is a running machine, [`Node`] one that joined a
//! control plane, [`Watcher`] keeps the API's states of its pods over time.

pub mod accelerator;
pub mod agent;
mod disk;
pub mod error;
pub mod facts;
pub mod kit;
pub mod kubelet;
pub mod logind;
pub mod machine;
pub mod monitor;
pub mod node;
pub mod pod;
pub mod programs;
pub mod record;
pub mod release;
pub mod scene;
pub mod shell;
pub mod start_request;
pub mod system;
pub mod watcher;
mod writers;

pub use error::VmError;
pub use kit::Kit;
pub use kubelet::KubeletConfig;
pub use logind::Logind;
pub use machine::{Boot, Machine};
pub use node::Node;
pub use pod::TestPod;
pub use scene::{Scene, Setting};
pub use system::{Platform, System};
pub use watcher::{Seen, Watcher};
