//! Formats findings and node reports as text for a terminal.

use crate::doctor::Judgement;
use crate::doctor::rules::{Finding, NodeReport};
use epilogue_common::finding_code::docs_line;
use jiff::Timestamp;

use crate::colour::Paint;

const TITLES: [&str; 3] = ["SUBJECT", "SINCE", "PROBLEM"];

/// The table of findings, then what could not be judged, and whether gangs are scheduled.
pub(super) fn findings(answer: &Judgement, now: Timestamp, paint: Paint) -> String {
    let Judgement { findings: found, not_judged, gang_scheduling } = answer;
    let mut lines = table(found, now, paint);
    if found.is_empty() {
        lines.push("nothing found".to_owned());
    }
    if !not_judged.is_empty() {
        lines.push(String::new());
        let omitted = not_judged.iter();
        lines.extend(omitted.map(|it| format!("not judged: {}  [{}]", it.text, it.code)));
    }
    if let Some(gangs) = gang_scheduling {
        lines.push(String::new());
        lines.push(format!("gang scheduling: {}", gangs.state));
        lines.extend(gangs.remedy.map(|remedy| format!("  -> {remedy}")));
    }
    if !found.is_empty() || !not_judged.is_empty() {
        lines.push(String::new());
        lines.push(docs_line());
    }
    lines.join("\n")
}

/// The report on a node.
pub(crate) fn node(report: &NodeReport, now: Timestamp, paint: Paint) -> String {
    let mut lines = vec![paint.title(&format!("{:<10} {:<7} FOUND", "CHECK", "VERDICT"))];
    for check in &report.checks {
        let code = check.code.map(|code| format!("  [{code}]")).unwrap_or_default();
        let verdict = paint.verdict(check.verdict, &format!("{:<7}", check.verdict.as_str()));
        lines.push(format!("{:<10} {verdict} {}{code}", check.name, check.found));
        lines.extend(check.remedy.iter().map(|remedy| format!("{:<18} -> {remedy}", "")));
    }
    lines.push(String::new());
    if !report.findings.is_empty() {
        lines.extend(table(&report.findings, now, paint));
        lines.push(String::new());
    }
    lines.push("kubelet's lock, delay and runtime can be checked on the node only:".into());
    lines.push(format!("  {}", report.on_node));
    let verdict = paint.verdict(report.verdict, report.verdict.as_str());
    lines.push(format!("{} {verdict}", paint.title("verdict:")));
    if !report.findings.is_empty() || report.checks.iter().any(|check| check.code.is_some()) {
        lines.push(docs_line());
    }
    lines.join("\n")
}

fn table(found: &[Finding], now: Timestamp, paint: Paint) -> Vec<String> {
    if found.is_empty() {
        return Vec::new();
    }
    let ages: Vec<String> = found.iter().map(|each| age(each.since, now)).collect();
    let widest = |texts: &mut dyn Iterator<Item = usize>, title: &str| {
        texts.max().unwrap_or(0).max(title.len())
    };
    let first = widest(&mut found.iter().map(|each| each.subject.len()), TITLES[0]);
    let second = widest(&mut ages.iter().map(String::len), TITLES[1]);
    let titles = format!("{:first$}  {:second$}  {}", TITLES[0], TITLES[1], TITLES[2]);
    let mut lines = vec![paint.title(&titles)];
    for (each, age) in found.iter().zip(&ages) {
        let Finding { subject, problem, code, .. } = each;
        lines.push(format!("{subject:first$}  {age:second$}  {problem}  [{code}]"));
        let remedies = each.remedies.iter();
        lines.extend(remedies.map(|remedy| format!("{:first$}  {:second$}  -> {remedy}", "", "")));
    }
    lines
}

/// An age as kubectl prints it: in the largest unit that gives two or more.
fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return "-".to_owned() };
    let seconds = now.duration_since(since).as_secs().max(0);
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.iter().find(|(size, _)| seconds >= 2 * size);
    unit.map_or_else(|| format!("{seconds}s"), |(size, name)| format!("{}{name}", seconds / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now = Timestamp::from_second(1_000_000).expect("must be a time");
        let table = [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (200_000, "2d")];
        for (seconds, expected) in table {
            let since = Timestamp::from_second(1_000_000 - seconds).ok();
            assert_eq!(age(since, now), expected);
        }
        assert_eq!(age(None, now), "-");
        assert_eq!(age(now.checked_add(jiff::SignedDuration::from_secs(9)).ok(), now), "0s");
    }
}
