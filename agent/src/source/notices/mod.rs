//! Asks the sources that give notice of the machine's end, and reports what each says now.

mod aws;
mod azure;
#[cfg(test)]
mod double;
mod file;
mod gce;
mod metadata;
mod notice;
mod platform;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use agent_core::protocol::ending::{Ending, Source};
use agent_core::protocol::event::Event;
use epilogue_runtime::tasks::TaskGroup;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

pub use platform::found;

use aws::Aws;
use azure::Azure;
use file::FileNotice;
use gce::Gce;
use metadata::{Metadata, NoticeError};

use super::tell;
use crate::clock::Clock;
use crate::host::Host;

/// The longest pause after answers that failed one after the other: a notice may be short.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Which sources are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The file, scheduled shutdowns, the Node object, and the cloud that the machine says it is
    /// of.
    Auto,
    /// These.
    Named(BTreeSet<Source>),
}

/// Why a choice cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown source {0:?}: expected auto, off, or some of {names}, separated by commas",
    names = names()
)]
pub struct UnknownSource(String);

/// The sources that can be named.
const SOURCES: [Source; 6] =
    [Source::File, Source::Scheduled, Source::Node, Source::Aws, Source::Gce, Source::Azure];

fn names() -> String {
    SOURCES.map(Source::name).join(", ")
}

impl FromStr for Choice {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Named(BTreeSet::new())),
            _ => {}
        }
        let named = |name: &str| {
            let known = SOURCES.into_iter().find(|source| source.name() == name.trim());
            known.ok_or_else(|| UnknownSource(name.to_owned()))
        };
        text.split(',').map(named).collect::<Result<_, _>>().map(Self::Named)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Named(sources) if sources.is_empty() => formatter.write_str("off"),
            Self::Named(sources) => {
                let names: Vec<&str> = sources.iter().map(|source| source.name()).collect();
                formatter.write_str(&names.join(","))
            }
        }
    }
}

/// A source that is asked again and again.
trait Asked: Send {
    /// Why it gave no answer to use.
    type Error: fmt::Display + Send;

    /// Who it is.
    fn source(&self) -> Source;

    /// How long after an answer it is asked again.
    fn period(&self) -> Duration;

    /// Maximum time of one answer. A source that hangs holds up nothing but itself.
    fn answer_max(&self) -> Duration;

    /// What it says now; `None` if it knows of no end.
    fn ask(
        &mut self,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<Ending>, Self::Error>> + Send;
}

/// Starts the sources that are asked here. logind's session reads what is scheduled, and the watch
/// of the node what stands there.
pub fn start(
    sources: &BTreeSet<Source>,
    host: &Host,
    clock: &Clock,
    events: &mpsc::Sender<Event>,
    group: &mut TaskGroup,
) {
    let now = clock.now();
    let since_boot = SignedDuration::try_from(now.boot).unwrap_or_default();
    let booted_at = now.wall.checked_sub(since_boot).unwrap_or(now.wall);
    for source in sources {
        let (clock, events) = (clock.clone(), events.clone());
        match source {
            Source::File => {
                let file = FileNotice::new(host.clone(), clock.clone());
                group.spawn_until_stopped("notices by file", run(file, clock, events));
            }
            Source::Aws => {
                let aws = Aws::new(Metadata::default(), booted_at);
                group.spawn_until_stopped("notices of AWS", run(aws, clock, events));
            }
            Source::Gce => {
                let gce = Gce::new(Metadata::default());
                group.spawn_until_stopped("notices of GCE", run(gce, clock, events));
            }
            Source::Azure => {
                let azure = Azure::new(Metadata::default());
                group.spawn_until_stopped("notices of Azure", run(azure, clock, events));
            }
            Source::Logind | Source::Systemd | Source::Scheduled | Source::Node => {}
        }
    }
}

macro_rules! cloud {
    ($cloud:ty, $source:expr, every $period:expr, within $answer_max:expr) => {
        impl Asked for $cloud {
            type Error = NoticeError;

            fn source(&self) -> Source {
                $source
            }

            fn period(&self) -> Duration {
                Duration::from_secs($period)
            }

            fn answer_max(&self) -> Duration {
                Duration::from_secs($answer_max)
            }

            async fn ask(&mut self, now: Timestamp) -> Result<Option<Ending>, NoticeError> {
                self.poll(now).await
            }
        }
    };
}

// AWS and Azure advise to ask every 5 s and every second. GCE answers when something changes. The
// first answer of Azure may take two minutes.
cloud!(Aws, Source::Aws, every 5, within 10);
cloud!(Gce, Source::Gce, every 1, within 60);
cloud!(Azure, Source::Azure, every 2, within 130);

/// Asks a source for as long as the agent runs. What cannot be read says nothing: the last word
/// stays.
async fn run(mut asked: impl Asked, clock: Clock, events: mpsc::Sender<Event>) {
    let source = asked.source();
    let mut failures = 0_u32;
    let mut has_ending = None;
    loop {
        match timeout(asked.answer_max(), asked.ask(clock.now().wall)).await {
            Ok(Ok(ending)) => {
                failures = 0;
                // What says nothing new of no end is not repeated.
                if has_ending != Some(false) || ending.is_some() {
                    has_ending = Some(ending.is_some());
                    tell(&events, Event::EndingSeen(source, ending)).await;
                }
            }
            Ok(Err(error)) => {
                note(source, &mut failures, &error.to_string());
            }
            Err(_) => note(source, &mut failures, "it does not answer in time"),
        }
        let pause = asked.period().saturating_mul(1 << failures.min(6));
        sleep(pause.min(PAUSE_MAX.max(asked.period()))).await;
    }
}

/// Says once that a source gives no answer to use.
fn note(source: Source, failures: &mut u32, error: &str) {
    if *failures == 0 {
        tracing::warn!(%source, error, "cannot read a notice of the machine's end");
    }
    *failures = failures.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn choice_is_read_as_it_is_printed() {
        for text in ["auto", "off", "file", "scheduled,file", "aws,gce,azure"] {
            let choice: Choice = text.parse().expect("must parse");
            assert_eq!(choice.to_string().parse(), Ok(choice), "{text}");
        }
        for text in ["", "aws2", "file,", "auto,file"] {
            let error = text.parse::<Choice>().expect_err("must be refused").to_string();
            assert!(error.contains("expected auto, off"), "{error}");
        }
    }

    /// Answers in their order, and then hangs.
    struct Script(Vec<Result<Option<Ending>, &'static str>>);

    impl Asked for Script {
        type Error = &'static str;

        fn source(&self) -> Source {
            Source::File
        }

        fn period(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn answer_max(&self) -> Duration {
            Duration::from_secs(10)
        }

        async fn ask(&mut self, _: Timestamp) -> Result<Option<Ending>, &'static str> {
            if self.0.is_empty() {
                std::future::pending::<()>().await;
            }
            self.0.remove(0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_reported_and_failures_and_repeated_calm_are_not() {
        let ending = || Some(Ending::certain(None, None));
        let answers =
            vec![Ok(None), Ok(None), Err("odd"), Ok(ending()), Err("odd"), Ok(ending()), Ok(None)];
        let (sender, mut events) = mpsc::channel(8);
        let task = tokio::spawn(run(Script(answers), Clock::new(Arc::default()), sender));
        for expected in [None, ending(), ending(), None] {
            assert_eq!(events.recv().await, Some(Event::EndingSeen(Source::File, expected)));
        }
        let more = timeout(Duration::from_hours(1), events.recv()).await;
        assert!(more.is_err(), "{more:?}");
        task.abort();
    }
}
