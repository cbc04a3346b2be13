//! Decides what the controller does, from the state of Jobs, pods and nodes. Pure: no IO, no clock,
//! no logs.
//!
//! For Jobs, start at [`job::plan_pods`]: it takes a [`job::SyncInput`] and returns a
//! [`job::PodPlan`]; [`job::plan_status`] then decides what is written.
//! [`job::Progress`] hands out the calls of both plans, for the caller that talks to the API.

pub mod batching;
pub mod checks;
pub mod disruption_times;
pub mod event_handlers;
pub mod event_series;
pub mod go_duration;
pub mod index_set;
pub mod job;
pub mod job_pods;
pub mod managed_by;
pub mod orphans;
pub mod podgc;
pub mod quota_waits;
pub mod spelling;
pub mod state;
pub mod turns;
pub mod view;
pub mod workqueue;
