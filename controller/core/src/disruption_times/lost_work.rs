//! Says how much work is lost with a pod: one rule for the controller's metric, `report` and
//! `explain`.

use std::time::Duration;

use jiff::Timestamp;

use super::span;
use crate::view::{Phase, Pod};

/// The work that a disruption of this pod destroys, as [`run_time`]; `None` of a pod that
/// succeeded. It knows nothing of checkpoints.
pub fn lost_work(
    pod: &Pod,
    start: Option<Timestamp>,
    until: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    if pod.phase == Phase::Succeeded { None } else { run_time(pod, start, until, now) }
}

/// How long a pod has run; `None` if nothing of it had started. It begins with the first start of
/// any container: the pod in its place runs the init containers again, too. It lasts until the last
/// regular container or sidecar ended, or `until`, where the status does not show that all have.
/// The clock of a node may be wrong, so no start counts before the creation, and no end after now.
pub fn run_time(
    pod: &Pod,
    start: Option<Timestamp>,
    until: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    let start = start?.max(pod.created.unwrap_or(Timestamp::MIN));
    Some(span(start, pod.containers_finished_at().unwrap_or(until).min(now)))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;
    use crate::event_handlers::samples::pod;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000).expect("a time") + SignedDuration::from_secs(seconds)
    }

    /// A pod that was made at 0, with these states of an init container, its main one and a
    /// sidecar, disrupted at 50 and read at 60.
    fn lost(phase: &str, states: [&Value; 3]) -> Option<u64> {
        let [init, main, sidecar] = states;
        let object = json!({
            "metadata": {"name": "a", "creationTimestamp": at(0).to_string()},
            "spec": {"initContainers": [{"name": "init"},
                                        {"name": "sidecar", "restartPolicy": "Always"}]},
            "status": {
                "phase": phase,
                "conditions": [{"type": "DisruptionTarget", "status": "True"}],
                "containerStatuses": [{"name": "main", "state": main}],
                "initContainerStatuses": [{"name": "init", "state": init},
                                          {"name": "sidecar", "state": sidecar}]},
        });
        let pod = pod(object);
        lost_work(&pod, pod.gc.first_start(), at(50), at(60)).map(|work| work.as_secs())
    }

    #[test]
    fn work_begins_with_the_init_containers_and_ends_with_the_last_of_the_others() {
        let ran = |from, to: i64| {
            json!({"terminated": {"exitCode": 143, "startedAt": at(from).to_string(),
                                  "finishedAt": at(to).to_string()}})
        };
        let runs = |from: i64| json!({"running": {"startedAt": at(from).to_string()}});
        let waits = json!({"waiting": {}});
        let init = ran(10, 20);
        assert_eq!(lost("Failed", [&init, &ran(20, 40), &ran(20, 45)]), Some(35));
        assert_eq!(lost("Succeeded", [&init, &ran(20, 40), &ran(20, 45)]), None);
        assert_eq!(lost("Failed", [&init, &ran(20, 40), &runs(20)]), Some(40), "it still runs");
        assert_eq!(lost("Pending", [&runs(10), &waits, &waits]), Some(40));
        assert_eq!(lost("Failed", [&waits, &waits, &waits]), None, "nothing had started");
        // Clocks of nodes may be wrong.
        assert_eq!(lost("Failed", [&ran(-900, 20), &ran(20, 900), &ran(20, 45)]), Some(60));
        assert_eq!(lost("Failed", [&ran(90, 91), &ran(92, 40), &ran(95, 45)]), Some(0));
    }
}
