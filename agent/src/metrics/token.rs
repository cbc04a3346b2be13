//! Exports when the agent's token expires, read from its file at each scrape. On hosts where the
//! agent does not run as a pod, the installer has to renew it.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Opts};
use serde::Deserialize;

/// The claims of a token that the agent reads.
#[derive(Deserialize)]
struct Claims {
    exp: f64,
}

/// Reads the token's file at each scrape.
#[derive(Debug)]
pub struct TokenCollector {
    file: PathBuf,
    expires: Gauge,
}

impl TokenCollector {
    /// A collector of the token in this file.
    pub fn new(file: impl Into<PathBuf>) -> prometheus::Result<Self> {
        let expires = Gauge::with_opts(Opts::new(
            "epilogue_agent_token_expiry_timestamp_seconds",
            "When the agent's token for the API expires.",
        ))?;
        Ok(Self { file: file.into(), expires })
    }
}

impl Collector for TokenCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.expires.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(expires) = expiry(&self.file) else { return Vec::new() };
        self.expires.set(expires);
        self.expires.collect()
    }
}

/// The token's expiry; `None` if the file has no token with one.
fn expiry(file: &Path) -> Option<f64> {
    let token = std::fs::read_to_string(file).ok()?;
    let claims = token.trim().split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    serde_json::from_slice::<Claims>(&claims).ok().map(|claims| claims.exp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_token_in_the_file_is_reported_as_long_as_there_is_one() {
        let dir = tempfile::tempdir().expect("must be creatable");
        let file = dir.path().join("token");
        let collector = TokenCollector::new(&file).expect("must be valid");
        assert!(collector.collect().is_empty());
        for text in ["", "a.b.c", "a", "a.e30.c"] {
            std::fs::write(&file, text).expect("must be writable");
            assert!(collector.collect().is_empty(), "{text:?}");
        }
        let claims = URL_SAFE_NO_PAD.encode(r#"{"aud":["a"],"exp":1795000000,"iat":1}"#);
        std::fs::write(&file, format!("e30.{claims}.sig\n")).expect("must be writable");
        let families = collector.collect();
        assert!(
            (families[0].get_metric()[0].get_gauge().get_value() - 1_795_000_000.0).abs() < 0.5
        );
    }
}
