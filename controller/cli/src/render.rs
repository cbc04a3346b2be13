//! Formats an explanation as text for a terminal.

use controller_core::job::{Explanation, PodEntry};

/// The text lists at most this many pods and counts the rest.
const PODS_MAX: usize = 50;

/// The text of an explanation.
pub(crate) fn text(explanation: &Explanation) -> String {
    let mut lines = vec![format!("Job {}: {}", explanation.job, explanation.state)];
    section(&mut lines, "Waits for", explanation.waits_for.iter().cloned());
    let limits = explanation
        .limits
        .iter()
        .map(|limit| format!("{}: {} of {}", limit.field, limit.used, limit.limit));
    section(&mut lines, "Limits", limits);
    section(&mut lines, "Pods", pods(&explanation.pods).into_iter());
    section(&mut lines, "Next sync", explanation.next_sync.iter().cloned());
    if let Some(ms) = explanation.wakes_up_in_ms {
        lines.push(String::new());
        let (seconds, tenths) = (ms / 1000, ms % 1000 / 100);
        lines.push(format!("Without any event it is synced again in {seconds}.{tenths} s."));
    }
    lines.join("\n")
}

fn section(lines: &mut Vec<String>, title: &str, items: impl Iterator<Item = String>) {
    let mut items = items.peekable();
    if items.peek().is_some() {
        lines.push(String::new());
        lines.push(format!("{title}:"));
        lines.extend(items.map(|item| format!("  {item}")));
    }
}

fn pods(pods: &[PodEntry]) -> Vec<String> {
    let width = |of: fn(&PodEntry) -> usize| pods.iter().map(of).max().unwrap_or(0);
    let names = width(|pod| pod.name.len());
    let phases = width(|pod| pod.phase.len());
    let classes = width(|pod| pod.counts_as.len());
    let mut lines: Vec<String> = pods
        .iter()
        .take(PODS_MAX)
        .map(|pod| {
            let index = pod.index.map(|index| format!("[{index}] ")).unwrap_or_default();
            format!(
                "{:names$}  {:phases$}  {:classes$}  {index}{}",
                pod.name, pod.phase, pod.counts_as, pod.because
            )
        })
        .collect();
    if pods.len() > PODS_MAX {
        lines.push(format!("… and {} more (-o json lists all)", pods.len() - PODS_MAX));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_sections_are_left_out() {
        let explanation = Explanation {
            job: "a/x".to_owned(),
            state: "running".to_owned(),
            waits_for: vec!["2 active pods".to_owned()],
            limits: Vec::new(),
            pods: Vec::new(),
            next_sync: Vec::new(),
            wakes_up_in_ms: Some(1500),
        };
        let expected = "Job a/x: running\n\nWaits for:\n  2 active pods\n\n\
                        Without any event it is synced again in 1.5 s.";
        assert_eq!(text(&explanation), expected);
    }
}
