//! Formats an explanation as text for a terminal.

use crate::explain::rules::disruptions::Disruptions;
use crate::explain::rules::ends::{End, Ends};
use crate::explain::rules::remedies::Remedy;
use crate::explain::rules::warnings::Warning;
use crate::explain::rules::{Explanation, PodEntry, Wait};
use epilogue_common::finding_code::{FindingCode, docs_line};

use crate::colour::Paint;

/// The text lists at most this many pods and counts the rest.
const PODS_MAX: usize = 50;

/// What the times of disruptions are.
const DISRUPTION_TIMES: &str = "(each from the first sign, by the API's times, which are whole \
                                seconds; it has none of the terminal phase)";

/// The text of an explanation.
pub(crate) fn text(explanation: &Explanation, paint: Paint) -> String {
    let state = &explanation.state;
    let notes = explanation.notes.iter();
    let mut lines: Vec<String> =
        notes.map(|note| note.text.clone() + &suffix(Some(note.code))).collect();
    lines.push(format!(
        "{} {state}{}",
        paint.title(&format!("Job {}:", explanation.job)),
        suffix(explanation.code)
    ));
    if let Some(Remedy { text, yaml }) = &explanation.remedy {
        lines.push(format!("{} {text}", paint.title("To do:")));
        lines.extend(yaml.iter().flat_map(|yaml| yaml.lines().map(|line| format!("  {line}"))));
    }
    let waits =
        explanation.waits_for.iter().map(|wait| wait.text.clone() + &suffix(Some(wait.code)));
    section(&mut lines, paint, "Waits for", waits);
    section(&mut lines, paint, "Ends", ends(&explanation.ends));
    section(&mut lines, paint, "Disruptions", disruptions(&explanation.disruptions));
    let annotations = explanation.annotations.iter();
    let annotations = annotations.map(|it| it.text.clone() + &suffix(Some(it.code)));
    section(&mut lines, paint, "Annotations", annotations);
    let unread = explanation.warnings.is_none().then(|| "events were not read".to_owned());
    let warnings = explanation.warnings.iter().flatten().map(warning).chain(unread);
    section(&mut lines, paint, "Warnings", warnings);
    let limits = explanation
        .limits
        .iter()
        .map(|limit| format!("{}: {} of {}", limit.field, limit.used, limit.limit));
    section(&mut lines, paint, "Limits", limits);
    section(&mut lines, paint, "Pods", pods(&explanation.pods).into_iter());
    section(&mut lines, paint, "Next sync", explanation.next_sync.iter().cloned());
    if let Some(ms) = explanation.wakes_up_in_ms {
        lines.push(String::new());
        let (seconds, tenths) = (ms / 1000, ms % 1000 / 100);
        let at = explanation.wakes_up_at.map(|at| at.strftime(", at %Y-%m-%dT%H:%M:%SZ"));
        let at = at.map(|at| at.to_string()).unwrap_or_default();
        let why = explanation.wakes_up_for.map(|why| format!(": {why}")).unwrap_or_default();
        lines.push(format!(
            "Without any event it is synced again in {seconds}.{tenths} s{at}{why}."
        ));
    }
    let first = |waits: &[Wait]| waits.first().map(|wait| wait.code);
    let codes = [explanation.code, first(&explanation.waits_for), first(&explanation.notes)];
    let of_pods = explanation.pods.iter().map(|pod| pod.code);
    if codes.into_iter().chain(of_pods).flatten().next().is_some() {
        lines.push(String::new());
        lines.push(docs_line());
    }
    lines.join("\n")
}

/// When, how and why each pod ended and what it counted as; then how many more did.
fn ends(ends: &Ends) -> impl Iterator<Item = String> {
    let line = |end: &End| {
        let at = end.at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ  ").to_string());
        let counted = end.counted.unwrap_or("not counted yet");
        format!("{}{}  ({}; {counted})", at.unwrap_or_default(), end.says, end.cause)
    };
    let more = match (ends.more, ends.last.len()) {
        (0, _) => None,
        (more, 0) => Some(format!("{more}, of which only the number is known")),
        (more, _) => Some(format!("and {more} more, of which only the number is known")),
    };
    ends.last.iter().map(line).chain(more).collect::<Vec<_>>().into_iter()
}

/// How fast each disruption went, with what its numbers mean; then how many more there were.
fn disruptions(all: &Disruptions) -> impl Iterator<Item = String> {
    let lines = all.last.iter().map(|it| it.says.clone());
    let more = (all.more > 0).then(|| format!("and {} more", all.more));
    lines.chain(more).chain((!all.last.is_empty()).then(|| DISRUPTION_TIMES.to_owned()))
}

/// A reason, how often and when it was last seen, and the message.
fn warning(warning: &Warning) -> String {
    let Warning { reason, count, last, message } = warning;
    let code = suffix(warning.code());
    let times = if *count == 1 { String::new() } else { format!("{count} times, ") };
    let message = message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
    format!("{reason} ({times}last at {last}){message}{code}")
}

/// The code behind a line.
fn suffix(code: Option<FindingCode>) -> String {
    code.map(|code| format!("  [{code}]")).unwrap_or_default()
}

fn section(
    lines: &mut Vec<String>,
    paint: Paint,
    title: &str,
    items: impl Iterator<Item = String>,
) {
    let mut items = items.peekable();
    if items.peek().is_some() {
        lines.push(String::new());
        lines.push(paint.title(&format!("{title}:")));
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
                "{:names$}  {:phases$}  {:classes$}  {index}{}{}",
                pod.name,
                pod.phase,
                pod.counts_as,
                pod.because,
                suffix(pod.code)
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
            notes: Vec::new(),
            state: "running".to_owned(),
            code: None,
            waits_for: vec![Wait {
                code: FindingCode::ActivePods,
                text: "2 pods, active".to_owned(),
            }],
            warnings: Some(Vec::new()),
            limits: Vec::new(),
            remedy: None,
            ends: Ends::default(),
            disruptions: Disruptions::default(),
            annotations: Vec::new(),
            wakes_up_at: None,
            wakes_up_for: None,
            pods: Vec::new(),
            next_sync: Vec::new(),
            next_status: None,
            released_pods: Vec::new(),
            wakes_up_in_ms: Some(1500),
        };
        let expected = "Job a/x: running\n\nWaits for:\n  2 pods, active  [active-pods]\n\n\
                        Without any event it is synced again in 1.5 s.\n\n\
                        each [code] is explained at \
                        https://epilogue.dev/docs/troubleshooting.html#CODE";
        assert_eq!(text(&explanation, Paint::Plain), expected);
        let painted = text(&explanation, Paint::Colours);
        assert!(painted.contains("\u{1b}[1mWaits for:\u{1b}[0m\n"), "{painted:?}");
        assert_eq!(anstream::adapter::strip_str(&painted).to_string(), expected);
    }

    #[test]
    fn a_warning_says_how_often_and_when() {
        let last = "2026-11-21T09:00:30Z".parse().expect("must be a time");
        let mut seen = Warning {
            reason: "FailedCreate".to_owned(),
            count: 3,
            last,
            message: Some("quota".to_owned()),
        };
        assert_eq!(warning(&seen), "FailedCreate (3 times, last at 2026-11-21T09:00:30Z): quota");
        seen = Warning { count: 1, message: None, ..seen };
        assert_eq!(warning(&seen), "FailedCreate (last at 2026-11-21T09:00:30Z)");
        seen.reason = "FailedRelease".to_owned();
        let line = "FailedRelease (last at 2026-11-21T09:00:30Z)  [finalizer-not-removed]";
        assert_eq!(warning(&seen), line);
    }
}
