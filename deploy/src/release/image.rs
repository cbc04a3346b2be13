//! Packs the image of one platform by `deploy/image/pack`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::output;
use super::error::ReleaseError;
use super::platform::Platform;
use super::source::Source;

/// The programs of the image.
pub const PROGRAMS: [&str; 2] = ["epilogue-agent", "epilogue-controller"];

/// The name of the image, without its tag.
pub const NAME: &str = "registry.epilogue.dev/epilogue";

/// The file of the image.
pub fn file(source: &Source, platform: &Platform, out: &Path) -> PathBuf {
    out.join(format!("epilogue-v{}-linux-{}.oci.tar", source.version, platform.arch))
}

/// Packs the image. Equal programs make an equal file.
pub fn pack(
    source: &Source,
    programs: &Path,
    platform: &Platform,
    out: &Path,
) -> Result<(), ReleaseError> {
    let mut pack = Command::new(source.directory.join("deploy/image/pack"));
    pack.arg(file(source, platform, out))
        .arg(format!("{NAME}:{}", source.version))
        .args(PROGRAMS.map(|program| programs.join(program)))
        .env("ARCHITECTURE", platform.arch);
    output(&mut pack, "it is part of the sources").map(drop)
}

/// Extracts an image to a layout of directories, which crane pushes without a change.
pub(super) fn unpack(file: &Path, directory: &Path) -> Result<(), ReleaseError> {
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(file).arg("--directory").arg(directory);
    output(&mut tar, "Debian's package tar").map(drop)
}
