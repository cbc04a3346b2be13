//! Builds upstream's programs from `tests/control-plane/` when its sources, the Go version or the
//! flags change. Keeps them in the cache of the machine for every clone.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use tokio::process::Command;

use crate::error::LabError;
use crate::kubernetes::{Feature, Version};
use crate::paths::{LabDir, create_private, workspace_root};

/// Speeds up the compiler. Each process compiles on one of the cores, and collects no garbage
/// before it has allocated a gibibyte. Without these settings a build takes a quarter more CPU.
pub(crate) const GO_ENVIRONMENT: [(&str, &str); 4] =
    [("CGO_ENABLED", "0"), ("GOGC", "off"), ("GOMEMLIMIT", "1GiB"), ("GOMAXPROCS", "1")];

/// Most of the packages are generated and never hot, so only functions in these are inlined, which
/// saves another fifth of the build. The last matching pattern counts. The programs are not
/// debugged.
pub(crate) const COMPILER_FLAGS: [&str; 3] = [
    "-gcflags=all=-l -dwarf=false",
    "-gcflags=std=-dwarf=false",
    "-gcflags=k8s.io/apimachinery/...=-dwarf=false",
];

/// States of each program that the cache keeps: for this clone and for another one.
const KEPT_MAX: usize = 3;

const PROGRESS_EVERY: Duration = Duration::from_secs(20);

/// An upstream program. Each takes minutes to compile, so a command names those it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoProgram {
    /// etcd and kube-apiserver.
    ControlPlane,
    /// kube-scheduler.
    Scheduler,
    /// kube-controller-manager.
    ControllerManager,
    /// The kubelet, for a real node.
    Kubelet,
}

impl GoProgram {
    /// All programs.
    pub const ALL: [Self; 4] =
        [Self::ControlPlane, Self::Scheduler, Self::ControllerManager, Self::Kubelet];

    /// The program's file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Scheduler => "kube-scheduler",
            Self::ControllerManager => "kube-controller-manager",
            Self::Kubelet => "kubelet",
        }
    }

    /// Its package, relative to the module.
    fn package(self) -> &'static str {
        match self {
            Self::ControlPlane => ".",
            Self::Scheduler => "./kube-scheduler",
            Self::ControllerManager => "./kube-controller-manager",
            Self::Kubelet => "./kubelet",
        }
    }

    /// The version whose modules the program is built from, in a lab of `version`. Without a
    /// kubelet of the version, the newest one is taken, without a controller manager the next one.
    fn source(self, version: Version) -> Version {
        match self {
            Self::Kubelet if version.has_kubelet() => version,
            Self::Kubelet => Version::NODE,
            Self::ControllerManager | Self::Scheduler => {
                let has_own =
                    |it: &Version| *it >= version && it.has(Feature::OwnControllerManager);
                Version::KNOWN.into_iter().find(has_own).unwrap_or(version)
            }
            Self::ControlPlane => version,
        }
    }
}

/// Builds the programs of a lab of `version` that are missing or stale. Prints progress to stderr.
pub async fn ensure(
    labs: &LabDir,
    version: Version,
    programs: &[GoProgram],
) -> Result<(), LabError> {
    let cache = labs.cache().join("bin");
    create_private(&cache)?;
    std::fs::create_dir_all(labs.bin()).map_err(LabError::file("create", labs.bin()))?;
    // Two labs that start at once build once.
    let lock_path = cache.join("go.lock");
    let lock = File::create(&lock_path).map_err(LabError::file("open", &lock_path))?;
    lock.lock().map_err(LabError::file("lock", &lock_path))?;

    for source in Version::KNOWN {
        let of_source = |program: &GoProgram| program.source(version) == source;
        let programs: Vec<GoProgram> = programs.iter().copied().filter(of_source).collect();
        if !programs.is_empty() {
            ensure_of_source(labs, &cache, version, source, &programs).await?;
        }
    }
    Ok(())
}

/// The same for programs that are built from the modules of one version.
async fn ensure_of_source(
    labs: &LabDir,
    cache: &Path,
    version: Version,
    source: Version,
    programs: &[GoProgram],
) -> Result<(), LabError> {
    let hash = sources_hash(&module(), source).await?;
    let cached = |program: GoProgram| cache.join(format!("{}{hash}", stem_of(program, source)));
    let missing: Vec<GoProgram> =
        programs.iter().copied().filter(|program| !cached(*program).exists()).collect();
    if !missing.is_empty() {
        build(cache, source, &missing, cached).await?;
    }
    for program in programs.iter().copied() {
        use_cached(&cached(program), &labs.go_program(program, version))?;
        remove_old(cache, &stem_of(program, source), &cached(program));
    }
    Ok(())
}

fn module() -> PathBuf {
    workspace_root().join("tests/control-plane")
}

/// The beginning of the cached files of a program: `kubelet-1.36-`.
fn stem_of(program: GoProgram, source: Version) -> String {
    format!("{}-{}-", program.name(), source.minor())
}

/// The kubelet for a real node.
#[derive(Clone, Debug)]
pub struct Kubelet {
    /// The executable.
    pub path: PathBuf,
    /// Identity of its sources: equal texts, equal programs.
    pub stamp: String,
}

/// The kubelet of a version, built if it is missing or stale.
pub async fn kubelet(labs: &LabDir, version: Version) -> Result<Kubelet, LabError> {
    ensure(labs, version, &[GoProgram::Kubelet]).await?;
    let stamp = sources_hash(&module(), GoProgram::Kubelet.source(version)).await?;
    Ok(Kubelet { path: labs.go_program(GoProgram::Kubelet, version), stamp })
}

/// Links the cached file to where the laboratory expects it. A lab that runs the old one is not
/// disturbed.
fn use_cached(cached: &Path, link: &Path) -> Result<(), LabError> {
    let file = File::options().append(true).open(cached);
    // The cache keeps the most recently used states.
    let touched = file.and_then(|file| file.set_modified(SystemTime::now()));
    if std::fs::read_link(link).is_ok_and(|target| target == cached) {
        return Ok(());
    }
    // A running program cannot be opened for writing, and is in use all the same.
    let _ = touched;
    let new = link.with_extension(format!("new-{}", std::process::id()));
    std::os::unix::fs::symlink(cached, &new).map_err(LabError::file("write", &new))?;
    std::fs::rename(&new, link).map_err(LabError::file("write", link))
}

/// Removes all but the most recent states of a program. A running program keeps its open file.
fn remove_old(cache: &Path, stem: &str, used: &Path) {
    let Ok(entries) = std::fs::read_dir(cache) else { return };
    let mut states: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| is_state_of(&entry.file_name().to_string_lossy(), stem))
        .filter(|entry| entry.path() != used)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    states.sort();
    let excess = states.len().saturating_sub(KEPT_MAX - 1);
    for (_, path) in states.drain(..excess) {
        // The next call retries a failed removal.
        let _ = std::fs::remove_file(path);
    }
}

/// Whether a file of the cache is a state of the program: `kubelet-1.36-0123456789abcdef`.
fn is_state_of(file: &str, stem: &str) -> bool {
    let hash = file.strip_prefix(stem);
    hash.is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Everything the programs depend on: equal hashes, equal programs.
async fn sources_hash(module: &Path, source: Version) -> Result<String, LabError> {
    let version = go().arg("version").output().await.map_err(spawn_failed)?.stdout;
    let version = String::from_utf8_lossy(&version);
    let mut all = format!("{version}{}{}\n", source.linker_flags(), COMPILER_FLAGS.concat());
    let go_mod = module.join(source.go_mod());
    let mut paths = vec![go_mod.with_extension("sum"), go_mod];
    sources_below(module, &mut paths)?;
    paths.sort();
    for path in paths {
        let content = std::fs::read(&path).map_err(LabError::file("read", &path))?;
        let name = path.strip_prefix(module).unwrap_or(&path).display();
        writeln!(all, "{name} {:016x}", hash_of(&content)).expect("a String must take text");
    }
    Ok(format!("{:016x}", hash_of(&all)))
}

fn hash_of(content: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

fn sources_below(dir: &Path, paths: &mut Vec<PathBuf>) -> Result<(), LabError> {
    for entry in std::fs::read_dir(dir).map_err(LabError::file("read", dir))? {
        let path = entry.map_err(LabError::file("read", dir))?.path();
        if path.is_dir() {
            sources_below(&path, paths)?;
        } else if is_source(&path) {
            paths.push(path);
        }
    }
    Ok(())
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "go")
}

/// Builds the programs by one `go build`, which compiles shared packages once.
async fn build(
    cache: &Path,
    source: Version,
    programs: &[GoProgram],
    cached: impl Fn(GoProgram) -> PathBuf,
) -> Result<(), LabError> {
    let names = programs.iter().map(|program| program.name()).collect::<Vec<_>>().join(", ");
    let names = format!("{names} of Kubernetes {source}");
    eprintln!("building {names} (minutes the first time) …");
    let start = Instant::now();
    let new = tempfile::tempdir_in(cache).map_err(LabError::file("create", cache))?;
    let mut child = go()
        .args(["build", "-p", &cores().to_string(), "-trimpath"])
        .args(["-ldflags", &source.linker_flags()])
        .arg(format!("-modfile={}", source.go_mod().display()))
        .args(COMPILER_FLAGS)
        .arg("-o")
        .arg(new.path().join(""))
        .args(programs.iter().map(|program| program.package()))
        .current_dir(module())
        .envs(GO_ENVIRONMENT)
        .stdin(Stdio::null())
        // One line per downloaded module is noise; errors are shown below.
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(spawn_failed)?;
    let mut stderr = child.stderr.take().expect("stderr was piped");
    let said = tokio::spawn(async move {
        let mut said = Vec::new();
        // After an error, the output read so far is shown.
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stderr, &mut said).await;
        said
    });
    let status = loop {
        match tokio::time::timeout(PROGRESS_EVERY, child.wait()).await {
            Ok(status) => break status.map_err(spawn_failed)?,
            Err(_) => eprintln!("building {names} … {} s", start.elapsed().as_secs()),
        }
    };
    if !status.success() {
        eprint!("{}", String::from_utf8_lossy(&said.await.unwrap_or_default()));
        return Err(LabError::Build(status));
    }
    for program in programs.iter().copied() {
        let (built, path) = (new.path().join(program.name()), cached(program));
        std::fs::rename(&built, &path).map_err(LabError::file("write", &path))?;
    }
    eprintln!("built {names} in {} s", start.elapsed().as_secs());
    Ok(())
}

/// How many packages are compiled at once.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn go() -> Command {
    Command::new("go")
}

pub(crate) fn spawn_failed(source: std::io::Error) -> LabError {
    LabError::Spawn { program: "go".into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_the_most_recent_states() {
        let cache = tempfile::tempdir().expect("must be creatable");
        let state = |number: u64| cache.path().join(format!("kubelet-1.36-{number:016x}"));
        for number in 0..6 {
            let file = File::create(state(number)).expect("must be creatable");
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(number);
            file.set_modified(at).expect("must be settable");
        }
        let other = cache.path().join("kubelet-1.37-0000000000000001");
        File::create(&other).expect("must be creatable");
        remove_old(cache.path(), "kubelet-1.36-", &state(0));
        let left: Vec<u64> = (0..6).filter(|number| state(*number).exists()).collect();
        assert_eq!(left, [0, 4, 5], "the one in use and the two most recent");
        assert!(other.exists());
    }

    #[test]
    fn only_files_with_a_hash_are_states_of_a_program() {
        let stem = stem_of(GoProgram::Kubelet, Version::NODE);
        assert!(is_state_of(&format!("{stem}0123456789abcdef"), &stem));
        assert!(!is_state_of(&format!("{stem}new"), &stem));
        assert!(!is_state_of("kubelet-1.33-0123456789abcdef", &stem));
        assert!(!is_state_of("control-plane-1.36-0123456789abcdef", &stem));
    }

    #[test]
    fn a_version_without_a_controller_manager_takes_the_next_one() {
        let [oldest, next, ..] = Version::KNOWN;
        let source = |program: GoProgram, version| program.source(version).minor();
        assert_eq!(source(GoProgram::ControlPlane, oldest), oldest.minor());
        assert_eq!(source(GoProgram::ControllerManager, oldest), next.minor());
        assert_eq!(source(GoProgram::ControllerManager, next), next.minor());
        assert_eq!(source(GoProgram::Kubelet, oldest), Version::NODE.minor());
    }

    #[tokio::test]
    async fn a_version_s_identity_depends_on_its_own_modules_only() {
        let module = tempfile::tempdir().expect("must be creatable");
        let [oldest, next, ..] = Version::KNOWN;
        for version in [oldest, next] {
            let go_mod = module.path().join(version.go_mod());
            std::fs::create_dir_all(go_mod.parent().expect("a directory")).expect("creatable");
            std::fs::write(&go_mod, "module m\n").expect("writable");
            std::fs::write(go_mod.with_extension("sum"), "").expect("writable");
        }
        let hash = async |version| sources_hash(module.path(), version).await.expect("a hash");
        let before = [hash(oldest).await, hash(next).await];
        assert_ne!(before[0], before[1], "equal modules of two versions are two programs");
        std::fs::write(module.path().join(next.go_mod()), "module n\n").expect("writable");
        let after = [hash(oldest).await, hash(next).await];
        assert!(before[0] == after[0] && before[1] != after[1]);
    }

    #[test]
    fn a_new_state_replaces_the_link_to_the_old_one() {
        let dir = tempfile::tempdir().expect("must be creatable");
        let link = dir.path().join("kubelet");
        for name in ["a", "b"] {
            let cached = dir.path().join(name);
            std::fs::write(&cached, name).expect("must be writable");
            use_cached(&cached, &link).expect("must be linkable");
            use_cached(&cached, &link).expect("must be linkable again");
            assert_eq!(std::fs::read_to_string(&link).expect("must be readable"), name);
        }
    }
}
