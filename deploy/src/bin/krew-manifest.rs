//! Prints the krew manifest of a release: `krew-manifest DIRECTORY`, with the directory of the
//! archives.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use epilogue_deploy::krew;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: krew-manifest DIRECTORY, with one archive for each platform");
        return ExitCode::from(2);
    };
    match krew::yaml(&PathBuf::from(directory)) {
        Ok(manifest) => {
            print!("{manifest}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("error: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}
