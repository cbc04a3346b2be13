//! Brings facts in. Each source asks and reports, until its task is stopped; the core decides what
//! the facts mean.

use std::future::pending;

use agent_core::protocol::event::Event;
use tokio::sync::mpsc;

pub mod kubelet;
mod kubelet_config;
mod kubelet_http;
mod kubelet_tls;
pub mod lease;
mod listeners;
pub mod logind;
pub mod logind_conf;
pub mod logind_session;
mod logind_signs;
pub mod node;
pub mod notices;
pub mod oom;
pub mod oomd;
pub mod pods;
pub mod policies;
pub mod pressure;
pub mod session;
pub mod stop;
pub mod systemd;
pub mod watch;
mod wire_asks;
pub(crate) mod wire_pod;

/// Passes a fact to the core. Without a core it waits for the end of its task, which is stopped
/// with all others.
async fn tell(events: &mpsc::Sender<Event>, event: Event) {
    if events.send(event).await.is_err() {
        pending::<()>().await;
    }
}
