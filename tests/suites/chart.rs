//! Tests the Helm chart with Helm itself: equal to the kustomize overlays, each value does what it
//! says, and a release on a real API leaves nothing.

mod equality;
mod flags;
mod gitops;
mod helm;
mod hook;
mod installation;
mod leave;
mod monitoring;
mod names;
mod nodes;
mod notes;
mod opt_in;
mod pods;
mod release;
mod values;
