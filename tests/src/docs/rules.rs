//! Counts the rules of `docs/rules` that are assumed, and writes the counts into the heads of the
//! pages.

use std::fmt;

use anyhow::Context as _;

use crate::paths::workspace_root;

/// The pages of rules.
pub const PAGES: [&str; 2] = ["docs/rules/job-controller.md", "docs/rules/node-agent.md"];

/// The most entries of all pages that may be assumed, even in part. A new rule needs a test on the
/// real thing, or takes the place of another.
pub const ASSUMED_MAX: usize = 51;

const BEGIN: &str = "<!-- generated: figures -->\n";
const END: &str = "<!-- end: figures -->\n";

/// How the entries of a page were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// All of them.
    pub entries: usize,
    /// Those that no test has seen on the real thing, in whole or in part.
    pub assumed: usize,
    /// Those that were seen by hand, and that no test repeats.
    pub by_hand: usize,
}

impl Figures {
    /// Counts the entries of a page.
    pub fn of(page: &str) -> Self {
        let mut figures = Self::default();
        for entry in page.split("\n### ").skip(1) {
            let seen = seen(entry);
            figures.entries += 1;
            figures.assumed += usize::from(is_assumed(&seen));
            figures.by_hand += usize::from(seen.contains("by hand"));
        }
        figures
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, assumed, by_hand } = self;
        write!(
            formatter,
            "Of {entries} entries, {assumed} are assumed, in whole or in part, and {by_hand} were \
             seen by hand."
        )
    }
}

/// The item `Seen` of an entry; empty if it has none.
pub fn seen(entry: &str) -> String {
    let body = entry.split("\n## ").next().unwrap_or_default();
    let item = body.split("\n- ").find_map(|item| item.strip_prefix("Seen: "));
    item.unwrap_or_default().trim().to_owned()
}

/// Whether the item `Seen` says that nothing has shown the rule, or a part of it.
pub fn is_assumed(seen: &str) -> bool {
    let mut words = seen.split(|letter: char| !letter.is_alphanumeric());
    words.any(|word| word == "assumed")
}

/// The page with its figures up to date.
pub fn rendered(page: &str) -> anyhow::Result<String> {
    let lacks = || format!("a page of rules lacks {}", BEGIN.trim_end());
    let (before, rest) = page.split_once(BEGIN).with_context(lacks)?;
    let (_, after) =
        rest.split_once(END).with_context(|| format!("it lacks {}", END.trim_end()))?;
    Ok(format!("{before}{BEGIN}\n{}\n\n{END}{after}", Figures::of(page)))
}

/// The text of a page.
pub fn read(page: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(workspace_root().join(page)).with_context(|| page.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# R\n\n<!-- generated: figures -->\nold\n<!-- end: figures -->\n\n\
        ### A1\n\nX, assumed.\n\n- Seen: `jobs::one`\n- Test: `a.rs` `b`\n\n\
        ### A2\n\nX.\n\n- Seen: `jobs::one`; the clock:\n  assumed\n- Test: `a.rs` `b`\n\n\
        ### A3\n\nX.\n\n- Seen: by hand\n- Test: `a.rs` `b`\n\n## Next\n\n\
        ### A4\n\nX.\n\n- Seen: assumed\n- Test: `a.rs` `b`\n";

    #[test]
    fn what_is_assumed_in_whole_or_in_part_is_counted_and_written() {
        assert_eq!(Figures::of(PAGE), Figures { entries: 4, assumed: 2, by_hand: 1 });
        let rendered = rendered(PAGE).expect("must have the marks");
        let line = "Of 4 entries, 2 are assumed, in whole or in part, and 1 were seen by hand.";
        assert!(rendered.contains(&format!("figures -->\n\n{line}\n\n<!-- end")), "{rendered}");
        assert!(self::rendered("# R\n").is_err());
    }
}
