//! Samples the node's pressure once, as the agent would, and tries what it would ask of the kernel.

use std::sync::Arc;

use agent_core::agent::{Enforcement, Features};
use agent_core::check::pressure::PressureFacts;
use agent_core::protocol::pressure::Sample;

use crate::clock::Clock;
use crate::cri::Runtime;
use crate::host::Host;
use crate::sink::measure::MeasureSink;
use crate::source::oom;
use crate::source::pressure::psi;

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
        triggers: psi::takes_triggers(host),
        kernel_log: oom::open_log(host).map(drop).map_err(|error| {
            let path = host.path(oom::LOG);
            format!("{}: {error}", path.display())
        }),
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
