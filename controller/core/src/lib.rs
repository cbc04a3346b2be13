//! What to do for a Job, decided from its state. Pure: no IO, no clock, no logs.
//!
//! The way in is [`job::plan`]: it takes a [`job::SyncInput`] and gives a [`job::Plan`], which
//! [`job::Progress`] turns into one step at a time for whoever talks to the API.

pub mod batching;
pub mod disruption;
pub mod doctor;
pub mod event_handlers;
pub mod event_series;
pub mod go_duration;
pub mod job;
pub mod orphans;
pub mod podgc;
mod turns;
pub mod view;
pub mod workqueue;
