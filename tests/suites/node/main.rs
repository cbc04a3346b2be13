//! Tier 4: tests a real node in a virtual machine, how it ends with our agent, and what pressure
//! does to its pods. The tests of a module share a machine and pass it on to each other; see
//! `stage`.
//!
//! Modules `upstream_…` test the behaviour of systemd, logind, containerd and the kubelet on which
//! the agent relies. They run when the components of the node change (`lab::vm::facts`), and by
//! `cargo lab test node --all`. Modules `rare_…` test our agent in rare ways to end; they run by
//! `--all`. tests/node/README.md lists the outcomes.

mod graceful_shutdown_off;
mod graceful_shutdown_on;
mod lab_processes;
mod pressure;
mod rare_controller_alone;
mod rare_daemon_set;
mod rare_kernel;
mod rare_kubelet;
mod rare_lab_start;
mod rare_notices;
mod rare_oom;
mod rare_pressure;
mod rare_released;
mod rare_released_host;
mod rare_shutdowns;
mod rare_stuck;
mod rare_waits;
mod rare_wrapped_kubelet;
mod shutdowns;
mod stage;
mod upstream_live_kubelet;
mod upstream_logind;
mod upstream_shutdown;
mod world;
