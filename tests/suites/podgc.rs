//! Pods that no kubelet ends any more, on the real API: what ends them, what does not, and what the
//! reference makes of the same.

mod podgc {
    pub(super) mod doctor;
    pub(super) mod ended;
    pub(super) mod jobs;
    pub(super) mod load;
    pub(super) mod proofs;
    pub(super) mod reference;
    pub(super) mod shutdown;
    pub(super) mod stage;
}
