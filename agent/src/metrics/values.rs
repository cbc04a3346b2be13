//! Makes the values of a metric: what can be shown, and the family that a scrape shows.

use std::time::Duration;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// The values of one metric, with those of its labels.
#[derive(Debug, Default)]
pub(super) struct Values(Vec<(Vec<&'static str>, f64)>);

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
    pub(super) fn set(&mut self, value: impl Figure) {
        self.of([], value);
    }

    pub(super) fn of<const N: usize>(&mut self, labels: [&'static str; N], value: impl Figure) {
        self.0.extend(value.figure().map(|value| (labels.to_vec(), value)));
    }

    pub(super) fn family(self, name: &str, help: &str, labels: &[&str]) -> MetricFamily {
        let counts = name.ends_with("_total");
        let metric = |(values, value): (Vec<&str>, f64)| {
            let pair = |(name, value): (&&str, &str)| {
                let mut pair = LabelPair::default();
                pair.set_name((*name).to_owned());
                pair.set_value(value.to_owned());
                pair
            };
            let mut pairs: Vec<LabelPair> = labels.iter().zip(values).map(pair).collect();
            pairs.sort_by(|one, other| one.name().cmp(other.name()));
            let mut metric = Metric::from_label(pairs);
            if counts {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            metric
        };
        let mut family = MetricFamily::default();
        family.set_name(full_name(name));
        family.set_help(help.to_owned());
        family.set_field_type(if counts { MetricType::COUNTER } else { MetricType::GAUGE });
        family.set_metric(self.0.into_iter().map(metric).collect());
        family
    }
}

pub(super) fn full_name(name: &str) -> String {
    format!("epilogue_agent_{name}")
}
