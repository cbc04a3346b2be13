//! Notices a watch that lives and does not move: bytes come, and yet it does not come to a version
//! that the API has. A cache of the API server that stands still does that, or a proxy.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::Newest;

/// How long an open watch may take to come to a version that the API has. A bookmark comes each
/// minute. Also how long a list may show no object.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// The longest patience after lists that did not help.
const PATIENCE_MAX: Duration = Duration::from_mins(15);
/// A watch that has not moved for this long asks for the API's version: it need not know of any
/// write.
const ASKS_AFTER: Duration = Duration::from_secs(20);
/// How often to look.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// Asks for the API's version, once; `None` if there is no answer.
pub(super) type Question = Box<dyn Fn() -> BoxFuture<'static, Option<u64>> + Send>;

/// How far a watch has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// It is not open.
    #[default]
    Closed,
    /// A list has shown so many objects.
    Listing(usize),
    /// All changes up to this version were yielded.
    At(u64),
}

/// A version that the API has and the watch has not come to.
#[derive(Clone, Copy, Debug)]
struct Goal {
    version: u64,
    since: Instant,
}

/// Checks one watch from time to time.
pub(super) struct Stall {
    newest: Newest,
    /// Makes a watch that does not move ask for the API's version.
    question: Option<Question>,
    sight: Sight,
    ticks: Option<Interval>,
}

/// What was seen of a watch.
#[derive(Debug)]
struct Sight {
    asks: bool,
    patience: Duration,
    place: Place,
    /// When the watch last moved.
    moved: Instant,
    /// When it last asked.
    asked: Instant,
    goal: Option<Goal>,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Well,
    /// The API's version is of interest.
    Ask,
    Stalled,
}

/// A watch that does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stalled {
    /// The version that it should have come to; `None` of a list.
    pub(super) goal: Option<u64>,
    /// For how long.
    pub(super) lasted: Duration,
}

impl Stall {
    pub(super) fn new(newest: Newest, question: Option<Question>) -> Self {
        let sight = Sight::new(question.is_some());
        Self { newest, question, sight, ticks: None }
    }

    /// Waits until a watch that stays in this place has stalled. The wait may be given up and begun
    /// again.
    pub(super) async fn stalled(&mut self, place: Place) -> Stalled {
        loop {
            let ticks = self.ticks.get_or_insert_with(|| {
                let mut ticks = interval(LOOKS_EVERY);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            });
            ticks.tick().await;
            let look = self.sight.look(place, self.newest.get(), Instant::now());
            match (look, &self.question) {
                (Look::Ask, Some(question)) => {
                    let answer = question();
                    self.newest.reached(answer.await.unwrap_or(0));
                }
                (Look::Stalled, _) => return self.sight.take(),
                _ => {}
            }
        }
    }
}

impl Sight {
    fn new(asks: bool) -> Self {
        let now = Instant::now();
        Self { asks, patience: PATIENCE, place: Place::Closed, moved: now, asked: now, goal: None }
    }

    /// The watch has stalled, and begins anew.
    fn take(&mut self) -> Stalled {
        let goal = self.goal.take();
        let since = goal.map_or(self.moved, |goal| goal.since);
        self.patience = self.patience.saturating_mul(2).min(PATIENCE_MAX);
        self.moved = Instant::now();
        Stalled { goal: goal.map(|goal| goal.version), lasted: since.elapsed() }
    }

    /// The API has come to `newest` at least.
    fn look(&mut self, place: Place, newest: u64, now: Instant) -> Look {
        if place != self.place {
            (self.place, self.moved) = (place, now);
        }
        let version = match place {
            Place::At(version) if version > 0 => version,
            Place::Listing(_) => {
                self.goal = None;
                return if now - self.moved >= self.patience { Look::Stalled } else { Look::Well };
            }
            // Opaque versions do not compare.
            Place::At(_) | Place::Closed => {
                self.goal = None;
                return Look::Well;
            }
        };
        match self.goal {
            Some(goal) if version >= goal.version => {
                (self.goal, self.patience) = (None, PATIENCE);
            }
            Some(goal) if now - goal.since >= self.patience => return Look::Stalled,
            Some(_) => return Look::Well,
            None => {}
        }
        if newest > version {
            self.goal = Some(Goal { version: newest, since: now });
        } else if self.asks && now - self.moved.max(self.asked) >= ASKS_AFTER {
            self.asked = now;
            return Look::Ask;
        }
        Look::Well
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a watch each second; returns when it stalls, and when it asks.
    fn stalls_at(
        seconds: u64,
        asks: bool,
        at: impl Fn(u64) -> (Place, u64),
    ) -> (Vec<u64>, Vec<u64>) {
        let (mut stall, begun) = (Sight::new(asks), Instant::now());
        let (mut stalled, mut asked) = (Vec::new(), Vec::new());
        for second in 0..seconds {
            let (place, newest) = at(second);
            match stall.look(place, newest, begun + Duration::from_secs(second)) {
                Look::Well => {}
                Look::Ask => asked.push(second),
                Look::Stalled => {
                    stalled.push(second);
                    stall.goal = None;
                    stall.moved = begun + Duration::from_secs(second);
                }
            }
        }
        (stalled, asked)
    }

    #[tokio::test]
    async fn only_an_open_watch_behind_a_known_version_stalls() {
        type Row = (&'static str, Box<dyn Fn(u64) -> (Place, u64)>, Vec<u64>);
        let rows: Vec<Row> = vec![
            ("stands still", Box::new(|_| (Place::At(5), 9)), vec![90, 181, 272]),
            ("has all", Box::new(|_| (Place::At(9), 9)), vec![]),
            ("knows of nothing newer", Box::new(|_| (Place::At(9), 0)), vec![]),
            ("lags behind and moves", Box::new(|at| (Place::At(100 + at), 150 + at)), vec![]),
            ("lags far behind", Box::new(|at| (Place::At(100 + at), 1_000)), vec![90, 181, 272]),
            ("is not open", Box::new(|_| (Place::Closed, 9)), vec![]),
            ("has opaque versions", Box::new(|_| (Place::At(0), 9)), vec![]),
            ("lists", Box::new(|at| (Place::Listing(usize::try_from(at).unwrap_or(0)), 9)), vec![]),
            ("lists nothing", Box::new(|_| (Place::Listing(3), 9)), vec![90, 180, 270]),
            (
                "breaks off",
                Box::new(|at| (if at % 60 == 0 { Place::Closed } else { Place::At(5) }, 9)),
                vec![],
            ),
        ];
        for (name, at, expected) in rows {
            assert_eq!(stalls_at(300, false, at).0, expected, "{name}");
        }
    }

    #[tokio::test]
    async fn only_a_watch_that_does_not_move_asks() {
        let quiet = stalls_at(60, true, |_| (Place::At(9), 9)).1;
        assert_eq!(quiet, [20, 40]);
        let moving = stalls_at(60, true, |at| (Place::At(9 + at / 10), 0)).1;
        assert_eq!(moving, [0; 0]);
    }
}
