//! Says why a read of a cluster failed and what to do about it, of an API server's refusal and of
//! what comes from a proxy in between. Pure.

use epilogue_common::outcome::{Failure, FailureKind};
use epilogue_runtime::api_error::Foreign;

/// Maximum length of another program's words in a message.
const WORDS_CHARS_MAX: usize = 80;
/// What is read of a page to find its words.
const PAGE_CHARS_MAX: usize = 4_000;

/// What the client's messages hold of a failed connection, and the remedy. The first that matches
/// counts.
const CONNECTIONS: [(&str, &str); 8] = [
    (
        "UnknownIssuer",
        "the CA of the kubeconfig has not signed that certificate: check \
         certificate-authority-data, and whether a proxy in between presents one of its own",
    ),
    ("NotValidForName", "that certificate is for another name: check server and tls-server-name"),
    ("Expired", "that certificate has expired, or the clock of this machine is wrong"),
    (
        "invalid peer certificate",
        "check server and certificate-authority-data of the kubeconfig, and whether a proxy in \
         between presents a certificate of its own",
    ),
    ("InvalidContentType", "TLS is not spoken there: check scheme and port of the server"),
    ("dns error", "check the server's name in the kubeconfig, and DNS or VPN of this machine"),
    (
        "Connection refused",
        "nothing listens there: check that the API server is up, and the server of the \
         kubeconfig, or choose another --context",
    ),
    ("auth error", "check the credentials of the kubeconfig, and the program that makes them"),
];

/// The remedy for a read that the API server refused or did not answer.
pub(crate) fn remedy(failure: &Failure) -> &'static str {
    let unanswered = matches!(failure.kind, FailureKind::Unknown | FailureKind::Other);
    let mut known = CONNECTIONS.iter().filter(|_| unanswered);
    if let Some((_, remedy)) = known.find(|(words, _)| failure.message.contains(words)) {
        return remedy;
    }
    match failure.kind {
        FailureKind::Forbidden => "ask for the right to read it, or choose another --context",
        FailureKind::Unknown => "check that the API server is up, or choose another --context",
        FailureKind::TooManyRequests | FailureKind::ServerError => "try again",
        _ => "check the credentials and the server of the kubeconfig",
    }
}

/// Says that a refusal is not the API server's, what it says and what to do.
pub(crate) fn foreign(reply: &Foreign) -> String {
    let remedy = match reply.code {
        401 => "sign in there, or check the server of the kubeconfig",
        407 => "the proxy asks for credentials: reach the server without it",
        500..=599 => "the API server behind it may be down: try again, or choose another --context",
        _ => {
            "this says nothing about rights in the cluster: check the server of the kubeconfig, \
             and what lies in between"
        }
    };
    format!("something between here and the API server refused: {}; {remedy}", refused(reply))
}

/// The status and the first words of a refusal that is not the API server's.
pub(crate) fn refused(reply: &Foreign) -> String {
    let code = match reply.code {
        0 => "JSON that is not a Status".to_owned(),
        code => format!("HTTP {code}"),
    };
    match words(&reply.text) {
        words if words.is_empty() => code,
        words => format!("{code}, {words:?}"),
    }
}

/// The first words of a body: of a page its title, else its text without tags.
fn words(body: &str) -> String {
    let body: String = body.chars().take(PAGE_CHARS_MAX).collect();
    let lower = body.to_ascii_lowercase();
    let title = lower.find("<title>").map(|start| start + "<title>".len());
    let title = title.and_then(|start| {
        let end = start + lower.get(start..)?.find("</title>")?;
        body.get(start..end).filter(|title| !title.trim().is_empty())
    });
    let text = title.map_or_else(|| without_tags(&body), str::to_owned);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(WORDS_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn without_tags(body: &str) -> String {
    let mut is_tag = false;
    let mut text = String::new();
    for each in body.chars() {
        match each {
            '<' => {
                is_tag = true;
                text.push(' ');
            }
            '>' if is_tag => is_tag = false,
            _ if is_tag => {}
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_page_are_its_title_or_its_text() {
        for (body, expected) in [
            ("<html><TITLE>\n Access\tdenied </title><p>x", "Access denied"),
            ("<html><title></title><body>by <b>policy</b> 7</body>", "by policy 7"),
            ("denied\n", "denied"),
            ("<unfinished", ""),
            ("", ""),
        ] {
            assert_eq!(words(body), expected, "{body}");
        }
        let long = words(&"ä".repeat(10_000));
        assert_eq!(long.chars().count(), WORDS_CHARS_MAX + 1);
    }

    #[test]
    fn words_of_others_are_quoted_and_escaped() {
        let reply = Foreign { code: 403, text: "a\u{1b}[31m\u{202e}b\"".to_owned() };
        let text = foreign(&reply);
        assert!(text.contains("refused: HTTP 403, "), "{text}");
        assert!(text.contains(r#", "a\u{1b}[31m\u{202e}b\"";"#), "{text}");
        assert!(text.contains("says nothing about rights"), "{text}");
    }

    #[test]
    fn each_failed_connection_has_its_remedy() {
        let of = |kind, message: &str| remedy(&Failure::new(kind, message));
        for (message, expected) in [
            ("invalid peer certificate: UnknownIssuer", "has not signed"),
            ("invalid peer certificate: NotValidForName", "another name"),
            ("invalid peer certificate: Expired", "the clock"),
            ("invalid peer certificate: Other(X)", "certificate-authority-data"),
            ("received corrupt message of type InvalidContentType", "scheme and port"),
            ("dns error: failed to lookup", "DNS or VPN"),
            ("tcp connect error: Connection refused (os error 111)", "nothing listens"),
            ("timed out", "is up"),
        ] {
            assert!(of(FailureKind::Unknown, message).contains(expected), "{message}");
        }
        assert!(of(FailureKind::Forbidden, "Expired").contains("the right"));
    }
}
