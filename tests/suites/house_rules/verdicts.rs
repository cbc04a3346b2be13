//! A verdict of the simulation states its promise in its own words. It takes data from the code
//! that it judges, and no decision.

/// Decisions of the cores that a verdict once borrowed.
const DECISIONS: [&str; 8] = [
    "Budget",
    "IndexSet",
    ".ends_with_its_sandbox(",
    ".ends_with_its_containers(",
    ".is_met(",
    ".node_condition(",
    ".resource()",
    ".units(",
];

/// Whether the file judges.
pub(crate) fn judges(path: &str) -> bool {
    let name = path.strip_prefix("tests/simulation/src/").unwrap_or_default();
    let ends = ["verdicts.rs", "ledger.rs", "_rules.rs", "/promises.rs", "/settled.rs"];
    ends.iter().any(|end| name.ends_with(end))
}

/// The functions and constants that a file imports from the cores, and the decisions that it uses.
pub(crate) fn borrowed(text: &str) -> Vec<String> {
    let uses = text.split("use ").filter_map(|rest| rest.split_once(';')).map(|(path, _)| path);
    let of_cores =
        uses.filter(|path| path.starts_with("agent_core::") || path.starts_with("controller_core"));
    let names = of_cores.flat_map(|path| {
        let last = path.rsplit("::").next().unwrap_or_default();
        last.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
    });
    let is_type =
        |name: &&str| name.starts_with(char::is_uppercase) && name.chars().any(char::is_lowercase);
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect();
    let imported = names.filter(|name| !is_type(name)).map(|name| format!("imports {name}"));
    let used = DECISIONS.iter().filter(|name| code.contains(**name));
    imported.chain(used.map(|name| format!("uses {name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_borrowed_decision_is_found_and_data_is_none() {
        let text = "use agent_core::pod::{Owner, PodUid};\nuse std::mem::take;\n// Budget\n";
        assert!(borrowed(text).is_empty());
        let text = "use agent_core::shutdown::candidates::{Scope, excluded};\n\
                    use agent_core::termination::patches::LOST_MESSAGE;\nlet x = pod.is_met(1);\n";
        assert_eq!(borrowed(text), ["imports excluded", "imports LOST_MESSAGE", "uses .is_met("]);
        assert!(judges("tests/simulation/src/agent/oom_verdicts.rs"));
        assert!(!judges("agent/core/src/agent/ledger.rs"));
    }
}
