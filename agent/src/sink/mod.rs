//! Where actions are carried out. Each sink makes one attempt and tells how it went; whether to
//! try again is the core's to say.

pub mod api;
pub mod events;
pub mod journal;
mod layers;
pub mod logind;
pub mod measure;
