//! `lab docs`: writes the generated sections, checks all links, and builds the book.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use epilogue_deploy::{chart, version};
use lab::docs::{broken_links, reference, rules};
use lab::matrix::{self, Nightly, Nodes, nightly};
use lab::node_table::{self, page};
use lab::paths::{LabDir, workspace_root};
use tokio::process::Command;

use super::build;

/// Version of mdbook, which builds the book.
const MDBOOK: &str = "0.5.4";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Change no page: fail where one differs from the code
    #[arg(long)]
    check: bool,

    /// First record a run of .ci/nightly, whose steps are in FILE
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    nightly: Option<PathBuf>,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(steps) = &arguments.nightly {
        record_nightly(steps)?;
    }
    build::debug(&["epilogue-agent", "epilogue-controller", "kubectl-epilogue"]).await?;
    let path = workspace_root().join(reference::PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rendered = reference::rendered(&page, agent_core::agent::REASONS).await?;
    if page != rendered {
        ensure!(
            !arguments.check,
            "{} differs from the code: run `cargo lab docs`",
            reference::PAGE
        );
        std::fs::write(&path, rendered)?;
        println!("wrote {}", reference::PAGE);
    }
    pages_of_rules(arguments.check)?;
    chart_values(arguments.check)?;
    matrix_page(arguments.check)?;
    ends_of_nodes(arguments.check)?;
    versions(arguments.check)?;
    let broken = broken_links()?;
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    book().await
}

/// Writes how many rules of each page are assumed, and prints it.
fn pages_of_rules(check: bool) -> anyhow::Result<()> {
    for name in rules::PAGES {
        let page = rules::read(name)?;
        let rendered = rules::rendered(&page).with_context(|| name.to_owned())?;
        if page != rendered {
            ensure!(!check, "{name} has other figures than its entries: run `cargo lab docs`");
            std::fs::write(workspace_root().join(name), rendered)?;
            println!("wrote {name}");
        }
        println!("{name}: {}", rules::Figures::of(&page));
    }
    Ok(())
}

/// Writes the table of the chart's values.
fn chart_values(check: bool) -> anyhow::Result<()> {
    let path = workspace_root().join("deploy").join(chart::README);
    let readme = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let values = chart::directory().join("values.yaml");
    let values = std::fs::read_to_string(&values).with_context(|| values.display().to_string())?;
    let rendered = chart::rendered(&readme, &values)
        .with_context(|| format!("{} lacks the marks of the table", path.display()))?;
    if readme != rendered {
        ensure!(!check, "{} differs from values.yaml: run `cargo lab docs`", path.display());
        std::fs::write(&path, rendered)?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Records a run of this commit, whose steps are in the file. Its upgrades began where
/// `.ci/nightly` says.
fn record_nightly(steps: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(steps).with_context(|| steps.display().to_string())?;
    let steps = nightly::steps(&text)
        .with_context(|| format!("{}: expected lines of .ci/steps", steps.display()))?;
    let former = std::env::var("EPILOGUE_FORMER").context("EPILOGUE_FORMER, of .ci/nightly")?;
    let head = std::process::Command::new("git")
        .arg("-C")
        .arg(workspace_root())
        .args(["rev-parse", "HEAD"])
        .output()
        .context("start git")?;
    ensure!(head.status.success(), "git: {}", String::from_utf8_lossy(&head.stderr));
    let commit = String::from_utf8_lossy(&head.stdout).trim().to_owned();
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    Nightly { date, commit, former, steps }.write()?;
    Ok(())
}

/// Writes the page of the Kubernetes versions from the record of the last runs.
fn matrix_page(check: bool) -> anyhow::Result<()> {
    let path = matrix::page_path();
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (record, nodes, nightly) = (matrix::Record::read()?, Nodes::read()?, Nightly::read()?);
    if page != matrix::page::render(&record, &nodes, nightly.as_ref()) {
        ensure!(!check, "{} differs from its record: run `cargo lab docs`", path.display());
        record.write()?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Writes the tables of how nodes end from the record of their last runs.
pub(crate) fn ends_of_nodes(check: bool) -> anyhow::Result<()> {
    let record = node_table::Record::read()?;
    for name in [page::PAGE, page::README] {
        let path = workspace_root().join(name);
        let old = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let new = page::rendered(name, &old, &record)?;
        if old != new {
            ensure!(!check, "{name} differs from tests/node/ends.json: run `cargo lab docs`");
            std::fs::write(&path, new)?;
            println!("wrote {name}");
        }
    }
    Ok(())
}

/// Sets the version of `Cargo.toml` in the files that repeat it.
fn versions(check: bool) -> anyhow::Result<()> {
    for (path, right) in version::differing(&workspace_root())? {
        let path = path.display();
        ensure!(!check, "{path} names another version than Cargo.toml: run `cargo lab docs`");
        std::fs::write(path.to_string(), right)?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Builds the book; installs mdbook into the machine's cache if it is missing.
async fn book() -> anyhow::Result<()> {
    let root = LabDir::of_workspace().cache().join(format!("mdbook-{MDBOOK}"));
    let mdbook = root.join("bin/mdbook");
    if !mdbook.exists() {
        let installed = lab::cargo::cargo()
            .args(["install", "--quiet", "--locked", "--debug", "--no-default-features"])
            .args(["--version", MDBOOK, "mdbook", "--root"])
            .arg(&root)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TARGET_DIR", workspace_root().join("target/lab/tools"))
            .status()
            .await
            .context("start cargo")?;
        ensure!(installed.success(), "mdbook {MDBOOK} was not installed; cargo's errors are above");
    }
    let built = Command::new(&mdbook)
        .arg("build")
        .arg(workspace_root().join("docs"))
        .status()
        .await
        .context("start mdbook")?;
    ensure!(built.success(), "the book was not built; mdbook's errors are above");
    println!("target/book/index.html");
    Ok(())
}
