//! Holds the values of a metric between their reading and the scrape.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};

/// The values of one metric, by those of its labels.
#[derive(Debug)]
pub(super) enum Values {
    Counter(CounterVec),
    Gauge(GaugeVec),
}

/// What a metric can show; `None` hides it.
pub(super) trait Figure {
    fn figure(self) -> Option<f64>;
}

impl Figure for bool {
    fn figure(self) -> Option<f64> {
        Some(f64::from(u8::from(self)))
    }
}

impl Figure for u64 {
    #[expect(clippy::cast_precision_loss, reason = "the bytes of a disk need no more precision")]
    fn figure(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl Figure for usize {
    fn figure(self) -> Option<f64> {
        u64::try_from(self).ok()?.figure()
    }
}

impl Figure for Duration {
    fn figure(self) -> Option<f64> {
        Some(self.as_secs_f64())
    }
}

impl<T: Figure> Figure for Option<T> {
    fn figure(self) -> Option<f64> {
        self.and_then(Figure::figure)
    }
}

impl Values {
    /// A metric without values; a counter, if its name ends in `_total`.
    pub(super) fn new(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
        let options = Opts::new(format!("epilogue_agent_{name}"), help);
        Ok(if name.ends_with("_total") {
            Self::Counter(CounterVec::new(options, labels)?)
        } else {
            Self::Gauge(GaugeVec::new(options, labels)?)
        })
    }

    pub(super) fn set(&self, value: impl Figure) {
        self.of([], value);
    }

    pub(super) fn of<const N: usize>(&self, labels: [&str; N], value: impl Figure) {
        match (self, value.figure()) {
            (_, None) => {}
            (Self::Counter(metric), Some(total)) => {
                metric.with_label_values(&labels).inc_by(total);
            }
            (Self::Gauge(metric), Some(value)) => metric.with_label_values(&labels).set(value),
        }
    }

    /// The metric with its values, which it then forgets.
    pub(super) fn take(&self) -> Vec<MetricFamily> {
        let families = self.collector().collect();
        match self {
            Self::Counter(metric) => metric.reset(),
            Self::Gauge(metric) => metric.reset(),
        }
        families
    }

    pub(super) fn collector(&self) -> &dyn Collector {
        match self {
            Self::Counter(metric) => metric,
            Self::Gauge(metric) => metric,
        }
    }
}
