//! Defines a finding: one field of a manifest that is wrong, or probably is.

use epilogue_common::finding_code::FindingCode;
use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// How sure it is.
    pub(crate) severity: Severity,
    /// The code, which `docs/troubleshooting.md` explains.
    pub(crate) code: FindingCode,
    /// `job/NAMESPACE/NAME` or `cronjob/NAMESPACE/NAME`.
    pub(crate) subject: String,
    /// Path of the field.
    pub(crate) field: String,
    /// The problem.
    pub(crate) problem: String,
    /// What to write instead.
    pub(crate) remedy: String,
    /// The file, if the object is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// The line on which the object's YAML document begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<usize>,
    /// Which of the objects it is.
    #[serde(skip)]
    pub(crate) object: usize,
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// The API refuses it, or it can never do what it says.
    Error,
    /// It works, and its author probably meant something else.
    Warning,
}

impl Severity {
    /// As it is printed.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}
