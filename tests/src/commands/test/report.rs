//! What the runners said: their closing lines by suite, read from cargo's output. Pure.

use std::fmt;

/// The closing line of one suite.
#[derive(Debug)]
struct Closing {
    suite: String,
    line: String,
}

/// Everything that is repeated and checked at the end of `lab test`.
#[derive(Debug, Default)]
pub(super) struct Report {
    suite: String,
    closings: Vec<Closing>,
    /// The names of the tests that ran.
    tests: Vec<String>,
    failed: bool,
}

impl Report {
    /// Reads one line of output.
    pub(super) fn read(&mut self, line: &str) {
        let plain = without_colors(line);
        let trimmed = plain.trim_start();
        if let Some(rest) = trimmed.strip_prefix("Running ") {
            if let Some(suite) = suite_of_heading(rest) {
                self.suite = suite;
            }
        } else if let Some(package) = trimmed.strip_prefix("Doc-tests ") {
            self.suite = format!("{package} (doc tests)");
        } else if plain.starts_with("test result: ") {
            self.closings.push(Closing { suite: self.suite.clone(), line: plain });
        } else if let Some((name, _)) =
            plain.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            self.tests.push(name.to_owned());
        }
    }

    /// Notes what cargo said by its exit code.
    pub(super) fn finish_run(&mut self, success: bool) {
        self.failed |= !success;
    }

    /// Whether tests ran and all passed.
    pub(super) fn is_success(&self) -> bool {
        !self.failed && !self.closings.is_empty()
    }

    /// Those of `names` that no test had in its name.
    pub(super) fn unmatched<'a>(&self, names: &'a [String]) -> Vec<&'a str> {
        // A build that failed ran nothing; that is the error to show.
        if self.closings.is_empty() {
            return Vec::new();
        }
        let matches = |name: &str| self.tests.iter().any(|test| test.contains(name));
        names.iter().map(String::as_str).filter(|name| !matches(name)).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ran = |closing: &&Closing| !closing.line.contains(" 0 passed; 0 failed; 0 ignored");
        let shown: Vec<&Closing> = self.closings.iter().filter(ran).collect();
        let width = shown.iter().map(|closing| closing.suite.len()).max().unwrap_or(0);
        writeln!(f, "\nsuites that ran tests:")?;
        for Closing { suite, line } in shown {
            writeln!(f, "  {suite:width$}  {line}")?;
        }
        Ok(())
    }
}

/// "lab" from "unittests src/lib.rs (target/debug/deps/lab-0123456789abcdef)".
fn suite_of_heading(rest: &str) -> Option<String> {
    let (source, program) = rest.strip_suffix(')')?.rsplit_once(" (")?;
    let file = program.rsplit('/').next()?;
    let (name, _hash) = file.rsplit_once('-')?;
    let kind = if source.starts_with("unittests") { " (unit tests)" } else { "" };
    Some(format!("{name}{kind}"))
}

/// Without escape sequences of the form ESC [ … m.
fn without_colors(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, tail)| tail);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\u{1b}[32m     Running\u{1b}[0m suites/jobs.rs (target/deps/jobs-0a1b)
running 1 test
test failed_index ... \u{1b}[32mok\u{1b}[0m
test result: \u{1b}[32mok\u{1b}[0m. 1 passed; 0 failed; 0 ignored; 0 measured
     Running unittests src/lib.rs (target/debug/deps/lab-0a1b)
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured
";

    fn report() -> Report {
        let mut report = Report::default();
        OUTPUT.lines().for_each(|line| report.read(line));
        report
    }

    #[test]
    fn closing_lines_are_repeated_for_suites_that_ran_tests() {
        let text = report().to_string();
        assert!(text.contains("jobs  test result: ok. 1 passed"), "{text}");
        assert!(!text.contains("lab (unit tests)"), "{text}");
    }

    #[test]
    fn a_name_that_no_test_has_is_found() {
        let names = ["failed".to_owned(), "nothing_like_it".to_owned()];
        assert_eq!(report().unmatched(&names), ["nothing_like_it"]);
    }

    #[test]
    fn one_failed_run_fails_all_and_no_run_is_no_success() {
        let mut report = report();
        assert!(report.is_success());
        report.finish_run(false);
        report.finish_run(true);
        assert!(!report.is_success());
        assert!(!Report::default().is_success());
    }
}
