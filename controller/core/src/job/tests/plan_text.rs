//! Tests the printed form of plans.

use super::builders::{api, job, pod};

#[test]
fn a_plan_is_one_line_that_says_what_and_why() {
    let job_and_pods = || job().size(2, 5);
    let running = vec![pod("a", "Running").ready(), pod("f", "Failed").ended(1, 4)];
    for (api, line) in [
        (
            api(job_and_pods(), vec![]),
            "ns/j: create 2; active 0 ready 0 terminating 0; newly succeeded 0 failed 0 ignored 0",
        ),
        (
            api(job_and_pods(), running),
            "ns/j: no change of pods; active 1 ready 1 terminating 0; newly succeeded 0 failed 1 \
             ignored 0; waits for 1 pod, active; waits for the backoff after 1 failure, 6s more; \
             again in 6s",
        ),
        (
            api(job().spec("backoffLimit", 0), vec![pod("f", "Failed")]),
            "ns/j: no change of pods; active 0 ready 0 terminating 0; newly succeeded 0 failed 1 \
             ignored 0; ends: Failed BackoffLimitExceeded; waits for its last pods, to become \
             Failed",
        ),
        (
            api(job().spec("managedBy", "example.com/other"), vec![]),
            "ns/j: nothing to do: spec.managedBy names another controller",
        ),
    ] {
        assert_eq!(api.plan().to_string(), line);
    }
}
