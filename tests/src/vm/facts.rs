//! Records the versions and recipes that the tests of upstream's behaviour depend on, and the last
//! run in which they passed: `tests/node/upstream.json`. While both agree, the tests need not run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::kit::{self, Kit};
use crate::error::LabError;
use crate::kubernetes::Version;
use crate::paths::workspace_root;

/// The module of Kubernetes' programs.
const KUBERNETES: &str = "k8s.io/kubernetes";

/// Marks a value of which only a change matters.
const HASH: char = '#';

/// Names with versions, and paths with hashes of their content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts(BTreeMap<String, String>);

/// A run in which the tests of upstream's behaviour passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its day, such as `2026-11-22`.
    pub date: String,
    /// The versions and recipes that they depended on.
    pub facts: Facts,
    /// The names of the passed tests.
    pub held: Vec<String>,
}

/// The facts of this checkout with this kit.
pub fn current(kit: &Kit) -> Result<Facts, LabError> {
    let mut facts: BTreeMap<String, String> = kit.packages()?.into_iter().collect();
    let root = workspace_root();
    let sources = [
        ("tests/node/image", files_below(&kit::recipe(), |_| true)?),
        ("tests/node/container", files_below(&kit::container(), |_| true)?),
        ("tests/control-plane: go.mod, go.sum", go_modules(&root).to_vec()),
        (
            "tests/suites/node/upstream_*",
            files_below(&root.join("tests/suites/node"), is_upstream)?,
        ),
    ];
    for (name, paths) in sources {
        facts.insert(name.to_owned(), hash_of(&root, &paths)?);
    }
    let flags = crc32fast::hash(Version::NODE.linker_flags().as_bytes());
    facts.insert("the kubelet's version flags".to_owned(), format!("{HASH}{flags:08x}"));
    for path in go_modules(&root) {
        let text = std::fs::read_to_string(&path).map_err(LabError::file("read", path))?;
        if let Some(version) = version_in(&text, KUBERNETES) {
            facts.insert("kubernetes".to_owned(), version);
        }
    }
    Ok(Facts(facts))
}

/// The facts of the last record; `None` if no readable record exists.
pub fn recorded() -> Option<Facts> {
    read().map(|record| record.facts)
}

/// The last record; `None` if no readable record exists.
pub fn read() -> Option<Record> {
    read_from(&path())
}

/// Writes the record of today's run, in which these tests passed.
pub fn record(facts: &Facts, tests: &[String]) -> Result<(), LabError> {
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let mut held = tests.to_vec();
    held.sort();
    write_to(&path(), &Record { date, facts: facts.clone(), held })
}

impl Facts {
    /// Describes the differences from `other`, the older facts.
    pub fn differs_from(&self, other: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> =
            self.0.keys().chain(other.0.keys()).collect();
        let words =
            names.into_iter().filter_map(|name| match (other.0.get(name), self.0.get(name)) {
                (Some(old), Some(new)) if old == new => None,
                (Some(old), Some(new)) if old.starts_with(HASH) || new.starts_with(HASH) => {
                    Some(format!("{name} changed"))
                }
                (Some(old), Some(new)) => Some(format!("{name} {old} → {new}")),
                (Some(old), None) => Some(format!("{name} {old} is gone")),
                (None, Some(new)) => Some(format!("{name} {new} is new")),
                (None, None) => None,
            });
        words.collect()
    }

    /// A fingerprint of all facts in eight digits.
    pub fn fingerprint(&self) -> String {
        let mut hasher = crc32fast::Hasher::new();
        for (name, value) in &self.0 {
            hasher.update(format!("{name}={value}\n").as_bytes());
        }
        format!("{:08x}", hasher.finalize())
    }
}

fn path() -> PathBuf {
    workspace_root().join("tests/node/upstream.json")
}

fn read_from(path: &Path) -> Option<Record> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn write_to(path: &Path, record: &Record) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(record).expect("a record must be JSON") + "\n";
    let new = path.with_extension("json.new");
    std::fs::write(&new, text).map_err(LabError::file("write", &new))?;
    std::fs::rename(&new, path).map_err(LabError::file("write", path))
}

/// Whether a path below the suite belongs to a module of upstream's behaviour.
fn is_upstream(path: &Path) -> bool {
    path.to_string_lossy().starts_with("upstream_")
}

/// The modules of the node's version; other versions do not concern it.
fn go_modules(root: &Path) -> [PathBuf; 2] {
    let go_mod = root.join("tests/control-plane").join(Version::NODE.go_mod());
    [go_mod.clone(), go_mod.with_extension("sum")]
}

/// The files below `dir` whose relative path is wanted, in order.
fn files_below(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, LabError> {
    let mut paths = super::disk::files_below(dir)?;
    paths.retain(|path| wanted(path.strip_prefix(dir).unwrap_or(path)));
    Ok(paths)
}

/// A hash of names and contents that stays the same with another compiler.
fn hash_of(root: &Path, paths: &[PathBuf]) -> Result<String, LabError> {
    let mut hasher = crc32fast::Hasher::new();
    for path in paths {
        hasher.update(path.strip_prefix(root).unwrap_or(path).to_string_lossy().as_bytes());
        let content = match std::fs::read_link(path) {
            Ok(target) => target.into_os_string().into_encoded_bytes(),
            Err(_) => std::fs::read(path).map_err(LabError::file("read", path))?,
        };
        hasher.update(&content);
    }
    Ok(format!("{HASH}{:08x}", hasher.finalize()))
}

/// The version of a module that a go.mod requires.
pub(super) fn version_in(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_ascii_whitespace();
        (words.next()? == module).then(|| words.next().map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Facts {
        Facts(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn differences_are_said_in_words() {
        let old = facts(&[("containerd", "1.6.20"), ("image", "#1"), ("linux", "6.1"), ("x", "1")]);
        let new = facts(&[("containerd", "1.6.24"), ("image", "#2"), ("linux", "6.1"), ("y", "2")]);
        let said = new.differs_from(&old);
        assert_eq!(
            said,
            ["containerd 1.6.20 → 1.6.24", "image changed", "x 1 is gone", "y 2 is new"]
        );
        assert!(old.differs_from(&old).is_empty());
        assert_ne!(old.fingerprint(), new.fingerprint());
    }

    #[test]
    fn record_comes_back_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let path = dir.path().join("upstream.json");
        assert_eq!(read_from(&path), None);
        let facts = facts(&[("runc", "1.1.5")]);
        let record = Record { date: "2026-01-02".into(), facts, held: vec!["a::b".into()] };
        write_to(&path, &record).expect("write");
        assert_eq!(read_from(&path), Some(record));
        std::fs::write(&path, "half").expect("write");
        assert_eq!(read_from(&path), None);
    }

    #[test]
    fn version_is_that_of_the_required_module() {
        let go_mod = "require (\n\tk8s.io/kubernetes-x v1.0.0\n\tk8s.io/kubernetes v1.36.3\n)\n";
        assert_eq!(version_in(go_mod, KUBERNETES).as_deref(), Some("v1.36.3"));
        assert_eq!(
            version_in("require k8s.io/kubernetes v2 // why", KUBERNETES).as_deref(),
            Some("v2")
        );
        assert_eq!(version_in(go_mod, "k8s.io/none"), None);
    }

    #[test]
    fn hash_follows_names_and_contents() {
        let dir = tempfile::tempdir().expect("a temporary directory must be creatable");
        let file = dir.path().join("upstream_a.rs");
        let hash = || hash_of(dir.path(), &files_below(dir.path(), is_upstream).expect("list"));
        let hash = || hash().expect("hash");
        std::fs::write(dir.path().join("b.rs"), "x").expect("write");
        let empty = hash();
        std::fs::write(&file, "1").expect("write");
        let first = hash();
        std::fs::write(&file, "2").expect("write");
        assert!(empty != first && first != hash() && hash().starts_with(HASH));
    }
}
