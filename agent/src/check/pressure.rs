//! Samples the node's pressure once, as the agent would, and tries what it would ask of the kernel.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use agent_core::agent::{Enforcement, Features};
use agent_core::check::pressure::PressureFacts;
use agent_core::protocol::pressure::Sample;
use nix::fcntl::OFlag;

use crate::clock::Clock;
use crate::cri::Runtime;
use crate::host::Host;
use crate::sink::measure::MeasureSink;
use crate::source::pressure::psi;

/// The device with the kernel's log.
const KERNEL_LOG: &str = "/dev/kmsg";

/// What one sample finds; `None` if the agent samples nothing.
pub(super) async fn sample_once(
    host: &Host,
    kubelet_dir: &str,
    runtime: Runtime,
    features: &Features,
) -> Option<PressureFacts> {
    let wanted = features.pressure;
    let sample = match wanted {
        Enforcement::Off => Sample::default(),
        Enforcement::Observe | Enforcement::Enforce => sample(host, kubelet_dir, runtime).await,
    };
    Some(PressureFacts {
        wanted,
        thresholds: features.eviction.thresholds.clone(),
        sample,
        trigger: psi::takes_a_trigger(host),
        kernel_log: kernel_log(host),
        oom_causes: features.oom_causes,
    })
}

async fn sample(host: &Host, kubelet_dir: &str, runtime: Runtime) -> Sample {
    let clock = Clock::new(Arc::default());
    let sink = MeasureSink::new(host.clone(), kubelet_dir, clock, Some(runtime));
    match sink.node().await {
        Ok(sample) => *sample,
        Err(failure) => Sample { unreadable: vec![failure.to_string()], ..Sample::default() },
    }
}

/// Only opens it, because that is what the kernel may forbid; reads nothing.
fn kernel_log(host: &Host) -> Result<(), String> {
    let path = host.path(KERNEL_LOG);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    options.open(&path).map(drop).map_err(|error| format!("{}: {error}", path.display()))
}
