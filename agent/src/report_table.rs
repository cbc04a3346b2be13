//! Renders the report of `check` as a table for people.

use std::fmt::Write as _;

use agent_core::check::{Report, Time};
use agent_core::time_span::TimeSpan;
use epilogue_common::finding_code;

/// The table, the shutdown's use of time, and the verdict.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::from("CHECK     VERDICT  FOUND\n");
    for check in &report.checks {
        let code = check.code.map(|code| format!("  [{code}]")).unwrap_or_default();
        line(&mut text, check.name, check.verdict.as_str(), &(check.found.clone() + &code));
        if let Some(remedy) = &check.remedy {
            line(&mut text, "", "", &format!("-> {remedy}"));
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

fn line(text: &mut String, name: &str, verdict: &str, words: &str) {
    writeln!(text, "{name:<10}{verdict:<9}{words}").expect("a String must take any text");
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

    #[test]
    fn each_check_is_a_line_and_a_remedy_another() {
        let check = |name, verdict, code, remedy: Option<&str>| Check {
            name,
            verdict,
            code,
            found: "what is".into(),
            remedy: remedy.map(Into::into),
        };
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
