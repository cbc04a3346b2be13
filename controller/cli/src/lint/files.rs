//! Reads the manifests that `lint` is given: files, directories and standard input. What cannot be
//! read holds up itself only.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::document::Why;
use crate::source::{self, SourceError};

/// A directory with more entries than this is refused.
const ENTRIES_MAX: usize = 50_000;
/// So many entries are walked to find out whether subdirectories hold manifests.
const SEARCHED_MAX: usize = 2_000;
/// A hint or a list of errors names at most so many.
const NAMED_MAX: usize = 10;
/// How far above a template its chart may be.
const CHART_LEVELS: usize = 5;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) objects: Vec<Value>,
    /// Where each object is.
    pub(super) places: Vec<Place>,
    /// What a user may want to know.
    pub(super) hints: Vec<String>,
    /// Why files could not be read.
    pub(super) errors: Vec<String>,
    /// Templates of each Helm chart after its first.
    charts: BTreeMap<PathBuf, usize>,
    count: usize,
}

/// Where an object is.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) line: Option<usize>,
}

/// What a path stands for.
#[derive(Debug, Default)]
struct Found {
    files: Vec<PathBuf>,
    /// Subdirectories that were not read, though they hold manifests.
    unread: BTreeSet<PathBuf>,
    /// Links to directories, which are not followed.
    links: BTreeSet<PathBuf>,
}

/// Reads all files and the manifests of all directories.
pub(super) fn read(paths: &[PathBuf], recursive: bool) -> anyhow::Result<Files> {
    let stdin = paths.iter().filter(|path| *path == Path::new("-")).count();
    ensure!(stdin < 2, "standard input can be read once; give --filename=- once");
    let mut files = Files::default();
    for path in paths {
        if !path.is_dir() {
            files.add(path, true);
            continue;
        }
        let found = manifests(path, recursive)?;
        found.files.iter().for_each(|file| files.add(file, false));
        if !found.unread.is_empty() {
            let names = named(&found.unread);
            files.hints.push(format!("subdirectories hold manifests, too; -R reads them: {names}"));
        }
        if !found.links.is_empty() {
            let names = named(&found.links);
            files.hints.push(format!("links to directories are not followed: {names}"));
        }
    }
    for (chart, more) in std::mem::take(&mut files.charts).into_iter().filter(|it| it.1 > 0) {
        files.errors.push(format!("{more} more templates of the chart {}", chart.display()));
    }
    Ok(files)
}

impl Files {
    /// Whether findings have to name their file.
    pub(super) fn are_several(&self) -> bool {
        self.count > 1
    }

    fn add(&mut self, path: &Path, is_named: bool) {
        self.count += 1;
        let documents = match source::documents(path) {
            Ok(documents) => documents,
            Err(error) => return self.failed(path, &error),
        };
        let mut builds = false;
        for (line, object) in documents {
            builds |= is_kustomization(path, &object);
            let file = source::shown(path);
            let name = object["metadata"]["name"].as_str().filter(|name| name.contains("{{"));
            if let Some(name) = name {
                let name: String = name.chars().take(60).collect();
                let line = line.map_or_else(String::new, |line| format!(":{line}"));
                self.hints.push(format!(
                    "{file}{line}: the name {name:?} is of a template; this was checked as it \
                     stands, and not what it renders"
                ));
            }
            self.objects.push(object);
            self.places.push(Place { file, line });
        }
        if builds {
            let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            let text = format!(
                "{} is a Kustomization; check what it builds: kubectl kustomize {} | kubectl \
                 epilogue lint -f -",
                path.display(),
                directory.display()
            );
            if is_named { self.errors.push(text) } else { self.hints.push(text) }
        }
    }

    /// Of the templates of one chart, the first is named.
    fn failed(&mut self, path: &Path, error: &SourceError) {
        let mut text = error.to_string();
        if let Some(cause) = error.source() {
            text = format!("{text}: {cause}");
        }
        if let SourceError::Malformed(_, malformed) = error
            && matches!(malformed.why, Why::Helm(_))
            && let Some(chart) = chart(path)
        {
            if let Some(more) = self.charts.get_mut(chart) {
                *more += 1;
                return;
            }
            self.charts.insert(chart.to_owned(), 0);
            text = text.replace("template CHART", &format!("template {}", chart.display()));
        }
        let url = path.to_str().filter(|it| it.starts_with("https://") || it.starts_with("http:"));
        if let Some(url) = url {
            text = format!("{url} is not a file; curl -fsSL {url} | kubectl epilogue lint -f -");
        }
        self.errors.push(text);
    }
}

/// The directory of the chart to which a template belongs.
fn chart(path: &Path) -> Option<&Path> {
    let mut above = path.ancestors().skip(1).take(CHART_LEVELS);
    above.find(|it| !it.as_os_str().is_empty() && it.join("Chart.yaml").is_file())
}

fn is_kustomization(path: &Path, object: &Value) -> bool {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    version.starts_with("kustomize.config.k8s.io/")
        || object["kind"].is_null() && name.eq_ignore_ascii_case("kustomization")
}

/// The first texts of a list, and how many more there are.
fn named(paths: &BTreeSet<PathBuf>) -> String {
    let names: Vec<String> =
        paths.iter().take(NAMED_MAX).map(|path| path.display().to_string()).collect();
    match paths.len() {
        count if count > NAMED_MAX => {
            format!("{} and {} more", names.join(", "), count - NAMED_MAX)
        }
        _ => names.join(", "),
    }
}

/// The manifests in a directory, as `kubectl apply` takes them. Links to files are followed, and
/// those to directories are not, so that no loop can be.
fn manifests(root: &Path, recursive: bool) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let mut walk = Walk { seen: 0, files: Vec::new(), links: BTreeSet::new() };
    let below = walk.directory(root)?;
    if recursive {
        let mut rest = below;
        while let Some(next) = rest.pop() {
            ensure!(
                walk.seen <= ENTRIES_MAX,
                "{} holds more than {ENTRIES_MAX} entries; name fewer directories",
                root.display()
            );
            rest.extend(walk.directory(&next)?);
        }
        found.links = walk.links;
    } else {
        found.unread = below.into_iter().filter(|it| holds_manifests(it)).collect();
    }
    found.files = walk.files;
    found.files.sort();
    if found.files.is_empty() {
        let holds = "holds no manifest; expected files named *.yaml, *.yml or *.json";
        match found.unread.first() {
            Some(first) => bail!(
                "{} {holds}. Its subdirectories do, such as {}: add -R",
                root.display(),
                first.display()
            ),
            None => bail!("{} {holds}", root.display()),
        }
    }
    Ok(found)
}

/// Whether a subdirectory holds manifests, as far as a short search says.
fn holds_manifests(directory: &Path) -> bool {
    let is_hidden = |path: &Path| {
        path.file_name().and_then(|it| it.to_str()).is_some_and(|name| name.starts_with('.'))
    };
    let mut walk = Walk { seen: 0, files: Vec::new(), links: BTreeSet::new() };
    let mut rest = vec![directory.to_owned()];
    while let Some(next) = rest.pop() {
        if walk.seen <= SEARCHED_MAX && !is_hidden(&next) {
            rest.extend(walk.directory(&next).unwrap_or_default());
        }
        if !walk.files.is_empty() {
            return true;
        }
    }
    false
}

struct Walk {
    seen: usize,
    files: Vec<PathBuf>,
    links: BTreeSet<PathBuf>,
}

impl Walk {
    /// Takes the manifests of one directory; returns its subdirectories.
    fn directory(&mut self, path: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let read = || format!("cannot read the directory {}", path.display());
        let mut below = Vec::new();
        for entry in std::fs::read_dir(path).with_context(read)?.take(ENTRIES_MAX + 1) {
            let entry = entry.with_context(read)?;
            let (path, kind) = (entry.path(), entry.file_type().with_context(read)?);
            self.seen += 1;
            let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
            if kind.is_dir() {
                below.push(path);
            } else if kind.is_symlink() && path.is_dir() {
                self.links.insert(path);
            } else if path.is_file() && ["yaml", "yml", "json"].contains(&extension) {
                self.files.push(path);
            }
        }
        Ok(below)
    }
}
