//! Finds out what is stopped when the agent receives SIGTERM: the agent alone, or the system.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::systemd::Systemd;
use crate::bus::{Bus, BusAddress};
use crate::host::Host;

/// How long systemd may take to say whether it stops the system: it has much to do then. An update
/// waits as long at most, and only where systemd does not answer.
const ASKED_MAX: Duration = Duration::from_secs(5);
/// The last program of PID 1, which kills what still runs; the kernel shows 15 bytes of its name.
const LAST_PROGRAM: &str = "systemd-shutdow";

/// What is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// The agent alone, as for an update.
    Agent,
    /// The system.
    System,
}

/// Waits for the request to stop, and says what is stopped.
pub async fn requested(stop: CancellationToken, bus: BusAddress, host: Host) -> Stopping {
    stop.cancelled().await;
    what_stops(&bus, &host).await
}

/// What is stopped now. As far as systemd does not say, the agent alone. ([LD14])
pub async fn what_stops(bus: &BusAddress, host: &Host) -> Stopping {
    // `systemctl --force reboot` stops no unit. There is no systemd to ask any more. ([LD15])
    if host.process_name(1).as_deref() == Some(LAST_PROGRAM) {
        return Stopping::System;
    }
    let asking = async {
        let bus = Bus::connect(bus).await?;
        Systemd::on(&bus).stops().await
    };
    match timeout(ASKED_MAX, asking).await {
        Ok(Ok(true)) => Stopping::System,
        Ok(Ok(false)) => Stopping::Agent,
        Ok(Err(error)) => {
            let error = error.message;
            tracing::info!(error, "systemd does not say whether it stops the system");
            Stopping::Agent
        }
        Err(_) => {
            tracing::info!("systemd does not say in time whether it stops the system");
            Stopping::Agent
        }
    }
}
