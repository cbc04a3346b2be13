//! The sources of OOM kills, against a tree of cgroups in a directory, a pipe for the
//! kernel's log, a double of systemd-oomd, and the kernel of this machine as far as it lets.

#[path = "../check/bus.rs"]
mod bus;
mod cgroups;
mod kernel;
#[path = "../check/kernel_here.rs"]
mod kernel_here;
mod log;
mod node;
mod oomd;
