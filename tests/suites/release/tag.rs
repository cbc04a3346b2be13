//! A release begins only where tag, version, changelog and tree agree.

use std::fs;
use std::path::Path;
use std::process::Command;

use epilogue_deploy::release::source::Source;
use epilogue_deploy::version::FILES;
use lab::paths::workspace_root;
use tempfile::TempDir;

use super::{VERSION, done};

/// A repository with what the checks read, and a tag of its only commit.
struct Repository(TempDir);

impl Repository {
    fn with_tag(tag: &str) -> Self {
        let repository = Self(tempfile::tempdir().expect("a directory"));
        repository.git(&["init", "--quiet"]);
        for (file, _) in FILES.iter().chain([&("Cargo.toml", &[][..])]) {
            let text = fs::read_to_string(workspace_root().join(file)).expect(file);
            repository.write(file, &text);
        }
        let changes = format!("# Changelog\n\n## [{VERSION}] - 2026-01-31\n\n- A change.\n");
        repository.write("CHANGELOG.md", &changes);
        repository.write(".gitignore", "/target\n");
        repository.commit(tag);
        repository
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.root()).args(["-c", "user.name=t", "-c", "user.email=t@t.example"]);
        done(git.args(arguments));
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("must be creatable");
        fs::write(path, text).expect("must be writable");
    }

    fn commit(&self, tag: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "A commit"]);
        self.git(&["tag", "--force", tag]);
    }

    fn refused(&self, tag: &str) -> String {
        Source::of_tag(self.root(), tag).expect_err("must be refused").to_string()
    }
}

fn tag() -> String {
    format!("v{VERSION}")
}

#[test]
fn the_sources_are_those_of_the_tag() {
    let repository = Repository::with_tag(&tag());
    let source = Source::of_tag(repository.root(), &tag()).expect("all agrees");
    assert_eq!((source.version.as_str(), source.notes.as_str()), (VERSION, "- A change.\n"));
    let of = |root: &Path| fs::read(root.join("README.md")).expect("must be there");
    assert_eq!(of(&source.directory), of(repository.root()));
    assert!(source.epoch.parse::<u64>().is_ok(), "{}", source.epoch);
    let hex = source.commit.bytes().filter(u8::is_ascii_hexdigit).count();
    assert_eq!((hex, source.commit.len()), (40, 40), "{}", source.commit);
    // What an earlier tag had does not stay.
    fs::write(source.directory.join("old"), "").expect("must be writable");
    let again = Source::of_tag(repository.root(), &tag()).expect("all agrees");
    assert!(!again.directory.join("old").exists());
}

#[test]
fn a_tag_of_another_version_is_refused() {
    let repository = Repository::with_tag("v9.9.9");
    let error = repository.refused("v9.9.9");
    assert!(error.contains(&format!("v9.9.9: expected v{VERSION}")), "{error}");
    let error = repository.refused(&tag());
    assert!(error.contains("refs/tags/"), "a tag that does not exist: {error}");
}

#[test]
fn a_tag_of_another_commit_is_refused() {
    let repository = Repository::with_tag(&tag());
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "Another"]);
    let error = repository.refused(&tag());
    assert!(error.contains("git checkout"), "{error}");
}

#[test]
fn a_tree_with_changes_is_refused() {
    for file in ["README.md", "new"] {
        let repository = Repository::with_tag(&tag());
        repository.write(file, "changed\n");
        let error = repository.refused(&tag());
        assert!(error.contains(file) && error.contains("expected a clean tree"), "{error}");
    }
}

#[test]
fn a_version_without_a_section_in_the_changelog_is_refused() {
    let repository = Repository::with_tag(&tag());
    repository.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n- A change.\n");
    repository.commit(&tag());
    let error = repository.refused(&tag());
    assert!(error.contains(&format!("`## [{VERSION}] - DATE`")), "{error}");
}

#[test]
fn a_file_that_names_another_version_is_refused() {
    let repository = Repository::with_tag(&tag());
    repository.write("deploy/chart/Chart.yaml", "\nversion: 9.9.9\nappVersion: 9.9.9\n");
    repository.commit(&tag());
    let error = repository.refused(&tag());
    assert!(error.contains("Chart.yaml") && error.contains("cargo lab docs"), "{error}");
}
