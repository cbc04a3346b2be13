//! Decides what a candidate does next about a lease, from what it has observed and when. Pure: no
//! calls and no clock.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The fields of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Empty if the lease is released.
    pub(super) holder: String,
    pub(super) duration: Duration,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
    pub(super) transitions: i32,
}

/// A record, and when we first observed it unchanged. The record's own times come from another
/// machine's clock and are never compared with ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) record: Record,
    pub(super) changed: Instant,
}

/// Both clocks: the monotonic one measures, the wall clock is written to the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) wall: Timestamp,
}

/// What the candidate does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the lease, which does not exist.
    Create(Record),
    /// Take the lease over: it is released, or its holder did not renew it in time.
    TakeOver(Record),
    /// Renew the lease, which is ours.
    Renew(Record),
    /// Wait: the lease is another's, and expires at `expires` unless its holder renews it.
    Wait { holder: String, expires: Instant },
}

impl Observed {
    /// An unchanged record keeps its age; a changed one is a sign of life.
    pub(super) fn update(previous: Option<Self>, record: Record, now: Instant) -> Self {
        match previous {
            Some(previous) if previous.record == record => previous,
            _ => Self { record, changed: now },
        }
    }
}

/// The next step of the candidate `me`, which would hold the lease for `duration` at a time.
pub(super) fn decide(me: &str, duration: Duration, observed: Option<&Observed>, now: Now) -> Step {
    let fresh = Record {
        holder: me.to_owned(),
        duration,
        acquired: Some(now.wall),
        renewed: Some(now.wall),
        transitions: 0,
    };
    let Some(Observed { record, changed }) = observed else { return Step::Create(fresh) };
    if record.holder == me {
        let acquired = record.acquired.or(fresh.acquired);
        return Step::Renew(Record { acquired, transitions: record.transitions, ..fresh });
    }
    let expires = *changed + record.duration;
    if !record.holder.is_empty() && now.instant < expires {
        return Step::Wait { holder: record.holder.clone(), expires };
    }
    Step::TakeOver(Record { transitions: record.transitions.saturating_add(1), ..fresh })
}

/// The record that releases the lease: without a holder, and with a duration so short that other
/// candidates take it at once. (client-go, `release`)
pub(super) fn released(record: &Record, wall: Timestamp) -> Record {
    Record {
        holder: String::new(),
        duration: Duration::from_secs(1),
        acquired: Some(wall),
        renewed: Some(wall),
        transitions: record.transitions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("must be in range")
    }

    fn record(holder: &str, renewed: i64, transitions: i32) -> Record {
        Record {
            holder: holder.to_owned(),
            duration: DURATION,
            acquired: Some(wall(100)),
            renewed: Some(wall(renewed)),
            transitions,
        }
    }

    fn fresh(acquired: i64, renewed: i64, transitions: i32) -> Record {
        Record { acquired: Some(wall(acquired)), ..record("me", renewed, transitions) }
    }

    #[test]
    fn steps_follow_from_the_holder_and_the_time_since_its_last_change() {
        let start = Instant::now();
        let wait = Step::Wait { holder: "other".to_owned(), expires: start + DURATION };
        let table: [(&str, Option<Record>, u64, Step); 8] = [
            ("no lease", None, 0, Step::Create(fresh(500, 500, 0))),
            ("ours", Some(record("me", 400, 3)), 1, Step::Renew(fresh(100, 500, 3))),
            ("ours, late", Some(record("me", 400, 3)), 99, Step::Renew(fresh(100, 500, 3))),
            ("another's", Some(record("other", 400, 3)), 0, wait.clone()),
            ("another's, nearly expired", Some(record("other", 400, 3)), 14, wait),
            ("expired", Some(record("other", 400, 3)), 15, Step::TakeOver(fresh(500, 500, 4))),
            ("released", Some(record("", 400, 3)), 0, Step::TakeOver(fresh(500, 500, 4))),
            (
                "without a duration",
                Some(Record { duration: Duration::ZERO, ..record("other", 400, 0) }),
                0,
                Step::TakeOver(fresh(500, 500, 1)),
            ),
        ];
        for (name, record, after, step) in table {
            let observed = record.map(|record| Observed { record, changed: start });
            let instant = start + Duration::from_secs(after);
            let now = Now { instant, wall: wall(500) };
            assert_eq!(decide("me", DURATION, observed.as_ref(), now), step, "{name}");
        }
    }

    #[test]
    fn a_lease_s_own_times_are_not_believed() {
        let start = Instant::now();
        for renewed in [0, 4_000_000_000] {
            let observed = Observed::update(None, record("other", renewed, 0), start);
            let now = Now { instant: start, wall: wall(2_000_000_000) };
            let step = decide("me", DURATION, Some(&observed), now);
            assert!(matches!(step, Step::Wait { .. }), "{step:?}");
        }
    }

    #[test]
    fn only_a_changed_record_is_a_sign_of_life() {
        let start = Instant::now();
        let later = start + Duration::from_secs(9);
        let first = Observed::update(None, record("other", 400, 0), start);
        let same = Observed::update(Some(first.clone()), record("other", 400, 0), later);
        assert_eq!(same, first);
        let renewed = Observed::update(Some(same), record("other", 402, 0), later);
        assert_eq!(renewed.changed, later);
    }

    #[test]
    fn a_released_lease_has_no_holder_and_keeps_its_count() {
        let released = released(&record("me", 400, 7), wall(500));
        assert_eq!((released.holder.as_str(), released.transitions), ("", 7));
        assert_eq!(released.duration, Duration::from_secs(1));
    }
}
