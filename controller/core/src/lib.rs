//! Decides what the controller does, from the state of Jobs, pods and nodes. Pure: no IO, no clock,
//! no logs.
//!
//! For Jobs, start at [`job::plan`]: it takes a [`job::SyncInput`] and returns a [`job::Plan`].
//! [`job::Progress`] turns the plan into one step at a time for the caller that talks to the API.

pub mod batching;
pub mod event_handlers;
pub mod event_series;
pub mod go_duration;
pub mod job;
pub mod managed_by;
pub mod orphans;
pub mod podgc;
pub mod replacements;
pub mod spelling;
pub mod state;
mod turns;
pub mod view;
pub mod workqueue;
