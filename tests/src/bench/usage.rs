//! Reads what a process uses of the machine, from its files in /proc. [`of`] reads them, the rest
//! is pure.

use std::time::Duration;

use crate::error::LabError;

/// Clock ticks per second in /proc: fixed by the kernel's ABI on every architecture that we run on.
const TICKS_PER_SECOND: u64 = 100;

/// What a process used until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu: Duration,
    pub(super) rss_kib: u64,
    pub(super) rss_peak_kib: u64,
}

/// The CPU time of the whole machine since its boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) busy: Duration,
    pub(super) all: Duration,
}

/// The usage of a running process.
pub(super) fn of(pid: u32) -> Result<Usage, LabError> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    let status = read(&format!("/proc/{pid}/status"))?;
    Ok(Usage {
        cpu: cpu(&stat).unwrap_or_default(),
        rss_kib: kib(&status, "VmRSS:").unwrap_or_default(),
        rss_peak_kib: kib(&status, "VmHWM:").unwrap_or_default(),
    })
}

/// The usage of the machine.
pub(super) fn of_machine() -> Result<Machine, LabError> {
    Ok(machine(&read("/proc/stat")?).unwrap_or_default())
}

fn read(path: &str) -> Result<String, LabError> {
    std::fs::read_to_string(path).map_err(LabError::file("read", path))
}

/// Fields 14 and 15 of /proc/PID/stat: user and system time of all its threads.
fn cpu(stat: &str) -> Option<Duration> {
    // The name in parentheses may itself contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(ticks(user + system))
}

fn kib(status: &str, field: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(field))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine(stat: &str) -> Option<Machine> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // Guest time, behind these eight, is part of user time already.
    let times: Vec<u64> =
        line.split_ascii_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
    let all: u64 = times.iter().sum();
    let idle: u64 = times.iter().skip(3).take(2).sum();
    Some(Machine { busy: ticks(all - idle), all: ticks(all) })
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * 1000 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 9 0 0 0 150 25 3 4 20 0 1 0 4711 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1750)));
        assert_eq!(cpu("7 (a"), None);
    }

    #[test]
    fn memory_is_read_in_kib() {
        let status = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t  146432 kB\nVmRSS:\t  100 kB\n";
        assert_eq!(kib(status, "VmHWM:"), Some(146_432));
        assert_eq!(kib(status, "VmRSS:"), Some(100));
        assert_eq!(kib(status, "VmSwap:"), None);
    }

    #[test]
    fn waiting_is_not_being_busy() {
        let stat = "cpu  100 10 40 700 50 0 0 100 30 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let expected = Machine { busy: Duration::from_millis(2500), all: Duration::from_secs(10) };
        assert_eq!(machine(stat), Some(expected));
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = of(std::process::id()).expect("its own files");
        assert!(usage.rss_peak_kib >= usage.rss_kib && usage.rss_kib > 0);
    }
}
