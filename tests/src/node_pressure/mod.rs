//! A pod takes what the node has not: memory, disk, processes; or more than its own limit allows.
//! What ends, how soon, and what the API and the Job then say of it: without our agent and with it,
//! many times on one machine.
//!
//! `kind` says what is taken and at which thresholds, `pods` takes it and what runs beside, `stage`
//! is the machine, `samples` what it recorded of itself, `run` plays it once, `report` prints it.
//! `stuck` is about pods that were deleted before they ran.

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
