//! Tests an agent's rights on the real API, with the tokens of its installation: all that it does,
//! on its own node, and nothing else. ([API11])

mod allowed;
mod call;
mod check;
mod controller;
mod end_signal;
mod gang_scheduling;
mod observers;
mod others;
mod policies;
mod refused;
mod refused_outside;
mod scraping;
mod world;
