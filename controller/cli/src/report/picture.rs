//! Draws a report as SVG: a bar of what became of pods, and the disruptions of each node over time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::rules::{Basis, DisruptedPod, Report};
use epilogue_common::finding_code::FindingCode as Code;
use jiff::Timestamp;

/// Further nodes share one row.
const ROWS_MAX: usize = 20;
/// Columns of the time range; the pods of one column share a circle.
const COLUMNS: i64 = 60;
const LEFT: i64 = 190;
const WIDTH: i64 = 700;
const ROW: i64 = 24;

/// What became of pods, for a colour each.
pub(super) const GROUPS: [(&str, &str); 3] = [
    ("missing", "without a terminal phase"),
    ("uncaused", "Failed without DisruptionTarget"),
    ("reported", "with the true cause"),
];

const REPORTED: Code = Code::DisruptionReported;

/// A number that does not overflow when it is scaled.
fn bounded(number: u64) -> i64 {
    i64::try_from(number.min(1_000_000_000)).unwrap_or(0)
}

/// The index of a pod's group.
fn group(pod: &DisruptedPod) -> usize {
    match pod.code {
        Code::DisruptionReported => 2,
        Code::FailureWithoutDisruptionTarget => 1,
        _ => 0,
    }
}

/// The bar, with its legend as text.
pub(super) fn bar(report: &Report) -> String {
    let mut counts = [[0_i64; 2]; 3];
    for pod in &report.pods {
        counts[group(pod)][usize::from(pod.basis == Basis::Estimated)] += 1;
    }
    // Some disruptions have a number only.
    if let Some(figure) = report.figures.iter().find(|it| it.name == REPORTED.as_str()) {
        counts[2] = [figure.seen, figure.estimated].map(bounded);
    }
    let total: i64 = counts.iter().flatten().sum();
    let mut svg = open(LEFT + WIDTH, 44, "What became of the disrupted pods");
    let mut before = 0;
    for ((class, words), [seen, estimated]) in GROUPS.iter().zip(counts) {
        for (number, basis, faint) in [(seen, "seen", ""), (estimated, "estimated", " faint")] {
            if number == 0 {
                continue;
            }
            let full = LEFT + WIDTH;
            let (x, end) = (before * full / total, (before + number) * full / total);
            before += number;
            let width = (end - x - 1).max(1);
            let _ = write!(
                svg,
                "<rect class=\"{class}{faint}\" x=\"{x}\" y=\"0\" width=\"{width}\" \
                 height=\"40\"><title>{number} pods {words} ({basis})</title></rect>"
            );
            if width > 30 {
                let _ = write!(svg, "<text x=\"{}\" y=\"25\" class=\"on\">{number}</text>", x + 8);
            }
        }
    }
    svg + "</svg>"
}

/// The disruptions of each node, over time.
pub(super) fn timeline(report: &Report) -> String {
    let rows = rows(report);
    let row_of: BTreeMap<&str, i64> = rows.iter().copied().zip(0..).collect();
    let last = rows.len().saturating_sub(1) as i64;
    let height = (last + 1) * ROW + 34;
    let mut svg = open(LEFT + WIDTH + 20, height, "Disruptions of each node over time");
    for (name, row) in rows.iter().zip(0_i64..) {
        let y = row * ROW + 16;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\
             <text x=\"0\" y=\"{}\">{}</text>",
            LEFT + WIDTH,
            y + 4,
            escaped(&short(name, 26))
        );
    }
    for event in &report.nodes {
        let row = row_of.get(event.node.as_str()).copied().unwrap_or(last);
        let (x, y) = (x_of(report, event.at), row * ROW + 6);
        let title = format!("{} {} at {}", event.node, event.reason, super::text::time(event.at));
        let _ = write!(
            svg,
            "<rect class=\"event\" x=\"{x}\" y=\"{y}\" width=\"2\" height=\"20\">\
             <title>{}</title></rect>",
            escaped(&title)
        );
    }
    let mut circles: BTreeMap<(i64, i64, usize), u64> = BTreeMap::new();
    for pod in &report.pods {
        let Some(at) = pod.at else { continue };
        let row = row_of.get(node(pod)).copied().unwrap_or(last);
        let column = (x_of(report, at) - LEFT) * COLUMNS / WIDTH;
        *circles.entry((row, column, group(pod))).or_default() += 1;
    }
    for ((row, column, group), number) in circles {
        let x = LEFT + column * WIDTH / COLUMNS + WIDTH / COLUMNS / 2;
        let (y, radius) = (row * ROW + 16, 4 + number.ilog2().min(7));
        let (class, words) = GROUPS[group];
        let _ = write!(
            svg,
            "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\">\
             <title>{number} pods {words}</title></circle>"
        );
    }
    let y = (last + 1) * ROW + 24;
    for (at, x, anchor) in [(report.from, LEFT, "start"), (report.to, LEFT + WIDTH, "end")] {
        let time = super::text::time(at);
        let _ = write!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{time}</text>");
    }
    svg + "</svg>"
}

/// The names of the rows: the nodes with the most disruptions, then one for the others.
fn rows(report: &Report) -> Vec<&str> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in report.pods.iter().filter(|pod| pod.at.is_some()) {
        *counts.entry(node(pod)).or_default() += 1;
    }
    for event in &report.nodes {
        *counts.entry(&event.node).or_default() += 1;
    }
    let mut names: Vec<(&str, usize)> = counts.into_iter().collect();
    names.sort_by_key(|(name, number)| (std::cmp::Reverse(*number), *name));
    let are_all = names.len() <= ROWS_MAX;
    let shown = names.into_iter().take(if are_all { ROWS_MAX } else { ROWS_MAX - 1 });
    let mut rows: Vec<&str> = shown.map(|(name, _)| name).collect();
    if !are_all {
        rows.push("other nodes");
    }
    rows
}

fn node(pod: &DisruptedPod) -> &str {
    pod.node.as_deref().unwrap_or("node not known")
}

/// A name that fits in front of its row.
pub(super) fn short(name: &str, max: usize) -> String {
    let long = name.chars().count() > max;
    let mut text: String = name.chars().take(if long { max - 1 } else { max }).collect();
    if long {
        text.push('…');
    }
    text
}

fn x_of(report: &Report, at: Timestamp) -> i64 {
    let (from, to) = (report.from.as_second(), report.to.as_second());
    let passed = at.as_second().clamp(from, to) - from;
    LEFT + passed.saturating_mul(WIDTH - 1) / (to - from).max(1)
}

pub(super) fn open(width: i64, height: i64, title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title>"
    )
}

/// Text for an element or an attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}
