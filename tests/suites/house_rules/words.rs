//! Words of a private dialect that must not come back into comments and pages. `CONTRIBUTING.md`
//! has the three rules of language behind them.

use super::citations::comments;
use super::sources::Source;

/// Each with what to write instead. Only words without another use here.
const WORDS: [(&str, &str); 12] = [
    ("nobody", "name who does not, or use the passive"),
    ("told", "reported, logged, or said"),
    ("farewell", "drained record"),
    ("companion", "agent"),
    ("owner's word", "force-fail"),
    ("the reference", "upstream"),
    ("of before", "earlier, or: older than"),
    ("its like", "other, or: of the same kind"),
    ("beside", "alongside, or: next to"),
    ("condemn", "set DisruptionTarget"),
    ("in its stead", "instead"),
    ("looks at", "checks, samples or reads"),
];

/// The words of the list in a line of prose.
fn found(line: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let line = line.to_lowercase();
    WORDS.iter().filter(move |(word, _)| {
        line.match_indices(word).any(|(at, _)| {
            let ends = |text: &str, last: bool| {
                let letter = if last { text.chars().next_back() } else { text.chars().next() };
                !letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
            };
            ends(&line[..at], true) && ends(&line[at + word.len()..], false)
        })
    })
}

/// The words of the list in the comments of a file.
pub(crate) fn of_dialect(source: &Source) -> Vec<String> {
    if source.path.ends_with("house_rules/words.rs") {
        return Vec::new();
    }
    let lines = comments(&source.text);
    let words = lines.flat_map(|(number, line)| found(line).map(move |word| (number, word)));
    words
        .map(|(number, (word, instead))| format!("line {number} says {word:?}: write {instead}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_comments_and_only_as_words() {
        let text = "/// Nobody is told.\nlet told = 1; // besides, untold\nlet s = \"nobody\";\n";
        let source = Source { path: "a.rs".into(), text: text.into() };
        let found = of_dialect(&source);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("nobody") && found[1].contains("told"));
    }
}
