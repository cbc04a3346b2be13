//! Reports OOM kills by the kernel: the victim, what was short, and what happened to the container.
//! It has two witnesses, each sufficient alone: the kernel's log, if it is readable, and the
//! counters of the cgroups.
//!
//! The log names the process, and the cgroup that was at its limit. It needs `/dev/kmsg`: root or
//! CAP_SYSLOG, and a device that the agent's pod may open. The counters, `memory.events`, identify
//! the container, by its `oom` that grew with its `oom_kill`. They need cgroup v2.

mod counters;
mod fate;
mod kmsg;
mod memory_events;
mod record;
mod tree;
mod watches;

use std::future::pending;

use agent_core::protocol::event::Event;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::host::Host;

pub use kmsg::{LOG, open_log};
pub use record::{Constraint, Record, kills};

/// Reports kills. Does not end, even without a witness.
pub async fn run(host: Host, clock: Clock, events: mpsc::Sender<Event>) {
    tokio::join!(
        kmsg::run(&host, &clock, &events),
        memory_events::MemoryEvents::new(&host, &clock, &events).run(),
        pending::<()>(),
    );
}
