//! Doubles of what an agent finds on its node: a message bus, logind, systemd and a container
//! runtime. They behave as the originals do, as far as the agent sees of them, and have scripted
//! faults. A double that meets what it does not expect panics: it is a test's.

pub mod bus;
pub mod cri;
pub mod csi_driver;
pub mod device_plugin;
pub mod http;
pub mod kubelet;
pub mod login1;
pub mod pod_runtime;
pub mod systemd1;

use std::time::Duration;

/// How long a test waits for a double: longer than any delay that logind grants in a test.
const WITHIN: Duration = Duration::from_mins(3);
