//! Tests the measurements of the node and its pods. They run against directories in place of the
//! host's files, a double of the container runtime, and this machine's own kernel.

mod disk;
mod kernel;
#[path = "../check/kernel_here.rs"]
mod kernel_here;
mod odd;
mod percentiles;
mod pods;
mod sampler;
mod stalls;
mod tree;
