//! Asks the Instance Metadata Service of Amazon EC2, version 2, for what ends the instance.
//!
//! A poll takes four requests at the same time, because each item has a path of its own: the
//! interruption of a Spot Instance, which comes two minutes before it; the target lifecycle state
//! of an Auto Scaling group; the scheduled events; and the recommendation to rebalance. A token
//! for them takes one more every three hours. EC2 recommends to look for an interruption every
//! five seconds.
//!
//! Version 1, without a token, is not asked: an instance may refuse it.

use std::time::Duration;

use agent_core::protocol::ending::{Ending, ShutdownKind};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::metadata::{Answer, Metadata, NoticeError};
use super::notice::{Notice, date, excerpt, soonest, string};

const TOKEN: &str = "/latest/api/token";
const TOKEN_HEADER: &str = "X-aws-ec2-metadata-token";
const TOKEN_TTL_HEADER: &str = "X-aws-ec2-metadata-token-ttl-seconds";
/// Six hours, the maximum.
const TOKEN_TTL_SECONDS: &str = "21600";
/// A token is renewed after half its time.
const TOKEN_AGE_MAX: Duration = Duration::from_hours(3);
/// Maximum length of a token.
const TOKEN_BYTES_MAX: usize = 1024;

/// Reads the text of an item at this time. The error says what is wrong.
type Read = fn(&str, Timestamp) -> Result<Option<Notice>, String>;

/// The items, and how to read each.
const ITEMS: [(&str, Read); 4] = [
    ("/latest/meta-data/spot/instance-action", instance_action),
    ("/latest/meta-data/autoscaling/target-lifecycle-state", target_lifecycle_state),
    ("/latest/meta-data/events/maintenance/scheduled", scheduled),
    ("/latest/meta-data/events/recommendations/rebalance", rebalance),
];

/// The metadata service of EC2.
#[derive(Debug, Default)]
pub(super) struct Aws {
    metadata: Metadata,
    /// When this boot began. An event may be listed until long after its reboot.
    booted_at: Timestamp,
    token: Option<Token>,
    /// What each item said last. An answer that cannot be read withdraws nothing.
    said: [Option<Notice>; ITEMS.len()],
}

struct Token {
    text: String,
    since: Instant,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Whoever has the token can read the credentials of the instance.
        formatter.debug_struct("Token").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Aws {
    pub(super) fn new(metadata: Metadata, booted_at: Timestamp) -> Self {
        Self { metadata, booted_at, ..Self::default() }
    }

    /// The end of the instance as the service says it now. It takes twice the time limit of a
    /// request at most, or four times if the token has ended.
    pub(super) async fn poll(&mut self, now: Timestamp) -> Result<Option<Ending>, NoticeError> {
        let kept = self.token.take().filter(|token| token.since.elapsed() < TOKEN_AGE_MAX);
        let renewable = kept.is_some();
        let mut token = match kept {
            Some(token) => token,
            None => self.new_token().await?,
        };
        let mut answers = self.ask(&token).await;
        // It ends early when the instance has been stopped and started.
        if renewable && answers.iter().any(is_unauthorized) {
            token = self.new_token().await?;
            answers = self.ask(&token).await;
        }
        // A token that is refused is not kept.
        self.token = (!answers.iter().any(is_unauthorized)).then_some(token);
        self.read(answers, now)
    }

    async fn new_token(&self) -> Result<Token, NoticeError> {
        let headers = [(TOKEN_TTL_HEADER, TOKEN_TTL_SECONDS)];
        let since = Instant::now();
        let answer = self.metadata.ask(Method::PUT, TOKEN, &headers, Duration::ZERO).await?;
        if answer.status != StatusCode::OK {
            return Err(NoticeError::status(TOKEN, answer.status));
        }
        let text = answer.body.trim();
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !printable {
            return Err(NoticeError::unreadable(TOKEN, "it is not a token"));
        }
        Ok(Token { text: text.to_owned(), since })
    }

    /// Asks for all items at the same time, so that one that hangs hides no other.
    async fn ask(&self, token: &Token) -> [Result<Answer, NoticeError>; ITEMS.len()] {
        let headers = [(TOKEN_HEADER, token.text.as_str())];
        let [action, state, scheduled, rebalance] =
            ITEMS.map(|(path, _)| self.metadata.ask(Method::GET, path, &headers, Duration::ZERO));
        tokio::join!(action, state, scheduled, rebalance).into()
    }

    fn read(
        &mut self,
        answers: [Result<Answer, NoticeError>; ITEMS.len()],
        now: Timestamp,
    ) -> Result<Option<Ending>, NoticeError> {
        let mut failed = None;
        for ((said, (path, read)), answer) in self.said.iter_mut().zip(ITEMS).zip(answers) {
            match answer.and_then(|answer| item(path, &answer, read, now)) {
                Ok(notice) => *said = notice,
                Err(error) => {
                    tracing::debug!(%error, "an item of EC2 says nothing");
                    failed.get_or_insert(error);
                }
            }
        }
        let is_to_come = |said: &&Notice| said.at.is_none_or(|at| at >= self.booted_at);
        let said = self.said.iter().flatten().filter(is_to_come).cloned();
        match (soonest(said, now), failed) {
            (Some(notice), _) => Ok(Some(notice.ending(now))),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }
}

fn is_unauthorized(answer: &Result<Answer, NoticeError>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.status == StatusCode::UNAUTHORIZED)
}

fn item(
    path: &str,
    answer: &Answer,
    read: Read,
    now: Timestamp,
) -> Result<Option<Notice>, NoticeError> {
    match answer.status {
        StatusCode::OK => {
            read(&answer.body, now).map_err(|what| NoticeError::unreadable(path, what))
        }
        // The item is not there while there is nothing to say.
        StatusCode::NOT_FOUND => Ok(None),
        status => Err(NoticeError::status(path, status)),
    }
}

/// Reads `spot/instance-action`, as in `{"action": "stop", "time": "2017-09-18T08:22:00Z"}`.
///
/// An action that is not known is an uncertain end: EC2 will do something to the instance, but
/// perhaps not end it.
fn instance_action(text: &str, _: Timestamp) -> Result<Option<Notice>, String> {
    let item: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let action = string(&item, "action")?;
    // A time that cannot be read leaves the end certain.
    let at = string(&item, "time").and_then(date).ok();
    Ok(Some(match action {
        "stop" | "terminate" => Notice::certain(at, ShutdownKind::Poweroff),
        // It begins with the notice, and the pods run on after it; but the node is gone until then.
        "hibernate" => Notice::certain(at, ShutdownKind::Other("hibernate".to_owned())),
        _ => Notice::uncertain(at),
    }))
}

/// Reads `autoscaling/target-lifecycle-state`, the state to which the group is taking the
/// instance. The time is not there: it depends on the hooks of the group.
///
/// An instance that a warm pool will stop has the same state while it starts from there again. So
/// that is an uncertain end.
fn target_lifecycle_state(text: &str, _: Timestamp) -> Result<Option<Notice>, String> {
    match text.trim() {
        "Terminated" | "Warmed:Terminated" => {
            Ok(Some(Notice::certain(None, ShutdownKind::Poweroff)))
        }
        "Warmed:Stopped" | "Warmed:Hibernated" => Ok(Some(Notice::uncertain(None))),
        // `InService`, `Detached`, `Standby`, `Warmed:Running`, or a later one. None of them is an
        // end, and the group may leave an instance there for ever.
        state if is_state(state) => Ok(None),
        other => Err(format!("{} is not a lifecycle state", excerpt(other))),
    }
}

fn is_state(text: &str) -> bool {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b':');
    letters && !text.is_empty() && text.len() <= 64
}

/// Reads `events/maintenance/scheduled`, an array of events. An event that cannot be read hides no
/// other.
fn scheduled(text: &str, now: Timestamp) -> Result<Option<Notice>, String> {
    let events: Vec<Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut odd = None;
    let notices = events.iter().filter_map(|event| {
        event_notice(event).unwrap_or_else(|what| {
            odd.get_or_insert(what);
            None
        })
    });
    let found = soonest(notices, now);
    odd.filter(|_| found.is_none()).map_or(Ok(found), Err)
}

/// Reads an event, which may have been completed or canceled.
///
/// A code or a state that is not known is an uncertain end: the list has only what affects the
/// instance, and marks without a shutdown do little harm.
fn event_notice(event: &Value) -> Result<Option<Notice>, String> {
    let code = string(event, "Code")?;
    let described = event.get("Description").and_then(Value::as_str).unwrap_or_default();
    let over = described.starts_with("[Completed]") || described.starts_with("[Canceled]");
    // The path lists active events, so an event without a state is one.
    let state = event.get("State").map_or(Ok("active"), |_| string(event, "State"))?;
    if over || state == "completed" || state == "canceled" {
        return Ok(None);
    }
    let at = Some(string(event, "NotBefore").and_then(date)?);
    let kind = match code {
        "instance-stop" | "instance-retirement" => Some(ShutdownKind::Poweroff),
        "instance-reboot" | "system-reboot" => Some(ShutdownKind::Reboot),
        // `system-maintenance` is of the network or the power. Only that of the power reboots.
        _ => None,
    };
    Ok(Some(match kind {
        Some(kind) if state == "active" => Notice::certain(at, kind),
        _ => Notice::uncertain(at),
    }))
}

/// Reads `events/recommendations/rebalance`, as in `{"noticeTime": "2020-10-27T08:22:00Z"}`: the
/// time of the notice. The instance may run on for ever.
fn rebalance(text: &str, _: Timestamp) -> Result<Option<Notice>, String> {
    let item: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    string(&item, "noticeTime")?;
    Ok(Some(Notice::uncertain(None)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::double::{Asked, Double, Reply};
    use super::*;

    const NOW: &str = "2019-01-21T09:00:00Z";
    const ACTION: &str = "/latest/meta-data/spot/instance-action";
    const STATE: &str = "/latest/meta-data/autoscaling/target-lifecycle-state";
    const SCHEDULED: &str = "/latest/meta-data/events/maintenance/scheduled";
    const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
    const HTML: &str = "<html><body>Proxy Error</body></html>";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn seconds(ending: &Ending) -> Option<u64> {
        ending.within.map(|within| within.as_secs())
    }

    /// What a reader found: the seconds that are left, the kind, and whether it is certain.
    type Said = Result<Option<(Option<u64>, Option<ShutdownKind>, bool)>, ()>;

    fn said(read: Read, text: &str) -> Said {
        let found = read(text, now()).map(|notice| notice.map(|notice| notice.ending(now())));
        let said = |ending: Ending| (seconds(&ending), ending.kind.clone(), ending.certain);
        found.map(|ending| ending.map(said)).map_err(|what| assert!(what.len() < 200, "{what}"))
    }

    #[allow(clippy::unnecessary_wraps)] // It is what a reader gives.
    fn certain(seconds: impl Into<Option<u64>>, kind: ShutdownKind) -> Said {
        Ok(Some((seconds.into(), Some(kind), true)))
    }

    #[allow(clippy::unnecessary_wraps)] // It is what a reader gives.
    fn uncertain(seconds: impl Into<Option<u64>>) -> Said {
        Ok(Some((seconds.into(), None, false)))
    }

    #[test]
    fn the_interruption_of_a_spot_instance_is_read() {
        use ShutdownKind::{Other, Poweroff};
        let hibernate = || Other("hibernate".to_owned());
        let table = [
            (r#"{"action": "stop", "time": "2019-01-21T09:02:00Z"}"#, certain(120, Poweroff)),
            (r#"{"action": "terminate", "time": "2019-01-21T09:01:59Z"}"#, certain(119, Poweroff)),
            (r#"{"action": "hibernate", "time": "2019-01-21T09:00:00Z"}"#, certain(0, hibernate())),
            (r#"{"action": "stop", "time": "2017-09-18T08:22:00Z"}"#, certain(0, Poweroff)),
            (r#"{"action": "hibernate"}"#, certain(None, hibernate())),
            (r#"{"action": "stop", "time": 1505722920}"#, certain(None, Poweroff)),
            (r#"{"action": "stop", "time": "soon"}"#, certain(None, Poweroff)),
            (r#"{"action": "defrost", "time": "2019-01-21T09:02:00Z"}"#, uncertain(120)),
            (r#"{"action": 1, "time": "2019-01-21T09:02:00Z"}"#, Err(())),
            (r#"{"time": "2019-01-21T09:02:00Z"}"#, Err(())),
            (r#"{"action": "stop", "ti"#, Err(())),
            ("[]", Err(())),
            ("null", Err(())),
            ("", Err(())),
            (HTML, Err(())),
        ];
        for (text, expected) in table {
            assert_eq!(said(instance_action, text), expected, "{text}");
        }
    }

    #[test]
    fn the_target_lifecycle_state_is_read() {
        let long = "x".repeat(1 << 20);
        let table = [
            ("Terminated", certain(None, ShutdownKind::Poweroff)),
            ("Terminated\n", certain(None, ShutdownKind::Poweroff)),
            ("Warmed:Terminated", certain(None, ShutdownKind::Poweroff)),
            ("Warmed:Stopped", uncertain(None)),
            ("Warmed:Hibernated", uncertain(None)),
            ("Warmed:Running", Ok(None)),
            ("InService", Ok(None)),
            ("Detached", Ok(None)),
            ("Standby", Ok(None)),
            ("Sleeping", Ok(None)),
            ("", Err(())),
            ("17", Err(())),
            (HTML, Err(())),
            (&long, Err(())),
        ];
        for (text, expected) in table {
            assert_eq!(said(target_lifecycle_state, text), expected, "{text:.40}");
        }
    }

    fn event(code: &str, not_before: &str, state: &str) -> String {
        format!(
            r#"{{"NotBefore" : "{not_before}", "Code" : "{code}", "Description" : "scheduled",
            "EventId" : "instance-event-0d59937288b749b32", "State" : "{state}",
            "NotAfter" : "21 Jan 2019 09:17:23 GMT"}}"#
        )
    }

    #[test]
    fn scheduled_events_are_read() {
        use ShutdownKind::{Poweroff, Reboot};
        const AT: &str = "21 Jan 2019 09:00:43 GMT";
        let of = |code: &str| event(code, AT, "active");
        let later = event("instance-stop", "24 Jan 2019 09:00:00 GMT", "active");
        let table = [
            (of("system-reboot"), certain(43, Reboot)),
            (of("instance-reboot"), certain(43, Reboot)),
            (of("instance-stop"), certain(43, Poweroff)),
            (of("instance-retirement"), certain(43, Poweroff)),
            (of("system-maintenance"), uncertain(43)),
            (of("instance-defrost"), uncertain(43)),
            (event("system-reboot", AT, "completed"), Ok(None)),
            (event("system-reboot", AT, "canceled"), Ok(None)),
            (event("system-reboot", AT, "paused"), uncertain(43)),
            (event("system-reboot", "20 Jan 2019 09:00:43 GMT", "active"), certain(0, Reboot)),
            (event("instance-stop", "2019-01-21T09:00:43Z", "active"), certain(43, Poweroff)),
            (format!("{later}, {}", of("system-reboot")), certain(43, Reboot)),
            (format!("{}, {later}", of("system-maintenance")), certain(259_200, Poweroff)),
            // Events that cannot be read, alone and with others.
            (event("system-reboot", "soon", "active"), Err(())),
            (format!("1, null, {{}}, {later}"), certain(259_200, Poweroff)),
            (format!("{}, {}", of("system-reboot"), event("", "", "")), certain(43, Reboot)),
            (format!("[], {}", event("system-reboot", AT, "completed")), Err(())),
            (of("system-reboot").replace(r#""system-reboot""#, "5"), Err(())),
            (of("system-reboot").replace(r#""active""#, "5"), Err(())),
            (of("system-reboot").replace("State", "Status"), certain(43, Reboot)),
            (of("system-reboot").replace("scheduled", "[Completed] reboot"), Ok(None)),
            (of("system-reboot").replace("scheduled", "[Canceled] reboot"), Ok(None)),
            (String::new(), Ok(None)),
        ];
        for (events, expected) in table {
            assert_eq!(said(scheduled, &format!("[{events}]")), expected, "{events}");
        }
        for text in ["", "{}", "[{", "5", HTML] {
            assert_eq!(said(scheduled, text), Err(()), "{text}");
        }
    }

    #[test]
    fn ten_thousand_events_are_read() {
        let mut events = vec![event("system-reboot", "24 Jan 2019 09:00:00 GMT", "active"); 10_000];
        events[7_777] = event("instance-stop", "21 Jan 2019 09:00:43 GMT", "active");
        let text = format!("[{}]", events.join(","));
        assert_eq!(said(scheduled, &text), certain(43, ShutdownKind::Poweroff));
    }

    #[test]
    fn a_recommendation_to_rebalance_is_read() {
        let table = [
            (r#"{"noticeTime": "2020-10-27T08:22:00Z"}"#, uncertain(None)),
            (r#"{"noticeTime": "soon"}"#, uncertain(None)),
            (r#"{"noticeTime": 5}"#, Err(())),
            ("{}", Err(())),
            ("", Err(())),
            (HTML, Err(())),
        ];
        for (text, expected) in table {
            assert_eq!(said(rebalance, text), expected, "{text}");
        }
    }

    /// A service of EC2, whose token and items a test may change.
    #[derive(Clone)]
    struct Service {
        token: &'static str,
        items: Vec<(&'static str, Reply)>,
    }

    impl Service {
        fn answer(&self, asked: &Asked) -> Reply {
            if asked.method == "PUT" && asked.path == TOKEN {
                assert_eq!(asked.header(TOKEN_TTL_HEADER), Some("21600"));
                return Reply::text(self.token);
            }
            assert_eq!(asked.method, "GET");
            if asked.header(TOKEN_HEADER) != Some(self.token) {
                return Reply::status(401);
            }
            let found = self.items.iter().find(|(path, _)| *path == asked.path);
            found.map_or(Reply::status(404), |(_, reply)| reply.clone())
        }
    }

    type Shared = Arc<Mutex<Service>>;

    fn service(items: Vec<(&'static str, Reply)>) -> (Aws, Double, Shared) {
        let service = Arc::new(Mutex::new(Service { token: "AQAAAE==", items }));
        let shared = service.clone();
        let double = Double::serve(move |asked| shared.lock().unwrap().answer(asked));
        (Aws::new(Metadata::new(double.address()), Timestamp::UNIX_EPOCH), double, service)
    }

    fn gets() -> Vec<String> {
        let mut gets = ITEMS.map(|(path, _)| format!("GET {path}")).to_vec();
        gets.sort();
        gets
    }

    fn interruption() -> Reply {
        Reply::text(r#"{"action": "terminate", "time": "2019-01-21T09:02:00Z"}"#)
    }

    #[tokio::test]
    async fn a_poll_asks_for_each_item_and_keeps_the_token() {
        let (mut aws, double, _) = service(vec![]);
        assert_eq!(aws.poll(now()).await.unwrap(), None);
        assert_eq!(double.asked(), [gets(), vec![format!("PUT {TOKEN}")]].concat());
        assert_eq!(aws.poll(now()).await.unwrap(), None);
        assert_eq!(double.asked(), gets());
        assert!(!format!("{aws:?}").contains("AQAAAE"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_renewed_before_its_end() {
        let (mut aws, double, _) = service(vec![]);
        aws.poll(now()).await.unwrap();
        double.asked();
        tokio::time::advance(TOKEN_AGE_MAX).await;
        aws.poll(now()).await.unwrap();
        assert_eq!(double.asked(), [gets(), vec![format!("PUT {TOKEN}")]].concat());
    }

    #[tokio::test]
    async fn a_token_that_is_refused_is_renewed_once() {
        let (mut aws, double, service) = service(vec![(ACTION, interruption())]);
        aws.poll(now()).await.unwrap();
        double.asked();
        service.lock().unwrap().token = "AQAAAF==";
        assert!(aws.poll(now()).await.unwrap().is_some());
        assert_eq!(double.asked().len(), 4 + 1 + 4);
        assert!(aws.poll(now()).await.unwrap().is_some());
        assert_eq!(double.asked(), gets());
    }

    #[tokio::test]
    async fn a_service_that_refuses_all_tokens_is_an_error() {
        let double = Double::serve(|asked| match asked.method.as_str() {
            "PUT" => Reply::text("AQAAAE=="),
            _ => Reply::status(401),
        });
        let mut aws = Aws::new(Metadata::new(double.address()), Timestamp::UNIX_EPOCH);
        for _ in 0..2 {
            let error = aws.poll(now()).await.unwrap_err();
            assert_eq!(error.to_string(), format!("the answer to {ACTION} is 401 Unauthorized"));
            assert_eq!(double.asked().len(), 5);
        }
    }

    #[tokio::test]
    async fn a_token_that_is_none_is_an_error() {
        for reply in [
            Reply::status(403),
            Reply::status(404),
            Reply::status(429),
            Reply::status(500),
            Reply::text(""),
            Reply::text("AQ\nAA"),
            Reply::text("<html> </html>"),
            Reply::text("x".repeat(1 << 11)),
            Reply::text("x".repeat(1 << 20)),
            Reply::Close,
        ] {
            let said = format!("{reply:.60?}");
            let double = Double::serve(move |_| reply.clone());
            let mut aws = Aws::new(Metadata::new(double.address()), Timestamp::UNIX_EPOCH);
            aws.poll(now()).await.expect_err(&said);
            assert_eq!(double.asked(), [format!("PUT {TOKEN}")], "{said}");
        }
    }

    #[tokio::test]
    async fn the_earliest_certain_end_of_all_items_counts() {
        use ShutdownKind::{Poweroff, Reboot};
        let reboot = Reply::text(format!(
            "[{}]",
            event("system-reboot", "21 Jan 2019 09:00:43 GMT", "active")
        ));
        let notice = Reply::text(r#"{"noticeTime": "2019-01-21T08:59:00Z"}"#);
        let (mut aws, _double, service) = service(vec![
            (ACTION, interruption()),
            (STATE, Reply::text("Terminated")),
            (SCHEDULED, reboot),
            (REBALANCE, notice),
        ]);
        let left = |seconds| Some(Duration::from_secs(seconds));
        let steps = [
            (Some(SCHEDULED), Ending::certain(left(43), Some(Reboot))),
            (Some(ACTION), Ending::certain(left(120), Some(Poweroff))),
            (Some(STATE), Ending::certain(None, Some(Poweroff))),
            (Some(REBALANCE), Ending { within: None, kind: None, certain: false }),
        ];
        for (gone, expected) in steps {
            assert_eq!(aws.poll(now()).await.unwrap(), Some(expected));
            // Each is withdrawn after it counted.
            service.lock().unwrap().items.retain(|(path, _)| Some(*path) != gone);
        }
        assert_eq!(aws.poll(now()).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_fails_hides_no_other_and_withdraws_nothing() {
        let failures = [
            Reply::status(429),
            Reply::status(500),
            Reply::Close,
            Reply::Hang,
            Reply::Half("HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{\"action\":"),
            Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{\"action\":"),
            Reply::text("x".repeat(1 << 20)),
            Reply::text(HTML),
            Reply::text(""),
        ];
        for failure in failures {
            let said = format!("{failure:.60?}");
            // Nothing readable was found.
            let (mut aws, _double, shared) = service(vec![(ACTION, failure.clone())]);
            let error = aws.poll(now()).await.expect_err(&said).to_string();
            assert!(error.contains(ACTION), "{error}");
            // Another item can be read.
            shared.lock().unwrap().items.push((STATE, Reply::text("Terminated")));
            let ending = aws.poll(now()).await.unwrap().unwrap();
            assert_eq!((ending.within, ending.certain), (None, true), "{said}");
            // The item can be read, and then not. Its time goes on.
            shared.lock().unwrap().items = vec![(ACTION, interruption())];
            assert_eq!(seconds(&aws.poll(now()).await.unwrap().unwrap()), Some(120));
            shared.lock().unwrap().items = vec![(ACTION, failure)];
            let later = now() + Duration::from_secs(20);
            assert_eq!(seconds(&aws.poll(later).await.unwrap().unwrap()), Some(100), "{said}");
            // It is withdrawn only by an answer that says so.
            shared.lock().unwrap().items.clear();
            assert_eq!(aws.poll(later).await.unwrap(), None);
        }
    }
    #[tokio::test(start_paused = true)]
    async fn a_service_that_hangs_takes_one_time_limit() {
        let began = Instant::now();
        let double = Double::serve(|_| Reply::Hang);
        let mut aws = Aws::new(Metadata::new(double.address()), Timestamp::UNIX_EPOCH);
        aws.poll(now()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 2);
        let (mut aws, _double, _) = service(ITEMS.map(|(path, _)| (path, Reply::Hang)).to_vec());
        aws.poll(now()).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 4);
    }
}
