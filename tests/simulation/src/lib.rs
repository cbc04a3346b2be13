//! Simulates the controller and the agent by seeds: time, faults and the world around them.

pub mod agent;
pub mod controller;
pub mod small_scopes;
pub mod tally;
