//! Hears what `--check-plans` finds: it is only logged, so a violation of it would pass unseen.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// What the controller logs about a plan that breaks a rule.
const BROKEN_PLAN: &str = "the plan does not hold";

/// Listens to the errors that this thread logs, as long as it lives.
pub(super) struct PlanChecks {
    found: Found,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Found(Arc<Mutex<Vec<String>>>);

impl PlanChecks {
    pub(super) fn listen() -> Self {
        let found = Found::default();
        let layer = found.clone().with_filter(LevelFilter::ERROR);
        Self { found, _guard: tracing_subscriber::registry().with(layer).set_default() }
    }

    /// The broken plans so far.
    pub(super) fn found(&self) -> Vec<String> {
        self.found.0.lock().expect("no one panicked").clone()
    }
}

impl<S: Subscriber> Layer<S> for Found {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.0.contains(BROKEN_PLAN) {
            self.0.lock().expect("no one panicked").push(line.0);
        }
    }
}

/// The fields of an event in one line.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A String takes everything.
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

#[test]
fn a_broken_plan_is_heard() {
    let checks = PlanChecks::listen();
    tracing::error!(job = "default/a", problem = "creates too many pods", "{BROKEN_PLAN}");
    tracing::error!("another error");
    let found = checks.found();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("creates too many pods") && found[0].contains("default/a"));
}
