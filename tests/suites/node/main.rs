//! Tier 4: a real node, in a virtual machine. What systemd, logind, containerd and the kubelet do when
//! a node ends is what the agent's design rests on; what they do with the agent beside is in `agent`.
//! The outcomes are listed in tests/node/README.md.

mod agent;
mod external_failed;
mod kernel;
mod levers;
mod live_kubelet;
mod logind;
mod machine;
mod pressure;
mod shutdown;
mod world;
