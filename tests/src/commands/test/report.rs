//! Reports the results: a line for each failed test, a table of the suites and of the slowest
//! tests, and the closing line. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use lab::matrix;
use lab::not_run::{Machine, NotRun};

use super::output::{Ended, Ending};
use super::suites::Suite;

/// How many of the slowest tests the table shows.
const SLOWEST_MAX: usize = 15;
/// Faster tests are not worth a line.
const SLOW_SECONDS: f64 = 1.0;

/// Counts of one suite.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    passed: usize,
    failed: usize,
    not_run: usize,
    seconds: f64,
    /// Seconds of CPU that the processes of its tests took.
    cpu: f64,
}

/// The final output of `lab test`.
#[derive(Debug)]
pub(super) struct Report {
    machine: Machine,
    suites: BTreeMap<Suite, Counts>,
    slowest: Vec<(f64, String)>,
    failed: Vec<String>,
    not_run: Vec<String>,
    /// What did not run and must run here: test, reason and remedy.
    refused: Vec<String>,
    passed: BTreeSet<String>,
}

impl Report {
    /// A report without tests, for a run on this machine.
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            suites: BTreeMap::new(),
            slowest: Vec::new(),
            failed: Vec::new(),
            not_run: Vec::new(),
            refused: Vec::new(),
            passed: BTreeSet::new(),
        }
    }

    /// Records how a test ended; returns the line to show at once.
    pub(super) fn add(&mut self, suite: &Suite, ended: &Ended) -> String {
        let counts = self.suites.entry(suite.clone()).or_default();
        counts.seconds += ended.seconds;
        let name = format!("{suite}: {}", ended.test);
        for part in &ended.left_out {
            let objection = part.objection(&self.machine);
            self.refused.extend(objection.map(|why| format!("{name} (a part of it): {why}")));
        }
        let word = match &ended.ending {
            Ending::Passed => {
                counts.passed += 1;
                self.passed.insert(ended.test.clone());
                "ok".to_owned()
            }
            Ending::NotRun(why) => {
                counts.not_run += 1;
                self.not_run.push(format!("{name}: {why}"));
                let objection = why.objection(&self.machine);
                self.refused.extend(objection.map(|why| format!("{name}: {why}")));
                format!("not run: {why}")
            }
            failed => {
                counts.failed += 1;
                let why = match failed {
                    Ending::TimedOut => "did not end within its time limit",
                    Ending::Died => "its process ended before it",
                    _ => "FAILED",
                };
                self.failed.push(format!("{name}: {why}"));
                why.to_owned()
            }
        };
        self.slowest.push((ended.seconds, name.clone()));
        format!("{:>8.2} s  {name} ... {word}", ended.seconds)
    }

    /// Records the seconds of CPU of a process with tests of a suite.
    pub(super) fn add_cpu(&mut self, suite: &Suite, seconds: f64) {
        self.suites.entry(suite.clone()).or_default().cpu += seconds;
    }

    /// Records tests of a suite that are left out, and why.
    pub(super) fn leave_out(&mut self, suite: &Suite, tests: usize, why: &NotRun) {
        self.suites.entry(suite.clone()).or_default().not_run += tests;
        let name = format!("{suite}: {tests} tests");
        self.not_run.push(format!("{name}: {why}"));
        let objection = why.objection(&self.machine);
        self.refused.extend(objection.map(|why| format!("{name}: {why}")));
    }

    /// Whether all these tests passed.
    pub(super) fn has_passed(&self, tests: &[String]) -> bool {
        tests.iter().all(|test| self.passed.contains(test))
    }

    /// Whether tests ran, none failed, and none that can run here was left out.
    pub(super) fn is_success(&self) -> bool {
        let total = self.total();
        total.failed == 0 && total.passed > 0 && self.refused.is_empty()
    }

    /// The results for the compatibility matrix, without what only the server knows.
    pub(super) fn for_matrix(&self) -> matrix::Run {
        let counts = |counts: &Counts| {
            let Counts { passed, failed, not_run, .. } = *counts;
            matrix::Counts { passed, failed, not_run }
        };
        matrix::Run {
            suites: self.suites.iter().map(|(it, of)| (it.to_string(), counts(of))).collect(),
            failed: [&self.failed[..], &self.refused].concat(),
            not_run: self.not_run.clone(),
            ..matrix::Run::default()
        }
    }

    fn total(&self) -> Counts {
        self.suites.values().fold(Counts::default(), |sum, each| Counts {
            passed: sum.passed + each.passed,
            failed: sum.failed + each.failed,
            not_run: sum.not_run + each.not_run,
            seconds: sum.seconds + each.seconds,
            cpu: sum.cpu + each.cpu,
        })
    }

    fn table(&self) -> String {
        let mut rows: Vec<(&Suite, &Counts)> = self.suites.iter().collect();
        rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        let width = rows.iter().map(|(suite, _)| suite.to_string().len()).max().unwrap_or(0);
        let mut table = format!(
            "  {:width$}  {:>7}  {:>6}  {:>7}  {:>9}  {:>7}\n",
            "suite", "passed", "failed", "not run", "seconds", "CPU"
        );
        for (suite, counts) in rows {
            let Counts { passed, failed, not_run, seconds, cpu } = counts;
            let suite = suite.to_string();
            writeln!(
                table,
                "  {suite:width$}  {passed:>7}  {failed:>6}  {not_run:>7}  {seconds:>9.1}  \
                 {cpu:>7.1}"
            )
            .expect("a String must take text");
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nsuites, by the seconds that their tests took:\n{}", self.table())?;
        let mut slowest: Vec<_> =
            self.slowest.iter().filter(|(seconds, _)| *seconds >= SLOW_SECONDS).collect();
        slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
        if !slowest.is_empty() {
            writeln!(f, "slowest tests:")?;
        }
        for (seconds, name) in slowest.iter().take(SLOWEST_MAX) {
            writeln!(f, "  {seconds:>8.1} s  {name}")?;
        }
        for (heading, lines) in [
            ("not run:", &self.not_run),
            ("not run, and may not be left out here:", &self.refused),
            ("failed:", &self.failed),
        ] {
            if !lines.is_empty() {
                writeln!(f, "{heading}")?;
            }
            for line in lines {
                writeln!(f, "  {line}")?;
            }
        }
        let Counts { passed, failed, not_run, .. } = self.total();
        writeln!(f, "\ntests: {passed} passed, {failed} failed, {not_run} skipped")
    }
}

#[cfg(test)]
mod tests {
    use lab::kubernetes::Version;
    use lab::not_run::Reason;

    use super::*;

    fn suite() -> Suite {
        Suite { package: "lab".to_owned(), name: Some("jobs".to_owned()) }
    }

    /// A machine that lacks PSI and cgroups alone.
    fn machine() -> Machine {
        Machine {
            kubernetes: Version::DEFAULT,
            all: false,
            root: true,
            apt: true,
            psi: false,
            psi_trigger: false,
            cgroups: false,
            memory_controller: false,
            makes_cgroups: false,
        }
    }

    fn report(endings: &[Ending]) -> Report {
        let mut report = Report::new(machine());
        for (index, ending) in endings.iter().enumerate() {
            let (test, ending) = (format!("jobs::t{index}"), ending.clone());
            report.add(&suite(), &Ended { test, ending, left_out: Vec::new(), seconds: 1.5 });
        }
        report
    }

    fn no_cgroups() -> Ending {
        Ending::NotRun(NotRun::new(Reason::NoCgroups, "no cgroups of version 2"))
    }

    #[test]
    fn the_closing_line_counts_each_ending() {
        let report = report(&[Ending::Passed, no_cgroups(), Ending::TimedOut, Ending::Passed]);
        let text = report.to_string();
        assert!(text.ends_with("\ntests: 2 passed, 1 failed, 1 skipped\n"), "{text}");
        assert!(text.contains("jobs: jobs::t1: no cgroups of version 2"), "{text}");
        assert!(text.contains("jobs: jobs::t2: did not end within its time limit"), "{text}");
        assert!(!report.is_success());
        let row = "  jobs        2       1        1        6.0      0.0\n";
        assert!(text.contains(row), "{text}");
        let counts = matrix::Counts { passed: 2, failed: 1, not_run: 1 };
        let run = report.for_matrix();
        assert_eq!(run.suites["jobs"], counts);
        assert_eq!((run.failed.len(), run.not_run.len()), (1, 1));
        assert!(report.has_passed(&["jobs::t0".to_owned(), "jobs::t3".to_owned()]));
        assert!(!report.has_passed(&["jobs::t0".to_owned(), "jobs::t1".to_owned()]));
    }

    #[test]
    fn a_run_without_a_test_is_no_success() {
        assert!(report(&[Ending::Passed]).is_success());
        assert!(!report(&[]).is_success());
        let mut none = Report::new(machine());
        none.leave_out(&suite(), 3, &NotRun::new(Reason::HeldBefore, "the record holds"));
        assert!(!none.is_success() && none.refused.is_empty());
        assert!(none.to_string().contains("jobs: 3 tests: the record holds"));
    }

    #[test]
    fn what_the_machine_lacks_may_be_left_out_and_nothing_else() {
        let allowed = report(&[Ending::Passed, no_cgroups()]);
        assert!(allowed.is_success(), "{allowed}");

        let words = "promtool is not installed";
        let missing = Ending::NotRun(NotRun::new(Reason::NoPromtool, words));
        let report = report(&[Ending::Passed, missing]);
        assert!(!report.is_success());
        let [refused] = &report.refused[..] else { panic!("{report}") };
        assert!(refused.starts_with("jobs: jobs::t1: promtool is not installed: "), "{refused}");
        assert!(refused.contains("Remedy: run `cargo lab prepare`"), "{refused}");
        let text = report.to_string();
        assert!(
            text.contains("not run, and may not be left out here:\n  jobs: jobs::t1"),
            "{text}"
        );
        assert!(text.ends_with("\ntests: 1 passed, 0 failed, 1 skipped\n"), "{text}");
        assert_eq!(report.for_matrix().failed, std::slice::from_ref(refused));
    }

    #[test]
    fn a_suite_that_is_left_out_or_a_part_of_a_test_needs_a_reason_as_well() {
        let mut suites = report(&[Ending::Passed]);
        suites.leave_out(&suite(), 3, &NotRun::new(Reason::NotRoot, "needs root"));
        assert!(!suites.is_success());
        assert!(suites.refused[0].starts_with("jobs: 3 tests: needs root: "), "{suites}");

        let part = |line: &str| {
            let mut report = Report::new(machine());
            let left_out = NotRun::in_part(line).into_iter().collect();
            let (test, ending) = ("jobs::a".to_owned(), Ending::Passed);
            report.add(&suite(), &Ended { test, ending, left_out, seconds: 0.0 });
            report
        };
        assert!(part("in part: [no-psi-trigger] no trigger").is_success());
        let refused = part("in part: no trigger");
        assert!(!refused.is_success());
        assert!(refused.refused[0].starts_with("jobs: jobs::a (a part of it): no trigger: "));
    }
}
