//! The notes that Helm prints: who acts, what is off, and the next command.

use serde_json::{Value, json};

use super::flags::mode;
use super::helm::{chart, done, notes, objects, rendered};
use crate::platforms::named;

/// The lines of one section.
fn section<'a>(notes: &'a str, title: &str) -> &'a str {
    let (_, after) = notes.split_once(&format!("{title}\n")).expect("the section");
    after.split("\n\n").next().unwrap_or_default()
}

#[tokio::test]
async fn notes_say_what_is_off_and_which_value_turns_it_on() {
    let all = json!({
        "mode": "enforce", "agent": {"pressure": "enforce"},
        "controller": {"manageAllJobs": true},
        "scraping": {"enabled": true}, "alerts": {"enabled": true},
    });
    // What the section says, and what it does not.
    let table: [(Value, &[&str], &[&str]); 6] = [
        (
            json!({}),
            &[
                "Terminating pods at a shutdown",
                "Jobs: the controller runs none",
                "Pod GC fails and deletes no pod",
                "scraping.enabled is false",
                "alerts.enabled is false",
            ],
            &["agent.pressure", "agent.enabled"],
        ),
        (
            json!({"mode": "enforce"}),
            &["Evictions: agent.pressure is observe", "controller.manageAllJobs"],
            &["Terminating pods", "stuckPods", "Pod GC"],
        ),
        (
            json!({"mode": "enforce", "agent": {"stuckPods": "off"}}),
            &["Failing stuck pods: agent.stuckPods is off"],
            &["Terminating pods"],
        ),
        (
            json!({"mode": "enforce", "agent": {"enabled": false}, "controller": {"podGC": "off"}}),
            &[
                "Agents: agent.enabled is false",
                "Pod GC: controller.podGC is off",
                "scraping.enabled",
            ],
            &["agent.pressure"],
        ),
        (
            json!({"controller": {"enabled": false}, "alerts": {"enabled": true}}),
            &["controller.enabled is false", "Alerts on both programs"],
            &["manageAllJobs", "Pod GC fails", "alerts.enabled"],
        ),
        (all, &["- Nothing."], &["is false", "agent."]),
    ];
    for (values, said, unsaid) in table {
        let notes = notes(&values).await;
        let off = section(&notes, "What is off");
        assert!(said.iter().all(|words| off.contains(words)), "{values}: {off}");
        assert!(!unsaid.iter().any(|words| off.contains(words)), "{values}: {off}");
        assert!(notes.lines().all(|line| line.len() <= 100), "{values}: {notes}");
    }
}

/// Renders the chart with the `--set` arguments of a text.
async fn with_sets_of(text: &str) -> Vec<Value> {
    let words = text.split("--set ").skip(1);
    let sets = words.filter_map(|after| after.split_whitespace().next());
    let sets: Vec<&str> = sets.map(|set| set.trim_matches('\'')).collect();
    assert!(!sets.is_empty(), "{text}");
    let chart = chart();
    let mut arguments = vec!["template", "epilogue", chart.to_str().expect("text")];
    for set in &sets {
        arguments.extend(["--set", set]);
    }
    objects(&done(&arguments, &Value::Null).await)
}

#[tokio::test]
async fn the_next_command_of_the_notes_does_what_they_say() {
    let notes = notes(&json!({})).await;
    let next = section(&notes, "What to do next");
    let (pool, all) = next.split_once("Let all act:").expect("two commands");
    let mode = |objects: &[Value], name: &str| -> String {
        let set = format!("DaemonSet/epilogue-agents/{name}");
        assert!(objects.iter().any(|object| named(object) == set), "{set}");
        mode(objects, name)
    };
    let (_, command) = pool.split_once("Let the agents of one pool act").expect("a command");
    let objects = with_sets_of(command).await;
    assert_eq!(mode(&objects, "epilogue-agent-batch"), "enforce");
    assert_eq!(mode(&objects, "epilogue-agent"), "observe");
    let objects = with_sets_of(all).await;
    assert_eq!(mode(&objects, "epilogue-agent"), "enforce");
}

/// What the notes say of each task agrees with the flags of the programs.
#[tokio::test]
async fn notes_and_flags_of_both_modes_agree() {
    for mode in ["observe", "enforce"] {
        for fine in ["off", "observe", "enforce"] {
            let values = json!({
                "mode": mode, "agent": {"pressure": fine, "stuckPods": fine},
                "controller": {"podGC": if fine == "enforce" { "alongside" } else { "off" }},
            });
            let (notes, objects) = (notes(&values).await, rendered(&values).await);
            let agent = epilogue_deploy::args(&objects, "epilogue-agent").expect("arguments");
            let controller = epilogue_deploy::args(&objects, "epilogue-controller").expect("some");
            let off = section(&notes, "What is off");
            let acts = super::flags::mode(&objects, "epilogue-agent") == "enforce";
            assert_eq!(acts, mode == "enforce");
            let has = |flags: &[String], flag: &str| flags.iter().any(|it| it == flag);
            assert_eq!(off.contains("Terminating pods"), !acts);
            assert_eq!(notes.contains("terminates pods and delays"), acts, "{values}");
            let evicts = has(&agent, "--pressure=enforce");
            assert_eq!(acts && !off.contains("Evictions: agent.pressure"), evicts, "{values}");
            // The agent fails stuck pods by default.
            let fails = !agent.iter().any(|flag| flag.starts_with("--stuck-pods="));
            assert_eq!(acts && !off.contains("agent.stuckPods"), acts && fails, "{values}");
            let collects = !controller.iter().any(|flag| flag.starts_with("--pod-gc="));
            assert_eq!(!off.contains("Pod GC"), acts && collects, "{values}");
        }
    }
}
