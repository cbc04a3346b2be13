//! Holds our programs to what no API server may answer them: a request that it finds invalid, and
//! a right that they lack. kube-apiserver's own audit log is the witness, whatever they log.

use std::path::{Path, PathBuf};
use std::{fs, thread};

use crate::cluster::Cluster;
use crate::install::{AGENTS_NAMESPACE, NAMESPACE};

/// Name of the log in a lab's directory.
pub(crate) const LOG: &str = "audit.log";

/// The namespace of accounts whose requests are audited, too: a test writes by one of them what the
/// log is to witness. No policy of ours bounds them.
pub const WITNESSED: &str = "lab-witnessed";

/// How an entry shows a request that the server cannot take: malformed (400), of a type that it
/// does not know (415), or against its rules (422).
const MALFORMED: [&str; 3] = [r#""code":400"#, r#""code":415"#, r#""code":422"#];
/// How an entry shows that its account lacks the right.
const WITHOUT_RIGHT: &str = r#""authorization.k8s.io/decision":"forbid""#;
/// Questions that a refusal answers: whether the policies refuse what they must (a dry run), and
/// whether the server, which may be older, streams lists.
const QUESTIONS: [&str; 2] = ["dryRun=All", "sendInitialEvents=true"];

/// The audit policy: metadata of each request of these accounts, once it is answered.
pub(crate) fn policy() -> String {
    let groups = [NAMESPACE, AGENTS_NAMESPACE, WITNESSED];
    let groups = groups.map(|name| format!("system:serviceaccounts:{name}"));
    serde_json::json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [{"level": "Metadata", "userGroups": groups}, {"level": "None"}],
    })
    .to_string()
}

/// What a test expects of the API's answers to our programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Every request is valid, and its account has the right to it.
    #[default]
    Accepted,
    /// Every request is valid. A server that has just been started knows no rights yet.
    Valid,
    /// The test brings invalid requests about.
    Invalid,
}

/// One program under this control. Dropped after it has ended, it fails the test that ran it.
#[derive(Debug)]
pub struct Audit {
    log: Option<PathBuf>,
    /// What the entries of the program contain, such as the name of its namespace.
    scope: String,
    expected: Expected,
}

impl Audit {
    /// Of a program whose requests contain `scope`; empty: all that the cluster gets from us.
    pub fn new(cluster: &Cluster, scope: &str, expected: Expected) -> Self {
        let log = cluster.lab_dir().map(|dir| dir.join(LOG)).filter(|log| log.exists());
        Self { log, scope: scope.to_owned(), expected }
    }

    /// The first entry so far that must not be there.
    pub fn refused(&self) -> Option<String> {
        if self.expected == Expected::Invalid {
            return None;
        }
        refused(&read(self.log.as_deref()?), &self.scope, self.expected)
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let entry = self.refused();
        assert!(entry.is_none(), "the API refused a request: {}", entry.unwrap_or_default());
    }
}

/// The entries so far, one a line: of the requests that our accounts were answered.
pub fn entries(cluster: &Cluster) -> String {
    cluster.lab_dir().map(|dir| read(&dir.join(LOG))).unwrap_or_default()
}

fn read(log: &Path) -> String {
    // The server may be in the middle of a line.
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

fn refused(log: &str, scope: &str, expected: Expected) -> Option<String> {
    let is_refused = |line: &&str| {
        let is_of_it = scope.is_empty() || line.contains(scope);
        let is_refused = MALFORMED.iter().any(|code| line.contains(code))
            || (expected == Expected::Accepted && line.contains(WITHOUT_RIGHT));
        is_refused && is_of_it && !QUESTIONS.iter().any(|question| line.contains(question))
    };
    log.lines().find(is_refused).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Expected::{Accepted, Invalid, Valid};

    const OTHER: &str = r#"{"requestURI":"/t-2/pods","responseStatus":{"code":422}}"#;

    #[test]
    fn an_invalid_request_and_a_missing_right_are_found_in_their_scope() {
        let accepted = r#"{"requestURI":"/t-1/pods","responseStatus":{"code":409}}"#;
        let invalid = r#"{"requestURI":"/t-1/pods","responseStatus":{"code":422}}"#;
        let dry = r#"{"requestURI":"/t-1?dryRun=All","responseStatus":{"code":422}}"#;
        let forbidden = format!(r#"{{"requestURI":"/t-1/x","annotations":{{{WITHOUT_RIGHT}}}}}"#);
        for line in [invalid, &forbidden] {
            let log = [OTHER, accepted, dry, line].join("\n");
            assert_eq!(refused(&log, "t-1", Accepted).as_deref(), Some(line));
        }
        let log = [accepted, &forbidden].join("\n");
        assert_eq!(refused(&log, "t-1", Valid), None);
        assert_eq!(refused(invalid, "t-1", Valid).as_deref(), Some(invalid));
        assert_eq!(refused(&[OTHER, accepted, dry].join("\n"), "t-1", Accepted), None);
        assert_eq!(refused(OTHER, "", Accepted).as_deref(), Some(OTHER));
    }

    #[test]
    fn a_test_that_brings_refusals_about_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(LOG), OTHER).expect("must be writable");
        let cluster = Cluster::new("", Some(dir.path().to_owned()));
        assert!(Audit::new(&cluster, "t-2", Invalid).refused().is_none());
        let audit = Audit::new(&cluster, "t-2", Accepted);
        assert_eq!(audit.refused().as_deref(), Some(OTHER));
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(audit)));
        assert!(dropped.is_err());
    }
}
