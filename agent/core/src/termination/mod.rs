//! The one protocol that ends a pod: condition first, phase last, and the phase by the kubelet
//! whenever it lives. ([AP1])

pub mod attempt;
pub mod clock;
pub mod hanging;
pub mod patches;
pub mod progress;
pub mod stop_timeout;
