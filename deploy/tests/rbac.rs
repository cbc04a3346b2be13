//! Compares the roles of controller and agent with the table of rights, both ways.

use std::collections::BTreeSet;

use epilogue_deploy::rights::{
    AGENT_OBSERVER_ROLE, AGENT_ROLE, AGENTS, CONTROLLER_OBSERVER_ROLE, CONTROLLER_ROLE,
    CONTROLLERS, ELECTION_ROLE, GANG_ROLE, GANGS, LEASE_ROLE, OBSERVER_ELECTION_ROLE,
    OBSERVER_LEASE_ROLE, OBSERVERS,
};
use epilogue_deploy::{gang_scheduling, manifests, observers};
use serde_json::{Value, json};

/// The objects of both modes, and those of gang scheduling.
fn all() -> Vec<Value> {
    [manifests(), observers(), gang_scheduling()].map(|it| it.expect("must be readable")).concat()
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn rights(objects: &[Value]) -> BTreeSet<[String; 5]> {
    let mut rights = BTreeSet::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let mut names = strings(&rule["resourceNames"]);
            if names.is_empty() {
                names.push("");
            }
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        for only in &names {
                            let right = [&format!("{kind}/{name}"), group, resource, verb, only];
                            let right = right.map(str::to_owned);
                            assert!(rights.insert(right.clone()), "{right:?} is given twice");
                        }
                    }
                }
            }
        }
    }
    rights
}

#[test]
fn the_roles_give_what_the_table_says_and_nothing_else() {
    let given = rights(&all());
    let table = || CONTROLLERS.iter().chain(&GANGS).chain(&AGENTS).chain(&OBSERVERS);
    let needed: BTreeSet<[String; 5]> = table()
        .map(|(role, group, resource, verb, name, why)| {
            assert!(!why.is_empty());
            [*role, *group, *resource, *verb, *name].map(str::to_owned)
        })
        .collect();
    assert_eq!(needed.len(), table().count(), "a row appears twice");
    let missing: Vec<_> = needed.difference(&given).collect();
    let idle: Vec<_> = given.difference(&needed).collect();
    assert!(missing.is_empty() && idle.is_empty(), "not given {missing:?}, not needed {idle:?}");
}

#[test]
fn nothing_is_given_by_a_wildcard_or_by_a_path() {
    for object in all() {
        for rule in object["rules"].as_array().into_iter().flatten() {
            assert!(rule["nonResourceURLs"].is_null(), "{rule}");
            assert!(!rule.to_string().contains('*'), "{rule}");
        }
        assert!(object["aggregationRule"].is_null(), "{object}");
    }
}

#[test]
fn each_role_is_bound_to_its_program_s_account_and_to_no_other() {
    let objects = all();
    let mut bound = BTreeSet::new();
    for binding in objects.iter().filter(|object| !object["roleRef"].is_null()) {
        let role = &binding["roleRef"];
        let name = role["name"].as_str().expect("must have a name");
        let (account, namespace) = if name.starts_with("epilogue-agent") {
            ("epilogue-agent", "epilogue-agents")
        } else {
            ("epilogue-controller", "epilogue-system")
        };
        let suffix = if name.contains("-observer") { "-observer" } else { "" };
        let account = format!("{account}{suffix}");
        let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": namespace}]);
        assert_eq!(binding["subjects"], subjects, "{name}");
        assert_eq!(role["apiGroup"], "rbac.authorization.k8s.io");
        bound.insert(format!("{}/{name}", role["kind"]).replace('"', ""));
    }
    assert_eq!(
        bound,
        [
            CONTROLLER_ROLE,
            ELECTION_ROLE,
            GANG_ROLE,
            AGENT_ROLE,
            LEASE_ROLE,
            CONTROLLER_OBSERVER_ROLE,
            OBSERVER_ELECTION_ROLE,
            AGENT_OBSERVER_ROLE,
            OBSERVER_LEASE_ROLE,
        ]
        .map(str::to_owned)
        .into()
    );
}

/// Without the component, and without a server that has the kinds, no right is there.
#[test]
fn the_rights_of_gang_scheduling_are_in_its_component_and_nowhere_else() {
    let of_gangs = |[_, group, ..]: &&[String; 5]| group == "scheduling.k8s.io";
    let everywhere = [manifests(), observers()].map(|it| it.expect("must be readable")).concat();
    assert_eq!(rights(&everywhere).iter().find(of_gangs), None);
    let component = rights(&gang_scheduling().expect("must be readable"));
    assert_eq!(component.iter().filter(of_gangs).count(), component.len());
    assert_eq!(component.len(), GANGS.len());
}

#[test]
fn observers_may_write_events_and_the_controller_s_lease_and_nothing_else() {
    let given = rights(&observers().expect("must be readable"));
    let writes = given.iter().filter(|[_, _, _, verb, _]| !READS.contains(&verb.as_str()));
    let writes: BTreeSet<[&str; 2]> =
        writes.map(|[role, _, resource, _, _]| [role.as_str(), resource.as_str()]).collect();
    let expected = [
        [AGENT_OBSERVER_ROLE, "events"],
        [CONTROLLER_OBSERVER_ROLE, "events"],
        [OBSERVER_ELECTION_ROLE, "leases"],
    ];
    assert_eq!(writes, BTreeSet::from(expected));
}

const READS: [&str; 3] = ["get", "list", "watch"];
