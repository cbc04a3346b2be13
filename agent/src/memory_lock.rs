//! Keeps the program in memory. When memory is short, the kernel first reclaims programs' pages. An
//! agent that must relieve the node would then wait for the disk at each step.

use agent_core::agent::Enforcement;
use nix::libc::MCL_ONFAULT;
use nix::sys::mman::{MlockAllFlags, mlockall};

/// Locks what is mapped now, page by page on first use: half of the program is never used. Later
/// mappings are heap, which stays in memory where there is no swap. Locking them too would make
/// allocations fail at the limit of locked memory (`RLIMIT_MEMLOCK`).
pub(crate) fn keep(pressure: Enforcement) {
    if pressure == Enforcement::Off {
        return;
    }
    let on_fault = MlockAllFlags::from_bits_retain(MCL_ONFAULT);
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | on_fault) {
        let remedy = "it needs CAP_IPC_LOCK";
        tracing::info!(%error, remedy, "cannot lock the program in memory; continues without");
    }
}
