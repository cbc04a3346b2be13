//! Decides for `epilogue-agent leave-status` which nodes are done with `leave`, from the DaemonSets
//! that run it and their pods. The pod of a node is Ready as soon as `leave` has succeeded there.

use serde_json::Value;

/// How far `leave` is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaveStatus {
    /// Pods that the DaemonSets have to have: one for each node.
    pub expected: u64,
    /// Pods whose node is done.
    pub done: u64,
    /// Nodes whose pod has started and is not done: the node, and why.
    pub not_done: Vec<(String, String)>,
    /// Pods that no kubelet has started: the node, or the pod while it has none.
    pub not_started: Vec<String>,
    /// DaemonSets that are not there, run no `leave`, or whose controller has not seen them.
    pub not_ready: Vec<String>,
}

/// What to do after a sample of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Each node is done.
    Done,
    /// Take another sample.
    Wait,
    /// The time is over, and only nodes without a live kubelet are not done.
    DoneWhereNodesLive,
    /// The time is over, and nodes that live are not done.
    Failed,
}

impl LeaveStatus {
    /// The status that these objects show: each DaemonSet by its name, with `None` if there is
    /// none, and all pods of the namespace.
    pub fn of(sets: &[(String, Option<Value>)], pods: &[Value]) -> Self {
        let mut status = Self::default();
        for (name, set) in sets {
            let Some(set) = set.as_ref().filter(|set| runs_leave(set) && is_observed(set)) else {
                status.not_ready.push(name.clone());
                continue;
            };
            status.expected += set["status"]["desiredNumberScheduled"].as_u64().unwrap_or(0);
            let uid = &set["metadata"]["uid"];
            for pod in pods.iter().filter(|pod| is_controlled_by(pod, uid)) {
                status.add(pod);
            }
        }
        status
    }

    fn add(&mut self, pod: &Value) {
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return;
        }
        let node = pod["spec"]["nodeName"].as_str();
        let name = node.or(pod["metadata"]["name"].as_str()).unwrap_or_default().to_owned();
        if is_ready(pod) {
            self.done += 1;
        } else if pod["status"]["startTime"].is_null() {
            self.not_started.push(name);
        } else {
            self.not_done.push((name, reason(pod)));
        }
    }

    /// What to do now. A node that is down cannot be cleaned, so it does not fail the
    /// uninstallation.
    pub fn verdict(&self, is_over: bool) -> Verdict {
        if self.not_ready.is_empty() && self.done >= self.expected {
            return Verdict::Done;
        }
        let reported = self.done + self.not_started.len() as u64;
        match is_over {
            false => Verdict::Wait,
            true if self.not_ready.is_empty()
                && self.not_done.is_empty()
                && reported >= self.expected =>
            {
                Verdict::DoneWhereNodesLive
            }
            true => Verdict::Failed,
        }
    }
}

/// Whether the DaemonSet's pods run `leave` before they are Ready.
fn runs_leave(set: &Value) -> bool {
    set["spec"]["template"]["spec"]["initContainers"][0]["args"][0] == "leave"
}

/// Whether the DaemonSet's controller has counted the nodes of this generation.
fn is_observed(set: &Value) -> bool {
    let observed = set["status"]["observedGeneration"].as_i64();
    observed.is_some_and(|observed| Some(observed) >= set["metadata"]["generation"].as_i64())
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn is_controlled_by(pod: &Value, uid: &Value) -> bool {
    items(&pod["metadata"]["ownerReferences"])
        .any(|owner| owner["controller"] == true && owner["uid"] == *uid)
}

fn is_ready(pod: &Value) -> bool {
    items(&pod["status"]["conditions"]).any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// What the last run of `leave` printed, or what its container waits for.
fn reason(pod: &Value) -> String {
    let state = &pod["status"]["initContainerStatuses"][0];
    let texts = [
        &state["lastState"]["terminated"]["message"],
        &state["state"]["terminated"]["message"],
        &state["state"]["waiting"]["reason"],
    ];
    let mut texts = texts.into_iter().filter_map(|text| text.as_str().map(str::trim));
    texts.find(|text| !text.is_empty()).unwrap_or("it runs").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(desired: u64) -> (String, Option<Value>) {
        let set = json!({
            "metadata": {"uid": "u", "generation": 1},
            "spec": {"template": {"spec": {"initContainers": [{"args": ["leave"]}]}}},
            "status": {"observedGeneration": 1, "desiredNumberScheduled": desired},
        });
        ("agent".to_owned(), Some(set))
    }

    fn pod(node: &str, status: &Value) -> Value {
        json!({"metadata": {"name": "p", "ownerReferences": [{"uid": "u", "controller": true}]},
               "spec": {"nodeName": node}, "status": status})
    }

    fn ready(node: &str) -> Value {
        pod(node, &json!({"conditions": [{"type": "Ready", "status": "True"}]}))
    }

    fn failing(node: &str) -> Value {
        pod(
            node,
            &json!({"startTime": "2026-01-01T00:00:00Z", "initContainerStatuses": [{
            "lastState": {"terminated": {"message": "the node is shutting down\n"}},
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
        )
    }

    #[test]
    fn it_is_done_when_each_node_has_a_ready_pod() {
        let of = |pods: &[Value]| LeaveStatus::of(&[set(2)], pods);
        assert_eq!(of(&[ready("a"), ready("b")]).verdict(false), Verdict::Done);
        assert_eq!(of(&[ready("a")]).verdict(false), Verdict::Wait, "a pod is missing");
        assert_eq!(of(&[ready("a")]).verdict(true), Verdict::Failed);
        assert_eq!(LeaveStatus::of(&[set(0)], &[]).verdict(false), Verdict::Done, "no node");
    }

    #[test]
    fn a_node_that_is_down_delays_it_and_does_not_fail_it() {
        let status = LeaveStatus::of(&[set(2)], &[ready("a"), pod("b", &json!({}))]);
        assert_eq!(status.not_started, ["b"]);
        assert_eq!(status.verdict(false), Verdict::Wait);
        assert_eq!(status.verdict(true), Verdict::DoneWhereNodesLive);
    }

    #[test]
    fn a_live_node_that_is_not_done_fails_it_and_says_why() {
        let status = LeaveStatus::of(&[set(2)], &[ready("a"), failing("b")]);
        let expected = ("b".to_owned(), "the node is shutting down".to_owned());
        assert_eq!(status.not_done, [expected]);
        assert_eq!(status.verdict(false), Verdict::Wait);
        assert_eq!(status.verdict(true), Verdict::Failed);
    }

    #[test]
    fn a_set_that_still_runs_agents_is_not_done() {
        let (name, mut agents) = set(0);
        agents.as_mut().expect("a set")["spec"]["template"]["spec"] = json!({});
        let (_, mut unseen) = set(0);
        unseen.as_mut().expect("a set")["metadata"]["generation"] = json!(2);
        for set in [agents, unseen, None] {
            let status = LeaveStatus::of(&[(name.clone(), set)], &[]);
            assert_eq!(status.not_ready, ["agent"]);
            assert_eq!(status.verdict(false), Verdict::Wait);
            assert_eq!(status.verdict(true), Verdict::Failed);
        }
    }

    #[test]
    fn pods_of_the_replaced_agents_do_not_count() {
        let mut old = ready("a");
        old["metadata"]["ownerReferences"][0]["uid"] = json!("old");
        let mut going = ready("a");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let status = LeaveStatus::of(&[set(1)], &[old, going]);
        assert_eq!((status.done, status.verdict(false)), (0, Verdict::Wait));
    }
}
