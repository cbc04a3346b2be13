//! What the agent gets from outside: its clients, the bus, the runtime and the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use epilogue_runtime::client;
use jiff::Timestamp;
use kube::Client;

use crate::args::Config;
use crate::bus::BusAddress;
use crate::client::{LinkedClient, OnServerTime};
use crate::clock::Clock;
use crate::cri::Runtime;
use crate::host::Host;

/// The server's clock is cut to the second, so smaller differences mean nothing.
const OFFSET_MS_MIN: i64 = 1_000;

/// All that a run of the agent gets from outside besides its configuration.
pub struct Environment {
    /// The host's files.
    pub host: Host,
    /// Reads, and writes what no shutdown waits for.
    pub reads: Client,
    /// Writes what a shutdown waits for.
    pub writes: Client,
    /// The connections to keep open for these clients, by their names.
    pub links: Vec<(&'static str, LinkedClient)>,
    /// The file of the token for the kubelet, if there is one.
    pub token_file: Option<String>,
    /// The cluster's certificate authorities, in DER: they may have signed the kubelet's.
    pub authorities: Vec<Vec<u8>>,
    /// The system bus.
    pub bus: BusAddress,
    /// `None` if the agent may not use the runtime.
    pub runtime: Option<Runtime>,
    /// The clocks.
    pub clock: Clock,
}

impl Environment {
    /// What this process has. Sends nothing yet.
    pub(crate) async fn of_process(config: &Config) -> anyhow::Result<Self> {
        let offset = Arc::new(AtomicI64::new(0));
        let clock = Clock::new(Arc::clone(&offset));
        let api = client::config(&config.client).await?;
        let on_time: OnServerTime = Arc::new(move |time| correct(&offset, time));
        let authorities = client::authorities(&config.client)?;
        let reads = LinkedClient::new(&api, authorities.clone(), Arc::clone(&on_time))?;
        let writes = LinkedClient::new(&api, authorities, on_time)?;
        let host = Host::new(config.root.clone());
        let bus = host.bus_address();
        Ok(Self {
            host,
            reads: reads.client.clone(),
            writes: writes.client.clone(),
            links: vec![("reads", reads), ("writes", writes)],
            token_file: api.auth_info.token_file,
            authorities: api.root_cert.unwrap_or_default(),
            bus: bus.into(),
            runtime: config.runtime.clone().map(Runtime::new),
            clock,
        })
    }
}

/// Adopts the server's clock, which replies carry cut to the second.
fn correct(offset_ms: &AtomicI64, server: Timestamp) {
    let ahead = server.as_millisecond() + 500 - Timestamp::now().as_millisecond();
    if (ahead - offset_ms.load(Ordering::Relaxed)).abs() > OFFSET_MS_MIN {
        tracing::info!(ahead_ms = ahead, "the API server's clock differs, taking it over");
        offset_ms.store(ahead, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_server_s_clock_is_taken_over_only_where_it_differs() {
        let offset = AtomicI64::new(0);
        correct(&offset, Timestamp::now());
        assert_eq!(offset.load(Ordering::Relaxed), 0);
        let ahead = Timestamp::now() + Duration::from_mins(5);
        correct(&offset, ahead);
        let taken = offset.load(Ordering::Relaxed);
        assert!((299_000..=301_000).contains(&taken), "{taken}");
        correct(&offset, ahead);
        assert_eq!(offset.load(Ordering::Relaxed), taken);
    }
}
