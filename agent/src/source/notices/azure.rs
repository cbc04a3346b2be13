//! Asks the Scheduled Events of the Azure Instance Metadata Service for what ends the machine.
//!
//! A poll takes one request; the first takes one more, for the name of the machine. The events are
//! those of a whole availability set or placement group, so the name tells which are ours. Azure
//! recommends to ask once a second.
//!
//! No event is acknowledged: that would let Azure begin it earlier, on all machines that it names.

use std::time::Duration;

use agent_core::protocol::ending::{Ending, ShutdownKind};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::Value;

use super::metadata::{Answer, Metadata, NoticeError};
use super::notice::{Notice, date, excerpt, soonest, string};

const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";

/// Maximum time of the first answer with events. Azure turns Scheduled Events on at the first
/// request, which may take two minutes.
const FIRST_TIME_MAX: Duration = Duration::from_secs(125);
/// Maximum length of a name. Azure allows 64 characters, and adds the number of an instance in a
/// scale set.
const NAME_BYTES_MAX: usize = 128;

/// The metadata service of Azure.
#[derive(Debug, Default)]
pub(super) struct Azure {
    metadata: Metadata,
    /// The machine's name, once it is known.
    name: Option<String>,
    /// Whether the service has given events.
    is_on: bool,
    /// The document that was read last.
    read: Option<i64>,
    /// What it said.
    said: Option<Notice>,
}

impl Azure {
    pub(super) fn new(metadata: Metadata) -> Self {
        Self { metadata, ..Self::default() }
    }

    /// The end of the machine as the service says it now. The first answer may take two minutes.
    pub(super) async fn poll(&mut self, now: Timestamp) -> Result<Option<Ending>, NoticeError> {
        let error = self.ask(now).await.err();
        // An answer that cannot be read withdraws nothing.
        match (self.said.clone(), error) {
            (Some(notice), error) => {
                if let Some(error) = error {
                    tracing::debug!(%error, "Azure says nothing new");
                }
                Ok(Some(notice.ending(now)))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    async fn ask(&mut self, now: Timestamp) -> Result<(), NoticeError> {
        let name = match self.name.take() {
            Some(name) => name,
            None => self.ask_name().await?,
        };
        let name = self.name.insert(name);
        let within = if self.is_on { Duration::ZERO } else { FIRST_TIME_MAX };
        let answer = get(self.metadata, EVENTS, within).await?;
        self.is_on = true;
        let unreadable = |what: String| NoticeError::unreadable(EVENTS, what);
        let document = Document::read(&answer.body).map_err(unreadable)?;
        // The same document has the same events, and a time that has been found stays.
        if document.incarnation.is_some() && document.incarnation == self.read {
            return Ok(());
        }
        let (said, odd) = document.notice(name, now);
        // A document that was read in part is read again, so that its error is not forgotten.
        self.read = document.incarnation.filter(|_| odd.is_none());
        match (said, odd) {
            (None, Some(what)) => Err(unreadable(what)),
            (said, _) => {
                self.said = said;
                Ok(())
            }
        }
    }

    async fn ask_name(&self) -> Result<String, NoticeError> {
        let answer = get(self.metadata, NAME, Duration::ZERO).await?;
        let name = answer.body.trim();
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain {
            let what = format!("{} is not a name", excerpt(name));
            return Err(NoticeError::unreadable(NAME, what));
        }
        Ok(name.to_owned())
    }
}

async fn get(metadata: Metadata, path: &str, within: Duration) -> Result<Answer, NoticeError> {
    let answer = metadata.ask(Method::GET, path, &[("Metadata", "true")], within).await?;
    match answer.status {
        StatusCode::OK => Ok(answer),
        status => Err(NoticeError::status(path, status)),
    }
}

/// What the service knows: `{"DocumentIncarnation": 2, "Events": […]}`.
struct Document {
    /// It increases when the events change.
    incarnation: Option<i64>,
    events: Vec<Value>,
}

impl Document {
    fn read(text: &str) -> Result<Self, String> {
        let mut document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let incarnation = document.get("DocumentIncarnation").and_then(Value::as_i64);
        match document.get_mut("Events").map(Value::take) {
            Some(Value::Array(events)) => Ok(Self { incarnation, events }),
            _ => Err("it has no events".to_owned()),
        }
    }

    /// The notice for the machine of this name, and what is wrong with an event that cannot be
    /// read. Such an event hides no other.
    fn notice(&self, name: &str, now: Timestamp) -> (Option<Notice>, Option<String>) {
        let mut odd = None;
        let notices = self.events.iter().filter_map(|event| {
            event_notice(event, name, now).unwrap_or_else(|what| {
                odd.get_or_insert(what);
                None
            })
        });
        (soonest(notices, now), odd)
    }
}

/// Reads an event.
///
/// A `Freeze` is no end: the machine pauses for some seconds, with its memory and open files. A
/// type that is not known is an uncertain end: it affects the machine, and marks without a shutdown
/// do little harm.
fn event_notice(event: &Value, name: &str, now: Timestamp) -> Result<Option<Notice>, String> {
    if !names(event, name)? {
        return Ok(None);
    }
    let kind = match string(event, "EventType")? {
        "Freeze" => return Ok(None),
        "Reboot" => Some(ShutdownKind::Reboot),
        // The machine starts again on another host, without what its local disks had.
        "Redeploy" => Some(ShutdownKind::Other("redeploy".to_owned())),
        "Preempt" | "Terminate" => Some(ShutdownKind::Poweroff),
        _ => None,
    };
    let at = Some(begin(event, now)?);
    Ok(Some(kind.map_or(Notice::uncertain(at), |kind| Notice::certain(at, kind))))
}

/// Whether an event is of the machine with this name. Azure does not tell names by their case.
fn names(event: &Value, name: &str) -> Result<bool, String> {
    let of_machines = event.get("ResourceType").is_none_or(|kind| kind == "VirtualMachine");
    let resources = event.get("Resources").and_then(Value::as_array);
    let resources = resources.ok_or("Resources is not an array")?;
    let mut resources = resources.iter().filter_map(Value::as_str);
    Ok(of_machines && resources.any(|resource| resource.eq_ignore_ascii_case(name)))
}

/// The time at which an event may begin: now if it has started, when its `NotBefore` is blank.
fn begin(event: &Value, now: Timestamp) -> Result<Timestamp, String> {
    if event.get("EventStatus").is_some_and(|status| status == "Started") {
        return Ok(now);
    }
    match string(event, "NotBefore")?.trim() {
        "" => Ok(now),
        not_before => date(not_before),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::double::{Asked, Double, Reply};
    use super::*;

    const HTML: &str = "<html><body>Proxy Error</body></html>";
    const OURS: &str = "WestNO_0";
    const AT: &str = "Mon, 11 Apr 2022 22:26:58 GMT";

    fn now() -> Timestamp {
        "2022-04-11T22:16:58Z".parse().unwrap()
    }

    /// An event as the documentation shows it.
    fn event(kind: &str, status: &str, not_before: &str) -> String {
        format!(
            r#"{{"EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": "{status}",
            "EventType": "{kind}", "ResourceType": "VirtualMachine",
            "Resources": ["WestNO_0", "WestNO_1"], "NotBefore": "{not_before}",
            "Description": "Virtual machine is being paused.", "EventSource": "Platform",
            "DurationInSeconds": -1}}"#
        )
    }

    fn document(incarnation: i64, events: &str) -> String {
        format!(r#"{{"DocumentIncarnation": {incarnation}, "Events": [{events}]}}"#)
    }

    /// The seconds that are left, the kind, and whether the end is certain.
    type Said = Option<(u64, Option<ShutdownKind>, bool)>;

    fn short(ending: Ending) -> (u64, Option<ShutdownKind>, bool) {
        (ending.within.unwrap().as_secs(), ending.kind, ending.certain)
    }

    /// What a document says, and whether an event in it cannot be read.
    fn said(text: &str) -> Result<(Said, bool), ()> {
        let odd = |what: &String| assert!(what.len() < 200, "{what}");
        let document = Document::read(text).map_err(|what| odd(&what))?;
        let (notice, what) = document.notice(OURS, now());
        what.iter().for_each(odd);
        Ok((notice.map(|notice| short(notice.ending(now()))), what.is_some()))
    }

    #[test]
    fn events_are_read() {
        use ShutdownKind::{Other, Poweroff, Reboot};
        let of = |kind: &str| event(kind, "Scheduled", AT);
        let in_time = |kind| (Some((600, Some(kind), true)), false);
        let (none, odd) = ((None, false), (None, true));
        let now_rebooting = (Some((0, Some(Reboot), true)), false);
        let later = event("Terminate", "Scheduled", "Mon, 11 Apr 2022 23:16:58 GMT");
        let table = [
            (String::new(), none.clone()),
            (of("Reboot"), in_time(Reboot)),
            (of("Redeploy"), in_time(Other("redeploy".to_owned()))),
            (of("Preempt"), in_time(Poweroff)),
            (of("Terminate"), in_time(Poweroff)),
            (of("Freeze"), none.clone()),
            (of("Defrost"), (Some((600, None, false)), false)),
            (event("Reboot", "Started", ""), now_rebooting.clone()),
            (event("Reboot", "Started", AT), now_rebooting.clone()),
            (event("Reboot", "Scheduled", ""), now_rebooting.clone()),
            (event("Reboot", "Scheduled", "11 Apr 2022 22:00:00 GMT"), now_rebooting),
            (event("Freeze", "Started", ""), none.clone()),
            (event("Reboot", "Scheduled", "2022-04-11T22:26:58Z"), in_time(Reboot)),
            (of("Reboot").replace("WestNO_0", "westno_0"), in_time(Reboot)),
            (of("Reboot").replace("WestNO_0", "WestNO_01"), none.clone()),
            (of("Reboot").replace(r#""WestNO_0", "WestNO_1""#, ""), none.clone()),
            (of("Reboot").replace(r#""VirtualMachine""#, r#""Host""#), none),
            (of("Reboot").replace("ResourceType", "Type"), in_time(Reboot)),
            (of("Reboot").replace(r#""WestNO_1""#, "5"), in_time(Reboot)),
            (format!("{later}, {}", of("Reboot")), in_time(Reboot)),
            (format!("{}, {later}", of("Defrost")), (Some((3_600, Some(Poweroff), true)), false)),
            // Events that cannot be read, alone and with others.
            (event("Reboot", "Scheduled", "soon"), odd.clone()),
            (of("Reboot").replace(r#""Reboot""#, "5"), odd.clone()),
            (of("Reboot").replace(&format!(r#""{AT}""#), "1649715418"), odd.clone()),
            (of("Reboot").replace("NotBefore", "NotAfter"), odd.clone()),
            (of("Reboot").replace(r#"["WestNO_0", "WestNO_1"]"#, r#""WestNO_0""#), odd.clone()),
            ("null".to_owned(), odd),
            (format!("5, {{}}, {}", of("Reboot")), (in_time(Reboot).0, true)),
        ];
        for (events, expected) in table {
            assert_eq!(said(&document(2, &events)), Ok(expected), "{events}");
        }
        for text in ["", "{}", "[]", "null", r#"{"Events": {}}"#, r#"{"Events": [{"#, HTML] {
            assert_eq!(said(text), Err(()), "{text}");
        }
    }

    #[test]
    fn ten_thousand_events_are_read() {
        let other = event("Reboot", "Started", "").replace("WestNO", "EastNO");
        let mut events = vec![other; 10_000];
        events[7_777] = event("Preempt", "Scheduled", AT);
        let expected = (Some((600, Some(ShutdownKind::Poweroff), true)), false);
        assert_eq!(said(&document(3, &events.join(","))), Ok(expected));
    }

    /// What the service answers for the name, and for the events.
    type Shared = Arc<Mutex<[Reply; 2]>>;

    fn service(name: Reply, events: Reply) -> (Azure, Double, Shared) {
        let replies = Arc::new(Mutex::new([name, events]));
        let shared = replies.clone();
        let double = Double::serve(move |asked: &Asked| {
            // Nothing else is asked, and nothing is acknowledged.
            assert_eq!((asked.method.as_str(), asked.header("metadata")), ("GET", Some("true")));
            let [name, events] = shared.lock().unwrap().clone();
            match asked.path.as_str() {
                NAME => name,
                EVENTS => events,
                path => panic!("{path}"),
            }
        });
        (Azure::new(Metadata::new(double.address())), double, replies)
    }

    fn events(incarnation: i64, events: &str) -> Reply {
        Reply::text(document(incarnation, events))
    }

    fn gets(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| format!("GET {path}")).collect()
    }

    #[tokio::test]
    async fn the_name_is_asked_for_until_it_is_known() {
        let (mut azure, double, replies) = service(Reply::status(500), events(1, ""));
        for reply in [
            Reply::status(404),
            Reply::status(429),
            Reply::text(""),
            Reply::text(HTML),
            Reply::text("x".repeat(1 << 10)),
            Reply::Close,
        ] {
            replies.lock().unwrap()[0] = reply;
            azure.poll(now()).await.unwrap_err();
            assert_eq!(double.asked(), gets(&[NAME]));
        }
        replies.lock().unwrap()[0] = Reply::text("WestNO_0");
        assert_eq!(azure.poll(now()).await.unwrap(), None);
        assert_eq!(double.asked(), gets(&[NAME, EVENTS]));
        assert_eq!(azure.poll(now()).await.unwrap(), None);
        assert_eq!(double.asked(), gets(&[EVENTS]));
    }

    #[tokio::test]
    async fn an_event_comes_begins_and_ends() {
        let (mut azure, _double, replies) = service(Reply::text(OURS), events(1, ""));
        let started = event("Reboot", "Started", "");
        let at = |seconds| now() + Duration::from_secs(seconds);
        let reboot = |left| Some((left, Some(ShutdownKind::Reboot), true));
        let steps = [
            (0, events(1, ""), None),
            (0, events(2, &event("Reboot", "Scheduled", AT)), reboot(600)),
            // The same document says the same.
            (10, events(2, ""), reboot(590)),
            (20, events(3, &started), reboot(0)),
            (30, events(3, &started), reboot(0)),
            (40, events(4, ""), None),
            // A restart of the service may count from one again.
            (50, events(1, &started), reboot(0)),
            // Without a number each document is read.
            (60, Reply::text(r#"{"Events": []}"#), None),
            (70, Reply::text(format!(r#"{{"Events": [{started}]}}"#)), reboot(0)),
            (80, Reply::text(r#"{"DocumentIncarnation": "5", "Events": []}"#), None),
        ];
        for (seconds, reply, expected) in steps {
            replies.lock().unwrap()[1] = reply;
            let ending = azure.poll(at(seconds)).await.unwrap();
            assert_eq!(ending.map(short), expected, "after {seconds}s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_cannot_be_read_withdraws_nothing() {
        let odd = event("Reboot", "Scheduled", "soon");
        for failure in [
            Reply::status(400),
            Reply::status(404),
            Reply::status(410),
            Reply::status(429),
            Reply::status(500),
            Reply::text(""),
            Reply::text(HTML),
            Reply::text(r#"{"DocumentIncarnation": 2, "Events": [{"#),
            Reply::text("x".repeat(1 << 20)),
            Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"),
            Reply::Half("HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"),
            Reply::Hang,
            Reply::Close,
            events(3, &odd),
        ] {
            let said = format!("{failure:.60?}");
            let (mut azure, _double, replies) = service(Reply::text(OURS), failure.clone());
            for _ in 0..2 {
                let error = azure.poll(now()).await.expect_err(&said).to_string();
                assert!(error.contains(EVENTS), "{error}");
            }
            replies.lock().unwrap()[1] = events(2, &event("Preempt", "Scheduled", AT));
            let preempt = |left| Some((left, Some(ShutdownKind::Poweroff), true));
            assert_eq!(azure.poll(now()).await.unwrap().map(short), preempt(600));
            replies.lock().unwrap()[1] = failure;
            let later = now() + Duration::from_mins(1);
            assert_eq!(azure.poll(later).await.unwrap().map(short), preempt(540), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_answer_may_take_two_minutes() {
        let (mut azure, _double, replies) = service(Reply::text(OURS), Reply::Hang);
        let began = tokio::time::Instant::now();
        azure.poll(now()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 125);
        replies.lock().unwrap()[1] = events(1, "");
        azure.poll(now()).await.unwrap();
        replies.lock().unwrap()[1] = Reply::Hang;
        let began = tokio::time::Instant::now();
        azure.poll(now()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 2);
    }
}
