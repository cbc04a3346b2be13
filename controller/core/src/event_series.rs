//! Decides which Event objects the controller writes: equal events are counted up, many similar
//! ones become one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::names::pod_end_event::{POD_DISRUPTED, POD_FAILED};
use epilogue_common::outcome::FailureKind;
use epilogue_common::pod_end::{Counted, PodEnds};
use jiff::Timestamp;

use crate::job::{Cause, EventDraft};
use crate::view::{Job, JobKey, Pod, Uid, Version};
use crate::workqueue::Moment;

/// The most writes that wait; a terminal event may exceed it.
const PENDING_MAX: usize = 4096;
/// The most series that are kept to be counted up; the oldest go first.
const SERIES_MAX: usize = 8192;
/// The most of them that are about ends of pods: each takes up to 3 KB.
const ENDS_MAX: usize = 2048;
/// The most messages of one reason that get an Event each. Number and window are client-go's.
const SIMILAR_MAX: usize = 10;
/// How long a series lasts after its last event.
const WINDOW: Duration = Duration::from_mins(10);
/// How long a counted-up event waits, so that one write covers several.
const COUNT_DELAY: Duration = Duration::from_secs(5);
/// After this many attempts an event is dropped: it is news, not state.
const ATTEMPTS_MAX: u32 = 5;
/// The time between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// How long the event of created pods waits for the end of the Job.
const CREATION_DELAY: Duration = Duration::from_secs(1);
/// The same where there are many events. Most short Jobs end within it.
const CREATION_DELAY_BUSY: Duration = Duration::from_secs(10);
/// More events than this within [`CREATION_DELAY_BUSY`] are many.
const FEW_EVENTS: usize = 20;
/// The reason of created pods.
const CREATED: &str = "SuccessfulCreate";
/// The reason of pods that could not be created.
const NOT_CREATED: &str = "FailedCreate";
/// The reason of a Job that succeeded.
const COMPLETED: &str = "Completed";
/// Reasons that a Job may report once per pod.
const PER_POD: [&str; 7] = [
    CREATED,
    NOT_CREATED,
    "SuccessfulDelete",
    "FailedDelete",
    FAILED_RELEASE,
    POD_FAILED,
    POD_DISRUPTED,
];
/// The reason of a finalizer that could not be removed.
pub const FAILED_RELEASE: &str = "FailedRelease";

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regarding {
    /// Its kind.
    pub kind: RegardingKind,
    /// Its namespace and name.
    pub key: JobKey,
    /// Its UID.
    pub uid: Uid,
    /// Its version at the time of the event.
    pub version: Version,
}

/// The kind of an object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegardingKind {
    /// `batch/v1` Job.
    Job,
    /// `v1` Pod, whose Job is gone.
    Pod,
}

/// The time of an event, by both clocks. A wall clock that is set back delays no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTime {
    /// What the Event says.
    pub wall: Timestamp,
    /// What decides when it is written.
    pub elapsed: Moment,
}

/// One write of an Event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventWrite {
    /// The Event's name.
    pub name: String,
    /// Whether the Event exists, so that only its count and last time change.
    pub exists: bool,
    /// The object that the event is about.
    pub regarding: Regarding,
    /// The event.
    pub event: EventDraft,
    /// How often it happened.
    pub count: u32,
    /// The ends of pods that it is about.
    pub ends: Option<Box<PodEnds>>,
    /// When it happened first.
    pub first: Timestamp,
    /// When it happened last.
    pub last: Timestamp,
    id: u64,
}

/// Events that wait to be written to the API.
#[derive(Debug, Default)]
pub struct EventSeries {
    series: BTreeMap<u64, Series>,
    by_event: HashMap<(Uid, EventKey), u64>,
    similar: HashMap<(Uid, Arc<str>), Similar>,
    /// When each series is due for its next write.
    due: BTreeSet<(Moment, u64)>,
    /// The event of created pods that waits, by Job.
    waiting_creations: HashMap<Uid, u64>,
    /// Jobs whose latest event about a creation says that it failed.
    failed_creations: HashSet<Uid>,
    /// When the newest events were recorded, as many as make many.
    newest: VecDeque<Moment>,
    /// How many series are about ends of pods.
    with_ends: usize,
    next_id: u64,
    dropped: u64,
}

/// The events of one object that share an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum EventKey {
    /// They are equal.
    Equal { reason: String, message: String },
    /// They have one reason, and there are too many messages of it.
    Similar(String),
    /// They are ends of pods with one cause that counted alike.
    Ends(Cause, Counted),
}

#[derive(Debug)]
struct Series {
    write: EventWrite,
    key: (Uid, EventKey),
    begun: Moment,
    due: Option<Moment>,
    attempts: u32,
}

#[derive(Debug, Default)]
struct Similar {
    messages: usize,
    last: Option<Moment>,
}

impl Regarding {
    /// This Job at its current version.
    pub fn of(job: &Job) -> Self {
        let (key, uid) = (job.key.clone(), job.uid.clone());
        Self { kind: RegardingKind::Job, key, uid, version: job.version }
    }

    /// This pod at its current version.
    pub fn of_pod(pod: &Pod) -> Self {
        let key = JobKey::new(Arc::clone(&pod.namespace), &*pod.name);
        Self { kind: RegardingKind::Pod, key, uid: pod.uid.clone(), version: pod.version }
    }
}

impl RegardingKind {
    /// `apiVersion` and `kind`, as in objects.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Job => ("batch/v1", "Job"),
            Self::Pod => ("v1", "Pod"),
        }
    }
}

impl EventSeries {
    /// Records an event of a Job.
    ///
    /// DIVERGES(upstream): the event of created pods waits for a second, and for 10 s where there
    /// are many events. If the Job completes meanwhile, its event names them, and one write says
    /// both. After a creation that failed it does not wait: clients take the newest event for the
    /// state. Upstream writes each at once, and its client drops those beyond a rate.
    pub fn record(&mut self, job: Regarding, mut event: EventDraft, at: EventTime) {
        let now = at.elapsed;
        self.forget_old(now);
        if event.reason == COMPLETED
            && let Some(created) = self.take_waiting_creation(&job.uid)
        {
            event.message = format!("{}. {created}", event.message);
        }
        self.newest.push_back(now);
        if self.newest.len() > FEW_EVENTS + 1 {
            self.newest.pop_front();
        }
        let is_news = self.ends_failures(&job.uid, &event.reason);
        let key = self.key_of(&job.uid, &event, now);
        if let Some(id) = self.by_event.get(&key).copied() {
            self.count_up(id, event, at);
            if is_news {
                self.schedule(id, now);
            }
            return;
        }
        if self.due.len() >= PENDING_MAX && PER_POD.contains(&event.reason.as_str()) {
            self.dropped += 1;
            return;
        }
        let waits = event.reason == CREATED && !matches!(key.1, EventKey::Similar(_)) && !is_news;
        let uid = job.uid.clone();
        let id = self.begin(job, key, event, at);
        if waits {
            self.schedule(id, now.saturating_add(CREATION_DELAY));
            self.waiting_creations.insert(uid, id);
        } else {
            self.schedule(id, now);
        }
    }

    /// Whether pods were created after a creation that failed.
    fn ends_failures(&mut self, job: &Uid, reason: &str) -> bool {
        if reason == NOT_CREATED {
            self.failed_creations.insert(job.clone());
        }
        reason == CREATED && self.failed_creations.remove(job)
    }

    /// Whether there are many events.
    fn is_busy(&self, now: Moment) -> bool {
        let oldest = self.newest.front().filter(|_| self.newest.len() > FEW_EVENTS);
        oldest.is_some_and(|oldest| now.saturating_sub(*oldest) < CREATION_DELAY_BUSY)
    }

    /// Drops the event of created pods of this Job if it waits and is the only one, and returns its
    /// message.
    fn take_waiting_creation(&mut self, job: &Uid) -> Option<String> {
        let similar = self.similar.get(&(job.clone(), Arc::from(CREATED)))?;
        if similar.messages != 1 {
            return None;
        }
        let id = self.waiting_creations.remove(job)?;
        let message = self.series.get(&id)?.write.event.message.clone();
        self.drop_series(id);
        Some(message)
    }

    /// The next write that is due. The caller must return it to [`Self::written`] or
    /// [`Self::failed`].
    pub fn next(&mut self, now: Moment) -> Option<EventWrite> {
        loop {
            let (at, id) = self.due.first().copied()?;
            if at > now {
                return None;
            }
            self.due.remove(&(at, id));
            let is_busy = self.is_busy(now);
            let series = self.series.get_mut(&id)?;
            series.due = None;
            let job = &series.write.regarding.uid;
            if self.waiting_creations.get(job) != Some(&id) {
                return Some(series.write.clone());
            }
            let longest = series.begun.saturating_add(CREATION_DELAY_BUSY);
            if is_busy && now < longest {
                self.schedule(id, longest);
                continue;
            }
            self.waiting_creations.remove(job);
            return Some(series.write.clone());
        }
    }

    /// When the next write is due.
    pub fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Makes every write due, because the process is about to exit.
    pub fn hurry(&mut self) {
        let ids: Vec<u64> = self.due.iter().map(|(_, id)| *id).collect();
        self.due.clear();
        self.waiting_creations.clear();
        for id in ids {
            self.schedule(id, Moment::ZERO);
        }
    }

    /// Records that the API took a write.
    pub fn written(&mut self, write: &EventWrite) {
        if let Some(series) = self.series.get_mut(&write.id) {
            series.write.exists = true;
            series.attempts = 0;
        }
    }

    /// Records that the API did not take a write, and schedules another attempt if that can help.
    /// Returns whether the event was dropped.
    pub fn failed(&mut self, write: &EventWrite, kind: FailureKind, now: Moment) -> bool {
        let Some(series) = self.series.get_mut(&write.id) else { return true };
        series.attempts += 1;
        let again = match kind {
            // The Event has expired: the next write creates it anew under the same name.
            FailureKind::NotFound if series.write.exists => {
                series.write.exists = false;
                Some(now)
            }
            FailureKind::AlreadyExists => {
                series.write.exists = true;
                Some(now)
            }
            FailureKind::NotFound
            | FailureKind::Invalid
            | FailureKind::Forbidden
            | FailureKind::NamespaceTerminating
            | FailureKind::Other => None,
            FailureKind::Conflict
            | FailureKind::TooManyRequests
            | FailureKind::ServerError
            | FailureKind::Unknown => now.checked_add(RETRY_DELAY),
        };
        let again = again.filter(|_| series.attempts < ATTEMPTS_MAX);
        if let Some(at) = again {
            self.schedule(write.id, at);
        } else {
            self.drop_series(write.id);
        }
        again.is_none()
    }

    /// How many events were dropped because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// After `SIMILAR_MAX` messages of one reason, all further ones share a series.
    fn key_of(&mut self, job: &Uid, event: &EventDraft, now: Moment) -> (Uid, EventKey) {
        if let Some(ended) = &event.ended {
            return (job.clone(), EventKey::Ends(ended.cause, ended.counted));
        }
        let (reason, message) = (event.reason.clone(), event.message.clone());
        let exact = (job.clone(), EventKey::Equal { reason, message });
        if self.by_event.contains_key(&exact) {
            return exact;
        }
        let reason = (job.clone(), Arc::from(event.reason.as_str()));
        let similar = self.similar.entry(reason).or_default();
        if similar.last.is_some_and(|last| now.saturating_sub(last) > WINDOW) {
            *similar = Similar::default();
        }
        similar.last = Some(now);
        if similar.messages < SIMILAR_MAX {
            similar.messages += 1;
            return exact;
        }
        (job.clone(), EventKey::Similar(event.reason.clone()))
    }

    fn begin(
        &mut self,
        regarding: Regarding,
        key: (Uid, EventKey),
        event: EventDraft,
        at: EventTime,
    ) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let stamp = at.wall.as_nanosecond().cast_unsigned().wrapping_add(u128::from(id));
        let mut event = combined(&key.1, event);
        let write = EventWrite {
            name: format!("{}.{stamp:x}", regarding.key.name),
            exists: false,
            regarding,
            ends: with_end(None, &mut event),
            event,
            count: 1,
            first: at.wall,
            last: at.wall,
            id,
        };
        self.with_ends += usize::from(write.ends.is_some());
        self.by_event.insert(key.clone(), id);
        let begun = at.elapsed;
        self.series.insert(id, Series { write, key, begun, due: None, attempts: 0 });
        id
    }

    fn count_up(&mut self, id: u64, event: EventDraft, at: EventTime) {
        let Some(series) = self.series.get_mut(&id) else { return };
        series.write.count = series.write.count.saturating_add(1);
        series.write.last = series.write.last.max(at.wall);
        series.write.event = combined(&series.key.1, event);
        series.write.ends = with_end(series.write.ends.take(), &mut series.write.event);
        if series.due.is_none() {
            self.schedule(id, at.elapsed.saturating_add(COUNT_DELAY));
        }
    }

    fn schedule(&mut self, id: u64, at: Moment) {
        if let Some(series) = self.series.get_mut(&id) {
            if let Some(before) = series.due.replace(at) {
                self.due.remove(&(before, id));
            }
            self.due.insert((at, id));
        }
    }

    fn drop_series(&mut self, id: u64) {
        if let Some(series) = self.series.remove(&id) {
            self.by_event.remove(&series.key);
            self.with_ends -= usize::from(series.write.ends.is_some());
            if series.write.event.reason == NOT_CREATED {
                self.failed_creations.remove(&series.key.0);
            }
            if let Some(at) = series.due {
                self.due.remove(&(at, id));
            }
        }
    }

    /// Makes room by removing the oldest series that are written. What they say stays in the API;
    /// an event like theirs gets another Event.
    fn forget_old(&mut self, now: Moment) {
        let is_full = self.series.len() >= SERIES_MAX;
        let max = if is_full { SERIES_MAX } else { ENDS_MAX };
        if !is_full && self.with_ends < ENDS_MAX {
            return;
        }
        let is_old =
            |series: &Series| series.due.is_none() && (is_full || series.write.ends.is_some());
        let idle: Vec<u64> = self
            .series
            .iter()
            .filter(|(_, series)| is_old(series))
            .map(|(id, _)| *id)
            .take(max / 4)
            .collect();
        for id in idle {
            self.drop_series(id);
        }
        let recent = |at: Moment| now.saturating_sub(at) <= WINDOW;
        self.similar.retain(|_, similar| similar.last.is_some_and(recent));
    }
}

fn combined(key: &EventKey, event: EventDraft) -> EventDraft {
    if !matches!(key, EventKey::Similar(_)) {
        return event;
    }
    let message = format!("(combined from similar events): {}", event.message);
    EventDraft { message, ..event }
}

/// These ends, and the one that the event is about. The event keeps no pod.
fn with_end(ends: Option<Box<PodEnds>>, event: &mut EventDraft) -> Option<Box<PodEnds>> {
    let Some(ended) = event.ended.take() else { return ends };
    let mut ends = ends.unwrap_or_else(|| {
        let cause = ended.cause.label().to_owned();
        Box::new(PodEnds {
            cause,
            counted: ended.counted,
            last: Vec::new(),
            nodes: BTreeMap::new(),
        })
    });
    ends.add(ended.end);
    Some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_handlers::samples::job;
    use crate::job::PodEnded;
    use epilogue_common::pod_end;
    use serde_json::json;

    fn at(seconds: i64) -> EventTime {
        let wall = Timestamp::from_second(1_800_000_000 + seconds).expect("must be a time");
        EventTime { wall, elapsed: Moment::from_secs(seconds.unsigned_abs()) }
    }

    fn not_created() -> EventDraft {
        EventDraft::warning("FailedCreate", "Error creating: serviceaccount not found")
    }

    fn sample(name: &str) -> Job {
        job(json!({"metadata": {"name": name, "uid": format!("uid-{name}")}}))
    }

    fn created(pod: usize) -> EventDraft {
        EventDraft::normal("SuccessfulCreate", format!("Created pod: a-{pod}"))
    }

    fn drain(series: &mut EventSeries, now: EventTime) -> Vec<EventWrite> {
        std::iter::from_fn(|| {
            let write = series.next(now.elapsed)?;
            series.written(&write);
            Some(write)
        })
        .collect()
    }

    #[test]
    fn equal_events_are_counted_up_in_one_object() {
        let mut series = EventSeries::default();
        series.record(
            Regarding::of(&sample("a")),
            EventDraft::normal("Suspended", "Job suspended"),
            at(0),
        );
        let first = drain(&mut series, at(0));
        assert_eq!((first.len(), first[0].exists, first[0].count), (1, false, 1));
        for second in 1..4 {
            let again = EventDraft::normal("Suspended", "Job suspended");
            series.record(Regarding::of(&sample("a")), again, at(second));
        }
        assert!(drain(&mut series, at(5)).is_empty(), "counting up can wait");
        let second = drain(&mut series, at(6));
        assert_eq!((second.len(), second[0].exists, second[0].count), (1, true, 4));
        assert_eq!((&second[0].name, second[0].last), (&first[0].name, at(3).wall));
    }

    #[test]
    fn the_same_event_of_another_job_is_another_event() {
        let mut series = EventSeries::default();
        for name in ["a", "b"] {
            series.record(
                Regarding::of(&sample(name)),
                EventDraft::normal("Completed", "Job completed"),
                at(0),
            );
        }
        assert_eq!(drain(&mut series, at(0)).len(), 2);
    }

    #[test]
    fn many_similar_events_become_one() {
        let mut series = EventSeries::default();
        for pod in 0..500 {
            series.record(Regarding::of(&sample("a")), created(pod), at(0));
        }
        series.record(
            Regarding::of(&sample("a")),
            EventDraft::normal("Completed", "Job completed"),
            at(0),
        );
        let writes = drain(&mut series, at(10));
        assert_eq!(writes.len(), SIMILAR_MAX + 2);
        let combined = writes.iter().find(|write| write.count == 490).expect("must be there");
        let message = "(combined from similar events): Created pod: a-499";
        assert_eq!(combined.event.message, message);
        let end = writes.iter().find(|write| write.event.reason == "Completed");
        assert_eq!(end.map(|write| &*write.event.message), Some("Job completed"));
    }

    #[test]
    fn when_too_many_wait_the_events_of_pods_are_dropped_and_the_others_are_not() {
        let mut series = EventSeries::default();
        for index in 0..PENDING_MAX {
            series.record(Regarding::of(&sample(&format!("job-{index}"))), created(0), at(0));
        }
        series.record(Regarding::of(&sample("late")), created(0), at(0));
        let end = EventDraft::warning("BackoffLimitExceeded", "Job has reached the limit");
        series.record(Regarding::of(&sample("late")), end, at(0));
        assert_eq!(series.dropped(), 1);
        let writes = drain(&mut series, at(10));
        assert_eq!(writes.len(), PENDING_MAX + 1);
        assert!(writes.iter().any(|write| write.event.reason == "BackoffLimitExceeded"));
    }

    #[test]
    fn what_may_pass_is_tried_again_and_then_given_up() {
        let mut series = EventSeries::default();
        series.record(Regarding::of(&sample("a")), created(0), at(0));
        for attempt in 1..ATTEMPTS_MAX {
            let now = at(i64::from(attempt) * 10);
            let write = series.next(now.elapsed).expect("must be due");
            assert!(!series.failed(&write, FailureKind::ServerError, now.elapsed));
            assert_eq!(series.next(now.elapsed), None, "not at once");
        }
        let write = series.next(at(1000).elapsed).expect("must be due");
        assert!(series.failed(&write, FailureKind::ServerError, at(1000).elapsed));
        assert_eq!(series.next_due(), None);
        series.record(Regarding::of(&sample("a")), created(1), at(0));
        let write = series.next(at(1).elapsed).expect("must be due");
        assert!(series.failed(&write, FailureKind::Forbidden, at(1).elapsed), "that will not pass");
    }

    /// Records more events than a controller with little to do has, of Jobs of their own.
    fn busy(series: &mut EventSeries) {
        for index in 0..FEW_EVENTS {
            let job = Regarding::of(&sample(&format!("other-{index}")));
            series.record(job, EventDraft::normal("Suspended", "Job suspended"), at(0));
        }
        drain(series, at(0));
    }

    fn completed() -> EventDraft {
        EventDraft::normal("Completed", "Job completed")
    }

    #[test]
    fn among_many_events_the_end_names_the_created_pods() {
        let mut series = EventSeries::default();
        busy(&mut series);
        series.record(Regarding::of(&sample("a")), created(0), at(0));
        assert!(drain(&mut series, at(9)).is_empty());
        series.record(Regarding::of(&sample("a")), completed(), at(9));
        let writes = drain(&mut series, at(9));
        let [only] = writes.as_slice() else { panic!("{writes:?}") };
        assert_eq!(only.event.reason, "Completed");
        assert_eq!(only.event.message, "Job completed. Created pod: a-0");
        assert_eq!(series.next_due(), None);
    }

    #[test]
    fn a_creation_waits_ten_seconds_and_for_no_failure() {
        let mut series = EventSeries::default();
        busy(&mut series);
        series.record(Regarding::of(&sample("a")), created(0), at(0));
        let end = EventDraft::warning("BackoffLimitExceeded", "Job has reached the limit");
        series.record(Regarding::of(&sample("a")), end, at(1));
        assert_eq!(drain(&mut series, at(1)).len(), 1);
        assert_eq!(drain(&mut series, at(10)).len(), 1, "the creation");
        series.record(Regarding::of(&sample("a")), completed(), at(11));
        let writes = drain(&mut series, at(11));
        assert_eq!(writes[0].event.message, "Job completed", "it is written already");
    }

    #[test]
    fn among_few_events_a_creation_waits_for_a_second() {
        let mut series = EventSeries::default();
        for second in 0..100 {
            let name = format!("job-{second}");
            series.record(Regarding::of(&sample(&name)), created(0), at(second));
            assert_eq!(drain(&mut series, at(second)).len(), usize::from(second > 0));
        }
    }

    #[test]
    fn a_creation_that_waits_is_written_before_the_process_ends() {
        let mut series = EventSeries::default();
        busy(&mut series);
        series.record(Regarding::of(&sample("a")), created(0), at(0));
        series.hurry();
        assert_eq!(drain(&mut series, at(0)).len(), 1);
    }

    /// Clients take the newest event for the state of the Job.
    #[test]
    fn a_creation_after_one_that_failed_is_written_at_once() {
        let mut series = EventSeries::default();
        busy(&mut series);
        let a = || Regarding::of(&sample("a"));
        series.record(a(), not_created(), at(0));
        series.record(Regarding::of(&sample("b")), created(0), at(0));
        assert_eq!(drain(&mut series, at(0)).len(), 1, "the failure");
        series.record(a(), created(1), at(20));
        let writes = drain(&mut series, at(20));
        let first = writes.iter().find(|write| write.event.message == "Created pod: a-1");
        assert_eq!(first.map(|write| write.last), Some(at(20).wall), "{writes:?}");
        series.record(a(), created(2), at(21));
        assert!(drain(&mut series, at(21)).is_empty(), "nothing is wrong any more");
    }

    #[test]
    fn many_creations_after_one_that_failed_are_written_at_once() {
        let mut series = EventSeries::default();
        for pod in 0..20 {
            series.record(Regarding::of(&sample("a")), created(pod), at(0));
        }
        drain(&mut series, at(100));
        series.record(Regarding::of(&sample("a")), not_created(), at(100));
        drain(&mut series, at(100));
        series.record(Regarding::of(&sample("a")), created(20), at(101));
        let writes = drain(&mut series, at(101));
        let [only] = writes.as_slice() else { panic!("{writes:?}") };
        assert_eq!(only.event.message, "(combined from similar events): Created pod: a-20");
    }

    /// The longest wait between two attempts to create is a minute.
    #[test]
    fn a_failure_that_lasts_is_counted_up_at_least_once_a_minute() {
        let mut series = EventSeries::default();
        for minute in 0..60_i64 {
            series.record(Regarding::of(&sample("a")), not_created(), at(60 * minute));
            let writes = drain(&mut series, at(60 * minute + 5));
            let [only] = writes.as_slice() else { panic!("{minute}: {writes:?}") };
            assert_eq!(i64::from(only.count), minute + 1);
            assert_eq!(only.last, at(60 * minute).wall);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_event() {
        let mut series = EventSeries::default();
        let a = || Regarding::of(&sample("a"));
        series.record(a(), not_created(), at(0));
        let first = drain(&mut series, at(0)).remove(0);
        let back = |seconds| EventTime { wall: at(-3600).wall, ..at(seconds) };
        series.record(a(), not_created(), back(1));
        series.record(Regarding::of(&sample("b")), created(0), back(1));
        let writes = drain(&mut series, at(7));
        assert_eq!(writes.len(), 2, "{writes:?}");
        let again = writes.iter().find(|write| write.name == first.name).expect("counted up");
        assert_eq!((again.count, again.last), (2, first.last), "its time does not go back");
    }

    fn ended(number: u32, cause: Cause) -> EventDraft {
        let pod = crate::event_handlers::samples::pod(json!({
            "metadata": {"name": format!("pod-{number}"), "uid": format!("uid-{number}")},
            "spec": {"nodeName": format!("node-{}", number % 3)},
        }));
        let ended = PodEnded::elsewhere(&Arc::new(pod), at(0).wall);
        PodEnded { cause, ..ended }.event()
    }

    /// A thousand pods fail within a minute: eleven writes for them would be 0.01 a pod.
    #[test]
    fn ends_of_one_cause_share_an_event_that_names_the_last_of_them() {
        let mut series = EventSeries::default();
        let a = Regarding::of(&sample("a"));
        let mut writes = Vec::new();
        for number in 0..1000 {
            let now = at(i64::from(number) * 60 / 1000);
            series.record(a.clone(), ended(number, Cause::ExitCode), now);
            writes.extend(drain(&mut series, now));
        }
        series.record(a, ended(0, Cause::TerminationByKubelet), at(60));
        writes.extend(drain(&mut series, at(70)));
        assert!(writes.len() < 16, "{}", writes.len());
        let [other] =
            writes.iter().filter(|write| write.event.reason == "PodDisrupted").collect::<Vec<_>>()
                [..]
        else {
            panic!("{writes:?}")
        };
        assert_eq!(other.count, 1);
        let last = writes.iter().rfind(|write| write.event.reason == "PodFailed").expect("there");
        let ends = last.ends.as_ref().expect("the ends");
        assert_eq!((last.count, ends.cause.as_str()), (1000, "ExitCode"));
        assert!(last.event.message.starts_with("pod pod-999 on node-0"), "{:?}", last.event);
        assert_eq!(ends.last.len(), pod_end::ENDS_MAX);
        assert_eq!(ends.nodes.values().sum::<u32>(), 1000);
    }

    #[test]
    fn what_is_kept_of_ends_is_bounded() {
        let mut series = EventSeries::default();
        for number in 0..3 * ENDS_MAX {
            let job = Regarding::of(&sample(&format!("job-{number}")));
            series.record(job, ended(1, Cause::ExitCode), at(0));
            drain(&mut series, at(0));
            assert!(series.with_ends <= ENDS_MAX, "{number}");
        }
        let kept = series.series.values().filter(|series| series.write.ends.is_some());
        assert_eq!(kept.count(), series.with_ends);
    }

    #[test]
    fn an_event_that_expired_is_made_anew() {
        let mut series = EventSeries::default();
        series.record(Regarding::of(&sample("a")), created(0), at(0));
        drain(&mut series, at(1));
        series.record(Regarding::of(&sample("a")), created(0), at(1));
        series.hurry();
        let write = series.next(at(1).elapsed).expect("must be due at once");
        assert!(write.exists);
        assert!(!series.failed(&write, FailureKind::NotFound, at(1).elapsed));
        let anew = series.next(at(1).elapsed).expect("must be due");
        assert_eq!((anew.exists, anew.count), (false, 2));
    }
}
