//! Pushes the images, and an index of all platforms, to a registry.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::output;
use super::error::ReleaseError;
use super::image;
use super::platform::Platform;
use super::source::Source;
use super::tools::Tools;

/// Pushes the image of each platform as `REGISTRY/epilogue:VERSION-ARCH`, and an index of them as
/// `REGISTRY/epilogue:VERSION`. Returns the index by its digest.
pub fn images(
    source: &Source,
    tools: &Tools,
    registry: &str,
    platforms: &[Platform],
    out: &Path,
) -> Result<String, ReleaseError> {
    let crane = Crane(tools.crane()?);
    let name = format!("{registry}/epilogue");
    let of_platform = |platform: &Platform| format!("{name}:{}-{}", source.version, platform.arch);
    for platform in platforms {
        let layout = tempfile::tempdir().map_err(ReleaseError::file("the temporary directory"))?;
        image::unpack(&image::file(source, platform, out), layout.path())?;
        let reference = of_platform(platform);
        crane.run(["push".as_ref(), layout.path().as_os_str(), reference.as_ref()])?;
    }
    let tag = format!("{name}:{}", source.version);
    let mut append: Vec<String> =
        ["index", "append", "--docker-empty-base=false", "--tag", &tag].map(str::to_owned).to_vec();
    for platform in platforms {
        append.extend(["--manifest".to_owned(), of_platform(platform)]);
    }
    crane.run(append)?;
    let digest = crane.run(["digest", tag.as_str()])?;
    Ok(format!("{name}@{}", digest.trim()))
}

struct Crane(PathBuf);

impl Crane {
    fn run<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String, ReleaseError> {
        output(Command::new(&self.0).args(arguments), "it was built from deploy/tools/crane")
    }
}
