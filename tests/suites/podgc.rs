//! Pods that no kubelet ends any more, on the real API: what ends them, what does not, and what the
//! reference makes of the same.

mod doctor;
mod ended;
mod jobs;
mod load;
mod proofs;
mod reference;
mod shutdown;
mod stage;
