//! Defines the errors of the laboratory, one variant per operation, each naming its remedy.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// A failed operation of the laboratory.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or directory under `target/lab` could not be used.
    #[error("{action} {}", path.display())]
    File {
        /// The verb, such as "write".
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A key or certificate could not be made.
    #[error("make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// A document (state or kubeconfig) could not be written or parsed.
    #[error("{what} is not what the laboratory writes; remove it and run `cargo lab up` again")]
    Document {
        /// Which document.
        what: String,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A kubeconfig could not be turned into a client.
    #[error("use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The kubeconfig.
        path: PathBuf,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The API refused or did not answer.
    #[error("{action}")]
    Api {
        /// The request.
        action: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// The agent's policies are not enforced.
    #[error("the admission policies do not bind the agent of {node}: {last}")]
    Unbound {
        /// The agent's node.
        node: String,
        /// The last answer to a write that they refuse.
        last: String,
    },
    /// A laboratory of that name runs.
    #[error("lab {0} runs already; choose another --name, or end it: cargo lab down --name {0}")]
    NameTaken(String),
    /// A name that is not valid for a directory.
    #[error("{0:?} cannot be the name of a lab: use lower-case letters, digits and '-'")]
    BadName(String),
    /// No port of the range was free.
    #[error("no free TCP port on 127.0.0.1 between 20000 and 32000; end other servers first")]
    NoFreePort,
    /// A child could not be started.
    #[error("start {program}; `cargo lab prepare` installs and builds what is missing")]
    Spawn {
        /// The program.
        program: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A child ended before it was asked to.
    #[error("{name} ended with {status}; the end of its log {}:\n{log_tail}", log.display())]
    Ended {
        /// Which child.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its whole log.
        log: PathBuf,
        /// The log's last lines.
        log_tail: String,
    },
    /// A child was not ready in time.
    #[error("{name} was not ready within {within:?}: {last}; its log: {}", log.display())]
    NotReady {
        /// Which child.
        name: String,
        /// How long the lab waited.
        within: Duration,
        /// The last answer.
        last: String,
        /// Its whole log.
        log: PathBuf,
    },
    /// A suite of tier 3 runs without a control plane.
    #[error("no control plane to test against: run it by `cargo lab test {suite}`")]
    NoControlPlane {
        /// The suite to name in the command.
        suite: String,
    },
    /// Only a lab of our own has the key that signs identities.
    #[error("this needs a lab of our own (`cargo lab up`): a foreign kubeconfig cannot sign nodes")]
    ForeignCluster,
    /// A tool is missing and could not be installed.
    #[error("{program} is missing ({needed_for}); install it: {remedy}")]
    ToolMissing {
        /// The program.
        program: &'static str,
        /// What needs it.
        needed_for: &'static str,
        /// The command that installs it.
        remedy: String,
    },
    /// A build of a program of the workspace failed.
    #[error("`cargo build` ended with {0}; its errors are above")]
    Cargo(ExitStatus),
    /// The Go build failed.
    #[error("the control plane was not built: `go build` ended with {0}; its output is above")]
    Build(ExitStatus),
}

impl LabError {
    /// For `map_err` after an operation on `path`.
    pub fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// For `map_err` after a request.
    pub fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api { action, source: Box::new(source) }
    }
}
