//! What the core and its shells say to each other: past facts in (`Event`), imperatives out
//! (`Action`), each action's result back as one more event.

pub mod action;
pub mod event;
pub mod journal;
pub mod node;
pub mod pressure;
