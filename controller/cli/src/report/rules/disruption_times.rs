//! Sums up the histograms `epilogue_disruption_seconds` and `epilogue_disruption_gap_seconds` of
//! the controllers: how long after the first sign of a disruption each phase was reached, and how
//! long no pod ran in its place. A percentile is known up to the bound of a bucket.

use std::collections::BTreeMap;

use controller_core::disruption_times::{Phase, Source};
use serde::Serialize;

const HISTOGRAM: &str = "epilogue_disruption_seconds_";
const GAPS: &str = "epilogue_disruption_gap_seconds_";
/// Stands for a phase: the time without a running pod.
const GAP: &str = "gap";
/// The most buckets of one histogram that are read: whatever serves a page may have any number.
const BUCKETS_MAX: usize = 100;

/// How long disruptions from one source took until one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DisruptionTime {
    /// The label `source`.
    pub(crate) source: &'static str,
    /// The label `phase`, or `gap`.
    pub(crate) phase: &'static str,
    /// How many disruptions came to the phase.
    pub(crate) count: u64,
    /// Their mean.
    pub(crate) mean_seconds: f64,
    /// Half of them took at most so long; `None` if that is beyond the buckets.
    pub(crate) p50_at_most: Option<f64>,
    /// 99 of 100 took at most so long; likewise.
    pub(crate) p99_at_most: Option<f64>,
}

/// The histograms of all processes that were read, by the places of source and phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Histograms(BTreeMap<(usize, usize), Histogram>);

#[derive(Clone, Debug, Default)]
struct Histogram {
    sum: f64,
    count: f64,
    /// The number up to each bound, by the bits of the bound: those of positive numbers are in
    /// their order.
    buckets: BTreeMap<u64, f64>,
}

impl Histograms {
    /// Takes a sample; those of other metrics change nothing.
    pub(super) fn add(&mut self, series: &str, value: f64) {
        let gap = series.strip_prefix(GAPS);
        let rest = gap.or_else(|| series.strip_prefix(HISTOGRAM));
        let Some((kind, labels)) = rest.and_then(|rest| rest.split_once('{')) else { return };
        let labels = labels.trim_end_matches('}');
        let label = |name: &str| {
            let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|pair| pair.0.trim() == name).map(|pair| pair.1.trim_matches('"'))
        };
        let source = Source::ALL.iter().position(|it| Some(it.label()) == label("source"));
        let phase = Phase::ALL.iter().position(|it| Some(it.label()) == label("phase"));
        let phase = if gap.is_some() { Some(Phase::ALL.len()) } else { phase };
        let Some(key) = source.zip(phase) else { return };
        let histogram = self.0.entry(key).or_default();
        match kind {
            "sum" => histogram.sum += value,
            "count" => histogram.count += value,
            "bucket" => {
                let bound = label("le").and_then(|text| text.parse::<f64>().ok());
                if let Some(bound) = bound.filter(|it| it.is_finite() && *it > 0.0) {
                    histogram.add_bucket(bound.to_bits(), value);
                }
            }
            _ => {}
        }
    }

    /// What they come to, by source and phase, each in its usual order.
    pub(super) fn times(&self) -> Vec<DisruptionTime> {
        let counted = self.0.iter().filter(|(_, histogram)| histogram.count >= 1.0);
        let time = |(&(source, phase), histogram): (&(usize, usize), &Histogram)| {
            Some(DisruptionTime {
                source: Source::ALL.get(source)?.label(),
                phase: Phase::ALL.get(phase).map_or(GAP, |phase| phase.label()),
                count: format!("{:.0}", histogram.count).parse().unwrap_or(u64::MAX),
                mean_seconds: (histogram.sum / histogram.count * 1000.0).round() / 1000.0,
                p50_at_most: histogram.at_most(0.5),
                p99_at_most: histogram.at_most(0.99),
            })
        };
        counted.filter_map(time).collect()
    }
}

impl Histogram {
    fn add_bucket(&mut self, bound: u64, value: f64) {
        if self.buckets.len() < BUCKETS_MAX || self.buckets.contains_key(&bound) {
            *self.buckets.entry(bound).or_default() += value;
        }
    }

    /// The bound that this share took at most.
    fn at_most(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count;
        let bound = self.buckets.iter().find(|(_, number)| **number >= wanted);
        bound.map(|(bound, _)| f64::from_bits(*bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(samples: &[(&str, f64)]) -> Vec<DisruptionTime> {
        let mut all = Histograms::default();
        for (series, value) in samples {
            all.add(&format!("{HISTOGRAM}{series}"), *value);
        }
        all.times()
    }

    #[test]
    fn a_percentile_is_the_first_bound_that_holds_its_share() {
        let bucket = |le: &str| format!(r#"bucket{{phase="running",source="drain",le="{le}"}}"#);
        let (low, high, all) = (bucket("2.5"), bucket("10"), bucket("+Inf"));
        let samples = [
            (&*high, 99.0),
            (&*low, 50.0),
            (&*all, 100.0),
            (r#"sum{phase="running",source="drain"}"#, 312.3456),
            (r#"count{phase="running",source="drain"}"#, 100.0),
        ];
        let time = DisruptionTime {
            source: "drain",
            phase: "running",
            count: 100,
            mean_seconds: 3.123,
            p50_at_most: Some(2.5),
            p99_at_most: Some(10.0),
        };
        assert_eq!(taken(&samples), std::slice::from_ref(&time));
        // A second controller, whose disruptions took longer than its highest bound.
        let slow = [(r#"count{phase="running",source="drain"}"#, 2.0)];
        let both = taken(&[&samples[..], &slow[..]].concat());
        let time = DisruptionTime {
            count: 102,
            mean_seconds: 3.062,
            p50_at_most: Some(10.0),
            p99_at_most: None,
            ..time
        };
        assert_eq!(both, [time]);
    }

    #[test]
    fn gaps_stand_behind_the_phases_of_their_source() {
        let phase = r#"epilogue_disruption_seconds_count{phase="running",source="drain"}"#;
        let mut all = Histograms::default();
        for (series, value) in [
            (r#"epilogue_disruption_gap_seconds_count{source="drain"}"#, 2.0),
            (r#"epilogue_disruption_gap_seconds_sum{source="drain"}"#, 3.0),
            (r#"epilogue_disruption_gap_seconds_bucket{source="drain",le="5"}"#, 2.0),
            (phase, 1.0),
        ] {
            all.add(series, value);
        }
        let found = all.times();
        let found: Vec<_> =
            found.iter().map(|it| (it.phase, it.count, it.mean_seconds, it.p99_at_most)).collect();
        assert_eq!(found, [("running", 1, 0.0, None), ("gap", 2, 1.5, Some(5.0))]);
    }

    /// Whatever a pod with our label serves.
    #[test]
    fn other_samples_are_left_out() {
        let count = |labels: &str| format!("count{{{labels}}}");
        let known = r#"phase="ended",source="taint""#;
        for series in [
            count(r#"phase="ended",source="<b>""#),
            count(r#"phase="soon",source="taint""#),
            count(""),
            "count".to_owned(),
            format!("total{{{known}}}"),
            format!("bucket{{{known},le=\"NaN\"}}"),
            format!("bucket{{{known},le=\"-1\"}}"),
        ] {
            assert_eq!(taken(&[(&series, 5.0)]), [], "{series}");
        }
        let bounds = (1..1000).map(|bound| format!("bucket{{{known},le=\"{bound}\"}}"));
        let bounds: Vec<String> = bounds.collect();
        let mut samples: Vec<_> = bounds.iter().map(|series| (&**series, 0.0)).collect();
        let count = count(known);
        samples.push((&count, 1e30));
        let found = taken(&samples);
        assert_eq!((found[0].count, found[0].p50_at_most), (u64::MAX, None));
    }
}
