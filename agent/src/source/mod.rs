//! Where facts come from. Each source asks and reports; what it means is the core's to say.

pub mod logind;
pub mod node;
pub mod pods;
pub mod watch;
pub(crate) mod wire_pod;
