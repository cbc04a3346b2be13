//! Provides what both programs need around their cores: error mapping, the API client, telemetry,
//! the admin server, signals, task groups, leader election and watches.

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
pub mod traces;
pub mod watch;
