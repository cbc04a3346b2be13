//! Parses thresholds in the kubelet's syntax (`memory.available<100Mi,nodefs.available<10%`), with
//! their grace periods and minimum reclaims. All are validated before anything starts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use super::signal::Signal;
use crate::quantity::Quantity;
use crate::time_span::TimeSpan;

/// A threshold value or a minimum reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Limit {
    /// An amount in units of the signal.
    Amount(Quantity),
    /// A part of the observed capacity, in millionths.
    Part(u32),
}

/// One threshold of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// The threshold is crossed if less than this is available.
    pub limit: Limit,
    /// How much more must be available before the shortage counts as over.
    pub reclaim: Option<Limit>,
    /// How long it must be crossed before a pod terminates; `None` for a hard threshold.
    pub grace: Option<Duration>,
}

/// The threshold flags, as given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdFlags {
    /// `--eviction-hard`.
    pub hard: Option<String>,
    /// `--eviction-soft`.
    pub soft: Option<String>,
    /// `--eviction-soft-grace-period`: `memory.available=30s,…`.
    pub soft_grace: Option<String>,
    /// `--eviction-minimum-reclaim`: `memory.available=50Mi,…`.
    pub minimum_reclaim: Option<String>,
}

/// Why the flags do not define valid thresholds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ThresholdError {
    /// An entry has invalid syntax.
    #[error("invalid --{flag} {entry:?}: expected {form}, separated by commas")]
    Entry {
        /// The flag.
        flag: &'static str,
        /// The entry.
        entry: String,
        /// The expected form of an entry.
        form: &'static str,
    },
    /// A signal is unknown.
    #[error("invalid --{flag} signal {name:?}: expected one of {known}", known = known_signals())]
    Signal {
        /// The flag.
        flag: &'static str,
        /// The unknown name.
        name: String,
    },
    /// A signal appears twice.
    #[error("invalid --{flag}: expected each signal once, got {signal} twice")]
    Twice {
        /// The flag.
        flag: &'static str,
        /// The signal.
        signal: Signal,
    },
    /// A value is invalid or out of bounds.
    #[error(
        "invalid --{flag} value {value:?} for {signal}: expected an amount above 0, such as 100Mi, \
         or a percentage from 0% to 100%"
    )]
    Value {
        /// The flag.
        flag: &'static str,
        /// The signal.
        signal: Signal,
        /// The value.
        value: String,
    },
    /// A grace period is no valid time span.
    #[error(
        "invalid --eviction-soft-grace-period {value:?} for {signal}: expected a duration, such as \
         30s or 1m30s"
    )]
    Grace {
        /// The signal.
        signal: Signal,
        /// The value.
        value: String,
    },
    /// A soft threshold lacks a grace period.
    #[error(
        "--eviction-soft has {0}, but --eviction-soft-grace-period does not; add {0}=30s there, \
         or make it a hard threshold by --eviction-hard"
    )]
    WithoutGrace(Signal),
}

fn known_signals() -> String {
    Signal::ALL.map(Signal::name).join(", ")
}

impl Limit {
    /// The limit in units of a resource with this capacity, truncated. ([EV20])
    pub fn units(self, capacity: u64) -> u64 {
        match self {
            Self::Amount(quantity) => quantity.units,
            Self::Part(millionths) => {
                let units = u128::from(capacity) * u128::from(millionths) / 1_000_000;
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Threshold {
    /// Whether less is available than the limit or, with `reclaim`, than the limit plus the minimum
    /// reclaim. Exactly as much as the limit is enough. ([EV20])
    pub fn is_met(&self, available: u64, capacity: u64, reclaim: bool) -> bool {
        let more = self.reclaim.filter(|_| reclaim).map_or(0, |limit| limit.units(capacity));
        available < self.limit.units(capacity).saturating_add(more)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(quantity) => write!(formatter, "{quantity}"),
            Self::Part(millionths) => {
                write!(formatter, "{}%", f64::from(*millionths) / 10_000.0)
            }
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}<{}", self.signal, self.limit)?;
        self.grace.map_or(Ok(()), |grace| write!(formatter, " for {}s", grace.as_secs()))
    }
}

impl ThresholdFlags {
    /// The thresholds in the order in which the agent acts on them: for each signal, hard before
    /// soft.
    pub fn thresholds(&self) -> Result<Vec<Threshold>, ThresholdError> {
        let hard = limits("eviction-hard", self.hard.as_deref())?;
        let soft = limits("eviction-soft", self.soft.as_deref())?;
        let graces = graces(self.soft_grace.as_deref())?;
        let reclaims = reclaims(self.minimum_reclaim.as_deref())?;
        let threshold = |signal: Signal, limit: Limit, grace: Option<Duration>| Threshold {
            signal,
            limit,
            reclaim: reclaims.get(&signal).copied(),
            grace,
        };
        let mut thresholds = Vec::new();
        for signal in Signal::ALL {
            if let Some(limit) = hard.get(&signal) {
                thresholds.push(threshold(signal, *limit, None));
            }
            if let Some(limit) = soft.get(&signal) {
                let grace = graces.get(&signal).ok_or(ThresholdError::WithoutGrace(signal))?;
                thresholds.push(threshold(signal, *limit, Some(*grace)));
            }
        }
        Ok(thresholds)
    }
}

/// Parses `signal<value,…`; `0%` and `100%` disable a threshold. ([EV20])
fn limits(
    flag: &'static str,
    list: Option<&str>,
) -> Result<BTreeMap<Signal, Limit>, ThresholdError> {
    let mut limits = BTreeMap::new();
    let mut seen = Vec::new();
    for (signal, value) in entries(flag, list, '<', "signal<value, such as memory.available<100Mi")?
    {
        if seen.contains(&signal) {
            return Err(ThresholdError::Twice { flag, signal });
        }
        seen.push(signal);
        let bad = || ThresholdError::Value { flag, signal, value: value.to_owned() };
        match limit(value).ok_or_else(bad)? {
            Limit::Part(0 | 1_000_000) => {}
            Limit::Amount(quantity) if quantity.units == 0 => return Err(bad()),
            limit => drop(limits.insert(signal, limit)),
        }
    }
    Ok(limits)
}

fn reclaims(list: Option<&str>) -> Result<BTreeMap<Signal, Limit>, ThresholdError> {
    const FLAG: &str = "eviction-minimum-reclaim";
    let mut reclaims = BTreeMap::new();
    for (signal, value) in entries(FLAG, list, '=', "signal=value, such as memory.available=50Mi")?
    {
        let bad = || ThresholdError::Value { flag: FLAG, signal, value: value.to_owned() };
        if reclaims.insert(signal, limit(value).ok_or_else(bad)?).is_some() {
            return Err(ThresholdError::Twice { flag: FLAG, signal });
        }
    }
    Ok(reclaims)
}

fn graces(list: Option<&str>) -> Result<BTreeMap<Signal, Duration>, ThresholdError> {
    const FLAG: &str = "eviction-soft-grace-period";
    let mut graces = BTreeMap::new();
    for (signal, value) in entries(FLAG, list, '=', "signal=time, such as memory.available=30s")? {
        let bad = || ThresholdError::Grace { signal, value: value.to_owned() };
        let span: TimeSpan = value.parse().map_err(|_| bad())?;
        if span == TimeSpan::INFINITY {
            return Err(bad());
        }
        if graces.insert(signal, span.duration()).is_some() {
            return Err(ThresholdError::Twice { flag: FLAG, signal });
        }
    }
    Ok(graces)
}

/// Splits the list into entries, and each entry at the operator.
fn entries<'a>(
    flag: &'static str,
    list: Option<&'a str>,
    operator: char,
    form: &'static str,
) -> Result<Vec<(Signal, &'a str)>, ThresholdError> {
    let list = list.map(str::trim).filter(|list| !list.is_empty());
    let entry = |entry: &'a str| {
        let bad = || ThresholdError::Entry { flag, entry: entry.trim().to_owned(), form };
        let (name, value) = entry.split_once(operator).ok_or_else(bad)?;
        let name = name.trim();
        let unknown = |_| ThresholdError::Signal { flag, name: name.to_owned() };
        Ok((name.parse().map_err(unknown)?, value.trim()))
    };
    list.into_iter().flat_map(|list| list.split(',')).map(entry).collect()
}

/// Parses an amount, or a percentage from 0% to 100%.
pub(super) fn limit(value: &str) -> Option<Limit> {
    let Some(percentage) = value.strip_suffix('%') else {
        return value.parse().ok().map(Limit::Amount);
    };
    let is_decimal = percentage.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    let percentage: f64 = percentage.parse().ok().filter(|_| is_decimal)?;
    let bounded = (0.0..=100.0).contains(&percentage);
    bounded.then(|| Limit::Part((percentage * 10_000.0).round() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(hard: &str, soft: &str, grace: &str, reclaim: &str) -> ThresholdFlags {
        let some = |text: &str| Some(text.to_owned());
        ThresholdFlags {
            hard: some(hard),
            soft: some(soft),
            soft_grace: some(grace),
            minimum_reclaim: some(reclaim),
        }
    }

    fn printed(flags: &ThresholdFlags) -> Result<String, String> {
        let thresholds = flags.thresholds().map_err(|error| error.to_string())?;
        let words: Vec<_> = thresholds
            .iter()
            .map(|threshold| {
                let reclaim = threshold.reclaim.map(|limit| format!("+{limit}"));
                format!("{threshold}{}", reclaim.unwrap_or_default())
            })
            .collect();
        Ok(words.join(" | "))
    }

    #[test]
    fn thresholds_are_read_in_the_kubelets_syntax() {
        let table = [
            (flags("", "", "", ""), ""),
            (flags("memory.available<100Mi", "", "", ""), "memory.available<100Mi"),
            (
                flags("nodefs.available<10%, memory.available<1.5Gi", "", "", ""),
                "memory.available<1536Mi | nodefs.available<10%",
            ),
            (
                flags(
                    "memory.available<100Mi",
                    "memory.available<300Mi,pid.available<12.5%",
                    "memory.available=1m30s,pid.available=0s",
                    "memory.available=50Mi,nodefs.available=5%",
                ),
                "memory.available<100Mi+50Mi | memory.available<300Mi for 90s+50Mi | \
                 pid.available<12.5% for 0s",
            ),
            // `0%` and `100%` disable a threshold. ([EV20])
            (flags("nodefs.available<0%,imagefs.available<100%", "", "", ""), ""),
        ];
        for (flags, expected) in table {
            assert_eq!(printed(&flags), Ok(expected.to_owned()));
        }
        assert_eq!(printed(&ThresholdFlags::default()), Ok(String::new()));
    }

    #[test]
    fn what_is_not_understood_names_the_flag_and_the_remedy() {
        let table = [
            (
                flags("memory<1Gi", "", "", ""),
                "invalid --eviction-hard signal \"memory\": expected one of memory.avail",
            ),
            (
                flags("memory.available", "", "", ""),
                "invalid --eviction-hard \"memory.available\": expected",
            ),
            (flags("memory.available<0", "", "", ""), "an amount above 0"),
            (flags("memory.available<-5Mi", "", "", ""), "value \"-5Mi\" for memory.avail"),
            (flags("memory.available<101%", "", "", ""), "a percentage from 0% to 100%"),
            (flags("memory.available<NaN%", "", "", ""), "value \"NaN%\" for"),
            (flags("pid.available<1,pid.available<0%", "", "", ""), "got pid.available twice"),
            (flags("", "memory.available<1Gi", "", ""), "add memory.available=30s there"),
            (
                flags("", "", "memory.available=soon", ""),
                "invalid --eviction-soft-grace-period \"soon\"",
            ),
            (
                flags("", "", "memory.available=infinity", ""),
                "invalid --eviction-soft-grace-period \"infinity\"",
            ),
            (
                flags("", "", "", "memory.available=x"),
                "invalid --eviction-minimum-reclaim value \"x\"",
            ),
            (flags("a<1,", "", "", ""), "invalid --eviction-hard signal \"a\""),
            (flags("memory.available<1Gi,", "", "", ""), "invalid --eviction-hard \"\": expected"),
        ];
        for (flags, expected) in table {
            let error = printed(&flags).expect_err("must be refused");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_threshold_is_met_strictly_below_its_limit() {
        let threshold = |hard: &str, reclaim: &str| {
            flags(hard, "", "", reclaim).thresholds().expect("must be thresholds")[0]
        };
        let amount = threshold("memory.available<100", "memory.available=50");
        let part = threshold("memory.available<10%", "");
        let table = [
            (amount, 99, false, true),
            (amount, 100, false, false),
            (amount, 149, true, true),
            (amount, 150, true, false),
            // 10 % of 1,005 is truncated to 100.
            (part, 99, false, true),
            (part, 100, false, false),
            (part, 100, true, false),
        ];
        for (threshold, available, reclaim, met) in table {
            assert_eq!(threshold.is_met(available, 1_005, reclaim), met, "{threshold} {available}");
        }
        assert!(amount.is_met(0, 0, true));
        assert_eq!(Limit::Part(1_000_000).units(u64::MAX), u64::MAX);
    }
}
