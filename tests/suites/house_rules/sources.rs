//! Finds the files of the workspace.

use std::path::Path;

use lab::paths::workspace_root;

/// One file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the workspace's root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Whether all of it is test code: a suite, a crate's `tests/`, or a test module's own file.
    pub(crate) fn is_test(&self) -> bool {
        // The laboratory itself is in a directory of that name.
        let inside = self.path.strip_prefix("tests/").unwrap_or(&self.path);
        let (directories, file) = inside.rsplit_once('/').unwrap_or(("", inside));
        let in_tests = directories.split('/').any(|name| name == "tests" || name == "suites");
        in_tests || file == "tests.rs" || file.ends_with("_tests.rs")
    }
}

/// Every `*.rs` of the workspace, committed or not.
pub(crate) fn all() -> Vec<Source> {
    with_extension("rs")
}

/// Every file of the workspace with this extension, committed or not.
pub(crate) fn with_extension(extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&workspace_root(), extension, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10, "the workspace's *.{extension} must be found");
    found
}

/// A file of the workspace; empty if it does not exist.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(workspace_root().join(path)).unwrap_or_default()
}

fn collect(directory: &Path, extension: &str, found: &mut Vec<Source>) {
    let entries = std::fs::read_dir(directory).expect("a directory of the workspace is readable");
    for path in entries.map(|entry| entry.expect("its entries too").path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&path, extension, found);
            }
        } else if path.extension().is_some_and(|it| it == extension) {
            let relative = path.strip_prefix(workspace_root()).expect("it lies in the workspace");
            let path_text = relative.to_string_lossy().into_owned();
            // A file may be renamed while the suite runs.
            if let Ok(text) = std::fs::read_to_string(&path) {
                found.push(Source { path: path_text, text });
            }
        }
    }
}

#[test]
fn test_code_is_distinguished_from_the_laboratory() {
    let is_test = |path: &str| Source { path: path.into(), text: String::new() }.is_test();
    assert!(is_test("tests/suites/jobs.rs"));
    assert!(is_test("agent/tests/logind.rs"));
    assert!(is_test("controller/core/src/job/tests.rs"));
    assert!(!is_test("tests/src/main.rs"));
    assert!(!is_test("controller/core/src/job/plan.rs"));
}
