//! Tier 4: a real node, in a virtual machine: how it ends with our agent on it, and what pressure
//! makes of its pods. The tests of a module share a machine and leave it to each other; see `stage`.
//!
//! Modules `upstream_…` say what systemd, logind, containerd and the kubelet do by themselves, on
//! which the agent relies: they run when what the node is made of changes
//! (`lab::vm::facts`), and by `cargo lab test node --all`. Modules `rare_…` are of our agent, in
//! ways to end that are rare: they run by `--all`. tests/node/README.md lists the outcomes.

mod graceful_shutdown_off;
mod graceful_shutdown_on;
mod lab_processes;
mod pressure;
mod rare_daemon_set;
mod rare_kernel;
mod rare_shutdowns;
mod rare_stuck;
mod shutdowns;
mod stage;
mod upstream_live_kubelet;
mod upstream_logind;
mod upstream_shutdown;
mod world;
