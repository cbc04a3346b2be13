//! Brings facts in. Each source asks and reports; the core decides what the facts mean.

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
pub mod oom;
pub mod oomd;
pub mod pods;
pub mod policies;
pub mod pressure;
pub mod session;
pub mod systemd;
pub mod watch;
mod wire_asks;
pub(crate) mod wire_pod;
