//! Keeps the program in memory. When there is none the kernel takes back programs' pages first, and
//! whoever is to relieve the node would wait for the disk at each step, together with everybody.

use agent_core::agent::Enforcement;
use nix::libc::MCL_ONFAULT;
use nix::sys::mman::{MlockAllFlags, mlockall};

/// Locks what is mapped now, page by page as it is first used: half of the program never is. What
/// is mapped later is heap, which stays where there is no swap; locking that too would make an
/// allocation fail at the limit of locked memory (`RLIMIT_MEMLOCK`).
pub(crate) fn keep(pressure: Enforcement) {
    if pressure == Enforcement::Off {
        return;
    }
    let on_fault = MlockAllFlags::from_bits_retain(MCL_ONFAULT);
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | on_fault) {
        let remedy = "it needs CAP_IPC_LOCK";
        tracing::info!(%error, remedy, "the program cannot be kept in memory; goes on without");
    }
}
