//! Starts cargo from a program that cargo started.

use std::ffi::OsStr;

use tokio::process::Command;

use crate::paths::workspace_root;

/// Variables that `cargo run` sets for the program that it runs. Build scripts of dependencies
/// (ring's) watch some of them. Passed on, they would recompile the whole tree each time.
const OF_THE_RUN: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_NAME"];

/// Cargo in the workspace, as a user would start it.
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_the_run(name)) {
        command.env_remove(name);
    }
    command.current_dir(workspace_root()).kill_on_drop(true);
    command
}

fn is_of_the_run(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    OF_THE_RUN.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_cargo_stay_and_words_on_a_package_go() {
        for gone in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "CARGO_CRATE_NAME"] {
            assert!(is_of_the_run(OsStr::new(gone)), "{gone}");
        }
        for kept in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_PROFILE_DEV_DEBUG", "PATH"] {
            assert!(!is_of_the_run(OsStr::new(kept)), "{kept}");
        }
    }
}
