//! Logs to stderr, for machines or for people. Every line of both programs has the fields
//! `timestamp`, `level`, `target` and `message`, followed by the event's own. A log without
//! a reader never holds up the program.

mod line_queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;
use std::{fmt, io, thread};

use prometheus::Registry as Metrics;
use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry};

use line_queue::{Entrance, LineQueue};

/// How long the end of the process waits for the reader of the log.
const END_MAX: Duration = Duration::from_secs(1);
/// The same after a panic, with which a process may end at once.
const PANIC_MAX: Duration = Duration::from_millis(100);

/// The process has one stderr.
static LINES: LazyLock<LineQueue> = LazyLock::new(LineQueue::new);

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The form of the log (`--log-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object per line.
    #[default]
    Json,
    /// A line for people.
    Text,
}

/// Which events are logged (`--log-level`): levels, or target=level, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Why logging cannot be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The format is unknown.
    #[error("invalid log format {0:?}: expected json or text")]
    Format(String),
    /// A part of the filter is neither a level nor a target with a level.
    #[error(
        "invalid log filter {filter:?}: expected a level (off, error, warn, info, debug, trace) or \
         target=level, such as info,kube=debug; got {part:?}"
    )]
    Filter {
        /// The whole filter.
        filter: String,
        /// The invalid part.
        part: String,
    },
    /// The process already has a logger.
    #[error("logging is set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
    /// The system gives no thread.
    #[error("cannot start the thread that writes the log")]
    Thread(#[source] io::Error),
}

/// Writes the last lines when it is dropped, at the end of the process.
#[must_use]
#[derive(Debug)]
pub struct LogGuard(());

impl Drop for LogGuard {
    fn drop(&mut self) {
        flush();
    }
}

impl FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(TelemetryError::Format(text.to_owned())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Json => "json",
            Self::Text => "text",
        })
    }
}

impl FromStr for LogFilter {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        targets(text).map(|_| Self(text.to_owned()))
    }
}

/// Parses a filter. Stricter than the parsers of `tracing_subscriber`, which take a mistyped level
/// for a target and so disable all others. Its `EnvFilter` would bring regular expressions into
/// each program, for filters by the fields of spans.
fn targets(text: &str) -> Result<Targets, TelemetryError> {
    let mut targets = Targets::new();
    for part in text.split(',').map(str::trim) {
        let (target, level) =
            part.rsplit_once('=').map_or((None, part), |(target, level)| (Some(target), level));
        let known = LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known));
        let level = level.parse::<LevelFilter>().ok().filter(|_| known);
        targets = match (target, level) {
            (None, Some(level)) => targets.with_default(level),
            (Some(target), Some(level)) if is_target(target) => targets.with_target(target, level),
            _ => {
                let (filter, part) = (text.to_owned(), part.to_owned());
                return Err(TelemetryError::Filter { filter, part });
            }
        };
    }
    Ok(targets)
}

/// Whether it can be a target: a module's path.
fn is_target(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':' | '-');
    !text.is_empty() && text.chars().all(fits)
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Starts logging to stderr for the whole process, panics included. Call it once, at the start,
/// and keep the guard until the end.
pub fn init(format: LogFormat, filter: &LogFilter) -> Result<LogGuard, TelemetryError> {
    let entrance = || Entrance(&LINES);
    subscriber(format, filter, entrance).try_init().map_err(TelemetryError::Twice)?;
    let write = thread::Builder::new().name("log".to_owned()).spawn(write_lines);
    write.map_err(TelemetryError::Thread)?;
    panic::set_hook(Box::new(log_panic));
    Ok(LogGuard(()))
}

/// Waits until the log is written, but not for a reader that stands still.
pub fn flush() {
    LINES.flush(END_MAX);
}

/// Registers the count of lines that stderr did not take.
pub fn register(metrics: &Metrics) -> prometheus::Result<()> {
    metrics.register(Box::new(LINES.dropped().clone()))
}

/// Writes lines as long as the process lives.
fn write_lines() {
    let (mut stderr, mut batch, mut logged) = (io::stderr(), Vec::new(), 0);
    loop {
        LINES.write_to(&mut stderr, &mut batch);
        let dropped = LINES.dropped().get();
        if dropped > logged {
            let lines = dropped - logged;
            tracing::warn!(lines, "lines of the log were dropped: stderr did not take them");
            logged = dropped;
        }
    }
}

/// Logs a panic. The hook of the standard library would wait for the reader of stderr.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        thread = thread::current().name(),
        location = panic.location().map(tracing::field::display),
        backtrace,
        "panicked: {}",
        panic.payload_as_str().unwrap_or("without a text")
    );
    LINES.flush(PANIC_MAX);
}

/// Builds the subscriber that writes the events that pass the filter.
pub fn subscriber<W>(
    format: LogFormat,
    filter: &LogFilter,
    writer: W,
) -> impl Subscriber + Send + Sync + 'static
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer = match format {
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => layer.with_ansi(false).boxed(),
    };
    let filter = targets(&filter.0).expect("a parsed filter must parse again");
    Registry::default().with(layer.with_filter(filter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("must not be poisoned").write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: &str) -> String {
        let page = Page::default();
        let writer = page.clone();
        let filter: LogFilter = filter.parse().expect("filter must parse");
        let subscriber = subscriber(format, &filter, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("sync", job = "default/a").in_scope(|| {
                tracing::info!(pod = "a-0", "pod created");
                tracing::debug!("unseen");
            });
        });
        let bytes = page.0.lock().expect("must not be poisoned").clone();
        String::from_utf8(bytes).expect("log must be UTF-8")
    }

    #[test]
    fn json_lines_have_stable_names() {
        let text = logged(LogFormat::Json, "info");
        let line: serde_json::Value = serde_json::from_str(&text).expect("one JSON line");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "pod created");
        assert_eq!(line["pod"], "a-0");
        assert_eq!(line["spans"][0]["job"], "default/a");
        assert!(line["timestamp"].is_string() && line["target"].is_string());
    }

    #[test]
    fn text_is_one_line_per_event_and_the_filter_holds() {
        let text = logged(LogFormat::Text, "warn,epilogue_runtime=info");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("pod created pod=\"a-0\""), "{text}");
        assert_eq!(logged(LogFormat::Text, "error"), "");
        let text = logged(LogFormat::Text, "DEBUG, epilogue_runtime::telemetry=off, kube=trace");
        assert_eq!(text, "", "the longest target counts, also after a space");
    }

    #[test]
    fn a_mistyped_level_is_an_error_that_says_what_to_give() {
        for bad in ["inf", "", "info,kube", "kube=verbose", "info,,debug", "a b=info,[x=info"] {
            let error = bad.parse::<LogFilter>().expect_err(bad);
            assert!(error.to_string().contains("info,kube=debug"), "{error}");
        }
        for good in ["info", "DEBUG", "info, kube=debug", "warn,kube_client::client=trace"] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
    }

    #[test]
    fn formats_are_named_as_they_are_printed() {
        for format in [LogFormat::Json, LogFormat::Text] {
            assert_eq!(format.to_string().parse::<LogFormat>().ok(), Some(format));
        }
        let error = "yaml".parse::<LogFormat>().expect_err("must not be a format");
        assert_eq!(error.to_string(), "invalid log format \"yaml\": expected json or text");
    }
}
