//! Parses the output of a test process, line by line: which test runs, how each one ended, and
//! which one the machine could not run. Pure.

use std::time::Instant;

use lab::not_run::NotRun;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    Failed,
    /// The machine lacks something that it needs.
    NotRun(NotRun),
    /// It exceeded its time limit and was killed.
    TimedOut,
    /// Its process ended before the test did.
    Died,
}

/// A test that ran.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) test: String,
    pub(super) ending: Ending,
    /// The parts of it that the machine could not run.
    pub(super) left_out: Vec<NotRun>,
    pub(super) seconds: f64,
}

/// Reads the output of one process, whose tests run one after the other.
#[derive(Debug)]
pub(super) struct Reader {
    waiting: Vec<String>,
    running: Option<Running>,
    ended: Vec<Ended>,
    /// When the last test began or ended.
    changed_at: Instant,
}

#[derive(Debug)]
struct Running {
    test: String,
    since: Instant,
    not_run: Option<NotRun>,
    left_out: Vec<NotRun>,
    said: Option<Ending>,
    said_at: Instant,
}

impl Reader {
    /// A reader for a process with these tests, which starts now.
    pub(super) fn new(tests: &[String], now: Instant) -> Self {
        Self { waiting: tests.to_vec(), running: None, ended: Vec::new(), changed_at: now }
    }

    /// Reads a line.
    pub(super) fn read(&mut self, line: &str, now: Instant) {
        if let Some((test, rest)) = self.start_of(line) {
            self.finish(Ending::Died);
            self.waiting.retain(|waiting| *waiting != test);
            self.changed_at = now;
            let (not_run, left_out, said) = (None, Vec::new(), None);
            self.running =
                Some(Running { test, since: now, not_run, left_out, said, said_at: now });
            self.result(&rest, now);
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.finish(Ending::Died);
            self.summary(result);
        } else {
            self.result(line, now);
        }
    }

    /// The test that a line begins, and the rest of the line.
    fn start_of(&self, line: &str) -> Option<(String, String)> {
        let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        // `should_panic` follows the name.
        let test = test.split(" - ").next().unwrap_or(test);
        self.waiting.iter().find(|waiting| *waiting == test)?;
        Some((test.to_owned(), rest.to_owned()))
    }

    /// The last word before the next test counts: a test may print such a word itself.
    fn result(&mut self, line: &str, now: Instant) {
        let Some(running) = &mut self.running else { return };
        running.not_run = NotRun::of_line(line).or(running.not_run.take());
        running.left_out.extend(NotRun::in_part(line));
        let said = match line.trim_end() {
            "ok" => Ending::Passed,
            "FAILED" => Ending::Failed,
            _ => return,
        };
        (running.said, running.said_at) = (Some(said), now);
        self.changed_at = now;
    }

    /// Another thread may print into the line of a result, which nothing can read then. The summary
    /// says how that test ended, if it counts all tests that began as passed.
    fn summary(&mut self, result: &str) {
        let passed =
            result.strip_prefix("ok. ").and_then(|rest| rest.split_once(" passed; 0 failed"));
        if passed.and_then(|(passed, _)| passed.parse().ok()) != Some(self.ended.len()) {
            return;
        }
        for ended in self.ended.iter_mut().filter(|ended| ended.ending == Ending::Died) {
            ended.ending = Ending::Passed;
        }
    }

    /// Since when a test runs, or the next one is about to; `None` once all have ended.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        let runs = self.running.as_ref().is_some_and(|running| running.said.is_none());
        (runs || !self.waiting.is_empty()).then_some(self.changed_at)
    }

    /// The process ended by itself, or was killed because a test took too long. Returns the tests
    /// that it did not reach.
    pub(super) fn end(mut self, timed_out: bool, now: Instant) -> (Vec<Ended>, Vec<String>) {
        if let Some(running) = &mut self.running
            && running.said.is_none()
        {
            running.said_at = now;
        }
        self.finish(if timed_out { Ending::TimedOut } else { Ending::Died });
        (self.ended, self.waiting)
    }

    fn finish(&mut self, otherwise: Ending) {
        let Some(running) = self.running.take() else { return };
        let seconds = running.said_at.duration_since(running.since).as_secs_f64();
        let Running { test, mut left_out, .. } = running;
        let ending = match (running.said, running.not_run) {
            (Some(Ending::Passed), Some(not_run)) => Ending::NotRun(not_run),
            (Some(said), _) => said,
            (None, not_run) => {
                left_out.extend(not_run);
                otherwise
            }
        };
        self.ended.push(Ended { test, ending, left_out, seconds });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lab::not_run::Reason;

    use super::*;

    fn read(tests: &[&str], lines: &[&str], timed_out: bool) -> (Vec<(String, Ending)>, usize) {
        let names: Vec<String> = tests.iter().map(ToString::to_string).collect();
        let mut reader = Reader::new(&names, Instant::now());
        let now = Instant::now();
        for line in lines {
            reader.read(line, now);
        }
        let (ended, left) = reader.end(timed_out, now);
        (ended.into_iter().map(|it| (it.test, it.ending)).collect(), left.len())
    }

    #[test]
    fn a_result_may_stand_behind_the_output_of_its_test() {
        let lines = [
            "running 3 tests",
            "test a ... ok",
            "test b ... ",
            "thread 'b' panicked",
            "more of it",
            "FAILED",
            "test c ... not run: not here",
            "test d ... ",
            "not run: [no-psi] the kernel has no PSI",
            "ok",
            "",
            "test result: FAILED. 1 passed; 1 failed",
        ];
        let (ended, left) = read(&["a", "b", "d", "e"], &lines, false);
        let expected = [
            ("a", Ending::Passed),
            ("b", Ending::Failed),
            ("d", Ending::NotRun(NotRun::new(Reason::NoPsi, "the kernel has no PSI"))),
        ];
        let seen: Vec<(&str, Ending)> =
            ended.iter().map(|(test, ending)| (test.as_str(), ending.clone())).collect();
        assert_eq!(seen, expected);
        assert_eq!(left, 1, "e was not reached");
    }

    #[test]
    fn each_part_that_is_left_out_is_kept() {
        let mut reader = Reader::new(&["a".to_owned(), "b".to_owned()], Instant::now());
        for line in ["test a ... ", "in part: [no-psi-trigger] none", "in part: later", "ok"] {
            reader.read(line, Instant::now());
        }
        reader.read("test b ... ok", Instant::now());
        let (ended, _) = reader.end(false, Instant::now());
        let words: Vec<_> = ended[0].left_out.iter().map(ToString::to_string).collect();
        assert_eq!(words, ["none", "later"]);
        assert_eq!((&ended[0].ending, ended[1].left_out.len()), (&Ending::Passed, 0));
    }

    #[test]
    fn the_last_word_of_a_test_counts() {
        let (ended, _) = read(&["a"], &["test a ... ", "ok", "a line", "FAILED"], false);
        assert_eq!(ended[0].1, Ending::Failed);
    }

    #[test]
    fn a_result_amid_the_words_of_another_thread_is_read_from_the_summary() {
        let lines = ["test a ... ", "thread panicked atok", "test b ... ok"];
        let of = |summary: &str| read(&["a", "b"], &[&lines[..], &[summary]].concat(), false).0;
        let all = of("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured");
        assert_eq!(all[0], ("a".to_owned(), Ending::Passed));
        for other in
            ["test result: ok. 1 passed; 0 failed;", "test result: FAILED. 1 passed; 1", ""]
        {
            assert_eq!(of(other)[0].1, Ending::Died, "{other}");
        }
    }

    #[test]
    fn a_test_without_a_result_died_or_took_too_long() {
        assert_eq!(read(&["a"], &["test a ... words"], false).0[0].1, Ending::Died);
        assert_eq!(read(&["a"], &["test a ... words"], true).0[0].1, Ending::TimedOut);
    }

    #[test]
    fn a_test_takes_until_its_own_result() {
        let start = Instant::now();
        let mut reader = Reader::new(&["a".to_owned(), "b".to_owned()], start);
        reader.read("test a ... ", start);
        assert_eq!(reader.waits_since(), Some(start));
        reader.read("ok", start + Duration::from_secs(2));
        assert_eq!(reader.waits_since(), Some(start + Duration::from_secs(2)), "for b");
        reader.read("test b - should panic ... ok", start + Duration::from_secs(5));
        assert_eq!(reader.waits_since(), None);
        let (ended, _) = reader.end(false, start + Duration::from_secs(9));
        assert_eq!((ended[0].seconds, ended[1].seconds), (2.0, 0.0));
        assert_eq!(ended[1].ending, Ending::Passed);
    }
}
