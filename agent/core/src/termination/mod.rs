//! Implements the one protocol that terminates a pod: the condition first, the phase last. A live
//! kubelet writes the phase itself. ([AP1])

pub mod attempt;
pub mod clock;
pub mod hanging;
pub mod patches;
pub mod progress;
pub mod stop_timeout;
