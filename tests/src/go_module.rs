//! Builds programs of the Go modules that only tests use, such as `tests/kustomize`. Go's own cache
//! keeps their packages for every clone.

use std::fs::File;
use std::path::PathBuf;

use crate::binary::{COMPILER_FLAGS, GO_ENVIRONMENT, go, spawn_failed};
use crate::error::LabError;
use crate::paths::{LabDir, workspace_root};

/// Builds `package` of the module `tests/MODULE`, if it is missing or stale, as the program
/// `MODULE`. Processes that ask at once build once.
pub async fn program(module: &str, package: &str) -> Result<PathBuf, LabError> {
    program_as(module, package, module).await
}

/// The same for one of several programs of a module, by a name of its own.
pub async fn program_as(module: &str, package: &str, name: &str) -> Result<PathBuf, LabError> {
    build(&["build"], module, package, name, &[]).await
}

/// The same for a program that is partly C, with these variables in the environment of Go.
pub async fn program_with_c(
    module: &str,
    package: &str,
    name: &str,
    environment: &[(&str, &str)],
) -> Result<PathBuf, LabError> {
    let environment = [&[("CGO_ENABLED", "1")], environment].concat();
    build(&["build"], module, package, name, &environment).await
}

/// The tests of a package that the module `tests/MODULE` depends on, as the program `NAME`.
/// Without `go vet`, which takes longer than the build and is for their authors.
pub async fn tests(module: &str, package: &str, name: &str) -> Result<PathBuf, LabError> {
    build(&["test", "-c", "-vet=off"], module, package, name, &[]).await
}

/// The directory of a module that `tests/MODULE` depends on, in Go's own cache.
pub async fn directory(module: &str, dependency: &str) -> Result<PathBuf, LabError> {
    // Go has unpacked all of a module once it has built a part of it.
    let output = go()
        .args(["list", "-m", "-f", "{{.Dir}}", dependency])
        .current_dir(directory_of(module))
        .output()
        .await
        .map_err(spawn_failed)?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(LabError::Build(output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

fn directory_of(module: &str) -> PathBuf {
    workspace_root().join("tests").join(module)
}

async fn build(
    command: &[&str],
    module: &str,
    package: &str,
    name: &str,
    environment: &[(&str, &str)],
) -> Result<PathBuf, LabError> {
    let bin = LabDir::of_workspace().bin();
    std::fs::create_dir_all(&bin).map_err(LabError::file("create", &bin))?;
    let lock_path = bin.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).map_err(LabError::file("open", &lock_path))?;
    lock.lock().map_err(LabError::file("lock", &lock_path))?;
    let program = bin.join(name);
    let output = go()
        .args(command)
        .args(["-trimpath", "-ldflags", "-s -w"])
        .args(COMPILER_FLAGS)
        .arg("-o")
        .arg(&program)
        .arg(package)
        .current_dir(directory_of(module))
        .envs(GO_ENVIRONMENT)
        .envs(environment.iter().copied())
        .output()
        .await
        .map_err(spawn_failed)?;
    if !output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(LabError::Build(output.status));
    }
    Ok(program)
}
