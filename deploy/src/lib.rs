//! Reads the manifests in `deploy/kustomize` as data, so that tests and the laboratory use what
//! people apply. It supports a kustomization's `resources` and no transformers. Renders what
//! `deploy/monitoring` has of generated files, and the manifest for krew. Makes releases.

pub mod changelog;
pub mod chart;
pub mod krew;
pub mod monitoring;
pub mod release;
pub mod rights;
pub mod version;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

const KUSTOMIZATION: &str = "kustomization.yaml";

/// Why manifests could not be read.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// A file that the kustomization names cannot be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// A file is not YAML.
    #[error("cannot parse {0}")]
    Parse(PathBuf, #[source] serde_yaml_ng::Error),
    /// The manifests lack this program, or define it in a form that this crate does not support.
    #[error("no Deployment or DaemonSet {0} with a first container's args")]
    NoArgs(String),
    /// A generated file cannot be rendered.
    #[error("cannot render {0}")]
    Render(PathBuf, #[source] serde_json::Error),
}

/// The supported fields of a kustomization. Any other field could change the objects unnoticed, so
/// it is an error.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    resources: Vec<PathBuf>,
}

/// The directory of the overlay that acts, which holds everything that runs in a cluster.
pub fn enforce() -> PathBuf {
    kustomize().join("overlays/enforce")
}

/// All objects of the overlay that acts, in the order in which they can be applied.
pub fn manifests() -> Result<Vec<Value>, ManifestError> {
    objects(&enforce())
}

/// What the base, which only observes, has in place of the overlay's accounts and rights: its
/// accounts, rights and policies. Its patches of the workloads are kustomize's.
pub fn observers() -> Result<Vec<Value>, ManifestError> {
    let mut objects = Vec::new();
    for program in ["agent", "controller"] {
        let directory = kustomize().join("base").join(program);
        let policy = kustomize().join("../policy/observer").join(program).join("policy.yaml");
        let own = ["service-account.yaml", "rbac.yaml"].map(|file| directory.join(file));
        for file in [policy].into_iter().chain(own) {
            objects.extend(documents(&file)?);
        }
    }
    Ok(objects)
}

/// The rights, policies and priority of a controller with gang scheduling, which the component of
/// this name adds to the overlay that acts.
pub fn gang_scheduling() -> Result<Vec<Value>, ManifestError> {
    objects(&gang_scheduling_component())
}

/// The directory of that component.
pub fn gang_scheduling_component() -> PathBuf {
    kustomize().join("components/gang-scheduling")
}

fn kustomize() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kustomize")
}

/// The objects of one kustomization, in the order of its `resources`.
pub fn objects(directory: &Path) -> Result<Vec<Value>, ManifestError> {
    let mut objects = Vec::new();
    for path in files(directory)? {
        objects.extend(documents(&path)?);
    }
    Ok(objects)
}

/// The objects of one file.
pub fn documents(path: &Path) -> Result<Vec<Value>, ManifestError> {
    let text = read(path)?;
    let parsed = serde_yaml_ng::Deserializer::from_str(&text).map(Value::deserialize);
    parsed.collect::<Result<_, _>>().map_err(|source| ManifestError::Parse(path.to_owned(), source))
}

/// The files that a kustomization includes, in order.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    let path = directory.join(KUSTOMIZATION);
    let kustomization: Kustomization = serde_yaml_ng::from_str(&read(&path)?)
        .map_err(|source| ManifestError::Parse(path, source))?;
    let mut all = Vec::new();
    for resource in kustomization.resources {
        let path = directory.join(resource);
        if path.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push(path);
        }
    }
    Ok(all)
}

/// The arguments of the first container of a Deployment or DaemonSet. The program's own tests check
/// that it knows them.
pub fn args(objects: &[Value], workload: &str) -> Result<Vec<String>, ManifestError> {
    let missing = || ManifestError::NoArgs(workload.to_owned());
    let runs = |object: &&Value| {
        (object["kind"] == "Deployment" || object["kind"] == "DaemonSet")
            && object["metadata"]["name"] == workload
    };
    let object = objects.iter().find(runs).ok_or_else(missing)?;
    let args = &object["spec"]["template"]["spec"]["containers"][0]["args"];
    let args = args.as_array().ok_or_else(missing)?;
    args.iter().map(|arg| arg.as_str().map(str::to_owned).ok_or_else(missing)).collect()
}

fn read(path: &Path) -> Result<String, ManifestError> {
    fs::read_to_string(path).map_err(|source| ManifestError::Read(path.to_owned(), source))
}
