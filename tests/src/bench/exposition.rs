//! Reads the text format of `/metrics`: the samples of one metric, with their labels.

use std::collections::BTreeMap;

/// One sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

impl Sample {
    /// The value of a label; a missing label is empty, as in Prometheus.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// All samples of the metric `name`. Unreadable lines are left out.
pub(super) fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = Sample> + 'a {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(labelled) => labels(labelled)?,
            None => (BTreeMap::new(), rest.strip_prefix(' ')?),
        };
        // A timestamp may follow.
        let value = value.split_whitespace().next()?.parse().ok()?;
        Some(Sample { labels, value })
    })
}

/// The labels behind the opening brace, and what follows the closing one.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = text.split_once("=\"")?;
        let (value, rest) = unquote(quoted)?;
        labels.insert(name.to_owned(), value);
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// A label's value up to its closing quote, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP requests_total [STABLE] Counter of requests.
# TYPE requests_total counter
requests_total{code="201",resource="pods",verb="POST"} 2000
requests_total{code="0",odd="a\"}\\\n,b",verb="WATCH",} 1.5e+03 1712345
requests_total_sum{code="201"} 7
requests_total 3
requests_total{broken 4
"#;

    #[test]
    fn only_the_samples_of_the_metric_are_read() {
        let read: Vec<Sample> = samples(TEXT, "requests_total").collect();
        let values: Vec<f64> = read.iter().map(|sample| sample.value).collect();
        assert_eq!(values, [2000.0, 1500.0, 3.0]);
        assert_eq!(read[0].label("resource"), "pods");
        assert_eq!(read[0].label("missing"), "");
    }

    #[test]
    fn a_label_may_hold_quotes_braces_and_line_ends() {
        let odd = samples(TEXT, "requests_total").nth(1).expect("the second sample");
        assert_eq!(odd.label("odd"), "a\"}\\\n,b");
        assert_eq!(odd.label("verb"), "WATCH");
    }
}
