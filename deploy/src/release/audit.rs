//! Reads the list of dependencies that `cargo auditable` puts into a program, and compares it with
//! the SBOM.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use auditable_info::{Limits, json_from_file};
use serde_json::Value;

use super::error::ReleaseError;

/// A crate: its name and its version.
pub type Package = (String, String);

/// The crates in a program, without those that only its build needed.
pub fn packages(program: &Path) -> Result<BTreeSet<Package>, ReleaseError> {
    let json = json_from_file(program, Limits::default())
        .map_err(|source| ReleaseError::NoAuditData(program.to_owned(), source))?;
    let form = || ReleaseError::Form(program.to_owned(), "audit data with packages");
    let info: Value = serde_json::from_str(&json).map_err(|_| form())?;
    let packages = info["packages"].as_array().ok_or_else(form)?;
    // Of a crate that the program contains, the kind is left out.
    Ok(packages.iter().filter(|it| it["kind"] != "build").map(package).collect())
}

/// The crates that an SBOM names, the program's own included.
pub fn components(bill: &Path) -> Result<BTreeSet<Package>, ReleaseError> {
    let text = fs::read(bill).map_err(ReleaseError::file(bill))?;
    let form = || ReleaseError::Form(bill.to_owned(), "an SBOM of CycloneDX with components");
    let bill: Value = serde_json::from_slice(&text).map_err(|_| form())?;
    let components = bill["components"].as_array().ok_or_else(form)?;
    let all = components.iter().chain([&bill["metadata"]["component"]]);
    Ok(all.map(package).collect())
}

fn package(object: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["name"]), text(&object["version"]))
}

/// Refuses an SBOM that lacks a crate of the program.
pub fn compare(program: &Path, bill: &Path) -> Result<(), ReleaseError> {
    let named = components(bill)?;
    match packages(program)?.difference(&named).next() {
        Some((name, version)) => {
            Err(ReleaseError::Bill(bill.to_owned(), format!("{name} {version}")))
        }
        None => Ok(()),
    }
}
