//! Makes a release from a tag: programs, image, chart, archives, krew manifest, SBOMs, checksums,
//! signatures. `deploy/release` runs it; docs/releasing.md explains it.

pub mod archive;
pub mod audit;
mod build;
pub mod checksums;
mod command;
mod error;
pub mod image;
pub mod pack;
pub mod platform;
pub mod publish;
mod sbom;
pub mod sign;
pub mod source;
pub mod tools;

use std::fs;
use std::path::{Path, PathBuf};

pub use error::ReleaseError;
use platform::Platform;
use source::Source;
use tools::Tools;

/// What to release, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The root of the checkout.
    pub root: PathBuf,
    /// The tag, such as `v0.2.0`.
    pub tag: String,
    /// The directory for the files; it must be empty or missing.
    pub out: PathBuf,
    /// The private key of cosign; without it nothing is signed.
    pub key: Option<PathBuf>,
    /// The registry that gets the image, such as `127.0.0.1:5000`.
    pub registry: Option<String>,
    /// The platforms. Programs of the first one must run on this machine.
    pub platforms: Vec<Platform>,
}

/// Makes the release, and prints each step.
pub fn run(options: &Options) -> Result<(), ReleaseError> {
    let source = Source::of_tag(&options.root, &options.tag)?;
    refuse_files(&options.out)?;
    let tools = Tools::of(&options.root);
    let mut built = Vec::new();
    for platform in &options.platforms {
        println!("build for {}", platform.target);
        let programs = build::programs(&source, &tools, platform)?;
        pack::platform(&source, &programs, platform, &options.out)?;
        for (program, bill) in sbom::write(&source, &tools, platform, &options.out)? {
            audit::compare(&programs.join(program), &bill)?;
        }
        built.push((*platform, programs));
    }
    println!("pack the plugin");
    pack::plugins(&source, &built, &options.out)?;
    pack::krew(&source, &options.platforms, &options.out)?;
    write(&options.out.join("RELEASE_NOTES.md"), &source.notes)?;
    let image = push(options, &source, &tools)?;
    // The digest is known once the image is in a registry.
    println!("pack the chart");
    let digest = image.as_deref().and_then(|image| image.split_once('@')).map(|(_, digest)| digest);
    pack::chart(&source, digest, &options.out)?;
    if let Some(key) = &options.key {
        sign::public_key(&tools, key, &options.out)?;
    }
    checksums::write(&options.out)?;
    if let Some(key) = &options.key {
        sign::checksums(&tools, key, &options.out)?;
    }
    println!("{}", options.out.display());
    Ok(())
}

/// Pushes and signs the image, if a registry is given. Returns it by its digest.
fn push(options: &Options, source: &Source, tools: &Tools) -> Result<Option<String>, ReleaseError> {
    let Some(registry) = &options.registry else { return Ok(None) };
    let image = publish::images(source, tools, registry, &options.platforms, &options.out)?;
    if let Some(key) = &options.key {
        sign::image(tools, key, &image)?;
    }
    write(&options.out.join("IMAGE"), &format!("{image}\n"))?;
    println!("pushed {image}");
    Ok(Some(image))
}

/// Files of another release would get into the checksums.
fn refuse_files(out: &Path) -> Result<(), ReleaseError> {
    fs::create_dir_all(out).map_err(ReleaseError::file(out))?;
    let mut entries = fs::read_dir(out).map_err(ReleaseError::file(out))?;
    if entries.next().is_some() { Err(ReleaseError::Out(out.to_owned())) } else { Ok(()) }
}

fn write(path: &Path, text: &str) -> Result<(), ReleaseError> {
    fs::write(path, text).map_err(ReleaseError::file(path))
}
