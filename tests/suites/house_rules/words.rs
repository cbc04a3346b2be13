//! Words of a private dialect that must not come back: into comments, strings and names of Rust
//! files, into pages, and into comments of manifests. `CONTRIBUTING.md` has the three rules of
//! language behind them.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::citations::comments;
use super::sources::Source;

/// A word or phrase, and what to write instead.
type Word = (&'static str, &'static str);

/// Only words without another use here.
const WORDS: [Word; 16] = [
    ("nobody", "name who does not, or use the passive"),
    ("told", "reported, logged, or said"),
    ("farewell", "drained record"),
    ("companion", "agent"),
    ("owner's word", "force-fail"),
    ("the reference", "upstream"),
    ("of before", "earlier, or: older than"),
    ("its like", "other, or: of the same kind"),
    ("its likes", "others, or: of the same kind"),
    ("beside", "alongside, or: next to"),
    ("condemn", "set DisruptionTarget"),
    ("condemned", "with DisruptionTarget"),
    ("stance", "effective mode"),
    ("in its stead", "instead"),
    ("looks at", "checks, samples or reads"),
    ("looked at", "checked, sampled or read"),
];

/// Further ones that strings do not have, because programs show them to users.
const STRINGS: [Word; 2] = [
    ("whom", "name the object"),
    ("is no", "invalid NAME VALUE: expected a number from 0, such as 3"),
];

/// Uses of [`STRINGS`] that are good English.
const PLAIN: [&str; 2] = ["there is no", "is no longer"];

/// Words that another program's interface has: the file, the word.
const FOREIGN: [(&str, &str); 1] =
    // `systemctl kill --kill-whom`.
    [("tests/suites/node/upstream_logind.rs", "whom")];

/// What a Rust file has besides comments and punctuation.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Name(String),
    String(String),
}

/// The words of a list in a line of text.
fn found<'a>(line: &str, list: &'a [Word]) -> impl Iterator<Item = &'a Word> {
    let line = line.to_lowercase();
    list.iter().filter(move |(word, _)| {
        line.match_indices(word).any(|(at, _)| {
            let ends = |text: &str, last: bool| {
                let letter = if last { text.chars().next_back() } else { text.chars().next() };
                !letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
            };
            ends(&line[..at], true) && ends(&line[at + word.len()..], false)
        })
    })
}

fn report(line: usize, (word, instead): &Word) -> String {
    format!("line {line} says {word:?}: write {instead}")
}

/// The words in the comments, strings and names of a Rust file.
pub(crate) fn in_rust(source: &Source) -> Vec<String> {
    if source.path.ends_with("house_rules/words.rs") {
        return Vec::new();
    }
    let mut all: Vec<(usize, &Word)> = Vec::new();
    for (line, comment) in comments(&source.text) {
        all.extend(found(comment, &WORDS).map(|word| (line, word)));
    }
    let mut pieces = Vec::new();
    collect(source.text.parse().unwrap_or_default(), &mut pieces);
    for (line, piece) in &pieces {
        match piece {
            Piece::Name(name) => all.extend(found(&split(name), &WORDS).map(|word| (*line, word))),
            Piece::String(text) => {
                all.extend(found(text, &WORDS).map(|word| (*line, word)));
                let mut text = text.to_lowercase();
                for plain in PLAIN {
                    text = text.replace(plain, "");
                }
                all.extend(found(&text, &STRINGS).map(|word| (*line, word)));
            }
        }
    }
    let is_foreign = |word: &str| FOREIGN.contains(&(source.path.as_str(), word));
    let own = all.into_iter().filter(|(_, (word, _))| !is_foreign(word));
    own.map(|(line, word)| report(line, word)).collect()
}

/// The words in the prose of a page, outside of fenced and of quoted code.
pub(crate) fn in_page(source: &Source) -> Vec<String> {
    let mut fenced = false;
    let mut all = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let prose: Vec<&str> = line.split('`').step_by(2).collect();
            all.extend(found(&prose.join("`"), &WORDS).map(|word| report(index + 1, word)));
        }
    }
    all
}

/// The words in the comments of a manifest.
pub(crate) fn in_manifest(source: &Source) -> Vec<String> {
    let mut all = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let begin =
            if line.trim_start().starts_with('#') { line.find('#') } else { line.find(" #") };
        let comment = begin.map_or("", |at| &line[at..]);
        all.extend(found(comment, &WORDS).map(|word| report(index + 1, word)));
    }
    all
}

/// The names and strings of a file with their lines. Doc comments, which are attributes to a
/// parser, are left to the rule about comments.
fn collect(tokens: TokenStream, pieces: &mut Vec<(usize, Piece)>) {
    for tree in tokens {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(name) => pieces.push((line, Piece::Name(name.to_string()))),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('"') {
                    pieces.push((line, Piece::String(joined(&text))));
                }
            }
            TokenTree::Group(group) if !is_doc(&group) => collect(group.stream(), pieces),
            TokenTree::Group(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// `[doc = "…"]`
fn is_doc(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    let is_doc = matches!(first, Some(TokenTree::Ident(name)) if name == "doc");
    group.delimiter() == Delimiter::Bracket && is_doc
}

/// A string literal whose lines are put together.
fn joined(literal: &str) -> String {
    let lines: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
    lines.concat().replace("\\n", " ")
}

/// The words of a name: `LookAgain` and `look_again` are `Look Again` and `look again`.
fn split(name: &str) -> String {
    let mut words = String::new();
    let mut before = ' ';
    for letter in name.chars() {
        if letter.is_uppercase() && before.is_lowercase() {
            words.push(' ');
        }
        words.push(if letter == '_' { ' ' } else { letter });
        before = letter;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "a.rs".into(), text: text.into() }
    }

    #[test]
    fn words_are_found_in_comments_and_only_as_words() {
        let found = in_rust(&source("/// Nobody is told.\nfn f() {} // besides, untold\n"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("nobody") && found[1].contains("told"));
    }

    #[test]
    fn words_are_found_in_strings() {
        let text =
            "fn f() {\n    g(\"Nobody\", 'x');\n    h!(\"it looks \\\n        at\\ntold\");\n}\n";
        let found = in_rust(&source(text));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("line 2 says \"nobody\""), "{found:?}");
        assert!(found[1].starts_with("line 3 says \"told\""), "{found:?}");
        assert!(found[2].starts_with("line 3 says \"looks at\""), "{found:?}");
    }

    #[test]
    fn words_are_found_in_names() {
        let found = in_rust(&source("struct ToldSo;\nfn is_told(untold: u8, OOMTold: u8) {}\n"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(split("LooksAt_oneOOMKill"), "Looks At one OOMKill");
    }

    #[test]
    fn a_string_says_what_is_expected() {
        let text = "const A: [&str; 3] = [\"x is no number\", \"there is no node\",\n\
                    \"it is no longer there\"];\n";
        assert_eq!(in_rust(&source(text)).len(), 1);
        assert_eq!(in_rust(&source("// x is no number\n")).len(), 0);
    }

    #[test]
    fn a_word_of_another_interface_is_allowed_in_its_file() {
        let text = "const A: &str = \"--kill-whom=main\";\n";
        assert_eq!(in_rust(&source(text)).len(), 1);
        let foreign = Source { path: FOREIGN[0].0.into(), text: text.into() };
        assert!(in_rust(&foreign).is_empty());
    }

    #[test]
    fn pages_are_read_outside_of_code() {
        let found = in_page(&source("`told` is code\n```\ntold\n```\nNobody is told.\n"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|it| it.starts_with("line 5")), "{found:?}");
    }

    #[test]
    fn manifests_are_read_in_comments() {
        let found = in_manifest(&source("# told\na: told # Beside it.\nb: \"x#told\"\n"));
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
