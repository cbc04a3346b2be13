//! Renders the runs of a setting as a row of a table. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::kind::{Kind, Setting};
use super::run::Run;

const HEAD: [&str; 9] = [
    "what",
    "runs",
    "onset to container gone, s: p50 / p95 / max",
    "to DisruptionTarget",
    "to its end in the API",
    "kernel's kills",
    "wrong victims",
    "how it ended",
    "its Job",
];

/// A table of one row, with the losses below it.
pub fn render(setting: &Setting, runs: &[Run], losses: &str) -> String {
    let mut text = format!("| {} |\n{}|\n", HEAD.join(" | "), "|---".repeat(HEAD.len()));
    let killed = runs.iter().filter(|run| run.kernel_kills > 0).count();
    let wrong: Vec<&str> =
        runs.iter().flat_map(|run| run.wrong.iter().map(String::as_str)).collect();
    let _ = writeln!(
        text,
        "| {setting} | {} | {} | {} | {} | in {killed} runs | {} | {} | {} |",
        runs.len(),
        seconds(runs, |run| run.stopped),
        seconds(runs, |run| run.marked),
        seconds(runs, |run| run.reported),
        if wrong.is_empty() { "none".to_owned() } else { counted(wrong.iter().copied()) },
        counted(runs.iter().map(how)),
        counted(runs.iter().map(job)),
    );
    let _ =
        writeln!(text, "\nbelow the first threshold after s: {}", seconds(runs, |run| run.below));
    let _ = writeln!(text, "tasks stall after s: {}", seconds(runs, |run| run.stalled));
    let _ = writeln!(
        text,
        "threshold to container gone, s: {}",
        seconds(runs, |run| Some(run.stopped? - run.below?))
    );
    if runs.iter().any(|run| run.cause.is_some()) || setting.kind == Kind::OwnLimit {
        let first = runs.iter().filter(|run| run.cause_was_first()).count();
        let _ = writeln!(text, "cause in the API before the end: {first} of {}", runs.len());
        let lead = |run: &Run| Some(run.reported? - run.cause?);
        let _ = writeln!(text, "cause before the end by s: {}", seconds(runs, lead));
    }
    let _ = writeln!(text, "started again, killed by the kernel: {losses}");
    text
}

fn how(run: &Run) -> String {
    let end = &run.end;
    let mut text = end.phase.clone();
    match &end.disruption {
        Some(reason) => {
            let _ = write!(text, ", DT={reason}");
        }
        None => text.push_str(", no DT"),
    }
    if let Some(cause) = &end.cause {
        let _ = write!(text, ", OOMKilled={cause}");
    }
    let _ = write!(text, " ({})", end.container.replace("terminated ", "exit "));
    if end.gone {
        text.push_str(" removed");
    }
    text
}

fn job(run: &Run) -> String {
    let job = &run.job;
    let counts = if job.failed > 0 { "counts it" } else { "does not count it" };
    let mut text = counts.to_owned();
    if job.replaced {
        text.push_str(", replaces it");
    }
    if !job.condition.is_empty() {
        let _ = write!(text, ", {}", job.condition);
    }
    text
}

/// Each text once, the most frequent first.
fn counted<T: Into<String>>(texts: impl Iterator<Item = T>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for text in texts {
        *counts.entry(text.into()).or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts: Vec<String> =
        counts.iter().map(|(text, count)| format!("{count} × {text}")).collect();
    parts.join("; ")
}

/// `p50 / p95 / max`, and the number of values if some runs have none.
fn seconds(runs: &[Run], of: impl Fn(&Run) -> Option<i64>) -> String {
    let mut times: Vec<i64> = runs.iter().filter_map(of).collect();
    times.sort_unstable();
    let Some(max) = times.last() else { return "–".to_owned() };
    let part = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)];
    let text = |milliseconds: i64| {
        let tenths = (milliseconds + 50).div_euclid(100);
        let sign = if tenths < 0 { "−" } else { "" };
        format!("{sign}{}.{}", tenths.abs() / 10, tenths.abs() % 10)
    };
    let mut all = format!("{} / {} / {}", text(part(50)), text(part(95)), text(*max));
    if times.len() < runs.len() {
        let _ = write!(all, " (of {})", times.len());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_those_runs_that_have_the_time() {
        let run = |stopped| Run { stopped, ..Run::default() };
        let runs: Vec<Run> = (1..=20).map(|i| run(Some(i * 1000))).chain([run(None)]).collect();
        assert_eq!(seconds(&runs, |run| run.stopped), "10.0 / 19.0 / 20.0 (of 20)");
        assert_eq!(seconds(&runs, |run| run.reported), "–");
        assert_eq!(seconds(&[run(Some(-260))], |run| run.stopped), "−0.3 / −0.3 / −0.3");
    }

    #[test]
    fn what_is_the_same_is_counted() {
        assert_eq!(counted(["a", "b", "b"].into_iter()), "2 × b; 1 × a");
    }
}
