//! Defines the flags of probes and metrics.

use std::path::PathBuf;

use epilogue_runtime::admin::{BindAddress, Certificate};

/// Where the controller serves its health and its metrics.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// Address that serves /livez, /readyz and, to the loopback alone, /metrics; 0 for none.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    metrics_bind_address: BindAddress,
    /// Address that serves /livez and /readyz and no metrics, for the kubelet's probes; 0 for none.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    health_probe_bind_address: BindAddress,
    /// Address at which the controller serves /metrics over the network, by HTTPS; 0 for none. The
    /// API server must know the bearer (TokenReview) and allow it to get /metrics
    /// (SubjectAccessReview).
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    scrape_bind_address: BindAddress,
    /// Directory with tls.crt and tls.key for --scrape-bind-address. Without it the controller
    /// signs its own certificate.
    #[arg(long, value_name = "DIR")]
    scrape_certificate_directory: Option<PathBuf>,
}

/// The addresses, and the certificate for scrapers.
#[derive(Clone, Debug)]
pub(crate) struct AdminConfig {
    pub(crate) metrics: BindAddress,
    pub(crate) probes: BindAddress,
    pub(crate) scrapers: BindAddress,
    pub(crate) certificate: Certificate,
}

impl AdminArgs {
    pub(crate) fn config(self) -> AdminConfig {
        let directory = self.scrape_certificate_directory;
        AdminConfig {
            metrics: self.metrics_bind_address,
            probes: self.health_probe_bind_address,
            scrapers: self.scrape_bind_address,
            certificate: directory.map_or(Certificate::SelfSigned, Certificate::Directory),
        }
    }
}
