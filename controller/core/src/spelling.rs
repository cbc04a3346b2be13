//! Guesses which known name a misspelled one meant.

/// The longest name that is compared; the work grows with the length.
const LENGTH_MAX: usize = 253;

/// The known name that is nearest to this one, and how many edits lie between them, in any case of
/// letters.
pub fn nearest<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    if name.len() > LENGTH_MAX {
        return None;
    }
    let name = name.to_lowercase();
    let short = known.into_iter().filter(|each| each.len() <= LENGTH_MAX);
    short.map(|each| (edits(&name, &each.to_lowercase()), each)).min()
}

/// As [`nearest`], unless so many edits would make another name: one for every four characters.
pub fn meant<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, known) = nearest(name, known)?;
    (edits <= known.chars().count() / 4).then_some(known)
}

/// The Levenshtein distance: how many characters to insert, remove or change.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        let table = [("", "", 0), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "acb", 2)];
        for (from, to, expected) in table {
            assert_eq!((edits(from, to), edits(to, from)), (expected, expected), "{from} {to}");
        }
    }

    #[test]
    fn a_short_name_allows_fewer_edits_than_a_long_one() {
        let known = ["DisruptionTarget", "Ready"];
        let table = [
            ("DistruptionTarget", Some("DisruptionTarget")),
            ("disruption-target", Some("DisruptionTarget")),
            ("ready", Some("Ready")),
            ("Reads", Some("Ready")),
            ("Reason", None),
            ("example.com/Ready", None),
        ];
        for (name, expected) in table {
            assert_eq!(meant(name, known), expected, "{name}");
        }
        assert_eq!(meant(&"x".repeat(1_000_000), known), None);
    }
}
