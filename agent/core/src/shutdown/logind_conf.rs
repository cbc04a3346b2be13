//! Reads `InhibitDelayMaxSec` from logind's configuration files, finds the value that logind uses,
//! and builds the drop-in that makes the largest value win. ([LD8], [AP15])

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time_span::TimeSpan;

/// Directories of drop-ins; a file hides those of the same name in later directories. ([LD8])
pub const DROP_IN_DIRS: [&str; 5] = [
    "/etc/systemd/logind.conf.d",
    "/run/systemd/logind.conf.d",
    "/usr/local/lib/systemd/logind.conf.d",
    "/usr/lib/systemd/logind.conf.d",
    "/lib/systemd/logind.conf.d",
];

/// Paths of the main file; logind reads the first that exists, before all drop-ins.
pub const MAIN_FILES: [&str; 4] = [
    "/etc/systemd/logind.conf",
    "/run/systemd/logind.conf",
    "/usr/local/lib/systemd/logind.conf",
    "/usr/lib/systemd/logind.conf",
];

/// Path of our drop-in. logind merges the files by name, and the last one wins. Names from
/// distributions begin with letters, so the kubelet's `99-` loses. ([SD23])
///
/// DIVERGES(upstream): upstream's name sorts before those, and then upstream gives up.
pub const OUR_DROP_IN: &str = "/etc/systemd/logind.conf.d/zz-epilogue.conf";

/// Maximum delay that the agent requests by default. ([AP15])
pub const OUR_DELAY_MAX: Duration = Duration::from_mins(10);

const KEY: &str = "InhibitDelayMaxSec";

/// A file of logind's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfFile {
    /// Its path on the host.
    pub path: String,
    /// Its content; empty if the file is a link to /dev/null.
    pub text: String,
}

/// `InhibitDelayMaxSec` of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedDelay {
    /// The file.
    pub path: String,
    /// Its value.
    pub delay: TimeSpan,
}

/// What to write so that logind grants the wanted delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropIn {
    /// Nothing: logind already grants it.
    NotNeeded,
    /// Nothing, but logind has to read its files again: the winning file requests enough.
    Reload {
        /// The winning request.
        by: RequestedDelay,
    },
    /// Writes our file.
    Write {
        /// Value of our file: the largest of all requests.
        delay: TimeSpan,
        /// Content of our file.
        text: String,
    },
    /// Our file would not help: a file that sorts after it sets the value.
    Shadowed {
        /// The winning request.
        by: RequestedDelay,
        /// The value that the winning file needs.
        delay: TimeSpan,
    },
}

/// The files that logind reads, in its order: the main file, then drop-ins by name. Each name comes
/// from the first directory that has it. Files elsewhere are ignored.
pub fn read_order(files: &[ConfFile]) -> Vec<&ConfFile> {
    let main = MAIN_FILES.iter().find_map(|path| files.iter().find(|file| file.path == *path));
    let mut drop_ins: BTreeMap<&str, &ConfFile> = BTreeMap::new();
    for dir in DROP_IN_DIRS {
        for file in files {
            if let Some((parent, name)) = file.path.rsplit_once('/')
                && parent == dir
                && name.rsplit_once('.').is_some_and(|(_, termination)| termination == "conf")
            {
                drop_ins.entry(name).or_insert(file);
            }
        }
    }
    main.into_iter().chain(drop_ins.into_values()).collect()
}

/// All requested delays, in logind's order; logind uses the last when it reads the files again.
pub fn requested_delays(files: &[ConfFile]) -> Vec<RequestedDelay> {
    let requested = |file: &ConfFile| {
        Some(RequestedDelay { path: file.path.clone(), delay: delay(&file.text)? })
    };
    read_order(files).into_iter().filter_map(requested).collect()
}

/// The last valid value in the text of a file; logind skips an invalid one.
fn delay(text: &str) -> Option<TimeSpan> {
    let mut in_login = false;
    let mut found = None;
    for line in logical_lines(text) {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            in_login = section.trim_end_matches(']') == "Login";
        } else if let Some((key, value)) = line.split_once('=')
            && in_login
            && key.trim_end() == KEY
            && let Ok(delay) = value.trim().parse()
        {
            found = Some(delay);
        }
    }
    found
}

/// Lines without comments; a line that ends in a backslash continues in the next.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        if let Some(part) = line.strip_suffix('\\') {
            begun.push_str(part);
            begun.push(' ');
        } else {
            lines.push(std::mem::take(&mut begun) + line);
        }
    }
    lines.push(begun);
    lines
}

/// Decides what to write so that logind grants `wanted`. The largest request wins, even if logind
/// does not use it: a later file may hide the kubelet's. Other files' values and the granted delay
/// are never lowered; only our own value is capped.
pub fn drop_in(
    files: &[ConfFile],
    granted: TimeSpan,
    wanted: Duration,
    ours_max: Duration,
) -> DropIn {
    let requested_delays = requested_delays(files);
    let ours = TimeSpan::from(wanted.min(ours_max));
    let delay = requested_delays
        .iter()
        .map(|requested| requested.delay)
        .fold(ours.max(granted), TimeSpan::max);
    if delay == granted {
        return DropIn::NotNeeded;
    }
    let name = |path: &str| path.rsplit_once('/').map(|(_, name)| name.to_owned());
    let after_ours = |requested: &&RequestedDelay| {
        let is_drop_in = !MAIN_FILES.contains(&requested.path.as_str());
        is_drop_in && name(&requested.path) > name(OUR_DROP_IN)
    };
    if let Some(by) = requested_delays.last().filter(|requested| requested.delay >= delay) {
        return DropIn::Reload { by: by.clone() };
    }
    match requested_delays.iter().rfind(after_ours) {
        Some(by) => DropIn::Shadowed { by: by.clone(), delay },
        None => DropIn::Write { delay, text: text(delay) },
    }
}

/// Content of our drop-in.
fn text(delay: TimeSpan) -> String {
    let value = delay.whole_seconds().map_or_else(|| delay.to_string(), |value| value.to_string());
    format!(
        "# Written by epilogue-agent: the largest delay that any file here asks for, so that\n# \
         pods can be terminated and reported before the node goes down.\n[Login]\n{KEY}={value}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETC: &str = "/etc/systemd/logind.conf.d";
    const LIB: &str = "/usr/lib/systemd/logind.conf.d";

    fn file(path: &str, value: &str) -> ConfFile {
        let text = format!("[Login]\nInhibitDelayMaxSec={value}\n");
        ConfFile { path: path.into(), text }
    }

    fn in_dir(dir: &str, name: &str, value: &str) -> ConfFile {
        file(&format!("{dir}/{name}"), value)
    }

    fn decide(files: &[ConfFile], granted: u64, wanted: u64) -> DropIn {
        drop_in(files, TimeSpan::from_secs(granted), Duration::from_secs(wanted), OUR_DELAY_MAX)
    }

    #[test]
    fn a_files_requested_delay_is_read_as_systemd_reads_it() {
        let table = [
            ("[Login]\nInhibitDelayMaxSec=30\n", Some("30s")),
            ("[Login]\n  InhibitDelayMaxSec = 1min 30s  \n", Some("90s")),
            ("[Login]\nInhibitDelayMaxSec=infinity\n", Some("infinity")),
            ("[Login]\nInhibitDelayMaxSec=5\nInhibitDelayMaxSec=7\n", Some("7s")),
            ("[Login]\nInhibitDelayMaxSec=5\nInhibitDelayMaxSec=soon\n", Some("5s")),
            ("[Login]\nInhibitDelayMaxSec=5\nInhibitDelayMaxSec=\n", Some("5s")),
            ("[Login]\nInhibitDelayMaxSec=\\\n# between\n  8\n", Some("8s")),
            ("[Login]\n#InhibitDelayMaxSec=5\n;InhibitDelayMaxSec=6\n", None),
            ("[Sleep]\nInhibitDelayMaxSec=5\n", None),
            ("InhibitDelayMaxSec=5\n", None),
            ("[Login]\nInhibitDelayMax=5\n", None),
            ("", None),
        ];
        for (text, expected) in table {
            let got = delay(text).map(|delay| delay.to_string());
            assert_eq!(got.as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn files_are_merged_by_name_and_the_last_wins() {
        // By file name; for equal names `/etc` before `/run` before `/usr/lib`. ([LD8])
        let files = [
            in_dir(LIB, "unattended-upgrades-logind-maxdelay.conf", "30"),
            in_dir(ETC, "99-kubelet.conf", "60"),
            file("/etc/systemd/logind.conf", "10"),
            in_dir(LIB, "99-kubelet.conf", "7"),
            in_dir("/run/systemd/logind.conf.d", "99-kubelet.conf", "8"),
            in_dir(ETC, "notes.txt", "1000"),
            file("/usr/lib/systemd/logind.conf", "11"),
        ];
        let read: Vec<_> =
            requested_delays(&files).iter().map(|requested| requested.delay.to_string()).collect();
        assert_eq!(read, ["10s", "60s", "30s"]);
        // A file without content masks others of the same name. ([LD8])
        let mask = ConfFile {
            path: format!("{ETC}/unattended-upgrades-logind-maxdelay.conf"),
            text: String::new(),
        };
        let masked = [files.as_slice(), &[mask]].concat();
        assert_eq!(
            requested_delays(&masked).last().map(|requested| requested.delay),
            Some(TimeSpan::from_secs(60))
        );
    }

    #[test]
    fn the_largest_requested_delay_wins() {
        let kubelet = || in_dir(ETC, "99-kubelet.conf", "60");
        let ubuntu = || in_dir(LIB, "unattended-upgrades-logind-maxdelay.conf", "30");
        let written = |delay: TimeSpan| DropIn::Write { delay, text: text(delay) };
        let seconds = |seconds| written(TimeSpan::from_secs(seconds));
        let table = [
            // files, granted, wanted
            (vec![], 5, 40, seconds(40)),
            (vec![], 40, 40, DropIn::NotNeeded),
            (vec![], 300, 40, DropIn::NotNeeded),
            // A later file hides the kubelet's. ([SD23])
            (vec![kubelet(), ubuntu()], 30, 40, seconds(60)),
            (vec![kubelet(), ubuntu()], 30, 90, seconds(90)),
            (vec![kubelet(), ubuntu()], 30, 0, seconds(60)),
            (vec![kubelet()], 60, 40, DropIn::NotNeeded),
            // Never lower; ours has a maximum. ([AP15])
            (vec![], 5, 4_000, seconds(600)),
            (vec![kubelet()], 900, 4_000, DropIn::NotNeeded),
            (vec![in_dir(ETC, "a.conf", "20min")], 1_200, 4_000, DropIn::NotNeeded),
            (
                vec![in_dir(ETC, "a.conf", "infinity"), in_dir(ETC, "b.conf", "9")],
                5,
                40,
                written(TimeSpan::INFINITY),
            ),
        ];
        for (row, (files, granted, wanted, expected)) in table.into_iter().enumerate() {
            assert_eq!(decide(&files, granted, wanted), expected, "row {row}");
        }
    }

    #[test]
    fn a_file_that_sorts_after_ours_is_named() {
        let after = || in_dir(ETC, "zzz-site.conf", "7");
        let expected = DropIn::Shadowed {
            by: RequestedDelay {
                path: format!("{ETC}/zzz-site.conf"),
                delay: TimeSpan::from_secs(7),
            },
            delay: TimeSpan::from_secs(40),
        };
        assert_eq!(decide(&[after(), file(MAIN_FILES[0], "9")], 7, 40), expected);
    }

    #[test]
    fn files_that_ask_for_enough_only_have_to_be_read() {
        for (path, value) in [(OUR_DROP_IN, "40"), (OUR_DROP_IN, "50"), (MAIN_FILES[0], "2min")] {
            let file = file(path, value);
            let by = requested_delays(std::slice::from_ref(&file)).remove(0);
            assert_eq!(decide(&[file], 5, 40), DropIn::Reload { by }, "{path}");
        }
    }

    #[test]
    fn our_drop_in_is_read_back_as_written() {
        for (delay, line) in [
            (TimeSpan::from_secs(40), "InhibitDelayMaxSec=40\n"),
            (TimeSpan::from_micros(1_500_000), "InhibitDelayMaxSec=2\n"),
            (TimeSpan::INFINITY, "InhibitDelayMaxSec=infinity\n"),
        ] {
            let text = text(delay);
            assert!(text.ends_with(line), "{text}");
            assert!(super::delay(&text).is_some_and(|read| read >= delay), "{text}");
        }
    }
}
