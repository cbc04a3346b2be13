//! Tests OOM kills: which condition follows, how fast, how often, and what is reported.

use super::driver::{Answer, World, armed, ms, runtime, settings};
use crate::agent::{OomTally, Settings};
use crate::pod::tests::pod;
use crate::pod::{ContainerAsks, Phase, PodSource, PodUid, PodView};
use crate::protocol::action::{Action, Purpose};
use crate::protocol::event::Event;
use crate::protocol::pressure::{OomConstraint, OomKill, OomWitness, OomdKill};
use epilogue_common::outcome::FailureKind;
use serde_json::Value;

const MI: u64 = 1 << 20;

fn wanting(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = settings();
    settings.features.oom_causes = true;
    change(&mut settings);
    settings
}

/// A Job's pod with a container of 64Mi.
fn job(name: &str) -> PodView {
    pod(name).never().with(|pod| {
        pod.details.container_ids = vec![("main".into(), "c1".into())];
        pod.asks.containers = vec![ContainerAsks {
            name: "main".into(),
            memory_limit: Some(64 * MI),
            ..ContainerAsks::default()
        }];
    })
}

fn of_job() -> World {
    world(|_| ())
}

fn world(change: impl FnOnce(&mut Settings)) -> World {
    World::standing(wanting(change), armed(), vec![job("a")])
}

impl World {
    fn killed(&mut self, constraint: OomConstraint, change: impl FnOnce(&mut OomKill)) {
        let mut kill = OomKill {
            pod: PodUid("uid-a".into()),
            container_id: Some("c1".into()),
            constraint,
            limit: None,
            process: None,
            container_lives: Some(false),
            witness: OomWitness::MemoryEvents,
            at: self.now,
        };
        change(&mut kill);
        self.event(Event::OomKilled(Box::new(kill)));
    }

    fn ends_at_limit(&mut self) {
        self.killed(OomConstraint::ContainerLimit, |_| ());
    }

    fn condition_writes(&self) -> usize {
        self.done(&["cause"]).len()
    }

    /// The reason that the API shows.
    fn why(&self, name: &str) -> Option<&str> {
        let (stands, reason) = self.pods.get(name)?.details.oom_killed.as_ref()?;
        stands.then_some(reason.as_str())
    }

    fn tally(&self, constraint: OomConstraint) -> OomTally {
        let kills = &self.agent.status().oom.oom_kills;
        kills.get(&constraint).copied().unwrap_or_default()
    }

    fn race(&self) -> (u64, u64) {
        let condition_writes = &self.agent.status().oom;
        (condition_writes.oom_conditions_won, condition_writes.oom_conditions_lost)
    }

    /// The conditions of a held patch, by type.
    fn held_conditions(&self) -> Vec<Value> {
        let bodies = self.held.iter().filter_map(|(_, _, action)| match action {
            Action::PatchStatus { purpose: Purpose::Cause, body, .. } => Some(body),
            _ => None,
        });
        bodies
            .flat_map(|body| {
                assert!(body["metadata"]["resourceVersion"].is_null(), "{body}");
                assert_eq!(body["metadata"]["uid"], "uid-a");
                body["status"]["conditions"].as_array().cloned().unwrap_or_default()
            })
            .collect()
    }
}

#[test]
fn a_vague_report_of_the_same_end_does_not_replace_the_cause_that_the_log_has() {
    use OomConstraint::{ContainerLimit, Node, Unknown};
    for (cause, reason) in [(Node, "NodeOutOfMemory"), (ContainerLimit, "ContainerLimit")] {
        let mut world = world(|_| ());
        // The node has no memory left, and the API does not answer at once.
        world.answers.insert("cause a".into(), Answer::Fail(FailureKind::TooManyRequests, 2));
        let child = |kill: &mut OomKill| kill.container_lives = Some(true);
        world.killed(Unknown, child);
        world.killed(cause, |kill| kill.witness = OomWitness::KernelLog);
        // The cgroup's counter is read twice around one end.
        world.killed(Unknown, |_| ());
        world.killed(Unknown, |kill| {
            child(kill);
            kill.witness = OomWitness::KernelLog;
        });
        world.pass(ms(10_000));
        assert_eq!(world.why("a"), Some(reason), "{:#?}", world.log);
    }
}

#[test]
fn a_child_killed_before_the_end_and_reported_after_it_changes_nothing() {
    use OomConstraint::{Node, Unknown};
    let child = |kill: &mut OomKill| kill.container_lives = Some(true);
    // Simulation seed 2019499: the pod is not known yet.
    let mut world = World::standing(wanting(|_| ()), armed(), Vec::new());
    world.killed(Node, |_| ());
    world.killed(Node, child);
    world.pods.insert("a".into(), job("a"));
    world.list();
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"), "{:#?}", world.log);
    assert_eq!(world.tally(Node).lived_on, 1);

    // Simulation seed 2002847: a vague report of the end is the last.
    let mut world = of_job();
    world.containers("a", &[Some(137)]);
    world.killed(Node, |_| ());
    world.killed(Node, child);
    world.killed(Unknown, |kill| kill.container_lives = None);
    world.pass(ms(10_000));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"), "{:#?}", world.log);

    // Simulation seed 14089342: vague reports before and after that of a child.
    let mut world = of_job();
    world.containers("a", &[Some(137)]);
    world.killed(Node, |_| ());
    for late in [None, Some(true), None] {
        let constraint = if late.is_some() { Node } else { Unknown };
        world.killed(constraint, |kill| kill.container_lives = late);
    }
    world.pass(ms(10_000));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"), "{:#?}", world.log);
    assert_eq!(world.tally(Node), OomTally { ended: 1, lived_on: 1, unknown: 0 });
}

#[test]
fn a_late_word_about_a_child_does_not_change_the_cause_of_an_end_that_two_witnesses_saw() {
    use OomConstraint::{ContainerLimit, Node};
    let mut world = of_job();
    world.killed(Node, |kill| kill.witness = OomWitness::KernelLog);
    // The next witness has two kills to report: of a child, which is ignored, and the same end.
    world.killed(Node, |kill| kill.container_lives = Some(true));
    world.killed(Node, |_| ());
    // The log about a child that was killed at the container's limit before.
    world.killed(ContainerLimit, |kill| {
        kill.witness = OomWitness::KernelLog;
        kill.container_lives = Some(true);
    });
    world.pass(ms(2_000));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
    assert_eq!(world.tally(Node), OomTally { ended: 1, lived_on: 0, unknown: 0 });
    assert_eq!(world.tally(ContainerLimit), OomTally { ended: 0, lived_on: 1, unknown: 0 });
}

#[test]
fn what_was_short_makes_the_reason_and_the_message() {
    use OomConstraint::{ContainerLimit, Node, PodLimit, Unknown};
    let limited = "The kernel killed container main: the container was at its memory limit of \
                   64Mi. Seen in memory.events.";
    let by_pod = "The kernel killed container main: the pod was at its memory limit of 1Gi. Seen \
                  in memory.events.";
    let by_node = "The kernel killed container main: the node had no memory left for it. Seen in \
                   memory.events.";
    let unknown = "The kernel killed container main: it is not known why, and the container has \
                   a memory limit of 64Mi. Seen in memory.events.";
    let table = [
        (ContainerLimit, None, "ContainerLimit", limited),
        (PodLimit, Some(1_024 * MI), "ContainerLimit", by_pod),
        (Node, None, "NodeOutOfMemory", by_node),
        (Unknown, None, "ContainerLimit", unknown),
    ];
    for (constraint, limit, reason, message) in table {
        let mut world = world(|_| ());
        world.answers.insert("cause a".into(), Answer::Hold);
        world.killed(constraint, |kill| kill.limit = limit);
        let conditions = world.held_conditions();
        assert_eq!(conditions.len(), 1, "{conditions:?}");
        assert_eq!(conditions[0]["type"], "epilogue.dev/OOMKilled");
        assert_eq!(conditions[0]["status"], "True");
        assert_eq!(conditions[0]["reason"], reason);
        assert_eq!(conditions[0]["message"], message);
        assert!(conditions[0]["lastTransitionTime"].is_string());
        world.let_go("cause");
        world.pass(ms(1_000));
        assert_eq!(world.why("a"), Some(reason));
        assert_eq!(world.reported, [("ContainerOOMKilled", message.to_owned())]);
        assert_eq!(world.tally(constraint), OomTally { ended: 1, ..OomTally::default() });
    }
}

#[test]
fn a_container_without_a_limit_of_which_nothing_is_known_had_a_short_node() {
    let mut world = world(|_| ());
    world.change("a", |pod| pod.asks.containers.clear());
    world.killed(OomConstraint::Unknown, |_| ());
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
}

#[test]
fn a_container_of_which_nothing_is_known_may_have_reached_the_limit_of_its_pod() {
    // Simulation seed 10087538: each witness of the first kill was lost.
    let mut world = world(|_| ());
    world.change("a", |pod| {
        pod.asks.containers.clear();
        pod.asks.memory_limit = Some(128 * MI);
    });
    world.killed(OomConstraint::Unknown, |_| ());
    assert_eq!(world.why("a"), Some("ContainerLimit"));
    world.pass(ms(1_000));
    let (_, message) = &world.reported[0];
    assert!(
        message.contains("not known why, and the pod has a memory limit of 128Mi"),
        "{message}"
    );
}

#[test]
fn the_condition_is_sent_at_once_and_events_are_sent_later() {
    let mut world = world(|_| ());
    world.ends_at_limit();
    assert_eq!(world.done(&["cause"]), ["0 cause a"]);
    assert!(world.reported.is_empty());
    world.pass(ms(999));
    assert!(world.reported.is_empty());
    world.pass(ms(1));
    assert_eq!(world.reported.len(), 1);
    world.pass(ms(600_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (1, 1));
}

#[test]
fn two_witnesses_of_one_kill_are_one_kill_and_the_kernel_s_log_is_believed() {
    // The cgroups showed the container at its limit; the log proves that the node was short.
    let mut world = world(|_| ());
    world.ends_at_limit();
    world.pass(ms(20));
    world.killed(OomConstraint::Node, |kill| {
        kill.witness = OomWitness::KernelLog;
        kill.process = Some((4_711, "python".into()));
    });
    world.pass(ms(1_000));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
    assert_eq!(world.condition_writes(), 2);
    let message = "The kernel killed process python (4711) of container main: the node had no \
                   memory left for it. Seen in the kernel's log.";
    assert_eq!(world.reported, [("ContainerOOMKilled", message.to_owned())]);
    assert_eq!(world.tally(OomConstraint::Node).ended, 1);
    assert_eq!(world.tally(OomConstraint::ContainerLimit), OomTally::default());
}

#[test]
fn two_witnesses_that_agree_make_one_write() {
    let mut world = world(|_| ());
    for witness in [OomWitness::KernelLog, OomWitness::MemoryEvents] {
        world.killed(OomConstraint::ContainerLimit, |kill| kill.witness = witness);
    }
    world.pass(ms(2_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (1, 1));
}

#[test]
fn a_child_that_was_killed_is_reported_and_counted_and_no_more() {
    let mut world = world(|_| ());
    for _ in 0..3 {
        world.killed(OomConstraint::ContainerLimit, |kill| kill.container_lives = Some(true));
        world.pass(ms(2_000));
    }
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 1));
    assert_eq!(world.tally(OomConstraint::ContainerLimit).lived_on, 3);
    assert!(world.reported[0].1.contains("a process of container main"), "{:?}", world.reported);
    world.pass(ms(60_000));
    assert_eq!(world.reported.len(), 2);
    assert_eq!(world.reported[1].0, "ChildProcessOOMKilled");
    assert!(world.reported[1].1.ends_with("It was the last of 2."), "{:?}", world.reported);
    world.pass(ms(600_000));
    assert_eq!(world.reported.len(), 2);
}

#[test]
fn the_witness_that_saw_a_container_exit_is_believed() {
    let mut world = world(|_| ());
    world.killed(OomConstraint::ContainerLimit, |kill| kill.container_lives = Some(true));
    assert_eq!(world.condition_writes(), 0);
    world.killed(OomConstraint::ContainerLimit, |kill| kill.witness = OomWitness::KernelLog);
    world.pass(ms(2_000));
    assert_eq!(world.why("a"), Some("ContainerLimit"));
    assert_eq!(world.reported.len(), 1);
}

#[test]
fn a_container_that_the_status_does_not_name_yet_is_named_by_the_runtime() {
    let mut world = world(|_| ());
    world.change("a", |pod| pod.details.container_ids.clear());
    let mut state = runtime(&[Some(137)]);
    state.containers[0].id = "c1".into();
    state.containers[0].name = "worker".into();
    world.runtime.insert("a".into(), state);
    world.ends_at_limit();
    assert_eq!(world.done(&["inspect", "cause"]), ["0 inspect a", "0 cause a"]);
    world.pass(ms(1_000));
    assert!(
        world.reported[0].1.starts_with("The kernel killed container worker"),
        "{:?}",
        world.reported
    );
}

/// The container may have exited with 0 all the same, and no kubelet learns of its end before.
#[test]
fn a_runtime_that_does_not_answer_delays_the_condition_by_five_seconds() {
    let mut world = world(|_| ());
    world.change("a", |pod| pod.details.container_ids.clear());
    world.answers.insert("inspect a".into(), Answer::Hold);
    world.killed(OomConstraint::ContainerLimit, |kill| {
        kill.container_id = Some("0123456789abcdef".into());
    });
    world.pass(ms(6_000));
    assert_eq!(world.done(&["cause"]), ["5000 cause a"]);
    assert!(world.reported[0].1.starts_with("The kernel killed container 0123456789ab:"));
    world.let_go("inspect");
    world.pass(ms(5_000));
    assert_eq!(world.condition_writes(), 1);
}

#[test]
fn the_runtime_is_asked_for_a_container_s_fate_that_no_witness_saw() {
    for (code, expected) in [(Some(137), 1), (None, 0)] {
        let mut world = world(|_| ());
        let mut state = runtime(&[code]);
        state.containers[0].id = "c1".into();
        world.runtime.insert("a".into(), state);
        world.killed(OomConstraint::ContainerLimit, |kill| kill.container_lives = None);
        world.pass(ms(2_000));
        assert_eq!(world.condition_writes(), expected, "{code:?}");
    }
    let mut world = world(|settings| settings.runtime = false);
    world.killed(OomConstraint::ContainerLimit, |kill| kill.container_lives = None);
    world.pass(ms(2_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 1));
    assert!(world.reported[0].1.contains("not known whether"), "{:?}", world.reported);
    assert_eq!(world.tally(OomConstraint::ContainerLimit).unknown, 1);
}

#[test]
fn a_container_that_ended_for_itself_was_not_ended_by_an_earlier_kill() {
    // Simulation seed 4015162: no witness saw whether it lived on, and then it was stopped.
    for (code, reason) in [(137, Some("NodeOutOfMemory")), (143, None), (0, None)] {
        let mut world = of_job();
        world.containers("a", &[Some(code)]);
        world.runtime.get_mut("a").expect("must be there").containers[0].id = "c1".into();
        world.killed(OomConstraint::Node, |kill| kill.container_lives = None);
        world.pass(ms(10_000));
        assert_eq!(world.why("a"), reason, "{code}: {:#?}", world.log);
    }
}

#[test]
fn who_killed_a_container_of_a_pod_that_is_ended_is_not_known_by_its_exit() {
    type Change = fn(&mut PodView);
    let ends: [(Change, Option<&str>); 2] =
        [(|_| (), Some("NodeOutOfMemory")), (|pod| pod.deletion_grace_seconds = Some(1), None)];
    for (change, reason) in ends {
        // Simulation seed 9128882: a child was killed, and the kubelet's SIGKILL came 9 ms later.
        let mut world = of_job();
        world.change("a", change);
        world.containers("a", &[Some(137)]);
        world.runtime.get_mut("a").expect("must be there").containers[0].id = "c1".into();
        world.killed(OomConstraint::Node, |kill| kill.container_lives = None);
        world.pass(ms(10_000));
        assert_eq!(world.why("a"), reason, "{:#?}", world.log);
        assert!(world.reported[0].0 == "ContainerOOMKilled", "{:?}", world.reported);
    }
}

#[test]
fn a_kill_may_be_known_before_its_pod() {
    let mut world = World::standing(wanting(|_| ()), armed(), Vec::new());
    world.ends_at_limit();
    assert_eq!(world.condition_writes(), 0);
    world.pods.insert("a".into(), job("a"));
    world.pass(ms(500));
    world.list();
    assert_eq!(world.done(&["cause"]), ["500 cause a"]);

    let mut world = World::standing(wanting(|_| ()), armed(), Vec::new());
    world.ends_at_limit();
    world.pass(ms(61_000));
    world.pods.insert("a".into(), job("a"));
    world.list();
    assert_eq!(world.condition_writes(), 0);
}

#[test]
fn a_node_oom_kill_is_a_disruption_only_if_configured_and_true() {
    use OomConstraint::{ContainerLimit, Node, Unknown};
    let restarting =
        |pod: PodView| pod.with(|pod| pod.restarts_in_place = crate::pod::RestartPolicy::OnFailure);
    // The remaining containers may run for hours, and end for another cause.
    let of_two = |pod: PodView| pod.with(|pod| pod.containers.push("other".into()));
    let table = [
        (true, Node, job("a"), true),
        (false, Node, job("a"), false),
        (true, ContainerLimit, job("a"), false),
        (true, Unknown, job("a").with(|pod| pod.asks.containers.clear()), false),
        (true, Node, restarting(job("a")), false),
        (true, Node, of_two(job("a")), false),
        // The pod ends with its main container, whatever its sidecar does.
        (true, Node, job("a").sidecar(), true),
        (true, Node, pod("a"), false),
        (true, Node, job("a").disrupted("EvictionByEvictionAPI"), false),
        (true, Node, job("a").phase(Phase::Failed), false),
    ];
    for (disrupts, constraint, view, expected) in table {
        let settings = wanting(|settings| settings.features.node_oom_disrupts = disrupts);
        let mut world = World::standing(settings, armed(), vec![view.clone()]);
        world.answers.insert("cause a".into(), Answer::Hold);
        world.killed(constraint, |_| ());
        world.pass(ms(200));
        let conditions = world.held_conditions();
        let disruption =
            conditions.iter().find(|condition| condition["type"] == "DisruptionTarget");
        assert_eq!(disruption.is_some(), expected, "{disrupts} {constraint:?} {view:?}");
        if let Some(disruption) = disruption {
            assert_eq!(disruption["reason"], "TerminationByKubelet");
            let message = "The node was out of memory; the kernel killed container main.";
            assert_eq!(disruption["message"], message);
        }
    }
}

#[test]
fn a_pod_that_restarts_its_containers_keeps_the_latest_cause() {
    let mut world = World::standing(
        wanting(|_| ()),
        armed(),
        vec![job("a").restarts(crate::pod::RestartPolicy::Always)],
    );
    world.ends_at_limit();
    world.pass(ms(5_000));
    world.killed(OomConstraint::Node, |kill| kill.container_id = Some("c2".into()));
    world.pass(ms(5_000));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
    assert_eq!(world.condition_writes(), 2);
    // The same kill again is not worth a write each time.
    for _ in 0..5 {
        world.killed(OomConstraint::Node, |kill| kill.container_id = Some("c3".into()));
        world.pass(ms(5_000));
    }
    assert_eq!(world.condition_writes(), 2);
    world.pass(ms(60_000));
    world.answers.insert("cause a".into(), Answer::Hold);
    world.killed(OomConstraint::Node, |kill| kill.container_id = Some("c4".into()));
    world.pass(ms(200));
    let conditions = world.held_conditions();
    assert!(conditions[0]["lastTransitionTime"].is_null(), "{conditions:?}");
    assert_eq!(world.race(), (0, 0));
}

#[test]
fn nothing_is_written_that_is_so_already() {
    let mut world = world(|_| ());
    world.change("a", |pod| {
        pod.details.oom_killed = Some((true, "ContainerLimit".into()));
    });
    world.ends_at_limit();
    world.pass(ms(2_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 1));
    world.killed(OomConstraint::Node, |kill| kill.container_id = Some("c2".into()));
    assert_eq!(world.condition_writes(), 1);
}

#[test]
fn the_race_is_won_by_the_status_that_the_api_shows_first() {
    let mut won = world(|_| ());
    won.ends_at_limit();
    won.ends("a", Phase::Failed);
    assert_eq!(won.race(), (1, 0));

    // The write came after the phase, although its response came before the watch showed the phase.
    let mut lost = world(|_| ());
    lost.answers.insert("cause a".into(), Answer::Hold);
    lost.ends_at_limit();
    lost.pods.get_mut("a").expect("must be a pod").phase = Phase::Failed;
    lost.let_go("cause");
    assert_eq!(lost.race(), (0, 1));

    // The pod is gone before the API showed anything.
    let mut gone = world(|_| ());
    gone.answers.insert("cause a".into(), Answer::Hold);
    gone.ends_at_limit();
    gone.gone("a");
    assert_eq!(gone.race(), (0, 1));
}

#[test]
fn each_refusal_is_followed_as_it_should_be() {
    use FailureKind::{Conflict, Forbidden, Invalid, NotFound, ServerError, Unknown};
    // The failure, how often it occurs, the attempts within a minute, and whether the condition is
    // there.
    let table = [
        (NotFound, 9, 1, false),
        // It is repeated slowly: a webhook may be corrected meanwhile.
        (Invalid, 3, 4, true),
        (Invalid, 9, 8, false),
        (Forbidden, 9, 1, false),
        (Conflict, 2, 3, true),
        (ServerError, 4, 5, true),
        (Unknown, 1, 2, true),
        (FailureKind::TooManyRequests, 3, 4, true),
    ];
    for (kind, times, attempts, there) in table {
        let mut world = world(|_| ());
        world.answers.insert("cause a".into(), Answer::Fail(kind, times));
        world.ends_at_limit();
        world.pass(ms(60_000));
        assert_eq!(world.condition_writes(), attempts, "{kind:?}: {:?}", world.log);
        assert_eq!(world.why("a").is_some(), there, "{kind:?}");
        assert_eq!(world.agent.status().oom.oom_conditions_pending, 0);
    }
}

#[test]
fn a_refused_disruption_leaves_the_cause() {
    // The pod has ended meanwhile: a policy allows no added disruption.
    for refusal in [FailureKind::Invalid, FailureKind::Forbidden] {
        let mut world = world(|settings| settings.features.node_oom_disrupts = true);
        world.answers.insert("cause a".into(), Answer::Fail(refusal, 1));
        world.killed(OomConstraint::Node, |_| ());
        assert_eq!(world.done(&["cause"]), ["0 cause a", "0 cause a"]);
        assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
        assert!(world.disrupted().is_empty());
        assert!(world.reported.is_empty(), "{:?}", world.reported);
    }
}

#[test]
fn what_is_forbidden_here_leaves_the_marks_of_a_shutdown_alone() {
    let mut world = world(|_| ());
    world.answers.insert("cause a".into(), Answer::Fail(FailureKind::Forbidden, 1));
    world.ends_at_limit();
    world.pass(ms(2_000));
    assert!(world.logged.iter().any(|line| line.contains("does not accept the cause")));
    world.shutdown(40);
    world.pass(ms(1_000));
    assert_eq!(world.done(&["mark"]).len(), 1);
    // One refusal proves nothing about another cause.
    world.killed(OomConstraint::Node, |kill| kill.container_id = Some("c2".into()));
    assert_eq!(world.condition_writes(), 2);
}

#[test]
fn an_api_that_never_answers_is_not_asked_for_ever() {
    let mut world = world(|_| ());
    world.answers.insert("cause a".into(), Answer::Fail(FailureKind::Unknown, u32::MAX));
    world.ends_at_limit();
    world.pass(ms(601_000));
    let tries = world.condition_writes();
    assert!((60..150).contains(&tries), "{tries}");
    world.pass(ms(600_000));
    assert_eq!(world.condition_writes(), tries);
}

#[test]
fn the_status_of_a_pod_is_the_last_witness() {
    let mut world = world(|_| ());
    world.change("a", |pod| {
        pod.phase = Phase::Failed;
        pod.details.oom_reported = vec!["main".into()];
    });
    assert_eq!(world.why("a"), Some("ContainerLimit"));
    assert_eq!(world.race(), (0, 1));
    world.pass(ms(2_000));
    let message = "The kernel killed container main: it is not known why, and the container has \
                   a memory limit of 64Mi. Seen in the container's status.";
    assert_eq!(world.reported, [("ContainerOOMKilled", message.to_owned())]);
    assert_eq!(world.condition_writes(), 1);
}

#[test]
fn the_last_witness_says_nothing_new_of_a_kill_that_was_seen() {
    let mut world = world(|_| ());
    world.killed(OomConstraint::Node, |_| ());
    world.change("a", |pod| {
        pod.phase = Phase::Failed;
        pod.details.oom_reported = vec!["main".into()];
    });
    world.pass(ms(2_000));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
    assert_eq!((world.condition_writes(), world.reported.len()), (1, 1));
}

#[test]
fn a_child_s_kill_explains_the_end_that_follows() {
    let mut world = world(|_| ());
    world.killed(OomConstraint::Node, |kill| kill.container_lives = Some(true));
    world.pass(ms(3_000));
    world.change("a", |pod| {
        pod.phase = Phase::Failed;
        pod.details.oom_reported = vec!["main".into()];
    });
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
}

#[test]
fn what_was_reported_before_our_time_is_left_as_it_is() {
    let old = job("a").phase(Phase::Failed).with(|pod| {
        pod.details.oom_reported = vec!["main".into()];
    });
    let mut world = World::standing(wanting(|_| ()), armed(), vec![old]);
    world.change("a", |pod| pod.generation += 1);
    world.pass(ms(5_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 0));
}

#[test]
fn a_kill_by_systemd_oomd_says_that_the_node_had_no_memory() {
    let mut world = world(|_| ());
    let kill = |pod: Option<&str>| OomdKill {
        pod: pod.map(|uid| PodUid(uid.into())),
        container_id: Some("c1".into()),
        cgroup: "/kubepods.slice/x".into(),
        reason: "memory-pressure".into(),
    };
    world.event(Event::OomdKilled(Box::new(kill(None))));
    world.event(Event::OomdKilled(Box::new(kill(Some("uid-other")))));
    assert_eq!(world.condition_writes(), 0);
    world.event(Event::OomdKilled(Box::new(kill(Some("uid-a")))));
    assert_eq!(world.why("a"), Some("NodeOutOfMemory"));
    let message = "systemd-oomd killed container main: it waited for memory for too long. Its \
                   cgroup was /kubepods.slice/x.";
    assert_eq!(world.reported, [("OomdKilled", message.to_owned())]);
    assert_eq!(world.agent.status().oom.oomd_kills, 1);
    world.pass(ms(120_000));
    assert_eq!(world.condition_writes(), 1);
}

#[test]
fn a_static_pod_is_reported_and_never_touched() {
    let fixed = job("a").with(|pod| pod.source = PodSource::Static);
    let mut world = World::standing(wanting(|_| ()), armed(), vec![fixed]);
    world.ends_at_limit();
    world.pass(ms(2_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 1));
}

#[test]
fn an_agent_that_observes_only_reports() {
    let mut world = world(|settings| settings.enforce = false);
    world.ends_at_limit();
    world.pass(ms(2_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 1));
}

#[test]
fn with_oom_reports_turned_off_the_agent_is_silent() {
    let mut world = world(|settings| settings.features.oom_causes = false);
    world.ends_at_limit();
    world.event(Event::OomdKilled(Box::new(OomdKill {
        pod: Some(PodUid("uid-a".into())),
        container_id: None,
        cgroup: "/kubepods/x".into(),
        reason: "memory-used".into(),
    })));
    world.change("a", |pod| pod.details.oom_reported = vec!["main".into()]);
    world.pass(ms(120_000));
    assert_eq!((world.condition_writes(), world.reported.len()), (0, 0));
    assert!(world.agent.status().oom.oom_kills.is_empty());
}

#[test]
fn many_kills_at_once_are_written_alongside_each_other_and_within_the_limit_of_calls() {
    let name = |number: usize| format!("p{number}");
    let pods = (0..200).map(|number| {
        job(&name(number)).with(|pod| {
            pod.details.container_ids = vec![("main".into(), name(number))];
        })
    });
    let mut world = World::standing(wanting(|_| ()), armed(), pods.collect());
    world.answers.insert("cause *".into(), Answer::Hold);
    for number in 0..200 {
        world.killed(OomConstraint::Node, |kill| {
            kill.pod = PodUid(format!("uid-{}", name(number)));
            kill.container_id = Some(name(number));
        });
    }
    assert_eq!(world.held.len(), 32);
    world.let_go("cause");
    world.pass(ms(2_000));
    assert_eq!(world.condition_writes(), 200);
    assert_eq!(world.race(), (200, 0));
}

#[test]
fn a_container_that_dies_for_ever_leaves_nothing_behind() {
    let mut world = world(|_| ());
    for number in 0..4_200 {
        world.killed(OomConstraint::ContainerLimit, |kill| {
            kill.container_id = Some(format!("c{number}"));
            kill.container_lives = Some(number % 2 == 0);
        });
        world.pass(ms(300_000));
    }
    assert_eq!(world.tally(OomConstraint::ContainerLimit).ended, 2_100);
    assert_eq!(world.tally(OomConstraint::ContainerLimit).lived_on, 2_100);
}

/// The runtime's state of container `c1` with this name and exit code.
fn ended(name: &str, code: Option<i32>) -> crate::protocol::event::RuntimeState {
    let mut state = runtime(&[code]);
    (state.containers[0].id, state.containers[0].name) = ("c1".into(), name.into());
    state
}

#[test]
fn a_container_that_exits_with_0_was_not_ended_by_the_kill_of_its_child() {
    let mut world = of_job();
    world.runtime.insert("a".into(), ended("main", Some(0)));
    world.ends_at_limit();
    world.pass(ms(5_000));
    assert_eq!(world.condition_writes(), 0, "{:#?}", world.log);
    let tally = world.tally(OomConstraint::ContainerLimit);
    assert_eq!((tally.ended, tally.lived_on), (0, 1));
    let words = "The container then exited with 0.";
    assert!(world.reported.iter().any(|(_, text)| text.ends_with(words)), "{:#?}", world.reported);

    let mut world = of_job();
    world.runtime.insert("a".into(), ended("main", Some(137)));
    world.ends_at_limit();
    assert_eq!(world.condition_writes(), 1);
}

#[test]
fn an_exit_code_that_comes_late_is_awaited_for_five_seconds() {
    let mut world = of_job();
    world.runtime.insert("a".into(), ended("main", None));
    world.ends_at_limit();
    world.pass(ms(4_000));
    assert_eq!(world.condition_writes(), 0);
    world.runtime.insert("a".into(), ended("main", Some(0)));
    world.pass(ms(5_000));
    assert_eq!(world.condition_writes(), 0, "{:#?}", world.log);

    let mut world = of_job();
    world.runtime.insert("a".into(), ended("main", None));
    world.ends_at_limit();
    world.pass(ms(6_000));
    assert_eq!(world.done(&["cause"]).len(), 1, "{:#?}", world.log);
    assert!(world.done(&["inspect"]).len() < 25, "{:#?}", world.log);
}

#[test]
fn a_sidecar_that_is_killed_goes_on_and_so_does_its_pod() {
    let mesh = || {
        job("a").sidecar().with(|pod| {
            pod.details.container_ids = vec![("sidecar".into(), "c1".into())];
        })
    };
    let settings = || wanting(|settings| settings.features.node_oom_disrupts = true);
    let mut world = World::standing(settings(), armed(), vec![mesh()]);
    world.killed(OomConstraint::Node, |_| ());
    world.pass(ms(200));
    assert_eq!((world.why("a"), world.disrupted()), (Some("NodeOutOfMemory"), Vec::new()));

    // Whose process it was, is not known yet.
    let unnamed = mesh().with(|pod| pod.details.container_ids.clear());
    let mut world = World::standing(settings(), armed(), vec![unnamed]);
    world.killed(OomConstraint::Node, |_| ());
    world.pass(ms(200));
    assert_eq!(world.disrupted(), [""; 0]);
}
