//! Tests every feature of batch/v1 Jobs on the real API, run by our controller with its own rights.
//! Each feature has one test, with a namespace and a controller of its own.

mod admission;
mod batching;
mod deletion;
mod disruptions;
mod documented;
mod ends;
mod examples;
mod failure_policy;
mod held;
mod indexed;
mod limits;
mod lost;
mod metrics;
mod news;
mod opt_in;
mod options;
mod ownership;
mod protobuf;
mod refusals;
mod replacement;
mod status;
mod suspension;
mod waits;
pub(crate) mod warnings;

use lab::bed::Bed;

/// For tests about what follows a failure, not about how long it takes.
const NO_BACKOFF: &str = "--default-job-pod-failure-backoff=10ms";

/// A bed whose controller verifies each plan and logs each refusal, also of its events.
async fn bed(arguments: &[&str]) -> Bed {
    let own = ["--check-plans", "--log-level=info,epilogue_controller::events=debug"];
    Bed::start("features", &[&own, arguments].concat()).await
}
