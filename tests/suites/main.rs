//! The suites of the laboratory, one module each. All but the last nine run on a real Kubernetes
//! API.

mod agent;
mod chart;
mod control_plane;
mod demo;
mod disruptors;
mod features;
mod hostile;
mod jobs;
mod kubelet;
mod leave;
mod model_api;
mod neighbours;
mod nodes;
mod outages;
mod permissions;
mod podgc;
mod recipes;
mod reference;

mod agent_simulation;
mod docs;
mod fuzz;
mod house_rules;
mod platforms;
mod release;
mod simulation;
mod small_scopes;
mod worlds;

/// A third of the time of small scopes goes to memory; with this allocator a fifth less in all.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
