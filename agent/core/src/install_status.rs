//! Decides for `epilogue-agent install-status` whether an installation works, from what the API
//! shows of its objects: policies are bound, agents are ready, and a controller holds its lease.

use serde_json::Value;

/// The objects of an installation, at one moment. An object that is not there is `None`.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Each policy with its binding, by their name.
    pub policies: Vec<(String, Option<Value>, Option<Value>)>,
    /// DaemonSets of agents.
    pub daemon_sets: Vec<(Place, Option<Value>)>,
    /// The controller's Deployment and its lease.
    pub controller: Option<(Place, Option<Value>, Option<Value>)>,
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What is said of a part of the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was found.
    pub text: String,
    /// What to do; `None` if the part works.
    pub remedy: Option<String>,
}

/// Which leaders have been seen to renew the lease. Clocks of machines differ, so a renewal counts
/// that follows another one.
#[derive(Clone, Debug, Default)]
pub struct Renewals {
    first: Option<Value>,
}

impl Seen {
    /// What these objects say of each part.
    pub fn findings(&self, renewals: &mut Renewals) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.policies.iter().filter_map(of_policy).collect();
        if findings.is_empty() {
            let count = self.policies.len();
            findings.push(works(format!("{count} admission policies limit the accounts")));
        }
        findings.extend(self.daemon_sets.iter().map(|(place, set)| of_agents(place, set.as_ref())));
        let nodes = self.daemon_sets.iter().filter_map(|(_, set)| set.as_ref()).map(desired);
        if !self.daemon_sets.is_empty() && nodes.sum::<u64>() == 0 {
            let remedy = "compare the nodes' labels with agent.nodeSelector and image.architecture";
            findings.push(fails("no node gets an agent".to_owned(), remedy.to_owned()));
        }
        if let Some((place, deployment, lease)) = &self.controller {
            findings.push(of_controller(place, deployment.as_ref()));
            findings.push(of_lease(place, lease.as_ref(), renewals));
        }
        findings
    }
}

fn works(text: String) -> Finding {
    Finding { text, remedy: None }
}

fn fails(text: String, remedy: String) -> Finding {
    Finding { text, remedy: Some(remedy) }
}

const AGAIN: &str = "helm upgrade with the same values brings it back";

fn of_policy((name, policy, binding): &(String, Option<Value>, Option<Value>)) -> Option<Finding> {
    let said = |what: &str| Some(fails(format!("policy {name}: {what}"), AGAIN.to_owned()));
    let Some(binding) = binding.as_ref().filter(|_| policy.is_some()) else {
        return said(if policy.is_some() { "it has no binding" } else { "it does not exist" });
    };
    let spec = &binding["spec"];
    let denies = items(&spec["validationActions"]).any(|action| action == "Deny");
    if spec["policyName"] != **name || !denies {
        return said("its binding denies nothing");
    }
    None
}

fn of_agents(place: &Place, set: Option<&Value>) -> Finding {
    let Place { namespace, name } = place;
    let what = format!("daemonset {namespace}/{name}");
    let Some(set) = set else {
        return fails(format!("{what}: it does not exist"), AGAIN.to_owned());
    };
    let status = &set["status"];
    let (desired, ready) = (desired(set), count(&status["numberReady"]));
    let remedy = format!(
        "kubectl --namespace {namespace} get pods --output=wide, then kubectl --namespace \
         {namespace} logs POD of one that is not ready"
    );
    if !is_observed(set) {
        let remedy = "see whether kube-controller-manager works".to_owned();
        return fails(format!("{what}: its controller has not seen it"), remedy);
    }
    if ready < desired {
        return fails(format!("{what}: {ready} of {desired} nodes have a ready agent"), remedy);
    }
    let updated = count(&status["updatedNumberScheduled"]);
    if updated < desired {
        return fails(format!("{what}: {updated} of {desired} nodes have this version"), remedy);
    }
    works(format!("{what}: {ready} of {desired} nodes have a ready agent"))
}

fn of_controller(place: &Place, deployment: Option<&Value>) -> Finding {
    let Place { namespace, name } = place;
    let what = format!("deployment {namespace}/{name}");
    let Some(deployment) = deployment else {
        return fails(format!("{what}: it does not exist"), AGAIN.to_owned());
    };
    let (replicas, status) = (count(&deployment["spec"]["replicas"]), &deployment["status"]);
    let (updated, available) =
        (count(&status["updatedReplicas"]), count(&status["availableReplicas"]));
    let remedy = format!("kubectl --namespace {namespace} describe deployment,pods");
    if !is_observed(deployment) {
        let remedy = "see whether kube-controller-manager works".to_owned();
        return fails(format!("{what}: its controller has not seen it"), remedy);
    }
    if available < replicas || updated < replicas {
        let ready = available.min(updated);
        return fails(format!("{what}: {ready} of {replicas} pods are available"), remedy);
    }
    works(format!("{what}: {available} of {replicas} pods are available"))
}

fn of_lease(place: &Place, lease: Option<&Value>, renewals: &mut Renewals) -> Finding {
    let Place { namespace, name } = place;
    let what = format!("lease {namespace}/{name}");
    let remedy = format!("kubectl --namespace {namespace} logs deployment/{name}");
    let spec = lease.map_or(&Value::Null, |lease| &lease["spec"]);
    let Some(holder) = spec["holderIdentity"].as_str().filter(|holder| !holder.is_empty()) else {
        return fails(format!("{what}: no controller holds it"), remedy);
    };
    let renewal = &spec["renewTime"];
    let first = renewals.first.get_or_insert_with(|| renewal.clone());
    if first == renewal {
        return fails(format!("{what}: {holder} does not renew it"), remedy);
    }
    works(format!("{what}: {holder} holds it"))
}

/// How many nodes the DaemonSet's pods have to run on.
fn desired(set: &Value) -> u64 {
    count(&set["status"]["desiredNumberScheduled"])
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Whether a workload's controller has seen this generation.
fn is_observed(workload: &Value) -> bool {
    let observed = workload["status"]["observedGeneration"].as_i64();
    observed.is_some_and(|observed| Some(observed) >= workload["metadata"]["generation"].as_i64())
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn place(namespace: &str, name: &str) -> Place {
        Place { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn policy() -> (String, Option<Value>, Option<Value>) {
        let binding = json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}});
        ("p".to_owned(), Some(json!({})), Some(binding))
    }

    fn set(desired: u64, ready: u64) -> Value {
        json!({
            "metadata": {"generation": 2},
            "status": {"observedGeneration": 2, "desiredNumberScheduled": desired,
                       "updatedNumberScheduled": desired, "numberReady": ready},
        })
    }

    fn deployment(available: u64) -> Value {
        json!({
            "metadata": {"generation": 1}, "spec": {"replicas": 2},
            "status": {"observedGeneration": 1, "updatedReplicas": 2,
                       "availableReplicas": available},
        })
    }

    fn lease(at: u32) -> Value {
        json!({"spec": {"holderIdentity": "c-1", "renewTime": format!("2026-01-01T00:00:{at}Z")}})
    }

    fn seen() -> Seen {
        let controller = place("s", "c");
        Seen {
            policies: vec![policy()],
            daemon_sets: vec![(place("a", "agent"), Some(set(3, 3)))],
            controller: Some((controller, Some(deployment(2)), Some(lease(20)))),
        }
    }

    /// What is wrong with this installation, whose controller has renewed its lease at second 10.
    fn wrong(seen: &Seen) -> Vec<String> {
        let mut renewals = Renewals { first: Some(lease(10)["spec"]["renewTime"].clone()) };
        let findings = seen.findings(&mut renewals);
        findings.into_iter().filter(|it| it.remedy.is_some()).map(|it| it.text).collect()
    }

    #[test]
    fn each_part_that_works_is_said_in_one_line() {
        let seen = seen();
        assert_eq!(wrong(&seen), [""; 0]);
        let texts: Vec<String> = seen
            .findings(&mut Renewals { first: Some(json!("before")) })
            .into_iter()
            .map(|it| it.text)
            .collect();
        let expected = [
            "1 admission policies limit the accounts",
            "daemonset a/agent: 3 of 3 nodes have a ready agent",
            "deployment s/c: 2 of 2 pods are available",
            "lease s/c: c-1 holds it",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_policy_without_effect_is_named() {
        for (policy, words) in [
            ((None, policy().2), "policy p: it does not exist"),
            ((policy().1, None), "policy p: it has no binding"),
            (
                (
                    policy().1,
                    Some(json!({"spec": {"policyName": "p", "validationActions": ["Warn"]}})),
                ),
                "policy p: its binding denies nothing",
            ),
        ] {
            let broken = ("p".to_owned(), policy.0, policy.1);
            assert_eq!(wrong(&Seen { policies: vec![broken], ..seen() }), [words]);
        }
    }

    #[test]
    fn a_node_without_a_ready_agent_of_this_version_is_counted() {
        let mut old = set(3, 3);
        old["status"]["updatedNumberScheduled"] = json!(1);
        let mut unseen = set(3, 3);
        unseen["metadata"]["generation"] = json!(3);
        for (found, words) in [
            (Some(set(3, 2)), "daemonset a/agent: 2 of 3 nodes have a ready agent"),
            (Some(old), "daemonset a/agent: 1 of 3 nodes have this version"),
            (Some(unseen), "daemonset a/agent: its controller has not seen it"),
        ] {
            let sets = vec![(place("a", "agent"), found)];
            assert_eq!(wrong(&Seen { daemon_sets: sets, ..seen() }), [words]);
        }
        let none = vec![(place("a", "agent"), None)];
        let words = ["daemonset a/agent: it does not exist", "no node gets an agent"];
        assert_eq!(wrong(&Seen { daemon_sets: none, ..seen() }), words);
    }

    #[test]
    fn a_pool_may_be_empty_but_not_all_of_them() {
        let pools = |of_pool, of_rest| {
            let sets = [("pool", of_pool), ("rest", of_rest)];
            let sets = sets.map(|(name, nodes)| (place("a", name), Some(set(nodes, nodes))));
            wrong(&Seen { daemon_sets: sets.to_vec(), ..seen() })
        };
        assert_eq!(pools(0, 1), [""; 0]);
        assert_eq!(pools(0, 0), ["no node gets an agent"]);
    }

    #[test]
    fn a_lease_needs_a_holder_that_renews_it() {
        let with = |deployment: u64, lease: Option<Value>| {
            let controller = (place("s", "c"), Some(self::deployment(deployment)), lease);
            wrong(&Seen { controller: Some(controller), ..seen() })
        };
        assert_eq!(with(1, Some(lease(20))), ["deployment s/c: 1 of 2 pods are available"]);
        assert_eq!(with(2, Some(lease(10))), ["lease s/c: c-1 does not renew it"]);
        assert_eq!(with(2, None), ["lease s/c: no controller holds it"]);
        let released = json!({"spec": {"holderIdentity": ""}});
        assert_eq!(with(2, Some(released)), ["lease s/c: no controller holds it"]);
    }

    #[test]
    fn one_half_is_judged_without_the_other() {
        assert_eq!(wrong(&Seen { controller: None, ..seen() }), [""; 0]);
        assert_eq!(wrong(&Seen { daemon_sets: Vec::new(), ..seen() }), [""; 0]);
    }
}
