//! The way between a program of ours and the API, made worse: slow, silent, cut (`Path`, below
//! TLS), or sparing with requests (`Throttle`, which reads HTTP).

mod path;
mod throttle;

pub use path::{Path, Weather};
pub use throttle::Throttle;
