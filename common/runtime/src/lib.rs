//! Provides what both programs need around their cores: error mapping, the API client, telemetry,
//! the admin server, signals, task groups, leader election and watches. What only Linux has is left
//! out elsewhere: the command line builds there too.

pub mod admin;
pub mod api_error;
mod authorities;
pub mod client;
pub mod clock;
pub mod health;
pub mod lease;
#[cfg(target_os = "linux")]
pub mod process;
pub mod rate_limit;
pub mod reply;
#[cfg(unix)]
pub mod signals;
pub mod tasks;
pub mod telemetry;
pub mod token_file;
pub mod watch;
