//! Tests the agent with scripts: events at given times, and the actions that follow.

mod abandoned;
mod cancels;
mod chaos;
mod driver;
mod early_words;
mod evictions;
mod faults;
mod found;
mod invalid;
mod kubelets;
mod left;
mod modes;
mod node_conditions;
mod notices;
mod oom;
mod pressure;
mod pressure_chaos;
mod refusals;
mod remembered;
mod restarts;
mod scarcity;
mod silence;
mod standing;
mod stuck;
mod unannounced;
mod volumes;
