//! What both programs need around their core, and nothing of their work: errors to outcomes, the
//! API client, telemetry, the admin server, signals, joined tasks, the leader's lease, watches.

pub mod admin;
pub mod api_error;
pub mod client;
pub mod health;
pub mod lease;
pub mod process;
pub mod rate_limit;
pub mod reply;
pub mod signals;
pub mod tasks;
pub mod telemetry;
pub mod watch;
