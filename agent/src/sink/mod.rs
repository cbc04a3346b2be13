//! Carries out actions. Each sink makes one attempt and reports its result; the core decides
//! whether to retry.

pub mod api;
pub mod events;
pub mod journal;
mod layers;
pub mod logind;
pub mod measure;
