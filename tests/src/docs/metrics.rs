//! Finds the metrics of both programs where the code names them: a name, then its help, then its
//! labels.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A metric.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) help: String,
    pub(super) labels: Vec<String>,
}

/// The metrics that a file names; the code puts `prefix` before each name.
pub(super) fn of(text: &str, prefix: &str) -> Vec<Metric> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let stream: TokenStream = code.parse().unwrap_or_default();
    let mut lists = BTreeMap::new();
    let mut found = Vec::new();
    scan(stream, &[], prefix, &mut lists, &mut found);
    found
}

/// `behind` are the tokens after the group that the stream is the inside of.
fn scan(
    stream: TokenStream,
    behind: &[TokenTree],
    prefix: &str,
    lists: &mut BTreeMap<String, Vec<String>>,
    found: &mut Vec<Metric>,
) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            // `let signal = &["signal"];`, `const BY: [&str; 1] = ["a"];`
            TokenTree::Ident(name)
                if tokens.get(at + 1).is_some_and(|next| is(next, '=') || is(next, ':')) =>
            {
                let value =
                    tokens[at + 1..].iter().take(9).skip_while(|next| !is(next, '=')).skip(1);
                if let Some(labels) = value.take(2).find_map(list) {
                    lists.insert(name.to_string(), labels);
                }
            }
            TokenTree::Literal(_) => found.extend(metric(&tokens[at..], behind, prefix, lists)),
            _ => {}
        }
        if let TokenTree::Group(group) = token {
            scan(group.stream(), &tokens[at + 1..], prefix, lists, found);
        }
    }
}

/// `"name", "What it says.", &["label"]` at the beginning of these tokens; the labels may also
/// follow the group, as in `of(options("name", "What it says."), &["label"])`.
fn metric(
    tokens: &[TokenTree],
    behind: &[TokenTree],
    prefix: &str,
    lists: &BTreeMap<String, Vec<String>>,
) -> Option<Metric> {
    let name = text(tokens.first()?)?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let help = tokens.get(1).filter(|next| is(next, ',')).and_then(|_| text(tokens.get(2)?))?;
    // A name of one word needs a sentence behind it.
    let is_help = help.contains(' ') && (name.contains('_') || help.ends_with('.'));
    if !is_name || !is_help {
        return None;
    }
    let ends_group = tokens[3..].iter().all(|next| is(next, ','));
    let after = if ends_group { behind } else { &tokens[3..] }.iter().take(3);
    let labels = after
        .clone()
        .find_map(list)
        .or_else(|| after.clone().find_map(|next| lists.get(&next.to_string())).cloned());
    let prefix = if name.starts_with("epilogue_") { "" } else { prefix };
    Some(Metric { name: format!("{prefix}{name}"), help, labels: labels.unwrap_or_default() })
}

fn list(token: &TokenTree) -> Option<Vec<String>> {
    let TokenTree::Group(group) = token else { return None };
    let texts: Option<Vec<String>> = group
        .stream()
        .into_iter()
        .filter(|inner| !is(inner, ','))
        .map(|inner| text(&inner))
        .collect();
    texts.filter(|texts| group.delimiter() == Delimiter::Bracket && !texts.is_empty())
}

fn is(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// The text of a literal, with its continued lines joined.
fn text(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    let literal = literal.to_string();
    let inside = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut lines = inside.split("\\\n");
    let first = lines.next()?.to_owned();
    Some(lines.fold(first, |all, line| all + line.trim_start()).replace("\\\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_help_and_labels_are_read() {
        let code = r#"
            const BY: [&str; 2] = ["a", "b"];
            fn f() {
                let signal = &["signal"];
                one("pods_listed", "Whether pods are known."); one("pods", "The pods.");
                no("pods", "without a sentence");
                two("calls_total", "Calls, \
                     all.", &["kind"]);
                three("left", "No metric", signal); g("left_bytes", "What is left.", signal);
                vec(options("sent_total", "All that was sent."), &["result"]);
                plain(options("plain_total", "Without labels."))?;
                x("epilogue_all_total", "All of them", &BY)
            }
            #[cfg(test)]
            mod tests { fn t() { one("no_metric", "Not one.") } }
        "#;
        let metric = |name: &str, help: &str, labels: &[&str]| Metric {
            name: name.into(),
            help: help.into(),
            labels: labels.iter().map(|it| (*it).to_owned()).collect(),
        };
        let expected = [
            metric("p_pods_listed", "Whether pods are known.", &[]),
            metric("p_pods", "The pods.", &[]),
            metric("p_calls_total", "Calls, all.", &["kind"]),
            metric("p_left_bytes", "What is left.", &["signal"]),
            metric("p_sent_total", "All that was sent.", &["result"]),
            metric("p_plain_total", "Without labels.", &[]),
            metric("epilogue_all_total", "All of them", &["a", "b"]),
        ];
        assert_eq!(of(code, "p_"), expected);
    }
}
