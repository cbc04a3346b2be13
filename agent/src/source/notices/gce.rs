//! Asks the metadata server of Google Compute Engine for what ends the instance.
//!
//! The notices are two keys, `preempted` and `maintenance-event`. A preemption comes 30 seconds
//! after its notice, so plain polls would have to be frequent. So both keys are asked with
//! `wait_for_change`: the server answers at a change, or after some time. That is two requests in
//! 50 seconds, and a notice is known at once.
//!
//! One such request on the directory, `instance/?recursive=true`, would do for both. But it has
//! the attributes of the instance, which are up to 512 KB, hold the secrets of the node, and
//! change often. So it costs more, and an answer may be larger than is read here.
//!
//! `upcoming-maintenance` says days before that maintenance will come. It is asked once a minute,
//! as a plain poll. Only then is it asked whether the instance migrates or ends.
//!
//! Compute Engine gives the 60 seconds of `maintenance-event` only if the key has been asked since
//! the last maintenance.

use std::time::Duration;

use agent_core::protocol::ending::{Ending, ShutdownKind};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::metadata::{ANSWER_TIME_MAX, Answer, Metadata, NoticeError};
use super::notice::{Notice, after, date, excerpt, soonest};

const PREEMPTED: &str = "/computeMetadata/v1/instance/preempted";
const MAINTENANCE: &str = "/computeMetadata/v1/instance/maintenance-event";
const UPCOMING: &str = "/computeMetadata/v1/instance/upcoming-maintenance?alt=json";
const POLICY: &str = "/computeMetadata/v1/instance/scheduling/on-host-maintenance";
const FLAVOR_HEADER: &str = "Metadata-Flavor";
const FLAVOR: &str = "Google";

/// How long the server waits for a change.
const WAIT: Duration = Duration::from_secs(50);
/// How often the upcoming maintenance is asked for.
const UPCOMING_EVERY: Duration = Duration::from_mins(1);
/// From the notice of a preemption to the end. An instance may be set to have 120 seconds, which
/// no documented key tells; to count on less is safe.
const PREEMPTION: Duration = Duration::from_secs(30);
/// From the notice of a maintenance to its begin.
const MAINTENANCE_NOTICE: Duration = Duration::from_mins(1);
/// Maximum length of an entity tag. Those of Compute Engine have 16 digits.
const ETAG_BYTES_MAX: usize = 64;

/// Reads the text of a key that has been seen now. The error says what is wrong.
type Read = fn(&str, Timestamp) -> Result<Option<Notice>, String>;

/// A key, and what is known of it.
#[derive(Debug)]
struct Key {
    path: &'static str,
    read: Read,
    /// Of the value that was read last; `None` if it must be read first.
    etag: Option<String>,
    /// The notice with the time at which it was seen first: the value has no time.
    seen: Option<Notice>,
}

impl Key {
    fn new(path: &'static str, read: Read) -> Self {
        Self { path, read, etag: None, seen: None }
    }

    /// The value now, or after it changed from the one that was read.
    async fn ask(&self, metadata: Metadata, wait: bool) -> Result<Answer, NoticeError> {
        let Some(etag) = self.etag.as_ref().filter(|_| wait) else {
            return ask(metadata, self.path, Duration::ZERO).await;
        };
        let (path, seconds) = (self.path, WAIT.as_secs());
        let query = format!("wait_for_change=true&timeout_sec={seconds}&last_etag={etag}");
        ask(metadata, &format!("{path}?{query}"), WAIT.saturating_add(ANSWER_TIME_MAX)).await
    }

    fn learn(
        &mut self,
        answer: Result<Answer, NoticeError>,
        now: Timestamp,
    ) -> Result<(), NoticeError> {
        // After an error it is read again without a wait.
        self.etag = None;
        let answer = answer?;
        let notice = match answer.status {
            StatusCode::OK => (self.read)(&answer.body, now)
                .map_err(|what| NoticeError::unreadable(self.path, what))?,
            StatusCode::NOT_FOUND => None,
            status => return Err(NoticeError::status(self.path, status)),
        };
        self.etag = answer.header("ETag").filter(|etag| is_etag(etag)).map(str::to_owned);
        // The time counts from when it was seen first.
        self.seen = match (self.seen.take(), notice) {
            (Some(old), Some(new)) if (old.certain, &old.kind) == (new.certain, &new.kind) => {
                Some(old)
            }
            (_, notice) => notice,
        };
        Ok(())
    }
}

/// The metadata server of Compute Engine.
#[derive(Debug)]
pub(super) struct Gce {
    metadata: Metadata,
    preempted: Key,
    maintenance: Key,
    upcoming: Option<Notice>,
    upcoming_since: Option<Instant>,
}

impl Default for Gce {
    fn default() -> Self {
        Self::new(Metadata::default())
    }
}

impl Gce {
    pub(super) fn new(metadata: Metadata) -> Self {
        Self {
            metadata,
            preempted: Key::new(PREEMPTED, preempted),
            maintenance: Key::new(MAINTENANCE, maintenance_event),
            upcoming: None,
            upcoming_since: None,
        }
    }

    /// The end of the instance as the server says it. The first poll, and one after an error, ask
    /// for the state now; others return at a change, or after some time. So they may be asked one
    /// after another, with a second in between for a server that does not wait.
    pub(super) async fn poll(&mut self, now: Timestamp) -> Result<Option<Ending>, NoticeError> {
        let began = Instant::now();
        let mut failed = None;
        let known = self.preempted.etag.is_some() && self.maintenance.etag.is_some();
        let changed = self.poll_upcoming(now).await;
        if !(known && changed) {
            let [preempted, maintenance] = self.changes(known).await;
            let now = after(now, began.elapsed());
            let answers = [(&mut self.preempted, preempted), (&mut self.maintenance, maintenance)];
            for (key, answer) in answers {
                let Some(Err(error)) = answer.map(|answer| key.learn(answer, now)) else {
                    continue;
                };
                tracing::debug!(%error, "a key of Compute Engine says nothing");
                failed.get_or_insert(error);
            }
        }
        let now = after(now, began.elapsed());
        let seen = [&self.preempted.seen, &self.maintenance.seen, &self.upcoming];
        match (soonest(seen.into_iter().flatten().cloned(), now), failed) {
            (Some(notice), _) => Ok(Some(notice.ending(now))),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// The answers for both keys now, or for the one that changes first.
    ///
    /// Both must have been read before either is waited for: who waits for one hears nothing of the
    /// other.
    async fn changes(&self, wait: bool) -> [Option<Result<Answer, NoticeError>>; 2] {
        let preempted = self.preempted.ask(self.metadata, wait);
        let maintenance = self.maintenance.ask(self.metadata, wait);
        if wait {
            // The other request ends here; its tag stays, so that no change is lost.
            tokio::select! {
                biased;
                answer = preempted => [Some(answer), None],
                answer = maintenance => [None, Some(answer)],
            }
        } else {
            let (preempted, maintenance) = tokio::join!(preempted, maintenance);
            [Some(preempted), Some(maintenance)]
        }
    }

    /// Asks for the upcoming maintenance, if it is time, and tells whether it changed.
    ///
    /// An error fails no poll: who then asks less often would miss the 30 seconds of a preemption.
    async fn poll_upcoming(&mut self, now: Timestamp) -> bool {
        if self.upcoming_since.is_some_and(|since| since.elapsed() < UPCOMING_EVERY) {
            return false;
        }
        self.upcoming_since = Some(Instant::now());
        match self.ask_upcoming(now).await {
            Ok(upcoming) => {
                let before = std::mem::replace(&mut self.upcoming, upcoming);
                before != self.upcoming
            }
            Err(error) => {
                tracing::debug!(%error, "nothing is known of upcoming maintenance");
                false
            }
        }
    }

    async fn ask_upcoming(&self, now: Timestamp) -> Result<Option<Notice>, NoticeError> {
        let answer = ask(self.metadata, UPCOMING, Duration::ZERO).await?;
        let notice = match answer.status {
            StatusCode::OK => upcoming_maintenance(&answer.body, now)
                .map_err(|what| NoticeError::unreadable(UPCOMING, what))?,
            // The machine type has no schedule.
            StatusCode::NOT_FOUND => None,
            // The server restarts, or has no schedule yet.
            StatusCode::SERVICE_UNAVAILABLE => return Ok(self.upcoming.clone()),
            status => return Err(NoticeError::status(UPCOMING, status)),
        };
        let Some(notice) = notice else { return Ok(None) };
        Ok(match ask(self.metadata, POLICY, Duration::ZERO).await {
            Ok(answer) if answer.status == StatusCode::OK => with_policy(&answer.body, notice),
            _ => with_policy("", notice),
        })
    }
}

/// A `GET`, whose answer must be the metadata server's: another server may be on the address.
async fn ask(metadata: Metadata, path: &str, within: Duration) -> Result<Answer, NoticeError> {
    let answer = metadata.ask(Method::GET, path, &[(FLAVOR_HEADER, FLAVOR)], within).await?;
    if answer.header(FLAVOR_HEADER) != Some(FLAVOR) {
        return Err(NoticeError::unreadable(path, "it is not from the metadata server"));
    }
    Ok(answer)
}

/// Whether this can be a part of a query as it is.
fn is_etag(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    plain && !text.is_empty() && text.len() <= ETAG_BYTES_MAX
}

/// Reads `preempted`, which is `TRUE` from the notice on.
fn preempted(text: &str, now: Timestamp) -> Result<Option<Notice>, String> {
    match text.trim() {
        "TRUE" => Ok(Some(Notice::certain(Some(after(now, PREEMPTION)), ShutdownKind::Poweroff))),
        "FALSE" => Ok(None),
        other => Err(format!("{} is neither TRUE nor FALSE", excerpt(other))),
    }
}

/// Reads `maintenance-event`.
///
/// An event that is not known is an uncertain end: it is of the host, but need not end the
/// instance.
fn maintenance_event(text: &str, now: Timestamp) -> Result<Option<Notice>, String> {
    let at = Some(after(now, MAINTENANCE_NOTICE));
    match text.trim() {
        // The instance runs on while it migrates.
        "NONE" | "MIGRATE_ON_HOST_MAINTENANCE" => Ok(None),
        "TERMINATE_ON_HOST_MAINTENANCE" => Ok(Some(Notice::certain(at, ShutdownKind::Poweroff))),
        event if is_event(event) => Ok(Some(Notice::uncertain(at))),
        other => Err(format!("{} is not an event", excerpt(other))),
    }
}

fn is_event(text: &str) -> bool {
    let letters = text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    letters && !text.is_empty() && text.len() <= 64
}

/// Reads `upcoming-maintenance`: the time at which maintenance may begin. A window that is over
/// says nothing any more.
fn upcoming_maintenance(text: &str, now: Timestamp) -> Result<Option<Notice>, String> {
    if text.trim() == "NONE" {
        return Ok(None);
    }
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let object = value.as_object().ok_or("it is not an object")?;
    // The documentation shows it under a name.
    let only = object.values().next().filter(|_| object.len() == 1);
    let object = only.and_then(Value::as_object).unwrap_or(object);
    // It has names as in the key, and those of the API.
    let field = |snake: &str, camel: &str| object.get(snake).or_else(|| object.get(camel));
    if object.is_empty() {
        return Ok(None);
    }
    let status = field("maintenance_status", "maintenanceStatus").and_then(Value::as_str);
    let at = match status {
        Some("COMPLETE" | "COMPLETED") => return Ok(None),
        Some("ONGOING") => now,
        _ => {
            let end = field("window_end_time", "windowEndTime").and_then(Value::as_str);
            if end.and_then(|end| date(end).ok()).is_some_and(|end| end < now) {
                return Ok(None);
            }
            let start = field("window_start_time", "windowStartTime").and_then(Value::as_str);
            date(start.ok_or("it has no begin")?)?
        }
    };
    Ok(Some(Notice::certain(Some(at), ShutdownKind::Poweroff)))
}

/// The notice of upcoming maintenance under the policy `on-host-maintenance`.
fn with_policy(policy: &str, notice: Notice) -> Option<Notice> {
    match policy.trim() {
        "MIGRATE" => None,
        "TERMINATE" => Some(notice),
        _ => Some(Notice::uncertain(notice.at)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::sync::Notify;

    use super::super::double::{Asked, Double, Reply};
    use super::*;

    const HTML: &str = "<html><body>Proxy Error</body></html>";

    fn now() -> Timestamp {
        "2024-12-01T18:00:01Z".parse().unwrap()
    }

    /// The seconds that are left, and whether the end is certain.
    type Said = Result<Option<(u64, bool)>, ()>;

    fn said(read: Read, text: &str) -> Said {
        let found = read(text, now()).map(|notice| notice.map(|notice| notice.ending(now())));
        found
            .map(|ending| ending.as_ref().map(short))
            .map_err(|what| assert!(what.len() < 200, "{what}"))
    }

    fn short(ending: &Ending) -> (u64, bool) {
        assert_eq!(ending.kind.is_some(), ending.certain);
        (ending.within.unwrap().as_secs(), ending.certain)
    }

    #[test]
    fn a_preemption_is_read() {
        let long = "x".repeat(1 << 20);
        let table = [
            ("TRUE", Ok(Some((30, true)))),
            ("TRUE\n", Ok(Some((30, true)))),
            ("FALSE", Ok(None)),
            ("true", Err(())),
            ("1", Err(())),
            ("", Err(())),
            (HTML, Err(())),
            (&long, Err(())),
        ];
        for (text, expected) in table {
            assert_eq!(said(preempted, text), expected, "{text:.40}");
        }
    }

    #[test]
    fn a_maintenance_event_is_read() {
        let table = [
            ("NONE", Ok(None)),
            ("MIGRATE_ON_HOST_MAINTENANCE", Ok(None)),
            ("TERMINATE_ON_HOST_MAINTENANCE", Ok(Some((60, true)))),
            ("FREEZE_ON_HOST_MAINTENANCE", Ok(Some((60, false)))),
            ("", Err(())),
            ("0", Err(())),
            (HTML, Err(())),
        ];
        for (text, expected) in table {
            assert_eq!(said(maintenance_event, text), expected, "{text}");
        }
    }

    /// As the documentation shows it.
    const WINDOW: &str = r#"{"can_reschedule": "true",
        "latest_window_start_time": "2024-12-01T19:00:01Z",
        "maintenance_reasons": ["PLANNED_UPDATE", "PLANNED_NETWORK_UPDATE"],
        "maintenance_status": "PENDING", "type": "SCHEDULED",
        "window_end_time": "2024-12-01T21:00:01Z", "window_start_time": "2024-12-01T19:00:01Z"}"#;

    #[test]
    fn upcoming_maintenance_is_read() {
        let hour = Ok(Some((3_600, true)));
        let table = [
            (WINDOW.to_owned(), hour),
            (format!(r#"{{"Upcoming maintenance": {WINDOW}}}"#), hour),
            (r#"{"windowStartTime": "2024-12-01T19:00:01Z"}"#.to_owned(), hour),
            (WINDOW.replace("PENDING", "ONGOING"), Ok(Some((0, true)))),
            (WINDOW.replace("PENDING", "COMPLETE"), Ok(None)),
            (WINDOW.replace("PENDING", "UNKNOWN"), hour),
            (WINDOW.replace("2024-12-01T19", "2024-12-01T17"), Ok(Some((0, true)))),
            (WINDOW.replace("2024-12-01", "2024-11-30"), Ok(None)),
            (WINDOW.replace("2024-12-01", "2024-12-31"), Ok(Some((2_595_600, true)))),
            (WINDOW.replace("window_start_time", "window"), Err(())),
            (WINDOW.replace(r#""2024-12-01T19:00:01Z"}"#, "1733079601}"), Err(())),
            (WINDOW.replace("2024-12-01T19", "soon"), Err(())),
            (r#"{"windowStartTime": "20"#.to_owned(), Err(())),
            ("{ }".to_owned(), Ok(None)),
            ("NONE\n".to_owned(), Ok(None)),
            (String::new(), Err(())),
            ("[]".to_owned(), Err(())),
            ("5".to_owned(), Err(())),
            (HTML.to_owned(), Err(())),
            (format!("[{}]", vec![WINDOW; 10_000].join(",")), Err(())),
        ];
        for (text, expected) in table {
            assert_eq!(said(upcoming_maintenance, &text), expected, "{text:.400}");
        }
    }

    #[test]
    fn the_policy_tells_whether_maintenance_is_an_end() {
        let notice = Notice::certain(Some(now()), ShutdownKind::Poweroff);
        assert_eq!(with_policy("MIGRATE", notice.clone()), None);
        assert_eq!(with_policy("TERMINATE\n", notice.clone()), Some(notice.clone()));
        for odd in ["", HTML, "SUSPEND"] {
            assert_eq!(with_policy(odd, notice.clone()), Some(Notice::uncertain(notice.at)));
        }
    }

    #[test]
    fn only_a_plain_entity_tag_becomes_a_part_of_a_query() {
        assert!(is_etag("411261ca6c9e4fb7"));
        for odd in ["", "a b", "a&b", "a\"", "é", &"x".repeat(65)] {
            assert!(!is_etag(odd), "{odd}");
        }
    }

    /// The values of the keys, by path. A path that is not there has status 404.
    type Shared = Arc<Mutex<Vec<(&'static str, Reply)>>>;

    fn google(etag: &str, body: &str) -> Reply {
        Reply::with(200, &[(FLAVOR_HEADER, FLAVOR), ("ETag", etag)], body)
    }

    fn answer(values: &[(&'static str, Reply)], asked: &Asked) -> Reply {
        assert_eq!((asked.method.as_str(), asked.header(FLAVOR_HEADER)), ("GET", Some(FLAVOR)));
        let found = values.iter().rev().find(|(path, _)| asked.path == *path);
        let missing = Reply::with(404, &[(FLAVOR_HEADER, FLAVOR)], HTML);
        found.map_or(missing, |(_, reply)| reply.clone())
    }

    fn server(more: &[(&'static str, Reply)]) -> (Gce, Double, Shared) {
        let mut values =
            vec![(PREEMPTED, google("a1", "FALSE")), (MAINTENANCE, google("b1", "NONE"))];
        values.extend_from_slice(more);
        let values = Arc::new(Mutex::new(values));
        let shared = values.clone();
        let double = Double::serve(move |asked| answer(&shared.lock().unwrap(), asked));
        (Gce::new(Metadata::new(double.address())), double, values)
    }

    fn gets(paths: &[&str]) -> Vec<String> {
        let mut gets: Vec<_> = paths.iter().map(|path| format!("GET {path}")).collect();
        gets.sort();
        gets
    }

    const PREEMPTED_WAITS: &str = "/computeMetadata/v1/instance/preempted\
        ?wait_for_change=true&timeout_sec=50&last_etag=a1";
    const MAINTENANCE_WAITS: &str = "/computeMetadata/v1/instance/maintenance-event\
        ?wait_for_change=true&timeout_sec=50&last_etag=b1";

    #[tokio::test]
    async fn the_first_poll_reads_and_others_wait_for_a_change() {
        let (mut gce, double, values) = server(&[]);
        assert_eq!(gce.poll(now()).await.unwrap(), None);
        assert_eq!(double.asked(), gets(&[PREEMPTED, MAINTENANCE, UPCOMING]));
        let preempted = Arc::new(Notify::new());
        let Reply::Raw(text) = google("a2", "TRUE") else { unreachable!() };
        let later = Reply::Later(preempted.clone(), String::from_utf8(text).unwrap());
        values.lock().unwrap().extend([(PREEMPTED_WAITS, later), (MAINTENANCE_WAITS, Reply::Hang)]);
        let (polled, ()) = tokio::join!(gce.poll(now()), async {
            double.until(2).await;
            preempted.notify_one();
        });
        assert_eq!(short(&polled.unwrap().unwrap()), (29, true));
        assert_eq!(double.asked(), gets(&[PREEMPTED_WAITS, MAINTENANCE_WAITS]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_when_a_notice_was_seen_first() {
        let (mut gce, _double, values) = server(&[(PREEMPTED, google("\"", "TRUE"))]);
        assert_eq!(gce.poll(now()).await.unwrap().as_ref().map(short), Some((30, true)));
        let later = |seconds| now() + Duration::from_secs(seconds);
        assert_eq!(gce.poll(later(12)).await.unwrap().as_ref().map(short), Some((18, true)));
        // An answer that cannot be read withdraws nothing.
        values.lock().unwrap().push((PREEMPTED, Reply::status(500)));
        assert_eq!(gce.poll(later(20)).await.unwrap().as_ref().map(short), Some((10, true)));
        values.lock().unwrap().push((PREEMPTED, google("\"", "TRUE")));
        assert_eq!(gce.poll(later(40)).await.unwrap().as_ref().map(short), Some((0, true)));
        // It is withdrawn, and comes again.
        values.lock().unwrap().push((PREEMPTED, google("\"", "FALSE")));
        assert_eq!(gce.poll(later(41)).await.unwrap(), None);
        values.lock().unwrap().push((PREEMPTED, google("\"", "TRUE")));
        assert_eq!(gce.poll(later(42)).await.unwrap().as_ref().map(short), Some((30, true)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_takes_the_time_limit_and_is_then_read_again() {
        let (mut gce, double, values) = server(&[]);
        gce.poll(now()).await.unwrap();
        double.asked();
        let waits = [(PREEMPTED_WAITS, Reply::Hang), (MAINTENANCE_WAITS, Reply::Hang)];
        values.lock().unwrap().extend(waits);
        let began = Instant::now();
        gce.poll(now()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 52);
        double.asked();
        assert_eq!(gce.poll(now()).await.unwrap(), None);
        let asked = double.asked();
        assert!(gets(&[PREEMPTED, MAINTENANCE]).iter().all(|get| asked.contains(get)), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_fails_hides_no_other() {
        let wrong = Reply::text("FALSE");
        let half = "HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 90\r\n\r\nFA";
        for failure in [
            Reply::with(429, &[(FLAVOR_HEADER, FLAVOR)], ""),
            Reply::with(500, &[(FLAVOR_HEADER, FLAVOR)], ""),
            Reply::with(503, &[(FLAVOR_HEADER, FLAVOR)], ""),
            wrong,
            google("a1", HTML),
            google("a1", ""),
            google("a1", &"x".repeat(1 << 20)),
            Reply::raw(half),
            Reply::Half(half),
            Reply::Hang,
            Reply::Close,
        ] {
            let said = format!("{failure:.60?}");
            let (mut gce, _double, values) = server(&[(PREEMPTED, failure)]);
            let error = gce.poll(now()).await.expect_err(&said).to_string();
            assert!(error.contains(PREEMPTED), "{error}");
            values
                .lock()
                .unwrap()
                .push((MAINTENANCE, google("b2", "TERMINATE_ON_HOST_MAINTENANCE")));
            let ending = gce.poll(now()).await.unwrap();
            assert!(ending.is_some_and(|ending| ending.certain), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn upcoming_maintenance_is_asked_for_once_a_minute() {
        let window = google("c1", WINDOW);
        let (mut gce, double, values) =
            server(&[(UPCOMING, window.clone()), (POLICY, google("d1", "TERMINATE"))]);
        assert_eq!(gce.poll(now()).await.unwrap().as_ref().map(short), Some((3_600, true)));
        assert_eq!(double.asked(), gets(&[PREEMPTED, MAINTENANCE, UPCOMING, POLICY]));
        let steps = [
            (POLICY, google("d1", "MIGRATE"), None),
            (POLICY, Reply::status(500), Some((3_600, false))),
            (UPCOMING, Reply::with(503, &[(FLAVOR_HEADER, FLAVOR)], ""), Some((3_600, false))),
            (UPCOMING, Reply::Close, None),
            (UPCOMING, google("c1", "{ }"), None),
            (UPCOMING, window, Some((3_600, false))),
            (UPCOMING, Reply::with(404, &[(FLAVOR_HEADER, FLAVOR)], HTML), None),
        ];
        for (path, reply, expected) in steps {
            let closes = matches!(reply, Reply::Close);
            values.lock().unwrap().push((path, reply));
            tokio::time::advance(UPCOMING_EVERY).await;
            // Without a change it waits for one.
            let waits =
                [(PREEMPTED_WAITS, google("a1", "FALSE")), (MAINTENANCE_WAITS, Reply::Hang)];
            values.lock().unwrap().extend(waits);
            let ending = gce.poll(now()).await.unwrap().as_ref().map(short);
            match expected {
                _ if closes => assert_eq!(ending, Some((3_600, false))),
                expected => assert_eq!(ending, expected, "{path}"),
            }
        }
    }
}
