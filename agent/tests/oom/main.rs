//! Tests the sources of OOM kills, against a tree of cgroups in a directory, a pipe for the
//! kernel's log, and a double of systemd-oomd. They also run against this machine's kernel if it
//! allows that.

mod cgroups;
mod kernel;
#[path = "../check/kernel_here.rs"]
mod kernel_here;
mod log;
mod node;
mod oomd;
#[path = "../pressure/percentiles.rs"]
mod percentiles;
