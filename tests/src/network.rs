//! Degrades the path between a program of ours and the API: slow, silent, cut (`Path`, below TLS),
//! or rate-limited (`Throttle`, which reads HTTP).

mod path;
mod throttle;

pub use path::{Path, PathState};
pub use throttle::Throttle;
