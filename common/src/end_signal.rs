//! Parses the pod annotation `epilogue.dev/end-signal`, which asks for a signal ahead of the pod's
//! end: `USR1@90s`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

/// The longest time ahead. An end is rarely known earlier, and then as uncertain.
const AHEAD_MAX: Duration = Duration::from_mins(15);

/// A signal that a process may take as a word, and by which no process ends another: those that
/// stop, continue or terminate are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Signal {
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGWINCH, which does nothing to a process without a handler.
    Winch,
}

impl Signal {
    const ALL: [Self; 4] = [Self::Hup, Self::Usr1, Self::Usr2, Self::Winch];

    /// Its name without `SIG`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hup => "HUP",
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
            Self::Winch => "WINCH",
        }
    }

    /// Its number on Linux, on the architectures that Kubernetes supports.
    pub fn number(self) -> u32 {
        match self {
            Self::Hup => 1,
            Self::Usr1 => 10,
            Self::Usr2 => 12,
            Self::Winch => 28,
        }
    }
}

/// What a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EndSignal {
    /// The signal to its main process.
    pub signal: Signal,
    /// How long before its end.
    pub ahead: Duration,
}

/// Why an annotation cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSignalError(String);

impl fmt::Display for EndSignalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "expected HUP, USR1, USR2 or WINCH, an @, and 1s to 15m ahead of the end, such as \
             USR1@90s; found {:?}",
            self.0
        )
    }
}

impl Error for EndSignalError {}

impl FromStr for EndSignal {
    type Err = EndSignalError;

    fn from_str(text: &str) -> Result<Self, EndSignalError> {
        parsed(text).ok_or_else(|| EndSignalError(text.chars().take(64).collect()))
    }
}

fn parsed(text: &str) -> Option<EndSignal> {
    let (name, ahead) = text.split_once('@')?;
    let signal = Signal::ALL.into_iter().find(|signal| signal.name() == name)?;
    let (digits, unit) = ahead.split_at_checked(ahead.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        _ => return None,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    let number = digits.parse::<u64>().ok().filter(|_| is_number)?;
    let ahead = Duration::from_secs(number.checked_mul(seconds)?);
    (ahead <= AHEAD_MAX).then_some(EndSignal { signal, ahead })
}

impl fmt::Display for EndSignal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}s", self.signal.name(), self.ahead.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_and_time_are_read() {
        let table = [
            ("USR1@90s", Some((Signal::Usr1, 90))),
            ("HUP@1s", Some((Signal::Hup, 1))),
            ("USR2@2m", Some((Signal::Usr2, 120))),
            ("WINCH@15m", Some((Signal::Winch, 900))),
        ];
        for (text, expected) in table {
            let read = text.parse::<EndSignal>().ok().map(|it| (it.signal, it.ahead.as_secs()));
            assert_eq!(read, expected, "{text}");
        }
        let wrong = [
            "",
            "@",
            "USR1",
            "USR1@",
            "USR1@s",
            "USR1@90",
            "USR1@0s",
            "USR1@090s",
            "USR1@-1s",
            "USR1@+1s",
            "USR1@16m",
            "USR1@901s",
            "USR1@1.5m",
            "USR1@1m30s",
            "SIGUSR1@9s",
            "usr1@9s",
            "TERM@9s",
            "KILL@9s",
            "10@9s",
            "USR1@9ſ",
            "USR1@99999999999999999999s",
        ];
        for text in wrong {
            let error = text.parse::<EndSignal>().expect_err(text).to_string();
            assert!(error.contains("such as USR1@90s"), "{error}");
        }
    }
}
