//! Tests pods that no kubelet terminates any more, on the real API: what terminates them, what does
//! not, and how upstream treats the same pods.

mod doctor;
mod ended;
mod jobs;
mod load;
mod proofs;
mod reference;
mod report;
mod shutdown;
mod stage;
