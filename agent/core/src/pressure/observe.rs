//! Reads memory, processes and stalls from the host's files, as the kubelet does. The texts are
//! arguments; no text causes a panic.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use super::signal::Signal;

/// A cgroup's limit above this value means no limit. ([EV2])
const UNLIMITED_MIN: u64 = 1 << 62;

/// Total and available amount of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// Available amount, in bytes, inodes or tasks.
    pub available: u64,
    /// Total amount.
    pub capacity: u64,
}

/// One measurement of one signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Measured values.
    pub observation: Observation,
    /// Time of the measurement, on the monotonic clock.
    pub at: Duration,
}

/// Measurements by signal; a signal that could not be measured is missing. ([EV7])
pub type Measurements = BTreeMap<Signal, Measured>;

/// Usage by location, in bytes or inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskUsage {
    /// The containers' writable layers.
    pub rootfs: u64,
    /// Logs.
    pub logs: u64,
    /// hostPath, configMap and emptyDir with the default medium.
    pub volumes: u64,
}

impl DiskUsage {
    /// Sum of all locations.
    pub fn sum(self) -> u64 {
        self.rootfs.saturating_add(self.logs).saturating_add(self.volumes)
    }
}

/// Which file systems are on their own devices. ([EV5])
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DiskLayout {
    /// All are on one device.
    Single,
    /// Images and writable layers share their own device.
    DedicatedImages,
    /// Images have their own device; writable layers are on the node's.
    Split,
}

/// A text lacks an expected field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file} has no {field}")]
pub struct Unreadable {
    /// Name of the file.
    pub file: &'static str,
    /// The expected field.
    pub field: &'static str,
}

/// Reads `memory.available`: the installed memory minus the working set of the whole machine and
/// minus huge pages, which no other memory can use. The root cgroup has no `memory.current`, so its
/// usage is `anon` plus `file`. ([EV1])
pub fn memory(meminfo: &str, root_stat: &str) -> Result<Observation, Unreadable> {
    let total = meminfo_bytes(meminfo, "MemTotal:")
        .ok_or(Unreadable { file: "/proc/meminfo", field: "MemTotal" })?;
    let field = |field| {
        stat(root_stat, field).ok_or(Unreadable { file: "memory.stat of the root cgroup", field })
    };
    let usage = field("anon")?.saturating_add(field("file")?);
    let working_set = usage.saturating_sub(field("inactive_file")?);
    // A kernel that does not count huge pages has no such line.
    let huge_pages = meminfo_bytes(meminfo, "Hugetlb:").unwrap_or(0);
    let available = total.saturating_sub(working_set).saturating_sub(huge_pages);
    Ok(Observation { available, capacity: available.saturating_add(working_set) })
}

/// Reads `allocatableMemory.available` of the cgroup that holds all pods; `None` if the cgroup has
/// no limit. ([EV2])
pub fn allocatable_memory(
    max: &str,
    current: &str,
    stat: &str,
) -> Result<Option<Observation>, Unreadable> {
    if max.trim() == "max" {
        return Ok(None);
    }
    let unreadable = Unreadable { file: "memory.max of kubepods", field: "number" };
    let capacity = number(max).ok_or(unreadable)?;
    if capacity > UNLIMITED_MIN {
        return Ok(None);
    }
    let used = working_set(current, stat)?;
    Ok(Some(Observation { available: capacity.saturating_sub(used), capacity }))
}

/// Working set of a cgroup: its usage minus its inactive files, which it can release at once.
pub fn working_set(current: &str, memory_stat: &str) -> Result<u64, Unreadable> {
    let unreadable = Unreadable { file: "memory.current", field: "number" };
    let current = number(current).ok_or(unreadable)?;
    let unreadable = Unreadable { file: "memory.stat", field: "inactive_file" };
    let inactive = stat(memory_stat, "inactive_file").ok_or(unreadable)?;
    Ok(current.saturating_sub(inactive))
}

/// Reads `pid.available`: the number of tasks that the host can still start. ([EV3])
pub fn pids(pid_max: &str, threads_max: &str, loadavg: &str) -> Result<Observation, Unreadable> {
    let pid_max = number(pid_max).ok_or(Unreadable { file: "kernel/pid_max", field: "number" })?;
    let threads_max =
        number(threads_max).ok_or(Unreadable { file: "kernel/threads-max", field: "number" })?;
    let tasks = loadavg
        .split_whitespace()
        .nth(3)
        .and_then(|field| number(field.split_once('/')?.1))
        .ok_or(Unreadable { file: "/proc/loadavg", field: "number of tasks" })?;
    let capacity = pid_max.min(threads_max);
    Ok(Observation { available: capacity.saturating_sub(tasks), capacity })
}

/// Reads free swap and total swap; without swap both are 0.
pub fn swap(meminfo: &str) -> Result<Observation, Unreadable> {
    let field = |name, field| {
        meminfo_bytes(meminfo, name).ok_or(Unreadable { file: "/proc/meminfo", field })
    };
    Ok(Observation {
        available: field("SwapFree:", "SwapFree")?,
        capacity: field("SwapTotal:", "SwapTotal")?,
    })
}

/// One line of a pressure file: the share of time in which tasks stalled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stall {
    /// Average over 10 s, in percent.
    pub avg10: f64,
    /// Total since the boot, in µs.
    pub total: u64,
}

/// Content of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Psi {
    /// Stall of at least one task.
    pub some: Stall,
    /// Stall of all tasks.
    pub full: Stall,
}

/// Reads a pressure file (`memory.pressure`, `/proc/pressure/io`).
pub fn psi(text: &str) -> Result<Psi, Unreadable> {
    let line = |name: &'static str| {
        text.lines()
            .find_map(|line| stall(line.strip_prefix(name)?))
            .ok_or(Unreadable { file: "the pressure file", field: name })
    };
    Ok(Psi { some: line("some ")?, full: line("full ")? })
}

fn stall(line: &str) -> Option<Stall> {
    let field = |name: &str| {
        line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let percent = |name| field(name)?.parse().ok().filter(|value: &f64| value.is_finite());
    Some(Stall { avg10: percent("avg10")?, total: number(field("total")?)? })
}

/// Reads one counter of a flat keyed file, such as `oom_kill` of `memory.events`.
pub fn stat(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| number(value)).flatten()
    })
}

fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    number(line.trim().strip_suffix("kB")?)?.checked_mul(1_024)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:        100 kB\n\
                           SwapTotal:       500 kB\nSwapFree:        200 kB\n";

    fn observation(available: u64, capacity: u64) -> Observation {
        Observation { available, capacity }
    }

    #[test]
    fn memory_is_what_is_installed_less_the_working_set() {
        // MemTotal minus (`anon` plus `file` minus `inactive_file`). ([EV1])
        let kib = |value: u64| value * 1_024;
        let stat = |anon: u64, file: u64, inactive: u64| {
            format!(
                "anon {}\nfile {}\nkernel 9999\ninactive_anon 1\ninactive_file {}\n",
                kib(anon),
                kib(file),
                kib(inactive)
            )
        };
        let table = [
            (stat(300, 200, 150), observation(kib(650), kib(1_000))),
            // The result is never below zero.
            (stat(0, 100, 150), observation(kib(1_000), kib(1_000))),
            (stat(2_000, 0, 0), observation(0, kib(2_000))),
        ];
        for (stat, expected) in table {
            assert_eq!(memory(MEMINFO, &stat), Ok(expected));
        }
        let missing = memory(MEMINFO, "anon 1\nfile 2\n").expect_err("must be reported");
        assert_eq!(missing.to_string(), "memory.stat of the root cgroup has no inactive_file");
        assert!(memory("MemTotal: lots\n", "").is_err());
        assert_eq!(swap(MEMINFO), Ok(observation(kib(200), kib(500))));
        assert!(swap("").is_err());
    }

    #[test]
    fn huge_pages_are_neither_available_nor_part_of_the_capacity() {
        // The kubelet subtracts them since 1.37. ([EV1])
        let kib = |value: u64| value * 1_024;
        let stat = format!("anon {}\nfile {}\ninactive_file 0\n", kib(300), kib(200));
        let with = |huge_pages: u64| {
            let meminfo = format!("{MEMINFO}Hugepagesize:  2048 kB\nHugetlb:  {huge_pages} kB\n");
            memory(&meminfo, &stat)
        };
        assert_eq!(with(0), Ok(observation(kib(500), kib(1_000))));
        assert_eq!(with(400), Ok(observation(kib(100), kib(600))));
        assert_eq!(with(600), Ok(observation(0, kib(500))), "never below zero");
    }

    #[test]
    fn allocatable_memory_needs_a_limit() {
        // `memory.max` minus the working set; without a limit no observation. ([EV2])
        let stat = "inactive_file 100\n";
        let table = [
            ("1000\n", "400\n", Ok(Some(observation(700, 1_000)))),
            ("1000", "50", Ok(Some(observation(1_000, 1_000)))),
            ("100", "400", Ok(Some(observation(0, 100)))),
            ("max\n", "400", Ok(None)),
            ("4611686018427387905", "1", Ok(None)),
        ];
        for (max, current, expected) in table {
            assert_eq!(allocatable_memory(max, current, stat), expected);
        }
        assert!(allocatable_memory("", "1", stat).is_err());
        assert!(allocatable_memory("1", "x", stat).is_err());
        assert!(allocatable_memory("1", "1", "").is_err());
    }

    #[test]
    fn pids_are_counted_against_the_lower_of_two_limits() {
        // The lower of the two limits minus all tasks of the host. ([EV3])
        let load = "0.10 0.20 0.30 2/345 6789\n";
        let table = [
            ("32768\n", "63432\n", load, Ok(observation(32_423, 32_768))),
            ("4194304", "1000", load, Ok(observation(655, 1_000))),
            ("300", "1000", load, Ok(observation(0, 300))),
        ];
        for (pid_max, threads_max, load, expected) in table {
            assert_eq!(pids(pid_max, threads_max, load), expected);
        }
        for load in ["", "0.1 0.2 0.3", "0.1 0.2 0.3 345", "0.1 0.2 0.3 1/x 2"] {
            assert!(pids("1", "1", load).is_err(), "{load:?}");
        }
    }

    #[test]
    fn pressure_files_are_read() {
        let text = "some avg10=1.53 avg60=0.87 avg300=0.25 total=1234567\n\
                    full avg10=0.00 avg60=0.10 avg300=0.00 total=99\n";
        let psi_read = psi(text).expect("must be readable");
        assert_eq!(psi_read.some, Stall { avg10: 1.53, total: 1_234_567 });
        assert_eq!(psi_read.full.total, 99);
        for text in ["", "some avg10=1 avg60=1 total=1", "some avg10=NaN avg60=1 total=1\nfull x"] {
            assert!(psi(text).is_err(), "{text:?}");
        }
        assert_eq!(stat("low 0\noom 1\noom_kill 3\n", "oom_kill"), Some(3));
        assert_eq!(stat("oom_kill_group 3", "oom_kill"), None);
    }
}
