//! The laboratory as a library: the building blocks of the `lab` program and every tier-3 suite.
//!
//! [`ControlPlane`] starts a real Kubernetes API, [`Cluster`] gives clients for a running one,
//! [`Namespace`] gives a test its own namespace of it, [`eventually`] waits.

pub mod agent;
pub mod audit;
pub mod bed;
pub mod bench;
pub mod binary;
pub mod cache;
pub mod cargo;
pub mod cluster;
pub mod control_plane;
pub mod controller;
pub mod debian;
pub mod demo;
pub mod docs;
pub mod error;
pub mod eventually;
pub mod go_module;
pub mod install;
pub mod inventory;
pub mod kubeconfig;
pub mod kubernetes;
pub mod kustomize;
pub mod matrix;
pub mod namespace;
pub mod neighbour;
pub mod network;
pub mod node_pressure;
pub mod node_table;
pub mod nodes;
pub mod not_run;
pub mod paths;
pub mod pki;
pub mod process;
pub mod proxy;
pub mod run_dir;
pub mod seeds;
pub mod stopwatch;
pub mod tools;
pub mod vm;

pub use cluster::Cluster;
pub use control_plane::{ControlPlane, Name, Options};
pub use error::LabError;
pub use eventually::{eventually, observe_costly_until, observe_until};
pub use namespace::Namespace;
pub use process::Process;
