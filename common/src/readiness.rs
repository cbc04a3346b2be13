//! Defines the annotation `epilogue.dev/readiness` of a node: the agent writes it, `kubectl
//! epilogue doctor` reads it.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

/// The readiness of a node for a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The agent's mode in a shutdown: `assist`, `replace`, `substitute` or `observe`.
    pub mode: String,
    /// logind's delay lock.
    pub lock: DelayLock,
    /// The delay that logind grants, in whole seconds, if it is known.
    pub granted_seconds: Option<u64>,
    /// The delay that the pods and their reports need, in whole seconds.
    pub wanted_seconds: u64,
    /// Who has given notice of an end of the machine that is still to come.
    pub notice: Option<String>,
    /// When that end comes, if it is certain and near.
    pub ends_at: Option<Timestamp>,
}

/// Whether the agent holds logind's delay lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayLock {
    /// It holds the lock.
    Held,
    /// It wants the lock and has none.
    Missing,
    /// It does not use logind.
    NotUsed,
}

impl DelayLock {
    const TEXTS: [(Self, &'static str); 3] =
        [(Self::Held, "held"), (Self::Missing, "none"), (Self::NotUsed, "off")];

    fn as_str(self) -> &'static str {
        let text = Self::TEXTS.iter().find(|(lock, _)| *lock == self);
        text.map_or("none", |(_, text)| text)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::TEXTS.iter().find(|(_, known)| *known == text).map(|(lock, _)| *lock)
    }
}

/// The text is not a valid readiness annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoReadiness;

impl fmt::Display for NoReadiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("expected mode=MODE;lock=held, none or off;granted=N or ?;wanted=N")
    }
}

impl std::error::Error for NoReadiness {}

impl fmt::Display for Readiness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, lock, granted_seconds, wanted_seconds, notice, ends_at } = self;
        write!(formatter, "mode={mode};lock={};granted=", lock.as_str())?;
        match granted_seconds {
            Some(seconds) => write!(formatter, "{seconds}")?,
            None => formatter.write_str("?")?,
        }
        write!(formatter, ";wanted={wanted_seconds}")?;
        if let Some(notice) = notice {
            write!(formatter, ";notice={notice}")?;
        }
        let Some(at) = ends_at else { return Ok(()) };
        write!(formatter, ";ends={}", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

impl FromStr for Readiness {
    type Err = NoReadiness;

    fn from_str(text: &str) -> Result<Self, NoReadiness> {
        // A later version may add fields.
        let field = |name: &str| {
            let mut fields = text.split(';');
            fields.find_map(|it| it.strip_prefix(name)?.strip_prefix('=')).ok_or(NoReadiness)
        };
        let seconds = |text: &str| text.parse().map_err(|_| NoReadiness);
        let granted_seconds = match field("granted")? {
            "?" => None,
            text => Some(seconds(text)?),
        };
        Ok(Self {
            mode: field("mode")?.to_owned(),
            lock: DelayLock::parse(field("lock")?).ok_or(NoReadiness)?,
            granted_seconds,
            wanted_seconds: seconds(field("wanted")?)?,
            notice: field("notice").ok().map(str::to_owned),
            ends_at: field("ends").ok().and_then(|text| text.parse().ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (lock, granted_seconds, text) in [
            (DelayLock::Held, Some(40), "mode=replace;lock=held;granted=40;wanted=40"),
            (DelayLock::Missing, None, "mode=replace;lock=none;granted=?;wanted=40"),
            (DelayLock::NotUsed, None, "mode=replace;lock=off;granted=?;wanted=40"),
        ] {
            let mode = "replace".to_owned();
            let readiness = Readiness {
                mode,
                lock,
                granted_seconds,
                wanted_seconds: 40,
                notice: None,
                ends_at: None,
            };
            assert_eq!(readiness.to_string(), text);
            assert_eq!(text.parse(), Ok(readiness.clone()));
            assert_eq!(format!("{text};more=1").parse(), Ok(readiness.clone()));
            let noticed = Readiness { notice: Some("aws".to_owned()), ..readiness };
            assert_eq!(noticed.to_string(), format!("{text};notice=aws"));
            assert_eq!(noticed.to_string().parse(), Ok(noticed.clone()));
            assert_eq!(format!("{noticed};ends=soon").parse(), Ok(noticed.clone()));
            let ends_at = "2026-11-21T14:05:06Z".parse().ok();
            let certain = Readiness { ends_at, ..noticed };
            assert_eq!(certain.to_string(), format!("{text};notice=aws;ends=2026-11-21T14:05:06Z"));
            assert_eq!(certain.to_string().parse(), Ok(certain));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "idle", "mode=a;lock=held;granted=x;wanted=1", "mode=a;granted=1;wanted=1"]
        {
            assert_eq!(text.parse::<Readiness>(), Err(NoReadiness), "{text:?}");
        }
    }
}
