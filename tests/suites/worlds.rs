//! Runs the controller and the agent as they ship, shells included, on models of the API, of the
//! kubelet, of logind and of the container runtime, in paused time and by seed. Verdicts judge from
//! the models' own logs, and each is seen to fire on a program that is broken on purpose.
//!
//! Replay a seed with `EPILOGUE_WORLD_SEED=17 cargo lab test worlds NAME`.

mod admission;
mod agent_process;
mod backup;
mod brake;
mod braked_jobs;
mod bus;
mod early;
mod ends_ledger;
mod faults;
mod gang_ledger;
mod gangs;
mod garbage;
mod host;
mod kubelet;
mod ledger;
mod memory;
mod namespaces;
mod node_ledger;
mod notices;
mod pace;
mod plan_checks;
mod plots;
mod shortage;
mod shortage_ledger;
mod shutdown;
mod update_admission;
mod wire;
mod world;
mod young_backup;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Instant;

use epilogue_runtime::telemetry::{self, LogFormat};
use jiff::Timestamp;
use model_api::{Access, Kind, Verb};

use backup::Restore;
use faults::Drawn;
use host::AGENT;
use ledger::CONTROLLER;
use namespaces::DOOMED;
use node_ledger::Met;
use shortage::Pressure;
use shutdown::{Kubelet, Story};
use wire::Sabotage;
use world::{Options, Report, run};

/// Seeds of each kind of world.
const SEEDS: u64 = 20;
/// The same where an agent measures its node each second.
const SEEDS_OF_SHORTAGES: u64 = 8;
/// The same where others change each update.
const SEEDS_OF_UPDATES: u64 = 3;
/// The same where Jobs wait for minutes.
const SEEDS_OF_BRAKES: u64 = 8;
/// Seeds of shutdowns with restores, of each kind; the last three have failed.
const SEEDS_OF_RESTORES: [u64; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 17, 42, 81];
/// How often what a test is about must be met in all seeds together.
const MET_MIN: usize = 3;
/// Of so many Jobs that a restore took back, the ledger may excuse something of one.
const EXCUSED_OF: usize = 20;
/// The verdicts must catch a broken controller within this many seeds.
const CATCH_WITHIN: u64 = 10;

/// Shows the programs' log, with a filter such as `info` in `EPILOGUE_WORLD_LOG`.
fn show_log() {
    if let Ok(filter) = std::env::var("EPILOGUE_WORLD_LOG") {
        let filter = filter.parse().expect("must be a filter of the log");
        let log = telemetry::init(LogFormat::Text, &filter).expect("must be the first");
        // The log lasts as long as the process.
        std::mem::forget(log);
    }
}

/// The seeds to replay, if any.
fn asked_seeds() -> Option<RangeInclusive<u64>> {
    lab::seeds::asked_for("EPILOGUE_WORLD_SEED")
}

/// Runs the seeds, and returns what they drew and did.
fn run_all(what: &str, options: Options) -> Vec<Report> {
    run_some(what, options, SEEDS)
}

/// The same with so many seeds, if none are asked for.
fn run_some(what: &str, options: Options, seeds: u64) -> Vec<Report> {
    run_these(what, options, &(1..=seeds).collect::<Vec<_>>())
}

/// The same with these seeds, if none are asked for.
fn run_these(what: &str, options: Options, seeds: &[u64]) -> Vec<Report> {
    show_log();
    let seeds = asked_seeds().map_or_else(|| seeds.to_vec(), Iterator::collect);
    let (begun, mut reports, mut failures) = (Instant::now(), Vec::new(), Vec::new());
    for seed in seeds {
        let report = run(seed, options);
        if let Ok(text) = std::env::var("EPILOGUE_WORLD_CALLS") {
            let calls = lines(&report.log).into_iter().filter(|line| line.contains(&text));
            calls.for_each(|line| println!("{line}"));
        }
        if !report.violations.is_empty() {
            let some: Vec<&String> = report.violations.iter().take(10).collect();
            failures.push(format!("seed {seed} ({what}): {some:#?}"));
        }
        reports.push(report);
    }
    println!("{what}: {} seeds in {:?}", reports.len(), begun.elapsed());
    assert!(failures.is_empty(), "{} seeds failed:\n{}", failures.len(), failures.join("\n"));
    reports
}

/// The calls as lines, with everything that the model answered.
fn lines(log: &[Access]) -> Vec<String> {
    log.iter().map(|access| format!("{access:?}")).collect()
}

#[test]
fn without_faults_every_job_ends_exactly_as_scripted() {
    let reports = run_all("calm", Options::default());
    assert_restarts_met(&reports);
    assert_reported(&reports, &["ExitCode"]);
    assert_gangs_met(&reports, &[]);
}

/// Some worlds must have had gang scheduling, and these situations.
fn assert_gangs_met(reports: &[Report], of_faults: &[&str]) {
    let gangs = || reports.iter().filter_map(|it| it.gangs.as_ref());
    let excused: Vec<&String> = gangs().flat_map(|it| &it.excused).collect();
    println!("with gangs: {}; excused: {excused:#?}", gangs().count());
    let pods: usize = gangs().filter_map(|it| it.met.get(gang_ledger::JOINED)).sum();
    let is_rare = excused.len() * EXCUSED_OF <= pods;
    assert!(is_rare || asked_seeds().is_some(), "too much is excused: {}", excused.len());
    for what in gang_ledger::MET.iter().chain(of_faults) {
        let count: usize = gangs().filter_map(|it| it.met.get(what)).sum();
        println!("{what}: {count}");
        assert!(count >= MET_MIN || asked_seeds().is_some(), "too few {what}: {count}");
    }
}

/// Ends with each of these causes must have been reported.
fn assert_reported(reports: &[Report], causes: &[&str]) {
    for cause in causes {
        let reported: usize = reports.iter().filter_map(|it| it.reported.get(*cause)).sum();
        println!("events of ends by {cause}: {reported}");
        assert!(reported >= MET_MIN || reports.len() == 1, "too few events by {cause}: {reported}");
    }
}

/// Containers must have been restarted in place, and Jobs must have failed for that.
fn assert_restarts_met(reports: &[Report]) {
    let log = || reports.iter().flat_map(|it| &it.log);
    let waits = |it: &&Access| {
        let waiting = &it.body["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
        it.kind == Kind::Pod && it.code == 200 && *waiting == "CrashLoopBackOff"
    };
    let failed: usize = reports.iter().map(|it| it.verdict.failed_by_restarts).sum();
    let waits = log().filter(waits).count();
    println!("restarts: {waits}; Jobs that failed for them: {failed}");
    let is_met = waits >= MET_MIN && failed >= MET_MIN;
    assert!(is_met || reports.len() == 1, "too few: {waits}, {failed}");
}

#[test]
fn with_faults_and_crashes_each_pod_counts_once() {
    let reports = run_all("faults", Options { faults: true, ..Options::default() });
    assert_restarts_met(&reports);
    assert_gangs_met(&reports, &gang_ledger::OF_FAULTS);
    let drawn = |of: fn(&Drawn) -> u32| reports.iter().map(|it| of(&it.drawn)).sum::<u32>();
    let lost = reports.iter().flat_map(|it| &it.log).filter(|access| access.is_lost).count();
    let answered =
        |code| reports.iter().flat_map(|it| &it.log).filter(|it| it.code == code).count();
    let writes = |it: &&Access| {
        matches!(it.verb, Verb::Create | Verb::Update) && matches!(it.kind, Kind::Pod | Kind::Job)
    };
    let by_us = || reports.iter().flat_map(|it| &it.log).filter(writes);
    let by_us = || by_us().filter(|it| it.agent.starts_with(CONTROLLER) && it.code < 300);
    for (what, count) in [
        ("writes in protobuf", by_us().filter(|it| it.is_protobuf).count()),
        ("writes in JSON", by_us().filter(|it| !it.is_protobuf).count()),
        ("lost replies", lost),
        ("conflicts", answered(409)),
        ("refusals", answered(429) + answered(500) + answered(503)),
        ("refusals by admission", answered(403)),
        ("suspensions", drawn(|it| it.suspensions) as usize),
        ("deleted Jobs", drawn(|it| it.removals) as usize),
        ("deleted pods", drawn(|it| it.deletions) as usize),
        ("expired watches", drawn(|it| it.expiries) as usize),
        ("expired pages", expired_pages(&reports, CONTROLLER)),
        ("late watches", drawn(|it| it.lags) as usize),
        ("outages", drawn(|it| it.outages) as usize),
        ("late calls", drawn(|it| it.delays) as usize),
        ("restarts", reports.iter().map(|it| it.restarts).sum::<u32>() as usize),
    ] {
        println!("{what}: {count}");
        assert!(count >= MET_MIN || reports.len() == 1, "too few {what}: {count}");
    }
}

#[test]
fn after_a_restore_of_etcd_each_pod_that_the_api_shows_counts_once() {
    let options = Options { faults: true, restores: true, ..Options::default() };
    // In two more, a restore undid a PodGroup and not the start of its Job.
    let seeds: Vec<u64> = (1..=SEEDS).chain([168, 219]).collect();
    let reports = run_these("restores", options, &seeds);
    let restores: Vec<_> = reports
        .iter()
        .flat_map(|it| it.restores.iter().map(move |restore| (it, restore)))
        .collect();
    let undone = |(report, restore): &&(&Report, &Restore)| {
        let undone = &report.log[restore.taken..restore.restored];
        let counts =
            |it: &Access| it.code == 200 && it.kind == Kind::Job && it.subresource == "status";
        undone.iter().any(|it| counts(it) && it.agent.starts_with(CONTROLLER))
    };
    let (count, undone) = (restores.len(), restores.iter().filter(undone).count());
    let excused: Vec<&String> = reports.iter().flat_map(|it| &it.verdict.excused).collect();
    let of_jobs: usize = reports.iter().map(|it| it.verdict.undone).sum();
    assert_gangs_met(&reports, &gang_ledger::OF_FAULTS);
    println!("restores: {count}; with counts that are undone: {undone}; {of_jobs} Jobs went back");
    println!("excused: {excused:#?}");
    let is_rare = excused.len() * EXCUSED_OF <= of_jobs;
    assert!(is_rare || reports.len() == 1, "too much is excused: {}", excused.len());
    assert!(undone >= MET_MIN || reports.len() == 1, "too few: {count}, {undone}");
}

#[test]
fn admission_of_others_costs_time_and_no_count() {
    let reports =
        run_all("admission", Options { faults: true, admission: true, ..Options::default() });
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for (what, count) in reports.iter().flat_map(|it| admission::met(&it.log)) {
        *all.entry(what).or_default() += count;
    }
    println!("{all:?}");
    for (what, count) in all {
        assert!(count >= MET_MIN || reports.len() == 1, "too few {what}: {count}");
    }
}

#[test]
fn others_may_add_to_each_update_of_pods_and_jobs() {
    let options = Options { changes_updates: true, ..Options::default() };
    let reports = run_some("changed updates", options, SEEDS_OF_UPDATES);
    assert_updates_met(&reports, &update_admission::OF_JOBS);
}

#[test]
fn others_may_add_to_each_update_of_a_node_that_shuts_down_and_of_its_pods() {
    let mut reports = Vec::new();
    for cancels in [false, true] {
        let options =
            Options { changes_updates: true, shuts_down: true, cancels, ..Options::default() };
        let what = if cancels { "changed updates, cancelled" } else { "changed updates, shutdown" };
        reports.extend(run_some(what, options, SEEDS_OF_UPDATES));
    }
    assert_updates_met(&reports, &update_admission::OF_NODES);
}

fn assert_updates_met(reports: &[Report], all: &[&str]) {
    let met: Vec<_> = reports.iter().map(|it| update_admission::met(&it.log)).collect();
    for what in all {
        let count: usize = met.iter().filter_map(|it| it.get(what)).sum();
        println!("{what}: {count}");
        assert!(count >= MET_MIN || asked_seeds().is_some(), "too few {what}: {count}");
    }
}

#[test]
fn from_the_seventh_failure_of_a_slot_on_pods_wait_whatever_their_job_says() {
    let mut reports = Vec::new();
    for (what, faults, first) in [("brakes", false, 1), ("brakes, faults", true, 101)] {
        let options = Options { brakes: true, faults, ..Options::default() };
        let seeds: Vec<u64> = (first..first + SEEDS_OF_BRAKES).collect();
        reports.extend(run_these(what, options, &seeds));
    }
    let sum = |of: &dyn Fn(&brake::Verdict) -> usize| {
        reports.iter().map(|it| of(&it.brake)).sum::<usize>()
    };
    let met = |situation| sum(&|it| it.met.get(situation).copied().unwrap_or(0));
    let met = brake::SITUATIONS.map(|situation| (situation, met(situation)));
    let all = [("pods that had to wait", sum(&|it| it.braked))];
    let restarted = [("created after a restart", sum(&|it| it.after_restart))];
    for (what, count) in all.into_iter().chain(restarted).chain(met) {
        println!("{what}: {count}");
        assert!(count >= MET_MIN || asked_seeds().is_some(), "too few {what}: {count}");
    }
}

#[test]
fn a_namespace_that_is_deleted_goes_with_its_jobs() {
    let reports =
        run_all("namespaces", Options { faults: true, dooms: true, ..Options::default() });
    assert_gangs_met(&reports, &[]);
    let log = || reports.iter().flat_map(|it| &it.log).filter(|it| it.namespace == DOOMED);
    let ours = || log().filter(|it| it.agent.starts_with(CONTROLLER));
    let is_refused = |it: &&Access| {
        let causes = &it.answer["details"]["causes"];
        it.verb == Verb::Create && causes[0]["reason"] == "NamespaceTerminating"
    };
    let refused = ours().filter(|it| it.kind == Kind::Pod).filter(is_refused).count();
    let pods: BTreeSet<&str> = log()
        .filter(|it| it.verb == Verb::Delete && it.kind == Kind::Pod)
        .map(|it| it.name.as_str())
        .collect();
    for (what, count) in [("refused pods", refused), ("deleted pods", pods.len())] {
        println!("{what}: {count}");
        assert!(count >= MET_MIN || reports.len() == 1, "too few {what}: {count}");
    }
}

#[test]
fn two_controllers_that_both_believe_to_lead_count_each_pod_once() {
    let options = Options { faults: true, standby: true, ..Options::default() };
    let reports = run_all("two controllers", options);
    assert_gangs_met(&reports, &gang_ledger::OF_FAULTS);
    let overlaps: usize = reports.iter().map(|it| overlaps(&it.log)).sum();
    println!("both wrote in turn: {overlaps}");
    assert!(overlaps >= MET_MIN || reports.len() == 1, "too few: {overlaps}");
}

#[test]
fn pods_of_a_lost_node_are_failed_by_proof_and_replaced() {
    let reports = run_all("lost node", Options { loses_node: true, ..Options::default() });
    assert_reported(&reports, &["NodeGone"]);
    let by_pod_gc = |access: &&Access| {
        let body = access.body["status"]["phase"].as_str();
        access.agent.starts_with(CONTROLLER) && access.kind == Kind::Pod && body == Some("Failed")
    };
    let failed = reports.iter().flat_map(|it| &it.log).filter(by_pod_gc).count();
    println!("failed by pod GC: {failed}");
    assert!(failed >= MET_MIN || reports.len() == 1, "too few: {failed}");
}

#[test]
fn pods_of_a_lost_node_amid_faults_count_once() {
    run_all(
        "lost node, faults",
        Options { faults: true, standby: true, loses_node: true, ..Options::default() },
    );
}

#[test]
fn pods_of_a_node_that_shuts_down_are_reported_and_complete_elsewhere() {
    let reports = run_all("shutdown", Options { shuts_down: true, ..Options::default() });
    assert_reported(&reports, &["TerminationByKubelet"]);
    assert_stories_met(&reports, &[Kubelet::Plain, Kubelet::Graceful, Kubelet::Dead]);
}

#[test]
fn pods_of_a_node_whose_kubelet_fails_are_reported() {
    let options = Options { shuts_down: true, kubelet_fails: true, ..Options::default() };
    let reports = run_all("failing kubelet", options);
    let all = [Kubelet::Stuck, Kubelet::Hung, Kubelet::Dies, Kubelet::Restarted];
    assert_stories_met(&reports, &all);
    let stuck: usize = stories(&reports).map(|(_, met)| met.failed_stuck).sum();
    println!("stuck pods that the agent failed: {stuck}");
    assert!(stuck >= MET_MIN || reports.len() == 1, "too few: {stuck}");
}

#[test]
fn a_cancelled_shutdown_leaves_no_mark_on_pods_that_live() {
    let options = Options { shuts_down: true, cancels: true, ..Options::default() };
    let reports = run_all("cancelled", options);
    let cancelled = stories(&reports).filter(|(story, _)| story.cancelled.is_some());
    let (count, cleared) =
        cancelled.fold((0, 0), |(count, cleared), (_, met)| (count + 1, cleared + met.cleared));
    println!("cancelled: {count}; marks cleared: {cleared}");
    let is_met = count >= MET_MIN && cleared >= MET_MIN;
    assert!(is_met || reports.len() == 1, "too few: {count}, {cleared}");
}

#[test]
fn a_shutdown_amid_faults_reports_what_it_ends() {
    let options = Options { shuts_down: true, faults: true, ..Options::default() };
    assert_faults_met(&run_all("shutdown, faults", options));
}

#[test]
fn a_cancelled_shutdown_amid_faults_leaves_no_mark() {
    let options = Options { shuts_down: true, faults: true, cancels: true, ..Options::default() };
    let reports = run_all("cancelled, faults", options);
    let cancelled = stories(&reports).filter(|(story, _)| story.cancelled.is_some()).count();
    println!("cancelled: {cancelled}");
    assert!(cancelled >= MET_MIN || reports.len() == 1, "too few: {cancelled}");
}

#[test]
fn what_a_restore_of_etcd_undoes_amid_a_shutdown_is_reported_again() {
    let mut reports = Vec::new();
    for cancels in [false, true] {
        let options = Options {
            shuts_down: true,
            cancels,
            faults: true,
            restores: true,
            ..Options::default()
        };
        let what = if cancels { "restores, cancelled" } else { "restores, shutdown" };
        reports.extend(run_these(what, options, &SEEDS_OF_RESTORES));
    }
    let met = || stories(&reports).map(|(_, met)| met);
    let sum = |of: fn(&Met) -> usize| met().map(of).sum::<usize>();
    let excused: Vec<&String> = reports.iter().flat_map(|it| &it.verdict.excused).collect();
    let of_jobs: usize = reports.iter().map(|it| it.verdict.undone).sum();
    let pods = sum(|it| it.excused);
    println!("{pods} pods excused; {of_jobs} Jobs went back, excused: {excused:#?}");
    let is_rare = (pods + excused.len()) * EXCUSED_OF <= of_jobs;
    assert!(is_rare || asked_seeds().is_some(), "too much is excused: {pods}, {}", excused.len());
    for (what, count) in [
        ("undone marks", sum(|it| it.undone[0])),
        ("undone ends", sum(|it| it.undone[1])),
        ("marks set again", sum(|it| it.again[0])),
        ("ends reported again", sum(|it| it.again[1])),
    ] {
        println!("{what}: {count}");
        assert!(count >= MET_MIN || asked_seeds().is_some(), "too few {what}: {count}");
    }
}

#[test]
fn a_node_that_runs_short_of_memory_evicts_the_right_pods_and_they_complete_elsewhere() {
    let options = Options { shortage: Some(Pressure::Enforce), ..Options::default() };
    assert_shortages_met(&run_some("shortage", options, SEEDS_OF_SHORTAGES), false);
}

#[test]
fn a_shortage_amid_faults_evicts_the_right_pods_and_oom_kills_are_explained() {
    let options = Options { shortage: Some(Pressure::Enforce), faults: true, ..Options::default() };
    assert_shortages_met(&run_some("shortage, faults", options, SEEDS_OF_SHORTAGES), true);
}

#[test]
fn an_agent_that_must_not_evict_leaves_that_to_the_kernel_and_explains_it() {
    let mut reports = Vec::new();
    for (what, pressure) in [("observed", Pressure::Observe), ("ignored", Pressure::Off)] {
        let options = Options { shortage: Some(pressure), ..Options::default() };
        let what = format!("{what} shortage");
        reports.extend(run_some(&what, options, SEEDS_OF_SHORTAGES / 2));
    }
    let [limit, node] = explained(&reports);
    println!("explained: {limit} at a limit, {node} for the node");
    let is_met = limit >= MET_MIN && node >= MET_MIN;
    assert!(is_met || asked_seeds().is_some(), "too few: {limit}, {node}");
}

/// The pods that say why the kernel killed them: at a limit, and for the node.
fn explained(reports: &[Report]) -> [usize; 2] {
    let met = || reports.iter().filter_map(|it| it.shortage);
    [0, 1].map(|cause| met().map(|it| it.explained[cause]).sum())
}

/// Pods must have been evicted, and some not for their size alone.
fn assert_shortages_met(reports: &[Report], has_faults: bool) {
    let met = || reports.iter().filter_map(|it| it.shortage);
    let [limit, _] = explained(reports);
    let ranked: usize = met().map(|it| it.ranked).sum();
    let calls = reports.iter().flat_map(|it| &it.log).filter(|it| it.agent.starts_with(AGENT));
    let failed = calls.filter(|it| it.is_lost || matches!(it.code, 403 | 409 | 429 | 500 | 503));
    let failed = failed.count();
    for (what, count) in [
        ("marks", met().map(|it| it.marked).sum()),
        ("evictions", met().map(|it| it.evicted).sum()),
        ("evictions by priority or request", if has_faults { MET_MIN } else { ranked }),
        ("kills at a limit", limit),
        ("failed calls of the agent", if has_faults { failed } else { MET_MIN }),
    ] {
        println!("{what}: {count}");
        assert!(count >= MET_MIN || reports.len() == 1, "too few {what}: {count}");
    }
}

/// How often a list of such a user agent was too old to go on with its next page.
fn expired_pages(reports: &[Report], agent: &str) -> usize {
    let is_one = |it: &&Access| {
        it.verb == Verb::List && it.code == 410 && !it.is_lost && it.agent.starts_with(agent)
    };
    reports.iter().flat_map(|it| &it.log).filter(is_one).count()
}

/// The agent's calls must have had faults, and agents must have crashed.
fn assert_faults_met(reports: &[Report]) {
    let calls = || reports.iter().flat_map(|it| &it.log).filter(|it| it.agent.starts_with(AGENT));
    let crashed = stories(reports).filter(|(story, _)| story.crashed.is_some());
    for (what, count) in [
        ("lost replies", calls().filter(|it| it.is_lost).count()),
        ("refusals", calls().filter(|it| matches!(it.code, 409 | 429 | 500 | 503)).count()),
        ("crashes", crashed.count()),
        ("expired pages", expired_pages(reports, AGENT)),
        ("ended pods", stories(reports).map(|(_, met)| met.failed).sum()),
    ] {
        println!("{what} of the agent: {count}");
        assert!(count >= MET_MIN || reports.len() == 1, "too few {what}: {count}");
    }
}

fn stories(reports: &[Report]) -> impl Iterator<Item = &(Story, Met)> {
    reports.iter().filter_map(|report| report.story.as_ref())
}

/// Shutdowns under each of these kubelets must have ended pods, and the agent must have failed some
/// itself where no kubelet lives.
fn assert_stories_met(reports: &[Report], kubelets: &[Kubelet]) {
    for kubelet in kubelets {
        let of_it = || stories(reports).filter(|(story, _)| story.kubelet == *kubelet);
        let (count, failed, by_agent) = of_it().fold((0, 0, 0), |(count, failed, by_agent), it| {
            (count + 1, failed + it.1.failed, by_agent + it.1.failed_by_agent)
        });
        println!("{kubelet:?}: {count}; failed: {failed}, {by_agent} of them by the agent");
        let is_met = count >= MET_MIN && (failed >= MET_MIN || *kubelet == Kubelet::Stuck);
        let is_met = is_met && (by_agent >= MET_MIN || !kubelet.is_gone());
        let is_met = is_met && of_it().all(|it| it.0.answered.iter().all(|count| *count > 0));
        assert!(is_met || reports.len() == 1, "too few: {count}, {failed}, {by_agent}");
    }
}

/// How often one controller wrote between two writes of the other that are less than 15 s apart.
fn overlaps(log: &[Access]) -> usize {
    let writes = |it: &&Access| {
        it.verb.writes()
            && matches!(it.kind, Kind::Job | Kind::Pod)
            && it.agent.starts_with(CONTROLLER)
    };
    let mut turns: Vec<(&str, Timestamp, Timestamp)> = Vec::new();
    for access in log.iter().filter(writes) {
        match turns.last_mut() {
            Some((agent, _, last)) if *agent == access.agent => *last = access.at,
            _ => turns.push((&access.agent, access.at, access.at)),
        }
    }
    let is_close = |turns: &&[(&str, Timestamp, Timestamp)]| {
        turns[2].1.duration_since(turns[0].2).as_secs() < 15
    };
    turns.windows(3).filter(is_close).count()
}

#[test]
fn a_seed_replays_exactly() {
    for options in [
        Options::default(),
        Options { faults: true, standby: true, loses_node: true, ..Options::default() },
        Options { faults: true, restores: true, gangs: true, ..Options::default() },
        Options { faults: true, dooms: true, ..Options::default() },
        Options { faults: true, admission: true, ..Options::default() },
        Options { shuts_down: true, changes_updates: true, ..Options::default() },
        Options { shuts_down: true, has_notice: true, ..Options::default() },
        Options { shuts_down: true, kubelet_fails: true, ..Options::default() },
        Options { shuts_down: true, faults: true, restores: true, ..Options::default() },
        Options { shuts_down: true, faults: true, cancels: true, ..Options::default() },
        Options { shortage: Some(Pressure::Enforce), faults: true, ..Options::default() },
    ] {
        let (first, again) = (run(1, options), run(1, options));
        let (first, again) = (lines(&first.log), lines(&again.log));
        let same = first.iter().zip(&again).take_while(|(a, b)| a == b).count();
        assert_eq!(first.get(same), again.get(same), "{options:?}, line {same}");
    }
}

/// A mistake has to lead to a violation with this text.
fn assert_caught(sabotage: Sabotage, text: &str) {
    show_log();
    let begun = Instant::now();
    let (shuts_down, cancels) = (sabotage.is_agents(), sabotage.is_of_cancels());
    let sabotage_of = Some(sabotage);
    let (restores, admission) = (sabotage.is_of_restores(), sabotage.is_of_admission());
    let options = Options {
        sabotage: sabotage_of,
        shuts_down,
        cancels,
        faults: restores || admission || sabotage.is_of_changed_gangs(),
        restores,
        admission,
        gangs: sabotage.is_of_gangs(),
        dooms: sabotage.is_of_namespaces(),
        brakes: sabotage.is_of_brakes(),
        changes_updates: sabotage.is_of_updates(),
        kubelet_fails: sabotage.is_of_kubelets(),
        shortage: sabotage.is_of_memory().then_some(match sabotage {
            Sabotage::EvictAnyway => Pressure::Observe,
            _ => Pressure::Enforce,
        }),
        ..Options::default()
    };
    let mut found = Vec::new();
    for seed in 1..=CATCH_WITHIN {
        found.extend(run(seed, options).violations);
        if found.iter().any(|violation| violation.contains(text)) {
            println!("{sabotage:?} is caught by seed {seed} in {:?}", begun.elapsed());
            return;
        }
    }
    let some: Vec<&String> = found.iter().take(10).collect();
    panic!("{sabotage:?} is not caught by {text:?}, but {some:#?}");
}

macro_rules! caught {
    ($($name:ident: $sabotage:ident by $text:literal;)*) => {$(
        #[test]
        fn $name() {
            assert_caught(Sabotage::$sabotage, $text);
        }
    )*};
}

caught! {
    a_controller_that_counts_without_listing_is_caught:
        CountAtOnce by "leave the list";
    a_controller_that_counts_a_pod_twice_is_caught:
        CountOnceMore by "leave the list";
    a_controller_that_names_another_cause_is_caught:
        BlameTheNode by "ended by LostByNode";
    a_controller_that_tells_no_end_is_caught:
        TellNothing by "failures are reported";
    a_controller_that_leaves_finalizers_is_caught:
        KeepFinalizers by "keeps its finalizer";
    a_controller_that_creates_untracked_pods_is_caught:
        CreateUntracked by "without its finalizer";
    a_controller_that_releases_pods_before_it_lists_them_is_caught:
        ReleaseFirst by "loses its finalizer uncounted";
    a_controller_that_creates_too_many_pods_is_caught:
        CreateTwice by "active pods, more than";
    a_controller_that_creates_other_pods_is_caught:
        ChangePods by "does not end as scripted";
    a_controller_that_forgets_the_failures_of_an_index_is_caught:
        ForgetFailures by "has a pod again";
    a_controller_that_lets_jobs_take_off_their_brake_is_caught:
        NoBrake by "and may have it after";
    a_controller_that_retries_an_index_that_has_failed_is_caught:
        RetryFailedIndex by "has a pod again after FailIndex";
    a_controller_that_writes_an_invalid_status_is_caught:
        SpoilStatus by "is invalid";
    a_controller_that_fails_a_job_within_its_limit_is_caught:
        FailEarly by "fails within its backoffLimit";
    a_controller_that_ignores_restarts_is_caught:
        ForgetLimit by "goes on beyond its backoffLimit";
    a_controller_that_never_rests_is_caught:
        NeverRest by "not at rest";
    a_controller_that_keeps_counts_which_a_restore_undid_is_caught:
        KeepCounts by "leave the list";
    a_controller_that_never_reads_what_was_stored_is_caught:
        BelieveCounts by "loses its finalizer uncounted";
    a_controller_that_drops_the_conditions_of_others_is_caught:
        DropConditions by "loses conditions";
    an_agent_that_drops_the_taints_of_others_is_caught:
        DropTaints by "loses taints";
    a_controller_that_makes_two_workloads_is_caught:
        TwoWorkloads by "controls 2 Workloads";
    a_controller_that_makes_two_pod_groups_is_caught:
        TwoPodGroups by "controls 2 PodGroups";
    a_controller_that_creates_pods_outside_of_their_group_is_caught:
        JoinNone by "is not in";
    a_controller_that_creates_pods_in_a_group_that_is_not_there_is_caught:
        JoinOther by "joins default/other";
    a_controller_that_holds_pod_groups_is_caught:
        HoldPodGroups by "outlives its Job";
    a_controller_that_makes_a_gang_larger_than_its_job_asks_is_caught:
        MakeLarger by "has size Some(99)";
    a_controller_that_holds_a_namespace_is_caught:
        HoldNamespace by "is not gone";
    a_controller_that_calls_without_a_pause_is_caught:
        NeverPause by "calls in 10s";
    an_agent_that_fails_pods_at_once_is_caught:
        FailAtOnce by "while its container runs";
    an_agent_that_never_marks_is_caught:
        NeverMark by "without DisruptionTarget";
    an_agent_that_never_clears_its_marks_is_caught:
        NeverClear by "keeps its mark";
    an_agent_that_never_removes_its_taint_is_caught:
        KeepTaint by "keeps its taint";
    an_agent_that_sends_invalid_patches_is_caught:
        SpoilMark by "is invalid";
    an_agent_that_never_reports_is_caught:
        NeverReport by "unreported";
    an_agent_that_leaves_deleted_pods_under_a_dead_kubelet_is_caught:
        LeaveStuck by "is stuck";
    an_agent_that_is_gone_at_once_is_caught:
        LeaveAtOnce by "the lock is released";
    an_agent_that_evicts_the_smallest_pod_is_caught:
        EvictSmallest by "another comes first";
    an_agent_that_evicts_for_nothing_is_caught:
        EvictForNothing by "memory is not short";
    an_agent_that_evicts_and_may_only_observe_is_caught:
        EvictAnyway by "although pressure is Observe";
    an_agent_that_only_observes_a_shortage_is_caught:
        OnlyObserve by "no memory is left";
    an_agent_that_evicts_pods_without_their_mark_is_caught:
        EvictUnmarked by "is stopped without its mark";
    an_agent_that_fails_pods_when_it_evicts_them_is_caught:
        FailEvicted by "while its container runs";
    an_agent_that_leaves_a_node_short_of_memory_is_caught:
        OnlyObserve by "stays short of memory";
    an_agent_that_takes_the_marks_of_evicted_pods_back_is_caught:
        UnmarkEvicted by "by an eviction without DisruptionTarget";
    an_agent_that_says_that_evicted_pods_were_killed_is_caught:
        ExplainEvicted by "was not killed, and says so";
    an_agent_that_never_explains_an_oom_kill_is_caught:
        NeverExplain by "and says null";
    an_agent_that_blames_the_node_for_a_limit_is_caught:
        BlameNode by "says \"NodeOutOfMemory\"";
}
