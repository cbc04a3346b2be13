//! Reads the section of a version from `CHANGELOG.md`. It becomes the release notes.

/// The text below `## [VERSION] - DATE`, up to the next section. `None` without that line, without
/// a date, or without text.
pub fn section(changelog: &str, version: &str) -> Option<String> {
    let heading = format!("## [{version}] - ");
    let mut lines = changelog.lines().skip_while(|line| !line.starts_with(&heading));
    let date = lines.next()?.strip_prefix(&heading)?;
    if !is_date(date) {
        return None;
    }
    // Sections end at the next one, or at the addresses of links.
    let body: Vec<&str> =
        lines.take_while(|line| !line.starts_with("## ") && !line.starts_with('[')).collect();
    let body = body.join("\n").trim().to_owned();
    (!body.is_empty()).then_some(body)
}

/// Whether it has the form `2026-01-31`.
fn is_date(text: &str) -> bool {
    let form = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_at_the_next_one_or_at_the_links() {
        let text = "# C\n\n## [Unreleased]\n\n## [0.2.0] - 2026-02-01\n\n### Added\n\n- A.\n\n\
                    ## [0.1.0] - 2026-01-01\n\n- B.\n\n[0.1.0]: https://x.example\n";
        assert_eq!(section(text, "0.2.0").as_deref(), Some("### Added\n\n- A."));
        assert_eq!(section(text, "0.1.0").as_deref(), Some("- B."));
    }

    #[test]
    fn a_section_without_date_or_text_is_none() {
        for text in [
            "",
            "## [Unreleased]\n\n- A.\n",
            "## [0.1.0]\n\n- A.\n",
            "## [0.1.0] - soon\n\n- A.\n",
            "## [0.1.0] - 2026-1-1\n\n- A.\n",
            "## [0.1.0] - 2026-01-01\n\n## [0.0.1] - 2025-01-01\n\n- A.\n",
            "## [0.1.0-rc.1] - 2026-01-01\n\n- A.\n",
        ] {
            assert_eq!(section(text, "0.1.0"), None, "{text}");
        }
    }
}
