//! Checks that no foreign input causes a panic: well-formed inputs, changed at random, for some
//! seconds each. `cargo lab fuzz` takes a chosen time.

mod corpus;
mod edits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_core::quantity::Quantity;
use agent_core::time_span::TimeSpan;
use controller_core::batching::Batching;
use controller_core::go_duration::GoDuration;
use controller_core::job::{
    Body, IndexSet, Memory, PodDraft, PodOutcomes, Settings, SyncInput, Versions, plan_pods,
    plan_status, pod_body, status_body,
};
use controller_core::job_pods::JobPods;
use controller_core::podgc::{self, NodeView, WireNode};
use controller_core::state::{ClusterState, Event, Now};
use controller_core::view::{self, Interner, Job, Pod, Uid, WireJob, WirePod};
use controller_core::workqueue::Moment;
use epilogue_common::announcement::Announcement;
use epilogue_common::names::media_type::PROTOBUF_MAGIC;
use epilogue_common::watch_event::WatchEvent;
use epilogue_runtime::watch::Read;
use epilogue_runtime::watch::wire::{self, Format};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use edits::{edited, edits};

/// Sets the seconds that each target takes.
const SECONDS: &str = "EPILOGUE_FUZZ_SECONDS";
const SECONDS_IN_CI: u64 = 3;
const INPUTS_AT_ONCE: u32 = 512;

/// Passes changes of these inputs to `read` until the time is over. A panic ends with the smallest
/// input that causes it.
fn fuzz(corpus: Vec<Vec<u8>>, read: impl Fn(&[u8])) {
    let seconds = std::env::var(SECONDS).ok().map(|text| text.parse().expect("a number"));
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS_IN_CI));
    for input in &corpus {
        read(input);
    }
    let inputs = (prop::sample::select(corpus), edits())
        .prop_map(|(input, edits)| Input(edited(&input, &edits)));
    let mut tried: u64 = 0;
    while Instant::now() < until {
        let config =
            Config { cases: INPUTS_AT_ONCE, failure_persistence: None, ..Config::default() };
        let result = TestRunner::new(config).run(&inputs, |Input(bytes)| {
            read(&bytes);
            Ok(())
        });
        result.unwrap_or_else(|failure| panic!("{failure}"));
        tried += u64::from(INPUTS_AT_ONCE);
    }
    println!("{tried} inputs");
}

/// Bytes that are printed as text.
#[derive(Clone)]
struct Input(Vec<u8>);

impl std::fmt::Debug for Input {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "b\"{}\"", self.0.escape_ascii())
    }
}

fn read_job(bytes: &[u8]) -> Option<Job> {
    WireJob::read(&String::from_utf8_lossy(bytes)).and_then(WireJob::view).ok()
}

fn read_pod(bytes: &[u8]) -> Option<WirePod> {
    serde_json::from_str(&String::from_utf8_lossy(bytes)).ok()
}

/// An empty state with pod GC, and the time of its events.
fn state() -> (ClusterState, Now) {
    let state = ClusterState::new(Batching::default(), Some(podgc::Settings::default()));
    let (time, elapsed) = (Timestamp::now(), Moment::ZERO);
    (state, Now { time, elapsed, has_backlog: false, is_limited: false })
}

/// How long the status may lack new pods.
const COUNTS_MAX: SignedDuration = SignedDuration::from_secs(1);

/// A sync of the Job with this pod, and the body of the next one.
fn sync(job: Job, pods: &[Arc<Pod>]) {
    let job = Arc::new(job);
    let (memory, settings) = (Memory::default(), Settings::default());
    let (now, seen) = (Timestamp::now(), Versions::default());
    let (job, memory, settings) = (&job, &memory, &settings);
    let pods = &JobPods::of(job, pods);
    let groups = None;
    let counts_max = COUNTS_MAX;
    let input = SyncInput { job, pods, memory, groups, seen, now, settings, counts_max };
    let plan = plan_pods(&input);
    assert!(!plan.to_string().is_empty());
    if !plan.is_skipped() {
        let status = plan_status(&plan, &PodOutcomes::expected(&plan));
        assert!(!status.to_string().is_empty());
    }
    let draft = PodDraft { index: job.is_indexed().then_some(0), ..PodDraft::default() };
    let body = pod_body(job, &draft);
    match body {
        Body::Json(text) => assert!(text.get().contains(r#""kind":"Pod""#), "{text}"),
        Body::Protobuf(bytes) => assert!(bytes.starts_with(PROTOBUF_MAGIC)),
    }
}

#[test]
fn jobs() {
    let pod = read_pod(&corpus::pods()[0]).expect("must be a pod").view(&mut Interner::default());
    let pods = [Arc::new(pod)];
    fuzz(corpus::jobs(), |bytes| {
        if let Some(job) = read_job(bytes) {
            sync(job, &pods);
        }
    });
}

#[test]
fn protobuf_jobs() {
    let pod = read_pod(&corpus::pods()[0]).expect("must be a pod").view(&mut Interner::default());
    let pods = [Arc::new(pod)];
    Job::decode(&corpus::protobuf_jobs()[0]).expect("must be a Job");
    fuzz(corpus::protobuf_jobs(), |bytes| {
        if let Ok((job, _)) = Job::decode(bytes) {
            status_body(&job, &job.status).expect("must be writable");
            sync(job, &pods);
        }
    });
}

#[test]
fn pods() {
    let job = read_job(&corpus::jobs()[0]).expect("must be a Job");
    fuzz(corpus::pods(), |bytes| {
        let Some(pod) = read_pod(bytes) else { return };
        let (mut state, now) = state();
        drop(state.handle(Event::Job(WatchEvent::Shown(Arc::new(job.clone()))), &now));
        drop(state.handle_pod(WatchEvent::Shown(pod.clone()), &now));
        let uid = Uid::from(pod.metadata.uid.clone().unwrap_or_default());
        drop(state.verdict(&uid, now.time));
        sync(job.clone(), &[Arc::new(pod.view(&mut Interner::default()))]);
    });
}

#[test]
fn nodes() {
    let pod = read_pod(&corpus::pods()[1]).expect("must be a pod");
    fuzz(corpus::nodes(), |bytes| {
        let node = serde_json::from_str::<WireNode>(&String::from_utf8_lossy(bytes));
        let Ok(node) = node else { return };
        let (mut state, now) = state();
        drop(state.handle_pod(WatchEvent::Shown(pod.clone()), &now));
        drop(state.handle(Event::Node(WatchEvent::Shown(NodeView::read(&node))), &now));
        drop(state.verdict(&"u1".into(), now.time));
        assert_eq!(&*NodeView::read(&node).name, node.name());
    });
}

#[test]
fn watches() {
    let jobs = Read {
        json: |text| WireJob::read(text).and_then(WireJob::view),
        protobuf: Some(|message| Job::decode(message).map(|(job, _)| job)),
    };
    let pods = Read { json: view::read::<WirePod>, protobuf: Some(WirePod::decode) };
    let nodes = Read { json: view::read::<WireNode>, protobuf: None };
    fuzz(corpus::watch(), |bytes| {
        drop(wire::page(Format::Json, bytes, &nodes));
        for format in [Format::Json, Format::Protobuf] {
            drop(wire::event(format, bytes, &pods));
            drop(wire::page(format, bytes, &pods));
            drop(wire::event(format, bytes, &jobs));
            drop(wire::refusal(format, bytes, 500));
        }
    });
}

#[test]
fn indexes() {
    fuzz(corpus::indexes(), |bytes| {
        let set = IndexSet::parse(&String::from_utf8_lossy(bytes), 100_000);
        assert_eq!(IndexSet::parse(&set.to_string(), 100_000), set);
    });
}

#[test]
fn durations() {
    fuzz(corpus::durations(), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        drop(text.parse::<GoDuration>());
        drop(text.parse::<TimeSpan>());
    });
}

#[test]
fn quantities() {
    fuzz(corpus::quantities(), |bytes| {
        drop(String::from_utf8_lossy(bytes).parse::<Quantity>());
    });
}

#[test]
fn announcements() {
    fuzz(corpus::announcements(), |bytes| {
        if let Ok(reported) = String::from_utf8_lossy(bytes).parse::<Announcement>() {
            assert_eq!(reported.to_string().parse(), Ok(reported));
        }
    });
}
