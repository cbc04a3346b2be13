//! Draws how pods ended: stacked bars by cause over time, and the worst Jobs and nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::report::rules::{Ends, Report};

use super::picture::{escaped, open, short};

/// Causes with a colour of their own; further ones share the last.
const COLOURS: usize = 8;
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;
/// A time range of more columns gets wider ones.
const COLUMNS_MAX: i64 = 72;
/// A shorter time range gets further ones before it.
const COLUMNS_MIN: i64 = 12;
/// Rows of the worst Jobs and nodes.
pub(super) const WORST_MAX: usize = 10;

const LEFT: i64 = 48;
const WIDTH: i64 = 842;
const TOP: i64 = 10;
const HEIGHT: i64 = 180;
/// Room for each of the times below the bars.
const LABEL: i64 = 96;
const BAR_MAX: i64 = 44;
/// A line around each bar takes a third of it.
const BAR_MIN: i64 = 3;

/// The causes with their colours, the most frequent first. All further ones share the last colour.
pub(super) fn colours(ends: &Ends) -> BTreeMap<&str, usize> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for it in &ends.by_cause {
        let sum = sums.entry(&it.cause).or_default();
        *sum = sum.saturating_add(it.ends);
    }
    let mut causes: Vec<(&str, u64)> = sums.into_iter().collect();
    causes.sort_by_key(|(cause, ends)| (Reverse(*ends), *cause));
    let own = if causes.len() > COLOURS { COLOURS - 1 } else { COLOURS };
    causes.into_iter().enumerate().map(|(at, (cause, _))| (cause, at.min(own))).collect()
}

/// The legend of the colours.
pub(super) fn legend(colours: &BTreeMap<&str, usize>) -> String {
    let mut by_colour: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (cause, colour) in colours {
        by_colour.entry(*colour).or_default().push(cause);
    }
    let mut out = "<p class=\"soft keys\">".to_owned();
    for (colour, causes) in by_colour {
        let words = match &causes[..] {
            [cause] => escaped(cause),
            several => format!("{} other causes", several.len()),
        };
        let _ = write!(out, "<span><i class=\"key k{colour}\"></i>{words}</span> ");
    }
    out + "</p>\n"
}

/// Columns of the same length.
struct Axis {
    /// The beginning of the first one, in seconds.
    from: i64,
    step: i64,
    columns: i64,
}

impl Axis {
    /// From the first end, or the oldest event, until the report's end: before that nothing can be
    /// known.
    fn of(report: &Report) -> Self {
        let first = report.ends.by_hour.first().map_or(report.to, |it| it.at);
        let first = report.oldest_event.map_or(first, |oldest| oldest.min(first));
        let (first, to) = (first.max(report.from).as_second(), report.to.as_second());
        let fits = |step: &i64| to.div_euclid(*step) - first.div_euclid(*step) < COLUMNS_MAX;
        let step = [HOUR, DAY, WEEK].into_iter().find(fits).unwrap_or(WEEK);
        let columns = (to.div_euclid(step) - first.div_euclid(step) + 1).max(COLUMNS_MIN);
        Self { from: (to.div_euclid(step) + 1 - columns) * step, step, columns }
    }

    fn column(&self, at: Timestamp) -> i64 {
        ((at.as_second() - self.from).div_euclid(self.step)).clamp(0, self.columns - 1)
    }

    fn x(&self, column: i64) -> i64 {
        LEFT + column * WIDTH / self.columns
    }

    fn title(&self) -> &'static str {
        match self.step {
            HOUR => "Ends of pods per hour, by cause",
            DAY => "Ends of pods per day, by cause",
            _ => "Ends of pods per week, by cause",
        }
    }

    fn time(&self, column: i64) -> String {
        let format = if self.step == HOUR { "%m-%d %H:%M" } else { "%m-%d" };
        let at = Timestamp::from_second(self.from + column * self.step);
        at.map_or_else(|_| String::new(), |at| at.strftime(format).to_string())
    }
}

/// The ends over time. Those whose hour is not known are in no bar.
pub(super) fn timeline(report: &Report, colours: &BTreeMap<&str, usize>) -> String {
    let axis = Axis::of(report);
    let mut bars: BTreeMap<(i64, usize), (u64, Vec<String>)> = BTreeMap::new();
    for it in &report.ends.by_hour {
        let colour = colours.get(it.cause.as_str()).copied().unwrap_or(COLOURS - 1);
        let bar = bars.entry((axis.column(it.at), colour)).or_default();
        bar.0 = bar.0.saturating_add(it.ends);
        if !bar.1.contains(&it.cause) && bar.1.len() < COLOURS {
            bar.1.push(it.cause.clone());
        }
    }
    let mut sums: BTreeMap<i64, u64> = BTreeMap::new();
    for ((column, _), (ends, _)) in &bars {
        let sum = sums.entry(*column).or_default();
        *sum = sum.saturating_add(*ends);
    }
    let top = ceiling(sums.values().copied().max().unwrap_or(0));
    let title = axis.title();
    let mut svg = open(LEFT + WIDTH, TOP + HEIGHT + 26, title);
    grid(&mut svg, &axis, top);
    let mut below: BTreeMap<i64, i64> = BTreeMap::new();
    for ((column, colour), (ends, causes)) in &bars {
        let base = below.entry(*column).or_default();
        let height = scaled(*ends, top).max(BAR_MIN).min(HEIGHT - *base);
        *base += height;
        let room = axis.x(column + 1) - axis.x(*column);
        let width = (room - 2).clamp(2, BAR_MAX);
        let x = axis.x(*column) + (room - width) / 2;
        let y = TOP + HEIGHT - *base;
        let words = format!("{}: {ends} {}", axis.time(*column), causes.join(", "));
        let _ = write!(
            svg,
            "<rect class=\"bar k{colour}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
             height=\"{height}\"><title>{}</title></rect>",
            escaped(&words)
        );
    }
    svg + "</svg>\n"
}

/// Lines for numbers, and the times below.
fn grid(svg: &mut String, axis: &Axis, top: u64) {
    let halves: &[u64] = if top.is_multiple_of(2) { &[0, 1, 2] } else { &[0, 2] };
    for half in halves {
        let number = top / 2 * half + if *half == 2 { top % 2 } else { 0 };
        let y = TOP + HEIGHT - scaled(number, top);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            LEFT - 8,
            y + 4,
            compact(number)
        );
    }
    let every = (LABEL * axis.columns).div_euclid(WIDTH) + 1;
    for column in (0..axis.columns).step_by(usize::try_from(every).unwrap_or(1)) {
        let x = axis.x(column);
        if x + LABEL <= LEFT + WIDTH + LABEL / 4 {
            let y = TOP + HEIGHT;
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{y}\" y2=\"{}\"/>\
                 <text x=\"{x}\" y=\"{}\">{}</text>",
                y + 6,
                y + 20,
                axis.time(column)
            );
        }
    }
}

/// The worst of them, a bar each: its name, the number and its causes.
pub(super) fn worst<'a>(
    title: &str,
    rows: impl Iterator<Item = (String, &'a BTreeMap<String, u64>)>,
    colours: &BTreeMap<&str, usize>,
) -> String {
    const ROW: i64 = 24;
    const NAME: i64 = 400;
    /// So many of the widest letter fit.
    const NAME_MAX: usize = 40;
    const NUMBER: i64 = 60;
    let rows: Vec<_> = rows.take(WORST_MAX).collect();
    let sum = |causes: &BTreeMap<String, u64>| {
        causes.values().fold(0_u64, |sum, ends| sum.saturating_add(*ends))
    };
    let Some(top) = rows.iter().map(|(_, causes)| sum(causes)).max() else {
        return String::new();
    };
    let mut svg = open(LEFT + WIDTH, rows.len() as i64 * ROW, title);
    for ((name, causes), row) in rows.iter().zip(0_i64..) {
        let y = row * ROW;
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">{}<title>{}</title></text>",
            y + 16,
            escaped(&short(name, NAME_MAX)),
            escaped(name)
        );
        let mut parts: Vec<_> = causes.iter().collect();
        parts.sort_by_key(|(cause, _)| colours.get(cause.as_str()).copied());
        let (mut x, room) = (NAME, LEFT + WIDTH - NAME - NUMBER);
        for (cause, ends) in parts {
            let colour = colours.get(cause.as_str()).copied().unwrap_or(COLOURS - 1);
            let width = (scaled(*ends, top) * room / HEIGHT).max(2).min(NAME + room - x);
            let _ = write!(
                svg,
                "<rect class=\"k{colour}\" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"16\">\
                 <title>{ends} {}</title></rect>",
                y + 4,
                escaped(cause)
            );
            x += width;
        }
        let _ =
            write!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", x + 8, y + 16, compact(sum(causes)));
    }
    format!("<h2>{title}</h2>\n{svg}</svg>\n")
}

/// The height of so many ends, where the top is full.
fn scaled(ends: u64, top: u64) -> i64 {
    let height = u128::from(ends) * u128::from(HEIGHT.unsigned_abs()) / u128::from(top.max(1));
    i64::try_from(height).unwrap_or(HEIGHT)
}

/// The next of 2, 4, 6, 8, 10, 20, 40 and so on.
fn ceiling(number: u64) -> u64 {
    let mut ten = 1_u64;
    loop {
        for step in [2, 4, 6, 8, 10] {
            match ten.checked_mul(step) {
                Some(round) if round >= number => return round,
                Some(_) => {}
                None => return number,
            }
        }
        ten = ten.saturating_mul(10);
    }
}

/// A number in at most five characters.
fn compact(number: u64) -> String {
    let units = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let unit = units.into_iter().find(|(unit, _)| number >= 10 * unit);
    unit.map_or_else(|| number.to_string(), |(unit, name)| format!("{}{name}", number / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_that_fit() {
        let table = [(0, 2), (1, 2), (2, 2), (3, 4), (5, 6), (11, 20), (44, 60), (401, 600)];
        for (number, expected) in table {
            assert_eq!(ceiling(number), expected, "{number}");
        }
        assert_eq!(ceiling(u64::MAX), u64::MAX);
        assert_eq!(scaled(u64::MAX, u64::MAX), HEIGHT);
        let table = [(0, "0"), (9_999, "9999"), (10_000, "10k"), (u64::MAX, "18446744T")];
        for (number, expected) in table {
            assert_eq!(compact(number), expected);
        }
    }
}
