//! Packs the relocations of a static program. It reads them at its start, and the unpacked table is
//! half a MiB of each agent's memory.

use std::env::var;
use std::process::Command;

/// The first glibc whose static programs can read packed relocations. musl can, as Rust brings it.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    let reads = match var("CARGO_CFG_TARGET_ENV").as_deref() {
        Ok("musl") => true,
        Ok("gnu") => var("HOST") == var("TARGET") && glibc() >= Some(GLIBC_MIN),
        _ => false,
    };
    if is_static && reads {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's glibc, such as (2, 36).
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let said = String::from_utf8(said).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
