//! Reads a cgroup's files that show kills: `memory.events`, `memory.max`, `cgroup.events`.

use std::io;
use std::path::Path;

use agent_core::pressure::observe::stat;
use nix::errno::Errno;

use crate::host::read_kernel;

/// The counters of `memory.events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// How often memory was short at this cgroup's limit, or at one below it.
    pub(super) oom: u64,
    /// How many processes in it, or below it, were killed, wherever memory was short.
    pub(super) kills: u64,
}

impl Counters {
    /// Reads `memory.events` or `memory.events.local`.
    pub(super) fn read(file: &Path) -> io::Result<Self> {
        Ok(Self::parse(&read_kernel(file)?))
    }

    /// The larger of each.
    pub(super) fn max(self, other: Self) -> Self {
        Self { oom: self.oom.max(other.oom), kills: self.kills.max(other.kills) }
    }

    fn parse(text: &str) -> Self {
        let count = |word| stat(text, word).unwrap_or(0);
        Self { oom: count("oom"), kills: count("oom_kill") }
    }
}

/// `memory.max`; `None` without a limit.
pub(super) fn limit(cgroup: &Path) -> Option<u64> {
    read_kernel(&cgroup.join("memory.max")).ok()?.trim().parse().ok()
}

/// Whether the cgroup, or one below it, has processes; `None` if that is unknown.
pub(super) fn is_populated(cgroup: &Path) -> Option<bool> {
    match read_kernel(&cgroup.join("cgroup.events")) {
        Ok(text) => Some(stat(&text, "populated").is_some_and(|count| count != 0)),
        Err(error) if is_gone(&error) && !cgroup.exists() => Some(false),
        Err(_) => None,
    }
}

/// The processes directly in the cgroup, as this process's pid namespace numbers them.
pub(super) fn processes(cgroup: &Path) -> Vec<u32> {
    let text = read_kernel(&cgroup.join("cgroup.procs")).unwrap_or_default();
    // Processes of other namespaces show as 0.
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
}

/// Whether the cgroup was removed before or during the read.
pub(super) fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::ENOENT as i32, Errno::ENODEV as i32, Errno::ENOTDIR as i32];
    error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_counters_are_read_by_their_names() {
        let text = "low 0\nhigh 1\nmax 22\noom 3\noom_kill 4\noom_group_kill 5\nsock_throttled 6\n";
        assert_eq!(Counters::parse(text), Counters { oom: 3, kills: 4 });
        for text in ["", "oom", "oom \noom_kill -1\n", "oom_kill x\nxoom 7\n oom 8"] {
            assert_eq!(Counters::parse(text), Counters::default(), "{text:?}");
        }
    }

    #[test]
    fn no_limit_is_none() {
        let dir = tempfile::tempdir().expect("must be creatable");
        assert_eq!(limit(dir.path()), None);
        for (text, expected) in [("67108864\n", Some(67_108_864)), ("max\n", None), ("", None)] {
            std::fs::write(dir.path().join("memory.max"), text).expect("must be writable");
            assert_eq!(limit(dir.path()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_cgroup_that_is_gone_has_no_processes_and_an_unreadable_one_might() {
        let dir = tempfile::tempdir().expect("must be creatable");
        let cgroup = dir.path().join("c");
        assert_eq!(is_populated(&cgroup), Some(false));
        std::fs::create_dir(&cgroup).expect("must be creatable");
        assert_eq!(is_populated(&cgroup), None);
        std::fs::write(cgroup.join("cgroup.procs"), "12\n0\n").expect("must be writable");
        for (populated, expected) in [(1, Some(true)), (0, Some(false))] {
            let text = format!("populated {populated}\nfrozen 0\n");
            std::fs::write(cgroup.join("cgroup.events"), text).expect("must be writable");
            assert_eq!(is_populated(&cgroup), expected);
        }
        assert_eq!(processes(&cgroup), [12]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_counters(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Counters::parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
