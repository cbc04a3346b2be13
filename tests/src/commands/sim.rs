//! `lab sim`: runs seeds of the simulation, a separate program. Only that program waits for its
//! optimised cores.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::Context as _;
use lab::cargo::cargo;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// The options that `cargo lab sim --help` lists
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// From so many seeds on, a build that is optimised throughout is worth its minutes.
const MANY: u64 = 10_000;

/// Replaces this process by the program, so that its exit code and Ctrl-C are its own.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut simulate = cargo().into_std();
    // Not by package, to get the features of the whole workspace, as `cargo lab` itself.
    simulate.args(["run", "--quiet", "--bin", "simulate"]);
    if seeds(&arguments.options).is_some_and(|seeds| seeds >= MANY) {
        simulate.args(["--profile", "simulation", "--features", "simulation/mimalloc"]);
    }
    simulate.arg("--").args(&arguments.options);
    Err(simulate.exec()).context("start cargo")
}

/// The value of `--seeds`, or of its alias; the program reports one that is no number.
fn seeds(options: &[OsString]) -> Option<u64> {
    let options: Vec<&str> = options.iter().filter_map(|option| option.to_str()).collect();
    let at =
        options.iter().rposition(|it| it.starts_with("--seeds") || it.starts_with("--count"))?;
    let (_, value) = options[at].split_once('=').unzip();
    value.or_else(|| options.get(at + 1).copied())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_seeds_is_found_among_the_options() {
        let of = |text: &str| {
            let options: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            seeds(&options)
        };
        assert_eq!(of("--seed 5 --seeds 20000 --met"), Some(20_000));
        assert_eq!(of("--agent --seeds=7"), Some(7));
        assert_eq!(of("--count 1000000"), Some(1_000_000));
        for none in ["--seed 20000", "--seeds", "--seeds many", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
