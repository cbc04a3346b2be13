//! Renders kustomizations as `kubectl apply -k` does.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::error::LabError;
use crate::go_module;

/// The objects of a kustomization's directory.
pub async fn render(directory: &Path) -> Result<Vec<Value>, LabError> {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let program = PROGRAM.get_or_try_init(|| go_module::program("kustomize", ".")).await?;
    let output = Command::new(program)
        .arg(directory)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|source| LabError::Spawn { program: "kustomize".to_owned(), source })?;
    let what = || format!("the kustomization {}", directory.display());
    if !output.status.success() {
        let source = String::from_utf8_lossy(&output.stderr).into();
        return Err(LabError::Document { what: what(), source });
    }
    let objects = serde_json::from_slice(&output.stdout);
    objects.map_err(|source| LabError::Document { what: what(), source: source.into() })
}
