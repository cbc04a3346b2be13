//! Defines the messages between the core and its shells. `Event` is a past fact, `Action` an
//! imperative; the result of an action returns as an event.

pub mod action;
pub mod ending;
pub mod event;
pub mod journal;
pub mod node;
pub mod pressure;
