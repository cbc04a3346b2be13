//! Tests what the controller's lease says of its Jobs.

use super::*;

#[test]
fn the_lease_says_whose_jobs_need_the_leader() {
    let lease = |annotations: Value, second| {
        let mut lease = lease("epilogue-system", "epilogue-controller", "c_1", second);
        lease["metadata"]["annotations"] = annotations;
        lease
    };
    let all = || json!({"epilogue.dev/manage-all-jobs": "true"});
    let running = json!({"startTime": at(0)});
    let unmanaged = || job("x", json!({"spec": {"template": {}}, "status": running}));
    let dead = vec![unmanaged(), lease(all(), 0)];
    assert_reported(dead, &["does not renew it; its unfinished Jobs: default/x"]);
    assert_fine(vec![unmanaged(), lease(json!({}), 0)]);
    assert_fine(vec![unmanaged(), lease(all(), HOUR)]);
    assert_reported(
        vec![job("x", json!({})), lease(all(), HOUR)],
        &["epilogue-controller runs all Jobs, as its lease says", "[job-not-taken-up]"],
    );
    let observes = lease(json!({"epilogue.dev/runs-jobs": "false"}), HOUR);
    let ours = managed("x", "epilogue.dev/job-controller");
    assert_reported(vec![ours, observes], &["epilogue-controller only observes"]);
    let elsewhere = lease(json!({"epilogue.dev/watch-namespace": "a,b"}), HOUR);
    assert_reported(
        vec![managed("x", "epilogue.dev/job-controller"), elsewhere],
        &["does not watch the namespace default; it watches a, b", "[namespace-not-watched]"],
    );
}
