//! Makes a release from a tag. `deploy/release` starts it at the root of the checkout.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use epilogue_deploy::release::platform::{self, ALL};
use epilogue_deploy::release::{Options, ReleaseError, run};

/// Makes a release from the tag that is checked out
#[derive(Debug, Parser)]
#[command(name = "deploy/release", version)]
struct Arguments {
    /// Tag, such as v0.2.0
    tag: String,
    /// Directory for the files, empty or missing; by default target/release-TAG
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Private key of cosign, which signs checksums and image; `COSIGN_PASSWORD` has its password
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Registry that gets the image as HOST:PORT/epilogue:VERSION
    #[arg(long, value_name = "HOST:PORT")]
    registry: Option<String>,
    /// Target of rustc, also several times; programs of the first one must run on this machine
    #[arg(long, value_name = "TARGET", default_value = ALL[0].target)]
    target: Vec<String>,
}

fn main() -> ExitCode {
    match release(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("error: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}

fn release(arguments: Arguments) -> Result<(), ReleaseError> {
    let root = std::env::current_dir().map_err(|error| ReleaseError::File(".".into(), error))?;
    let absolute = |path: &Path| root.join(path);
    let out = PathBuf::from(format!("target/release-{}", arguments.tag));
    let platforms = arguments.target.iter().map(|target| platform::of_target(target));
    run(&Options {
        out: absolute(arguments.out.as_ref().unwrap_or(&out)),
        key: arguments.key.as_deref().map(absolute),
        registry: arguments.registry,
        platforms: platforms.collect::<Result<_, _>>()?,
        tag: arguments.tag,
        root,
    })
}
