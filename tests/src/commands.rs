//! The sub commands, one file each: `Arguments` if it takes any, and `run`.

pub(crate) mod bench;
pub(crate) mod build;
pub(crate) mod demo;
pub(crate) mod docs;
pub(crate) mod down;
pub(crate) mod fuzz;
pub(crate) mod matrix;
pub(crate) mod node;
pub(crate) mod prepare;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod test;
pub(crate) mod up;
