//! Worlds with notices: a node's end is announced by a file of its host, ahead of logind.

use jiff::Timestamp;
use model_api::{Access, Verb};

use super::early;
use super::host::AGENT;
use super::shutdown::Kubelet;
use super::world::{Options, Report};
use super::{MET_MIN, assert_faults_met, assert_stories_met, run_all, stories};

/// The file of a notice must be root's.
fn may_give_notice() -> bool {
    let may = nix::unistd::geteuid().is_root();
    if !may {
        println!("not run: [not-root] the file of a notice must be root's");
    }
    may
}

#[test]
fn notice_ends_pods_before_logind_announces_the_end() {
    if !may_give_notice() {
        return;
    }
    let options = Options { shuts_down: true, has_notice: true, ..Options::default() };
    let reports = run_all("notice", options);
    assert_stories_met(&reports, &[Kubelet::Plain, Kubelet::Graceful, Kubelet::Dead]);
    let ended: usize = reports.iter().map(ended_before_the_signal).sum();
    println!("ended by the agent before logind's signal: {ended}");
    assert!(ended >= MET_MIN || reports.len() == 1, "too few: {ended}");
    let at_notice = successors_at_the_notice(&reports);
    assert!(at_notice >= MET_MIN || reports.len() == 1, "too few successors: {at_notice}");
}

/// How many pods were replaced before they had their mark. No Job has more pods than that allows.
fn successors_at_the_notice(reports: &[Report]) -> usize {
    let verdicts: Vec<_> = reports.iter().map(|report| early::judge(&report.log)).collect();
    let early: usize = verdicts.iter().map(|it| it.early).sum();
    let at_notice: usize = verdicts.iter().map(|it| it.at_notice).sum();
    println!("replaced before their end: {early}, of which before their mark: {at_notice}");
    let violations: Vec<_> = verdicts.into_iter().flat_map(|it| it.violations).collect();
    assert!(violations.is_empty(), "{violations:#?}");
    at_notice
}

#[test]
fn notice_that_is_withdrawn_leaves_no_mark_on_pods_that_live() {
    if !may_give_notice() {
        return;
    }
    let mut reports = Vec::new();
    for faults in [false, true] {
        let options = Options {
            shuts_down: true,
            has_notice: true,
            cancels: true,
            faults,
            ..Options::default()
        };
        let what = if faults { "withdrawn, faults" } else { "withdrawn" };
        let of_these = run_all(what, options);
        if !faults {
            successors_at_the_notice(&of_these);
        }
        reports.extend(of_these);
    }
    let withdrawn = stories(&reports).filter(|(story, _)| story.signalled.is_none()).count();
    let ended: usize = reports.iter().map(ended_before_the_signal).sum();
    println!("withdrawn before logind's signal: {withdrawn}; ended by the agent: {ended}");
    assert!(withdrawn.min(ended) >= MET_MIN || reports.len() == 1, "too few");
}

#[test]
fn notice_amid_faults_ends_and_reports_its_pods() {
    if !may_give_notice() {
        return;
    }
    let options =
        Options { shuts_down: true, has_notice: true, faults: true, ..Options::default() };
    assert_faults_met(&run_all("notice, faults", options));
}

/// How many pods the agent has begun to end before logind announced anything.
fn ended_before_the_signal(report: &Report) -> usize {
    let Some((story, _)) = &report.story else { return 0 };
    let until = story.signalled.or(story.cancelled).unwrap_or(Timestamp::MAX);
    let deletes = |it: &&Access| {
        it.agent.starts_with(AGENT) && it.verb == Verb::Delete && it.code < 300 && it.at < until
    };
    report.log.iter().filter(deletes).count()
}
