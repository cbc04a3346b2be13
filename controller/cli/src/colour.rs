//! Colours text for a terminal. Without colour, each text stays as it is.

use std::io::Write as _;

use crate::doctor::rules::NodeVerdict;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// The value of `--color`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

/// Whether texts get colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Colours,
    Plain,
}

impl When {
    /// What this means for standard output.
    pub(crate) fn paint(self) -> Paint {
        let choice = match self {
            Self::Auto => AutoStream::choice(&std::io::stdout()),
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        };
        if choice == ColorChoice::Never { Paint::Plain } else { Paint::Colours }
    }
}

impl Paint {
    /// A title, in bold.
    pub(crate) fn title(self, text: &str) -> String {
        self.styled(text, Style::new().bold())
    }

    /// A text in the colour of a verdict.
    pub(crate) fn verdict(self, verdict: NodeVerdict, text: &str) -> String {
        let colour = match verdict {
            NodeVerdict::Ok => AnsiColor::Green,
            NodeVerdict::Warn => AnsiColor::Yellow,
            NodeVerdict::Fail => AnsiColor::Red,
        };
        self.styled(text, colour.on_default())
    }

    fn styled(self, text: &str, style: Style) -> String {
        match self {
            Self::Colours => format!("{style}{text}{style:#}"),
            Self::Plain => text.to_owned(),
        }
    }

    /// Prints a text as one block. Consoles that know no escape sequences get their own calls.
    pub(crate) fn print(self, text: &str) -> std::io::Result<()> {
        let out = std::io::stdout();
        let printed = match self {
            Self::Colours => writeln!(AutoStream::new(out, ColorChoice::Always), "{text}"),
            Self::Plain => writeln!(out.lock(), "{text}"),
        };
        match printed {
            // A pager or `head` has read enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_stays_as_it_is() {
        assert_eq!(Paint::Plain.title("CHECK"), "CHECK");
        assert_eq!(Paint::Plain.verdict(NodeVerdict::Fail, "fail   "), "fail   ");
    }

    #[test]
    fn titles_are_bold_and_verdicts_have_their_colours() {
        assert_eq!(Paint::Colours.title("CHECK"), "\u{1b}[1mCHECK\u{1b}[0m");
        let verdicts = [(NodeVerdict::Ok, 32), (NodeVerdict::Warn, 33), (NodeVerdict::Fail, 31)];
        for (verdict, code) in verdicts {
            let painted = Paint::Colours.verdict(verdict, "x");
            assert_eq!(painted, format!("\u{1b}[{code}mx\u{1b}[0m"));
        }
    }
}
