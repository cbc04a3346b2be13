//! Defines the flags of `run` for scraping over the network.

use std::path::PathBuf;

use epilogue_runtime::admin::{BindAddress, Certificate};

/// The flags for metrics over the network.
#[derive(Clone, Debug, clap::Args)]
pub struct ScrapeArgs {
    /// Address at which the agent serves /metrics over the network, by HTTPS; 0 for none. The API
    /// server must know the bearer (TokenReview) and allow it to get /metrics
    /// (SubjectAccessReview).
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    scrape_bind_address: BindAddress,
    /// Directory with tls.crt and tls.key for --scrape-bind-address, in the agent's own file
    /// system. Without it the agent signs its own certificate.
    #[arg(long, value_name = "DIR")]
    scrape_certificate_directory: Option<PathBuf>,
}

/// The address and the certificate for scraping over the network.
#[derive(Clone, Debug)]
pub struct ScrapeConfig {
    /// The address; none by default.
    pub bind: BindAddress,
    /// The certificate that the agent presents.
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
