//! Renders the report of `check` as a table for people.

use std::fmt::Write as _;

use agent_core::check::{Report, Time};
use agent_core::time_span::TimeSpan;
use epilogue_common::finding_code;

/// Width of the first column: that of most names.
const NAME_CHARS_MIN: usize = 8;

/// The table, the shutdown's use of time, and the verdict.
pub(crate) fn render(report: &Report) -> String {
    let names = report.checks.iter().map(|check| check.name.len());
    let width = names.max().unwrap_or(0).max(NAME_CHARS_MIN);
    let mut text = String::new();
    let mut line = |name: &str, verdict: &str, words: &str| {
        writeln!(text, "{name:<width$}  {verdict:<7}  {words}").expect("a String must take text");
    };
    line("CHECK", "VERDICT", "FOUND");
    for check in &report.checks {
        let code = check.code.map(|code| format!("  [{code}]")).unwrap_or_default();
        line(check.name, check.verdict.as_str(), &(check.found.clone() + &code));
        if let Some(remedy) = &check.remedy {
            line("", "", &format!("-> {remedy}"));
        }
    }
    text.push('\n');
    if let Some(time) = &report.time {
        text.push_str(&time_line(time));
    }
    text = text + "verdict: " + report.verdict.as_str() + "\n";
    if report.checks.iter().any(|check| check.code.is_some()) {
        text = text + &finding_code::docs_line() + "\n";
    }
    text
}

fn time_line(time: &Time) -> String {
    let span = |millis: u64| TimeSpan::from_micros(millis.saturating_mul(1_000));
    format!(
        "of the {} granted: {} to set DisruptionTarget, {} to terminate pods, {} for reports, {} \
         reserve\n",
        span(time.granted_ms),
        span(time.mark_ms),
        span(time.kill_ms),
        span(time.flush_ms),
        span(time.margin_ms),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::check::{Check, Verdict};
    use epilogue_common::finding_code::FindingCode;

    fn check(
        name: &'static str,
        verdict: Verdict,
        code: Option<FindingCode>,
        remedy: Option<&str>,
    ) -> Check {
        Check { name, verdict, code, found: "what is".into(), remedy: remedy.map(Into::into) }
    }

    #[test]
    fn the_columns_of_the_longest_names_do_not_touch() {
        let names = ["bus", "thresholds", "kernel-log"];
        let checks = names.map(|name| check(name, Verdict::Ok, None, Some("write it"))).to_vec();
        let report = Report { verdict: Verdict::Ok, mode: None, checks, time: None };
        let expected = "\
CHECK       VERDICT  FOUND
bus         ok       what is
                     -> write it
thresholds  ok       what is
                     -> write it
kernel-log  ok       what is
                     -> write it

verdict: ok
";
        assert_eq!(render(&report), expected);
    }

    #[test]
    fn each_check_is_a_line_and_a_remedy_another() {
        let report = Report {
            verdict: Verdict::Fail,
            mode: None,
            checks: vec![
                check("bus", Verdict::Ok, None, None),
                check("delay", Verdict::Fail, Some(FindingCode::DelayTooShort), Some("write it")),
            ],
            time: Some(Time {
                granted_ms: 5_000,
                wanted_ms: 40_000,
                mark_ms: 1_150,
                kill_ms: 2_200,
                flush_ms: 1_400,
                margin_ms: 250,
            }),
        };
        let expected = "\
CHECK     VERDICT  FOUND
bus       ok       what is
delay     fail     what is  [delay-too-short]
                   -> write it

of the 5s granted: 1.15s to set DisruptionTarget, 2.2s to terminate pods, 1.4s for reports, 0.25s \
reserve
verdict: fail
each [code] is explained at https://epilogue.dev/docs/troubleshooting.html#CODE
";
        assert_eq!(render(&report), expected);
    }
}
