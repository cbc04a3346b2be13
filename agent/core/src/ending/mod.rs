//! The one protocol that ends a pod: condition first, phase last, and the phase by the kubelet
//! whenever it lives. So far: the bodies of its patches. (spec/node-agent.md §9.1)

pub mod patches;
