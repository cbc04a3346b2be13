//! Runs named checks, and formats their health page. The admin server serves it.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Checks in the order in which they were added.
#[derive(Default)]
pub struct Checks {
    checks: Vec<(String, Check)>,
}

/// The state of a check that its owner sets.
#[derive(Clone, Debug)]
pub struct Flag {
    state: Arc<Mutex<Result<(), String>>>,
}

/// The results of all checks at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    results: Vec<(String, Result<(), String>)>,
}

impl Checks {
    /// Creates an empty set, which is healthy while the server answers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, which must return at once. Its error appears on the page.
    #[must_use]
    pub fn with<F>(mut self, name: impl Into<String>, check: F) -> Self
    where
        F: Fn() -> Result<(), String> + Send + Sync + 'static,
    {
        self.checks.push((name.into(), Box::new(check)));
        self
    }

    /// Adds a check whose result is the state of a flag.
    #[must_use]
    pub fn with_flag(self, name: impl Into<String>, flag: &Flag) -> Self {
        let flag = flag.clone();
        self.with(name, move || flag.state())
    }

    /// Runs all checks.
    pub fn run(&self) -> Health {
        let results = self.checks.iter().map(|(name, check)| (name.clone(), check())).collect();
        Health { results }
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.checks.iter().map(|(name, _)| name)).finish()
    }
}

impl Flag {
    /// A flag that fails with `why` until it is changed.
    pub fn failing(why: impl Into<String>) -> Self {
        Self { state: Arc::new(Mutex::new(Err(why.into()))) }
    }

    /// A flag that passes until it is changed.
    pub fn passing() -> Self {
        Self { state: Arc::new(Mutex::new(Ok(()))) }
    }

    /// Makes the check pass from now on.
    pub fn pass(&self) {
        self.set(Ok(()));
    }

    /// Makes the check fail from now on.
    pub fn fail(&self, why: impl Into<String>) {
        self.set(Err(why.into()));
    }

    fn state(&self) -> Result<(), String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, state: Result<(), String>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

impl Health {
    /// Whether every check passed.
    pub fn is_ok(&self) -> bool {
        self.results.iter().all(|(_, result)| result.is_ok())
    }

    /// Formats the page as Kubernetes components do: `ok`, or one line per check if `verbose` or if
    /// one failed.
    pub fn page(&self, endpoint: &str, verbose: bool) -> String {
        if self.is_ok() && !verbose {
            return "ok".to_owned();
        }
        let mut page = String::new();
        for (name, result) in &self.results {
            // Writing to a `String` cannot fail.
            let _ = match result {
                Ok(()) => writeln!(page, "[+]{name} ok"),
                Err(why) => writeln!(page, "[-]{name} failed: {why}"),
            };
        }
        let verdict = if self.is_ok() { "passed" } else { "failed" };
        let _ = writeln!(page, "{endpoint} check {verdict}");
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_a_bare_ok_unless_asked_or_failed() {
        let flag = Flag::failing("pods not listed yet");
        let checks = Checks::new().with("ping", || Ok(())).with_flag("caches", &flag);
        let failed = checks.run();
        assert!(!failed.is_ok());
        let page = "[+]ping ok\n[-]caches failed: pods not listed yet\nreadyz check failed\n";
        assert_eq!(failed.page("readyz", false), page);
        assert_eq!(failed.page("readyz", true), page);

        flag.pass();
        let passed = checks.run();
        assert!(passed.is_ok());
        assert_eq!(passed.page("readyz", false), "ok");
        assert_eq!(passed.page("readyz", true), "[+]ping ok\n[+]caches ok\nreadyz check passed\n");
        flag.fail("the watch ended");
        assert!(!checks.run().is_ok());
    }

    #[test]
    fn no_checks_is_healthy() {
        assert_eq!(Checks::new().run().page("livez", true), "livez check passed\n");
    }
}
