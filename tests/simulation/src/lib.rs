//! The controller and the agent, simulated by seeds: time, faults and the world around them.

pub mod agent;
pub mod controller;
