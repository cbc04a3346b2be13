//! Defines a check of a node, and checks what its agent states about a future shutdown.

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::node::READINESS;
use epilogue_common::readiness::{DelayLock, Readiness};
use serde::Serialize;

/// The meaning of a fact, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeVerdict {
    /// All is well.
    Ok,
    /// An operator should know.
    Warn,
    /// A shutdown would not go as it should.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeCheck {
    /// The subject of the check.
    pub(crate) name: &'static str,
    /// The verdict.
    pub(crate) verdict: NodeVerdict,
    /// The code, which `docs/troubleshooting.md` explains; `None` if all is well.
    pub(crate) code: Option<Code>,
    /// The observation.
    pub(crate) found: String,
    /// The remedy.
    pub(crate) remedy: Option<String>,
}

impl NodeVerdict {
    /// The form in which it is printed.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl NodeCheck {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        let verdict = NodeVerdict::Ok;
        Self { name, verdict, code: None, found: found.into(), remedy: None }
    }

    pub(super) fn warn(name: &'static str, code: Code, found: impl Into<String>) -> Self {
        Self { verdict: NodeVerdict::Warn, code: Some(code), ..Self::ok(name, found) }
    }

    pub(super) fn fail(name: &'static str, code: Code, found: impl Into<String>) -> Self {
        Self { verdict: NodeVerdict::Fail, ..Self::warn(name, code, found) }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// What the agent states about a future shutdown.
pub(super) fn lock_and_delay(readiness: Option<&Readiness>) -> NodeCheck {
    const NAME: &str = "shutdown";
    let Some(readiness) = readiness else {
        let found = format!(
            "the agent has not written {READINESS}: it observes, has just started, or is too old"
        );
        return NodeCheck::warn(NAME, Code::ReadinessMissing, found)
            .remedy("the command below shows lock, delay and runtime");
    };
    let Readiness { mode, lock, granted_seconds, wanted_seconds, notice, ends_at } = readiness;
    let granted = granted_seconds.map_or_else(|| "?".to_owned(), |seconds| format!("{seconds}s"));
    let at = ends_at.map_or(String::new(), |at| format!(" for {at}"));
    let notice = notice.as_ref();
    let notice = notice.map_or(String::new(), |it| format!("; an end announced by {it}{at}"));
    let found = format!("mode {mode}; delay granted {granted}, wanted {wanted_seconds}s{notice}");
    match lock {
        DelayLock::NotUsed => {
            let found = "the agent runs with --logind=false: it sees no shutdown of this node";
            return NodeCheck::warn(NAME, Code::LogindNotUsed, found).remedy(
                "expected on a node without systemd-logind; elsewhere remove --logind=false",
            );
        }
        DelayLock::Missing => {
            let found = format!("no delay lock is held; {found}");
            return NodeCheck::fail(NAME, Code::LockNotHeld, found)
                .remedy("the command below says why");
        }
        DelayLock::Held => {}
    }
    let found = format!("the delay lock is held; {found}");
    if granted_seconds.is_some_and(|granted| granted < *wanted_seconds) {
        return NodeCheck::fail(NAME, Code::DelayTooShort, found)
            .remedy("the command below says which file of logind to change");
    }
    NodeCheck::ok(NAME, found)
}
