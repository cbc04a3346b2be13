//! Reports medians side by side with the ratio of ours to upstream, as a table or JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::contender::Contender;
use super::figures::{Figures, MEASURES, Measure, medians};
use super::picture::{Bar, Group};
use super::scenario::Scenario;

/// All runs of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub scenario: Scenario,
    pub runs: BTreeMap<Contender, Vec<Figures>>,
}

impl Results {
    /// The table of a scenario.
    pub fn table(&self) -> String {
        let columns: Vec<(Contender, BTreeMap<&str, f64>)> =
            self.runs.iter().map(|(contender, runs)| (*contender, medians(runs))).collect();
        let compares = self.compares();
        let titles = columns.iter().map(|(contender, _)| contender.title().to_owned());
        let titles = titles.chain(compares.then(|| "ours/reference".to_owned())).collect();
        let rows = MEASURES.iter().filter(|measure| is_shown(measure, &columns)).map(|measure| {
            let value = |(_, medians): &(Contender, BTreeMap<&str, f64>)| {
                let value = medians.get(measure.name).copied().unwrap_or_default();
                format!("{value:.*}", measure.decimals)
            };
            let ratio = compares.then(|| self.ratio(measure));
            line(measure.name, columns.iter().map(value).chain(ratio).collect())
        });
        let head = format!("{}: {}", self.scenario.name(), self.scenario.says());
        let lines = [head, line(&self.runs_said(), titles)].into_iter().chain(rows);
        lines.map(|line| line + "\n").collect()
    }

    /// Runs and medians of a scenario.
    pub fn json(&self) -> Value {
        let medians: BTreeMap<Contender, BTreeMap<&str, f64>> =
            self.runs.iter().map(|(contender, runs)| (*contender, medians(runs))).collect();
        json!({
            "scenario": self.scenario,
            "says": self.scenario.says(),
            "medians": medians,
            "runs": self.runs,
        })
    }

    fn compares(&self) -> bool {
        [Contender::Ours, Contender::Reference].iter().all(|each| self.runs.contains_key(each))
    }

    fn runs_said(&self) -> String {
        let runs = self.runs.values().map(Vec::len).max().unwrap_or_default();
        if runs == 1 { "1 run each".to_owned() } else { format!("median of {runs} runs each") }
    }

    /// The ratios of what a user pays for, as bars.
    pub fn bars(&self) -> Group {
        let drawn = MEASURES.iter().filter(|measure| measure.is_cost);
        let bar = |measure: &Measure| {
            Some(Bar { measure: measure.name.to_owned(), ratio: self.ratio_of(measure)? })
        };
        Group { name: self.scenario.name().to_owned(), bars: drawn.filter_map(bar).collect() }
    }

    fn ratio(&self, measure: &Measure) -> String {
        self.ratio_of(measure).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
    }

    /// Ours divided by upstream's, if both were measured.
    fn ratio_of(&self, measure: &Measure) -> Option<f64> {
        let of = |contender| {
            let runs: &Vec<Figures> = self.runs.get(&contender)?;
            medians(runs).get(measure.name).copied()
        };
        let (ours, theirs) = (of(Contender::Ours)?, of(Contender::Reference)?);
        (theirs > 0.0).then(|| ours / theirs)
    }
}

fn line(name: &str, cells: Vec<String>) -> String {
    let start = format!("  {name:<26}");
    cells.into_iter().fold(start, |line, cell| format!("{line}{cell:>16}"))
}

/// A line of zeros is left out.
fn is_shown(measure: &Measure, columns: &[(Contender, BTreeMap<&str, f64>)]) -> bool {
    columns.iter().any(|(_, medians)| medians.get(measure.name).is_some_and(|value| *value > 0.0))
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::figures;
    use super::*;

    fn results() -> Results {
        let runs = BTreeMap::from([
            (Contender::Reference, vec![figures(20_000), figures(22_000)]),
            (Contender::Ours, vec![figures(900), figures(1200)]),
        ]);
        Results { scenario: Scenario::Serial, runs }
    }

    #[test]
    fn the_table_shows_medians_side_by_side_with_the_ratio() {
        let table = results().table();
        let words = |start: &str| -> Vec<String> {
            let line = table.lines().find(|line| line.trim().starts_with(start));
            line.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("wall_s"), ["wall_s", "1.05", "21.00", "0.05"]);
        assert_eq!(words("writes_per_pod"), ["writes_per_pod", "2.10", "2.10", "1.00"]);
        assert_eq!(words("reads_per_pod"), [""; 0], "zeros are left out");
        assert!(table.starts_with("serial: 1 NonIndexed Job"));
        assert!(table.lines().nth(1).is_some_and(|line| line.contains("median of 2 runs each")));
    }

    #[test]
    fn a_single_contender_has_no_ratio() {
        let mut results = results();
        results.runs.remove(&Contender::Reference);
        assert!(!results.table().contains("ours/reference"));
    }

    #[test]
    fn costs_are_drawn_as_ratios() {
        let group = results().bars();
        assert_eq!(group.name, "serial");
        let bars: Vec<&str> = group.bars.iter().map(|bar| bar.measure.as_str()).collect();
        let all = ["wall_s", "writes_per_pod", "controller_cpu_ms_per_pod"];
        assert_eq!(bars, [&all[..], &["apiserver_cpu_ms_per_pod", "rss_peak_mib"]].concat());
        assert!((group.bars[0].ratio - 0.05).abs() < 1e-9);
    }

    #[test]
    fn the_json_holds_every_run() {
        let json = results().json();
        assert_eq!(json["runs"]["ours"][1]["wall"], 1.2);
        assert_eq!(json["medians"]["reference"]["wall_s"], 21.0);
    }
}
