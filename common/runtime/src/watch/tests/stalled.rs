//! Tests a watch whose connection lives, while it shows nothing of what the API has.

use prometheus::Registry;

use super::*;

/// What was asked of a server, and after how many seconds.
type Timed = Arc<Mutex<Vec<(u64, String)>>>;

/// A server whose first watch goes on to send bookmarks of an old version, and whose further lists
/// have come to version 90; also what is asked of it, with the time in seconds.
fn standing_server(first: String, later: String) -> (Client, Timed) {
    let asked = Timed::default();
    let (log, begun) = (Arc::clone(&asked), Instant::now());
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().to_string();
        let is_first = log.lock().is_empty();
        let is_lookup = uri.contains(LOOKUP);
        log.lock().push((begun.elapsed().as_secs(), uri));
        let (head, tail) = if is_lookup {
            (json!({"metadata": {"resourceVersion": "90"}, "items": []}).to_string(), String::new())
        } else if is_first {
            (first.clone(), bookmark(50, false))
        } else {
            (later.clone(), bookmark(90, false))
        };
        async move {
            let ends = is_lookup;
            let later = stream::unfold(tail, async |tail| {
                tokio::time::sleep(Duration::from_secs(55)).await;
                Some((tail.clone(), tail))
            });
            let later = later.take(if ends { 0 } else { usize::MAX });
            let texts = stream::iter([head]).chain(later);
            let frames = texts.map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))));
            Response::builder().status(200).body(StreamBody::new(frames))
        }
    });
    (Client::new(service, "default"), asked)
}

/// The failures that a registry has counted.
fn failures(registry: &Registry) -> Vec<(String, f64)> {
    let gathered = registry.gather();
    let family = gathered.iter().find(|family| family.name() == "epilogue_watch_failures_total");
    let count = |it: &prometheus::proto::Metric| {
        let reason = it.get_label().iter().find(|label| label.name() == "reason");
        (reason.expect("a reason").value().to_owned(), it.get_counter().get_value())
    };
    family.map(|family| family.get_metric().iter().map(count).collect()).unwrap_or_default()
}

/// Watches for five minutes a server that stands still at version 50, and writes at version 90.
async fn watched(asks: bool, writes: bool) -> (Vec<String>, Vec<(u64, String)>, Registry) {
    let (client, asked) = standing_server(list(50), list(90));
    let registry = Registry::new();
    let signs = Watches::new(&registry).expect("must register").of("pods");
    let scope = Scope { asks, signs: signs.clone(), ..scope(2) };
    let (newest, events) = (scope.newest.clone(), Log::default());
    let end = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if writes {
            assert!(!newest.answered(newest.get(), 90));
        }
        assert_eq!(signs.check(), Ok(()));
        tokio::time::sleep(Duration::from_secs(280)).await;
        assert_eq!(signs.check(), Ok(()), "it moves again");
    };
    watch_until(client, scope, &events, end).await;
    let (events, asked) = (events.lock().clone(), asked.lock().clone());
    (events, asked, registry)
}

/// The time of the second list.
fn listed_anew(asked: &[(u64, String)]) -> Option<u64> {
    let is_list = |(_, uri): &&(u64, String)| uri.contains("sendInitialEvents");
    asked.iter().filter(is_list).nth(1).map(|(at, _)| *at)
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lives_and_does_not_show_our_write_is_listed_anew_within_two_minutes() {
    let (events, asked, registry) = watched(false, true).await;
    let at = listed_anew(&asked).expect("a second list");
    assert!((90..120).contains(&at), "{at} s");
    assert!(events.contains(&"listed 90".to_owned()), "{events:?}");
    assert!(!events.contains(&"restored".to_owned()), "{events:?}");
    assert_eq!(failures(&registry), [("stalled".to_owned(), 1.0)]);
}

/// A replica that waits for the lease writes nothing.
#[tokio::test(start_paused = true)]
async fn a_watch_that_lives_and_does_not_move_is_listed_anew_within_two_minutes() {
    let (_, asked, registry) = watched(true, false).await;
    let at = listed_anew(&asked).expect("a second list");
    assert!((90..=120).contains(&at), "{at} s");
    assert_eq!(failures(&registry), [("stalled".to_owned(), 1.0)]);
    let lookups = asked.iter().filter(|(_, uri)| uri.contains(LOOKUP)).count();
    assert!((1..20).contains(&lookups), "{lookups}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_all_is_asked_nothing_and_never_listed_anew() {
    let (_, asked, registry) = watched(false, false).await;
    assert_eq!((asked.len(), failures(&registry)), (1, vec![]), "{asked:?}");
}

/// The list is complete only for the third request, which asks for pages.
#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_come_to_its_end_is_replaced_by_pages_and_is_seen_in_readiness() {
    let endless = || event("ADDED", &pod("a", 5));
    let (client, asked) = standing_server(endless(), endless());
    let registry = Registry::new();
    let signs = Watches::new(&registry).expect("must register").of("pods");
    let scope = Scope { signs: signs.clone(), ..scope(2) };
    let end = async {
        tokio::time::sleep(Duration::from_secs(89)).await;
        assert_eq!(signs.check(), Ok(()));
        tokio::time::sleep(Duration::from_secs(11)).await;
        let why = signs.check().expect_err("it does not move");
        assert!(why.starts_with("the watch of pods lives and does not move: it has not"), "{why}");
    };
    watch_until(client, scope, &Log::default(), end).await;
    let asked = asked.lock();
    assert!(asked[1].1.ends_with("&limit=500"), "{asked:?}");
    assert_eq!(failures(&registry)[0], ("stalled".to_owned(), 1.0));
}

/// While the API is away, a watch is not behind: it goes on where it was.
#[tokio::test(start_paused = true)]
async fn an_outage_is_no_reason_for_a_list() {
    let mut answers = vec![(200, list(50) + "broken\n")];
    answers.extend((0..30).map(|_| (500, status(500, "InternalError").to_string())));
    answers.push((OPEN, event("MODIFIED", &pod("a", 100))));
    let (client, asked) = server(answers);
    let scope = scope(2);
    let (newest, events) = (scope.newest.clone(), Log::default());
    let end = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!newest.answered(newest.get(), 90));
        tokio::time::sleep(Duration::from_mins(20)).await;
    };
    watch_until(client, scope, &events, end).await;
    assert!(asked.lock().len() > 30);
    let lists = events.lock().iter().filter(|event| *event == "list").count();
    assert_eq!(lists, 1, "{:?}", events.lock());
}
