//! Draws ratios of ours to upstream as bars, in one SVG. Pure.

use std::fmt::Write as _;

/// What was measured by one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// One measure: ours divided by upstream's; below 1, ours costs less.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub measure: String,
    pub ratio: f64,
}

const LINE: f64 = 20.0;
const NAMES: f64 = 230.0;
/// The width of a ratio of 1.
const ONE: f64 = 320.0;
/// Longer bars are cut off; their figure stands next to them.
const LONGEST: f64 = 1.5;
const FIGURES: f64 = 60.0;

/// The picture of all groups, in their order. A group without bars is left out.
pub fn svg(title: &str, groups: &[Group]) -> String {
    let groups: Vec<&Group> = groups.iter().filter(|group| !group.bars.is_empty()).collect();
    let lines: usize = groups.iter().map(|group| group.bars.len() + 1).sum();
    let height = LINE * (f64::from(u32::try_from(lines).unwrap_or(u32::MAX)) + 3.0);
    let width = NAMES + ONE * LONGEST + FIGURES;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    let mut top = 2.0 * LINE;
    for group in groups {
        write_line(&mut text, &name_of_group(&group.name, top));
        top += LINE;
        for bar in &group.bars {
            write_line(&mut text, &line_of(bar, top));
            top += LINE;
        }
    }
    let one = NAMES + ONE;
    write_line(
        &mut text,
        &format!(
            "<line x1=\"{one}\" x2=\"{one}\" y1=\"{}\" y2=\"{top}\" stroke=\"black\" \
             stroke-dasharray=\"3\"/>\n<text x=\"{one}\" y=\"{}\" text-anchor=\"middle\">\
             1 = upstream</text>",
            2.0 * LINE,
            top + 14.0
        ),
    );
    text + "</svg>\n"
}

fn write_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String must take text");
}

fn name_of_group(name: &str, top: f64) -> String {
    let baseline = top + 15.0;
    format!("<text x=\"10\" y=\"{baseline}\" font-weight=\"bold\">{}</text>", escaped(name))
}

fn line_of(bar: &Bar, top: f64) -> String {
    let width = ONE * bar.ratio.clamp(0.0, LONGEST);
    let (baseline, color) = (top + 15.0, if bar.ratio <= 1.0 { "#2a7" } else { "#c42" });
    format!(
        "<text x=\"20\" y=\"{baseline}\">{}</text>\
         <rect x=\"{NAMES}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" fill=\"{color}\"/>\
         <text x=\"{:.1}\" y=\"{baseline}\">{:.2}</text>",
        escaped(&bar.measure),
        top + 3.0,
        NAMES + width + 5.0,
        bar.ratio
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(measure: &str, ratio: f64) -> Bar {
        Bar { measure: measure.to_owned(), ratio }
    }

    #[test]
    fn a_bar_is_as_long_as_its_ratio_and_says_it() {
        let group = Group { name: "many".to_owned(), bars: vec![bar("a < b", 0.5), bar("c", 9.0)] };
        let empty = Group { name: "nothing".to_owned(), bars: Vec::new() };
        let text = svg("CPU & writes", &[group, empty]);
        assert!(text.contains("width=\"160.0\" height=\"14\" fill=\"#2a7\""), "{text}");
        assert!(text.contains("width=\"480.0\" height=\"14\" fill=\"#c42\""), "cut off: {text}");
        assert!(text.contains(">0.50</text>") && text.contains(">9.00</text>"));
        assert!(text.contains("CPU &amp; writes") && text.contains("a &lt; b"));
        assert!(!text.contains("nothing"));
        assert_eq!(text.matches('<').count(), text.matches('>').count());
    }
}
