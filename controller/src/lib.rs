//! Holds the controller's shells: they watch the API, write to it, and read the clocks. A library
//! so that tests start the whole controller on a model of the API; `main.rs` is the program.

mod admin_args;
pub mod args;
mod args_error;
mod dispatch;
mod election;
pub mod environment;
mod events;
mod execute;
mod informers;
mod metrics;
mod orphan_finalizers;
mod permits;
mod planner;
mod pod_pages;
mod podgc;
mod readiness;
pub mod run;
mod scheduling_api;
mod sync;
mod unreadable;
mod wake_ups;
mod workqueue;
