//! The flags of `run` for scrapers over the network.

use std::path::PathBuf;

use epilogue_runtime::admin::{BindAddress, Certificate};

/// Metrics over the network.
#[derive(Clone, Debug, clap::Args)]
pub struct ScrapeArgs {
    /// Where /metrics is served over the network, by HTTPS, to bearers whom the API server knows
    /// (TokenReview) and allows to get /metrics (SubjectAccessReview); 0 for nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    scrape_bind_address: BindAddress,
    /// Directory with tls.crt and tls.key for --scrape-bind-address, in the agent's own file
    /// system. Without it: a certificate that the agent signs itself.
    #[arg(long, value_name = "DIR")]
    scrape_certificate_directory: Option<PathBuf>,
}

/// Where scrapers over the network are served, and as whom.
#[derive(Clone, Debug)]
pub struct ScrapeConfig {
    /// Nowhere by default.
    pub bind: BindAddress,
    /// What the agent shows.
    pub certificate: Certificate,
}

impl ScrapeArgs {
    pub(super) fn config(self) -> ScrapeConfig {
        let directory = self.scrape_certificate_directory;
        ScrapeConfig {
            bind: self.scrape_bind_address,
            certificate: directory.map_or(Certificate::SelfSigned, Certificate::Directory),
        }
    }
}
