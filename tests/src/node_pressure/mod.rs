//! Plays a pod that takes more than the node has (memory, disk, processes), or more than its own
//! limit allows. Records what ends, how soon, and what the API and the Job then show: without our
//! agent and with it, many times on one machine.
//!
//! `kind` defines the resource and the thresholds, `pods` the pod that takes it and its neighbours,
//! `stage` is the machine, `samples` its own record, `run` plays it once, `report` prints it.
//! `stuck` is about pods that are deleted before they ran.

mod kind;
mod pods;
mod report;
mod run;
mod samples;
mod stage;
mod stuck;

pub use kind::{Kind, Setting};
pub use report::render;
pub use run::{JobEnd, PodEnd, Pressure, Run, play};
pub use stuck::{Hung, Stuck, play as play_stuck};

pub use crate::vm::agent::Install;
