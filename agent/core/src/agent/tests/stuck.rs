//! Tests deleted pods that no kubelet terminates.

use epilogue_common::outcome::FailureKind;
use jiff::SignedDuration;

use super::driver::*;
use crate::agent::{Enforcement, Features, Settings};
use crate::pod::tests::pod;
use crate::pod::{Phase, PodSource, PodView};
use crate::protocol::action::{Action, Purpose};
use crate::protocol::event::{ActionResult, Event, RuntimeState};
use crate::protocol::node::{Healthz, KubeletFacts, MainPort};
use crate::termination::hanging::Hang;

pub(super) fn enforcing(mode: Enforcement, fail_hanging_starts: bool) -> Settings {
    let features = Features { stuck_pods: mode, fail_hanging_starts, ..Features::default() };
    Settings { features, ..settings() }
}

pub(super) fn enforce() -> Settings {
    enforcing(Enforcement::Enforce, false)
}

fn with_flag() -> Settings {
    enforcing(Enforcement::Enforce, true)
}

/// A Job's pod that was never started, deleted at the start of the script.
fn deleted(name: &str) -> PodView {
    let at = "2026-11-21T14:17:00Z".parse().expect("must be a time");
    pod(name).never().not_started().deleting(20).with(|pod| {
        pod.details.deleted_at = Some(at);
        pod.details.job_finalizer = true;
    })
}

/// The same for a pod whose containers ran.
fn ran(name: &str) -> PodView {
    deleted(name).phase(Phase::Running).with(|pod| pod.has_run = true)
}

fn nothing() -> RuntimeState {
    RuntimeState::default()
}

/// A sandbox without any container.
fn sandbox(ready: bool) -> RuntimeState {
    RuntimeState { sandbox_ready: ready, sandbox_known: true, ..RuntimeState::default() }
}

fn hung() -> KubeletFacts {
    let (healthy, main_port) = (Some(Healthz::Silent), Some(MainPort::Silent));
    KubeletFacts { healthy, main_port, ..plain() }
}

/// A node whose kubelet is reported every 20 s; a kubelet that is not well renews no lease.
pub(super) struct Node {
    pub(super) world: World,
    facts: KubeletFacts,
    well_at: std::time::Duration,
}

impl Node {
    fn new(settings: Settings, facts: &KubeletFacts, pods: Vec<PodView>) -> Self {
        let world = World::standing(settings, plain(), pods);
        let well_at = world.now;
        let mut node = Self { world, facts: facts.clone(), well_at };
        node.seen();
        node
    }

    /// A node with one pod in this state in the runtime.
    pub(super) fn of(
        settings: Settings,
        facts: &KubeletFacts,
        pod: PodView,
        state: RuntimeState,
    ) -> Self {
        let name = pod.name.clone();
        let mut node = Self::new(settings, facts, vec![pod]);
        node.world.runtime.insert(name, state);
        node
    }

    fn seen(&mut self) {
        let mut facts = self.facts.clone();
        if facts.healthy == Some(Healthz::Ok) {
            self.well_at = self.world.now;
        }
        facts.lease_age = Some(self.world.now.saturating_sub(self.well_at));
        self.world.event(Event::KubeletSeen(facts));
    }

    fn becomes(&mut self, facts: &KubeletFacts) {
        self.facts = facts.clone();
        self.seen();
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds / 20 {
            self.world.pass(ms(20_000));
            self.seen();
        }
    }

    /// Passes less time than a sight of the kubelet needs.
    pub(super) fn tick(&mut self, seconds: u64) {
        self.world.pass(ms(seconds * 1_000));
        self.seen();
    }

    pub(super) fn phase(&self, name: &str) -> Phase {
        self.world.pods[name].phase
    }

    pub(super) fn writes(&self) -> Vec<&str> {
        self.world.done(&["fail", "fail", "mark", "delete", "stop", "clear"])
    }

    /// The number of log lines that contain this text.
    pub(super) fn reported(&self, what: &str) -> usize {
        self.world.logged.iter().filter(|line| line.contains(what)).count()
    }

    fn stuck(&self, hang: Hang) -> usize {
        let status = self.world.agent.status();
        status.stuck.pods.get(&hang).copied().unwrap_or_default()
    }
}

#[test]
fn a_pod_that_never_started_is_failed_under_a_dead_kubelet() {
    // The kubelet is dead for a minute, and the runtime has nothing of the pod. ([PT7])
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    node.pass(40);
    assert_eq!(node.writes(), [""; 0], "a kubelet may come back");
    node.pass(60);
    assert_eq!(node.phase("a"), Phase::Failed, "{:#?}", node.world.log);
    let [written] = node.writes()[..] else { panic!("once, not {:#?}", node.world.log) };
    assert!(written.ends_with("fail a"), "{written}");
    let inspects = node.world.done(&["inspect"]);
    assert_eq!(inspects.len(), 2, "one empty check does not count: {inspects:?}");
    assert_eq!(node.world.agent.status().stuck.failed, 1);
    assert_eq!(node.reported("Failed by the agent"), 1, "{:#?}", node.world.logged);
    assert_eq!(node.world.lies, [""; 0]);
    node.pass(600);
    assert_eq!(node.writes().len(), 1, "{:#?}", node.world.log);
    assert_eq!(node.stuck(Hang::NotBegun), 0);
}

#[test]
fn what_is_written_is_the_phase_alone() {
    // The deleter states the cause. ([PT1])
    let mut node = Node::of(enforce(), &dead(), deleted("a").disrupted("Other"), nothing());
    node.world.answers.insert("fail *".into(), Answer::Hold);
    node.pass(120);
    let [(_, _, Action::PatchStatus { purpose, body, .. })] = &node.world.held[..] else {
        panic!("{:#?}", node.world.log)
    };
    assert_eq!(*purpose, Purpose::Fail);
    assert_eq!(body["status"]["phase"], "Failed");
    assert!(body["metadata"]["resourceVersion"].is_string());
    assert!(body["status"].get("reason").is_none() && body["status"].get("message").is_none());
    let conditions = body["status"]["conditions"].as_array().expect("must be a list");
    let kinds: Vec<_> = conditions.iter().filter_map(|it| it["type"].as_str()).collect();
    assert_eq!(kinds, ["Ready", "ContainersReady"]);
    assert!(conditions.iter().all(|it| it["status"] == "False" && it["reason"] == "PodFailed"));
}

/// A kubelet, and whether the agent may fail pods alongside a live one.
type Place = (KubeletFacts, bool);

/// Checks a pod's result within ten minutes: the writes and the finding.
fn comes_to(
    row: &str,
    (facts, flag): &Place,
    pod: PodView,
    state: Option<RuntimeState>,
    (writes, hang): (&[&str], Option<Hang>),
) {
    let answers = state.is_some();
    let settings = enforcing(Enforcement::Enforce, *flag);
    let mut node = Node::of(settings, facts, pod, state.unwrap_or_default());
    if !answers {
        let never = Answer::Fail(FailureKind::Unknown, u32::MAX);
        node.world.answers.insert("inspect *".into(), never);
    }
    node.pass(600);
    assert_eq!(node.world.lies, [""; 0], "{row}");
    let written = node.writes().into_iter();
    let written: Vec<_> =
        written.map(|line| line.split_once(' ').expect("must have a time").1).collect();
    let seen = node.world.agent.status().stuck.pods.keys().next().copied();
    assert_eq!((written, seen), (writes.to_vec(), hang), "{row}");
}

fn exited() -> RuntimeState {
    runtime(&[Some(1)])
}

const NOTHING: Option<RuntimeState> =
    Some(RuntimeState { containers: Vec::new(), sandbox_ready: false, sandbox_known: false });

fn claims(pod: PodView) -> PodView {
    pod.with(|pod| pod.details.resource_claims = true)
}

fn volumes(pod: PodView) -> PodView {
    pod.with(|pod| pod.details.persistent_volumes = true)
}

fn alone(pod: PodView) -> PodView {
    pod.with(|pod| pod.details.job_finalizer = false)
}

#[test]
fn without_a_kubelet_each_missing_piece_of_evidence_leaves_the_phase_as_it_is() {
    // Failed needs a proof that nothing runs. ([PT7], [PT8], [PT10], [PT11], [PT12])
    let (dead, hung): (Place, Place) = ((dead(), false), (hung(), false));
    let fail = (&["fail a"][..], None);
    let stop = (&["stop a 20", "fail a"][..], None);
    let left = |hang| (&[][..], Some(hang));
    let standing = || RuntimeState { sandbox_ready: true, ..exited() };
    comes_to("dead", &dead, deleted("a"), NOTHING, fail);
    comes_to("hung", &hung, deleted("a"), NOTHING, fail);
    comes_to("dead, exited", &dead, ran("a"), Some(exited()), fail);
    comes_to("hung, exited", &hung, ran("a"), Some(exited()), fail);
    comes_to("not a Job's", &dead, alone(ran("a")), Some(exited()), fail);
    // The state that a hanging image leaves under a kubelet that was stopped.
    comes_to("an empty sandbox", &dead, deleted("a"), Some(sandbox(true)), stop);
    comes_to("a sandbox that is over", &dead, deleted("a"), Some(sandbox(false)), fail);
    comes_to("a sandbox that stands", &dead, ran("a"), Some(standing()), stop);
    // States that prove nothing, or something else.
    comes_to("it runs", &dead, ran("a"), Some(runtime(&[None])), left(Hang::Runs));
    comes_to("no witness", &dead, deleted("a"), None, left(Hang::NoWitness));
    comes_to("another runtime", &dead, ran("a"), NOTHING, left(Hang::Unproven));
    let two = ran("a").with(|pod| pod.containers.push("second".into()));
    comes_to("one is missing", &dead, two.clone(), Some(exited()), left(Hang::Unproven));
    comes_to("one never came", &dead, two.phase(Phase::Pending), Some(exited()), fail);
    comes_to("0", &dead, ran("a"), Some(runtime(&[Some(0)])), left(Hang::Succeeded));
    comes_to("DRA", &dead, claims(ran("a")), Some(exited()), left(Hang::Exited));
    comes_to("RWO", &dead, volumes(deleted("a")), NOTHING, left(Hang::NotBegun));
}

#[test]
fn alongside_a_live_kubelet_a_phase_is_written_only_where_it_is_asked_for_and_proven() {
    // Only where the operator enables it, and with proof. ([PT11], [PT12], [PT13])
    let (unasked, asked): (Place, Place) = ((plain(), false), (plain(), true));
    let lever = (&["fail a"][..], None);
    let left = |hang| (&[][..], Some(hang));
    comes_to("a start, unasked", &unasked, deleted("a"), NOTHING, left(Hang::NotBegun));
    comes_to("exited, unasked", &unasked, ran("a"), Some(exited()), left(Hang::Exited));
    comes_to("exited", &asked, ran("a"), Some(exited()), lever);
    // The call that hangs may start a container as soon as it returns, behind the phase. Simulation
    // seed 10078570.
    comes_to("a start", &asked, deleted("a"), NOTHING, left(Hang::NotBegun));
    let over = Some(sandbox(false));
    comes_to("a start, next sandbox", &asked, deleted("a"), over, left(Hang::NoContainer));
    // The sandbox goes first: then a late pull cannot start anything in it.
    let stop = (&["stop a 20", "fail a"][..], None);
    comes_to("a start, image", &asked, deleted("a"), Some(sandbox(true)), stop);
    comes_to("a start, not a Job's", &asked, alone(deleted("a")), NOTHING, left(Hang::NotBegun));
    comes_to("exited, DRA", &asked, claims(ran("a")), Some(exited()), left(Hang::Exited));
    comes_to("exited, RWO", &asked, volumes(ran("a")), Some(exited()), left(Hang::Exited));
    comes_to("exited with 0", &asked, ran("a"), Some(runtime(&[Some(0)])), left(Hang::Succeeded));
    comes_to("a container runs", &asked, ran("a"), Some(runtime(&[None])), left(Hang::Runs));
    let restarted = deleted("a").with(|pod| pod.details.restarted = true);
    comes_to("a start, restarted", &asked, restarted, NOTHING, left(Hang::NotBegun));
    comes_to("a start, ran", &asked, ran("a"), NOTHING, left(Hang::Unproven));
    comes_to("exited, not shown", &asked, deleted("a"), Some(exited()), left(Hang::Exited));
}

#[test]
fn a_live_kubelet_gets_time_to_report_what_has_just_exited() {
    let settings = enforcing(Enforcement::Enforce, true);
    let mut node = Node::of(settings, &plain(), ran("a"), runtime(&[None]));
    node.pass(600);
    assert_eq!(node.writes(), [""; 0], "it runs: {:#?}", node.world.log);
    let standing = RuntimeState { sandbox_ready: true, ..exited() };
    node.world.runtime.insert("a".into(), standing);
    let found = |node: &Node| node.world.agent.status().stuck.pods.contains_key(&Hang::Exited);
    for _ in 0..60 {
        if found(&node) {
            break;
        }
        node.tick(1);
        assert_eq!(node.writes(), [""; 0], "{:#?}", node.world.log);
    }
    assert!(found(&node));
    node.tick(8);
    assert_eq!(node.writes(), [""; 0], "{:#?}", node.world.log);
    node.tick(25);
    assert_eq!(node.phase("a"), Phase::Failed, "{:#?}", node.world.log);
}

#[test]
fn pods_that_the_agent_may_not_terminate_are_not_checked() {
    let early = |pod: &mut PodView| {
        let at = pod.details.deleted_at.expect("must be deleted");
        pod.details.deleted_at = Some(at + SignedDuration::from_hours(1));
        pod.deletion_grace_seconds = Some(3_600);
    };
    let pods = [
        deleted("static").with(|pod| pod.source = PodSource::Static),
        deleted("terminal").phase(Phase::Failed),
        deleted("succeeded").phase(Phase::Succeeded),
        deleted("agent"),
        deleted("in-its-grace").with(early),
        pod("not-deleted").not_started(),
    ];
    for (settings, facts) in [(enforce(), dead()), (with_flag(), plain())] {
        let mut node = Node::new(settings, &facts, pods.to_vec());
        node.pass(600);
        assert_eq!(node.world.log, [""; 0]);
        assert!(node.world.agent.status().stuck.pods.is_empty());
    }
    let mut node = Node::new(enforcing(Enforcement::Off, true), &dead(), vec![deleted("a")]);
    node.pass(600);
    assert_eq!(node.world.log, [""; 0]);
}

#[test]
fn a_kubelet_is_waited_for_until_it_is_surely_gone() {
    // 60 s without a process, 5 min without a response. ([PT7], [PT8])
    for (facts, waited, then) in [(dead(), 60, 40), (hung(), 280, 80)] {
        let mut node = Node::of(enforce(), &facts, deleted("a"), nothing());
        node.pass(waited);
        assert_eq!(node.writes(), [""; 0], "{facts:?}");
        node.pass(then);
        assert_eq!(node.phase("a"), Phase::Failed, "{facts:?} {:#?}", node.world.log);
    }
    // A renewed lease proves that a kubelet renews it.
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    for _ in 0..30 {
        node.well_at = node.world.now;
        node.pass(20);
    }
    assert_eq!(node.writes(), [""; 0]);
}

#[test]
fn a_kubelet_that_flaps_is_neither_dead_nor_alive() {
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    for _ in 0..10 {
        node.becomes(&dead());
        node.pass(40);
        node.becomes(&plain());
        node.world.pass(ms(5_000));
    }
    assert_eq!(node.writes(), [""; 0], "{:#?}", node.world.log);
    node.becomes(&dead());
    node.pass(100);
    assert_eq!(node.phase("a"), Phase::Failed);
}

#[test]
fn the_agent_wakes_by_itself_for_each_round() {
    let mut node = Node::of(enforce(), &plain(), deleted("a"), nothing());
    node.world.pass(ms(89_000));
    // 17 s of grace, 60 s of patience, and up to 10 s until the round.
    assert_eq!(node.world.log, ["87000 inspect a"]);
}

#[test]
fn what_is_known_of_the_kubelet_grows_old() {
    let mut node = Node::of(enforce(), &hung(), deleted("a"), nothing());
    node.pass(200);
    node.world.pass(ms(600_000));
    assert_eq!(node.writes(), [""; 0], "{:#?}", node.world.log);
}

#[test]
fn an_empty_check_counts_only_alongside_another() {
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    node.world.answers.insert("fail *".into(), Answer::Hold);
    // The runtime comes up: first nothing, then no response, then the container.
    node.world.answers.insert("inspect *".into(), Answer::Hold);
    node.pass(80);
    node.world.let_go("inspect");
    node.world.answers.insert("inspect *".into(), Answer::Fail(FailureKind::Unknown, 1));
    node.world.pass(ms(10_000));
    node.world.runtime.insert("a".into(), runtime(&[None]));
    node.pass(40);
    assert_eq!(node.world.held.len(), 0, "{:#?}", node.world.log);
    assert_eq!(node.stuck(Hang::Runs), 1);
}

#[test]
fn a_phase_that_is_taken_back_is_written_three_times_and_no_more() {
    // The kubelet reverts the phase three times. ([API13], [PT13])
    for (settings, facts) in [(enforce(), hung()), (with_flag(), plain())] {
        let mut node = Node::of(settings, &facts, deleted("a"), sandbox(true));
        for _ in 0..60 {
            node.pass(20);
            if node.phase("a") == Phase::Failed {
                node.world.change("a", |pod| pod.phase = Phase::Pending);
            }
        }
        assert_eq!(node.world.done(&["stop"]).len(), 1, "{:#?}", node.world.log);
        let times: Vec<u64> = node.world.done(&["fail"]).iter().map(|line| time(line)).collect();
        assert_eq!(times.len(), 3, "{:#?}", node.world.log);
        assert!(times.windows(2).all(|two| two[1] - two[0] >= 10_000), "{times:?}");
        assert_eq!(node.world.agent.status().reverted[&Purpose::Fail], 3);
        assert!(node.reported("was taken back each time") > 0, "{:#?}", node.world.logged);
    }
}

fn time(line: &str) -> u64 {
    line.split(' ').next().and_then(|at| at.parse().ok()).expect("must have a time")
}

#[test]
fn events_are_sent_every_ten_minutes_and_not_more_often() {
    let mut node = Node::of(enforce(), &plain(), deleted("a"), sandbox(true));
    node.pass(1_800);
    let reported = node.reported("the pull of an image");
    assert!((2..=3).contains(&reported), "{reported} {:#?}", node.world.logged);
    assert!(
        node.reported("--hanging-starts=fail") == reported
            && node.reported("kubectl delete --force") > 0
    );
    // Where the agent cannot act, it asks the runtime only for the event.
    assert_eq!(node.world.done(&["inspect"]).len(), reported);
    assert_eq!(node.stuck(Hang::NoContainer), 1);
    node.world.gone("a");
    assert_eq!(node.stuck(Hang::NoContainer), 0);
}

#[test]
fn an_observing_agent_reports_what_it_would_do_and_does_nothing() {
    let observing = [
        enforcing(Enforcement::Observe, false),
        Settings { enforce: false, ..enforcing(Enforcement::Enforce, false) },
    ];
    for settings in observing {
        let pods = vec![deleted("a"), deleted("b")];
        let mut node = Node::new(settings, &dead(), pods);
        node.world.runtime.insert("a".into(), nothing());
        node.world.runtime.insert("b".into(), runtime(&[None]));
        node.pass(300);
        assert_eq!(node.writes(), [""; 0]);
        assert_eq!(node.reported("Would be failed"), 1, "{:#?}", node.world.logged);
        assert_eq!(node.reported("Deleted, and not terminated"), 0, "{:#?}", node.world.logged);
    }
}

#[test]
fn an_observing_agent_without_a_runtime_says_what_its_claim_depends_on() {
    let settings = Settings { enforce: false, runtime: false, ..enforce() };
    let claims = deleted("b").with(|pod| pod.details.resource_claims = true);
    let mut node = Node::new(settings, &dead(), vec![deleted("a"), claims]);
    node.pass(300);
    assert_eq!(node.writes(), [""; 0]);
    let said = "set to enforce, and the runtime proved that nothing of it runs";
    assert_eq!(node.reported(said), 1, "{:#?}", node.world.logged);
    let settings = Settings { enforce: false, runtime: false, ..enforce() };
    let mut lives = Node::of(settings, &plain(), deleted("a"), nothing());
    lives.pass(300);
    assert_eq!(lives.reported("Would be failed"), 0, "a live kubelet terminates it");
}

#[test]
fn without_a_runtime_a_stuck_pod_is_only_reported() {
    let settings = Settings { runtime: false, ..enforce() };
    let mut node = Node::of(settings, &dead(), deleted("a"), nothing());
    node.pass(300);
    assert_eq!(node.world.log, [""; 0]);
    assert_eq!((node.stuck(Hang::NoWitness), node.reported("may not be used")), (1, 1));
}

#[test]
fn the_check_of_stuck_pods_rests_in_a_shutdown() {
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    node.pass(60);
    node.world.answers.insert("inspect *".into(), Answer::Hold);
    node.world.pass(ms(15_000));
    let under_way = node.world.held.len();
    assert_eq!(under_way, 1);
    node.world.answers.clear();
    node.world.shutdown(40);
    node.world.pass(ms(60_000));
    assert!(node.world.released());
    let fails = node.world.done(&["fail"]);
    assert!(fails.len() <= 1, "{fails:?}");
    assert!(node.world.agent.status().stuck.pods.is_empty());
    assert_eq!(node.world.agent.status().stuck.failed, 0);
}

#[test]
fn a_new_agent_makes_all_evidence_anew() {
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    node.pass(60);
    node.world.restart(enforce());
    node.seen();
    node.world.list();
    node.world.event(Event::LogindSeen(logind(false)));
    node.pass(40);
    assert_eq!(node.writes(), [""; 0], "{:#?}", node.world.log);
    node.pass(60);
    assert_eq!(node.phase("a"), Phase::Failed, "{:#?}", node.world.log);
}

#[test]
fn writes_that_fail_are_repeated_on_a_new_check() {
    for kind in [FailureKind::Unknown, FailureKind::Conflict, FailureKind::ServerError] {
        let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
        node.world.answers.insert("fail *".into(), Answer::Fail(kind, 5));
        node.pass(400);
        assert_eq!(node.phase("a"), Phase::Failed, "{kind:?} {:#?}", node.world.log);
        assert_eq!(node.writes().len(), 6, "{kind:?} {:#?}", node.world.log);
        assert!(node.world.done(&["inspect"]).len() >= 7);
    }
    for kind in [FailureKind::Forbidden, FailureKind::Invalid] {
        let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
        node.world.answers.insert("fail *".into(), Answer::Fail(kind, u32::MAX));
        node.pass(400);
        assert_eq!(node.writes().len(), 1, "{kind:?}");
        assert_eq!(node.reported("does not let the agent write"), 1, "{:#?}", node.world.logged);
    }
}

#[test]
fn a_write_is_reported_though_the_watch_is_quicker_than_its_answer() {
    // Found on the real API: the agent saw the pod's end and forgot to report it.
    let mut node = Node::of(enforce(), &dead(), deleted("a"), nothing());
    node.world.answers.insert("fail *".into(), Answer::Hold);
    node.pass(100);
    assert_eq!(node.reported("Failed by the agent"), 0, "{:#?}", node.world.logged);
    let (id, _, action) = node.world.held.pop().expect("the write is under way");
    node.world.arrive(&action);
    assert_eq!(node.phase("a"), Phase::Failed);
    node.pass(20);
    node.world.event(Event::Finished { id, result: ActionResult::Patched(Ok(None)) });
    assert_eq!(node.reported("Failed by the agent"), 1, "{:#?}", node.world.logged);
    assert_eq!(node.world.agent.status().stuck.failed, 1);
}

#[test]
fn many_pods_are_failed_a_few_at_a_time() {
    let pods: Vec<_> = (0..100).map(|index| deleted(&format!("p{index}"))).collect();
    let mut settings = enforce();
    settings.in_flight_max = 4;
    let mut node = Node::new(settings, &dead(), pods);
    for index in 0..100 {
        node.world.runtime.insert(format!("p{index}"), nothing());
    }
    node.pass(120);
    assert_eq!(node.writes().len(), 100);
    assert!(node.world.pods.values().all(PodView::is_terminal));
}

#[test]
fn a_proof_that_waits_for_another_call_grows_old() {
    let settings = Settings { in_flight_max: 1, ..enforce() };
    let mut node = Node::new(settings, &dead(), vec![deleted("a"), deleted("b")]);
    for name in ["a", "b"] {
        node.world.runtime.insert(name.to_owned(), nothing());
    }
    node.world.answers.insert("fail a".to_owned(), Answer::Hold);
    node.pass(100);
    let inspected = |node: &Node| node.world.done(&["inspect"]).len();
    let before = inspected(&node);
    while inspected(&node) == before {
        node.world.pass(ms(400));
        node.seen();
    }
    // The agent decides again and again, while the write about the other pod is under way.
    for _ in 0..3 {
        node.world.pass(ms(400));
        node.seen();
    }
    node.world.containers("b", &[None]);
    node.world.let_go("fail a");
    assert_eq!(node.writes().len(), 1, "{:#?}", node.world.log);
    assert_eq!(node.world.lies, [""; 0]);
}

#[test]
fn a_grace_that_is_over_by_a_clock_that_jumped_is_not_over() {
    // Found by the simulation: after a suspend, too, the kubelet had no time to terminate the pod.
    let long_ago = deleted("a").with(|pod| {
        let at = pod.details.deleted_at.expect("must be deleted");
        pod.details.deleted_at = Some(at - SignedDuration::from_hours(1));
    });
    let mut node = Node::of(with_flag(), &plain(), long_ago, sandbox(true));
    node.pass(40);
    assert_eq!(node.writes(), [""; 0]);
    node.pass(60);
    assert_eq!(node.phase("a"), Phase::Failed, "{:?}", node.writes());
}

#[test]
fn a_clock_that_was_set_back_holds_no_pod_up() {
    // Found by the simulation: a deletion timestamp one hour ahead.
    let to_come = deleted("a").with(|pod| {
        let at = pod.details.deleted_at.expect("must be deleted");
        pod.details.deleted_at = Some(at + SignedDuration::from_hours(1));
    });
    let mut node = Node::of(enforce(), &dead(), to_come, nothing());
    node.pass(100);
    assert_eq!(node.phase("a"), Phase::Failed, "{:#?}", node.world.log);
}
