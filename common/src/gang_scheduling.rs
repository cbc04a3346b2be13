//! Defines the annotation `epilogue.dev/gang-scheduling` of the controller's lease: the controller
//! writes it, `kubectl epilogue doctor` reads it.

use std::fmt;

/// Whether the controller makes the Workloads and PodGroups of its Jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangScheduling {
    /// It makes them.
    On,
    /// It makes none.
    Off(OffReason),
}

/// Why the controller makes no Workload and no PodGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffReason {
    /// The API server does not serve Workloads and PodGroups.
    NotServed,
    /// The API server's Jobs have no `spec.scheduling`.
    NoField,
    /// The controller's account has no right to them.
    NoRight,
    /// Another reason, such as one of another version.
    Other(String),
}

impl OffReason {
    const TEXTS: [(Self, &'static str); 3] = [
        (Self::NotServed, "the API server does not serve scheduling.k8s.io/v1beta1"),
        (Self::NoField, "the API server has no spec.scheduling in Jobs"),
        (Self::NoRight, "the account may not list workloads of scheduling.k8s.io"),
    ];
}

impl fmt::Display for OffReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Self::TEXTS.iter().find(|(reason, _)| reason == self);
        match (text, self) {
            (Some((_, text)), _) => formatter.write_str(text),
            (None, Self::Other(text)) => formatter.write_str(text),
            (None, _) => formatter.write_str("unknown"),
        }
    }
}

impl From<&str> for OffReason {
    fn from(text: &str) -> Self {
        let known = Self::TEXTS.into_iter().find(|(_, known)| *known == text);
        known.map_or_else(|| Self::Other(text.to_owned()), |(reason, _)| reason)
    }
}

impl fmt::Display for GangScheduling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => formatter.write_str("on"),
            Self::Off(reason) => write!(formatter, "off: {reason}"),
        }
    }
}

impl GangScheduling {
    /// Reads the annotation. A text of another form says nothing.
    pub fn read(text: &str) -> Option<Self> {
        if text == "on" {
            return Some(Self::On);
        }
        text.strip_prefix("off: ").map(|reason| Self::Off(reason.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let reasons = OffReason::TEXTS.map(|(reason, _)| GangScheduling::Off(reason));
        let other = GangScheduling::Off(OffReason::Other("a later reason".to_owned()));
        for state in reasons.into_iter().chain([other, GangScheduling::On]) {
            assert_eq!(GangScheduling::read(&state.to_string()), Some(state));
        }
    }

    #[test]
    fn a_text_of_another_form_says_nothing() {
        for text in ["", "off", "off:", "true", "On"] {
            assert_eq!(GangScheduling::read(text), None, "{text}");
        }
    }
}
