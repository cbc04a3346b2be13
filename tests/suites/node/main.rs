//! Tier 4: a real node, in a virtual machine, without our agent. What systemd, logind, containerd
//! and the kubelet do when a node ends is what the agent's design rests on; the outcomes are
//! listed in tests/node/README.md.

mod agent;
mod external_failed;
mod levers;
mod logind;
mod machine;
mod shutdown;
mod world;
