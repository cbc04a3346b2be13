//! Counts what lies in a directory and below it, as `du` does: allocated blocks, each file once
//! however many names it has, and no other file systems. The directory's owner may change it
//! meanwhile, and cannot lead the walk out of it: the walk never follows links.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::time::Instant;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{self, AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};

/// Maximum number of directories that are open at once; what lies deeper is not counted.
const DEPTH_MAX: usize = 64;
/// Number of entries between two checks of the clock.
const ENTRIES_PER_SAMPLE: u64 = 32;
/// Opens a directory itself, not the target of a link.
const DIRECTORY: OFlag =
    OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);
/// Size of a block of `st_blocks`, whatever the file system's own blocks are.
const BLOCK_BYTES: u64 = 512;

/// The limits of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The time at which it ends.
    pub(super) until: Instant,
    /// How many entries it may still read.
    pub(super) entries: u64,
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Allocated bytes.
    pub(super) bytes: u64,
    /// Files, directories and the rest.
    pub(super) inodes: u64,
    /// Whether something was left out: then the figures are lower bounds.
    pub(super) cut_short: bool,
}

impl Tally {
    /// The sum of both.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            cut_short: self.cut_short || other.cut_short,
        }
    }
}

/// A directory that is being walked.
struct Level {
    dir: Dir,
    /// Its subdirectories that are still to be walked.
    below: Vec<CString>,
}

struct Walk<'a> {
    budget: &'a mut Budget,
    device: u64,
    tally: Tally,
    /// Files with several names, by inode.
    seen: BTreeSet<u64>,
}

/// The device that a path lies on.
pub(super) fn device(path: &Path) -> Result<u64, Errno> {
    Ok(fstat(open(path)?)?.st_dev)
}

/// Counts a directory and all below it, as far as the budget allows.
pub(super) fn walk(path: &Path, budget: &mut Budget) -> Result<Tally, Errno> {
    let dir = open(path)?;
    let stat = fstat(&dir)?;
    let mut walk =
        Walk { budget, device: stat.st_dev, tally: Tally::default(), seen: BTreeSet::new() };
    walk.count(&stat);
    let mut levels = vec![walk.enter(dir)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.below.pop() else {
            levels.pop();
            continue;
        };
        if walk.is_over() || levels.len() >= DEPTH_MAX {
            walk.tally.cut_short = true;
            continue;
        }
        let level = levels.last_mut().expect("the loop's condition must hold");
        match walk.go_down(&level.dir, &name) {
            Ok(level) => levels.extend(level),
            Err(_) => walk.tally.cut_short = true,
        }
    }
    Ok(walk.tally)
}

fn open(path: &Path) -> Result<Dir, Errno> {
    Dir::open(path, DIRECTORY, Mode::empty())
}

impl Walk<'_> {
    /// Enters a subdirectory; `None` if it has gone, or is no longer a directory.
    fn go_down(&mut self, dir: &Dir, name: &CStr) -> Result<Option<Level>, Errno> {
        match Dir::openat(dir, name, DIRECTORY, Mode::empty()) {
            Ok(dir) if fstat(&dir)?.st_dev == self.device => self.enter(dir).map(Some),
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Counts the entries of a directory, and returns its subdirectories.
    fn enter(&mut self, mut dir: Dir) -> Result<Level, Errno> {
        let lies_in = fcntl::openat(&dir, c".", DIRECTORY, Mode::empty())?;
        let mut below = Vec::new();
        for (position, entry) in dir.iter().enumerate() {
            let is_sample = position as u64 % ENTRIES_PER_SAMPLE == ENTRIES_PER_SAMPLE - 1;
            if self.budget.entries == 0 || (is_sample && self.is_over()) {
                self.tally.cut_short = true;
                break;
            }
            self.budget.entries -= 1;
            let name = entry?;
            let name = name.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // An entry that is gone by now does not count.
            let Ok(stat) = fstatat(&lies_in, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            if stat.st_dev != self.device {
                continue;
            }
            self.count(&stat);
            if kind(&stat) == SFlag::S_IFDIR {
                below.push(name.to_owned());
            }
        }
        Ok(Level { dir, below })
    }

    fn count(&mut self, stat: &FileStat) {
        let several = kind(stat) != SFlag::S_IFDIR && stat.st_nlink > 1;
        if several && !self.seen.insert(stat.st_ino) {
            return;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.tally.bytes = self.tally.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        self.tally.inodes = self.tally.inodes.saturating_add(1);
    }

    fn is_over(&self) -> bool {
        self.budget.entries == 0 || Instant::now() >= self.budget.until
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FILES: u64 = 5_000;

    fn budget(entries: u64) -> Budget {
        Budget { until: Instant::now() + Duration::from_mins(1), entries }
    }

    #[test]
    fn a_walk_stays_on_its_file_system() {
        // Every Linux has separate file systems below /dev.
        let shm = tempfile::tempdir_in("/dev/shm").expect("/dev/shm must be writable");
        for number in 0..FILES {
            std::fs::File::create(shm.path().join(format!("f{number}"))).expect("must be writable");
        }
        assert_ne!(device(Path::new("/dev")), device(shm.path()));
        let found = walk(Path::new("/dev"), &mut budget(1_000_000)).expect("must be walkable");
        assert!(found.inodes < FILES && !found.cut_short, "{found:?}");
        let inside = walk(shm.path(), &mut budget(1_000_000)).expect("must be walkable");
        assert_eq!(inside.inodes, FILES + 1);
    }

    #[test]
    fn a_walk_ends_with_its_budget_and_says_so() {
        let dir = tempfile::tempdir().expect("must be creatable");
        for number in 0..100 {
            std::fs::create_dir(dir.path().join(format!("d{number}"))).expect("must be writable");
        }
        for entries in [0, 1, 50, 101] {
            let mut left = budget(entries);
            let found = walk(dir.path(), &mut left).expect("must be walkable");
            assert!(found.cut_short && left.entries == 0, "{entries}: {found:?}");
            assert!(found.inodes <= entries + 1, "{entries}: {found:?}");
        }
        let mut over = Budget { until: Instant::now(), entries: 1_000_000 };
        assert!(walk(dir.path(), &mut over).expect("must be walkable").cut_short);
        let all = walk(dir.path(), &mut budget(1_000)).expect("must be walkable");
        assert_eq!((all.inodes, all.cut_short), (101, false));
    }

    #[test]
    fn what_is_no_directory_cannot_be_walked() {
        let dir = tempfile::tempdir().expect("must be creatable");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).expect("must be creatable");
        assert!(walk(&link, &mut budget(9)).is_err());
        assert!(walk(&dir.path().join("nothing"), &mut budget(9)).is_err());
        assert!(walk(Path::new("/proc/version"), &mut budget(9)).is_err());
    }
}
