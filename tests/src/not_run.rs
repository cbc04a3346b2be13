//! The closed list of why a test may be not run, and on which machine. Anything else that is not
//! run fails `lab test`.
//!
//! A test says it by a line `not run: [CODE] words`, and `in part: [CODE] words` if only a part of
//! it did not run. The runner reads the code, and asks the machine itself whether it lacks that.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use nix::unistd::geteuid;

use crate::kubernetes::{Feature, Version};
use crate::tools;

/// Begins the line of a test that does not run.
const NOT_RUN: &str = "not run: ";
/// Begins the line of a test of which a part does not run.
const IN_PART: &str = "in part: ";

/// Where the kernel or an init system mounts cgroups of version 2.
const CGROUP_TREES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Why a test is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is too long for each run.
    Rare,
    /// It depends on upstream's programs alone, and held with the same versions.
    HeldBefore,
    /// The same, but no run is recorded.
    NothingRecorded,
    /// The image of a real node can only be made by root.
    NotRoot,
    /// The version of Kubernetes lacks a feature.
    Version(Feature),
    /// promtool is not installed.
    NoPromtool,
    /// No browser is installed.
    NoBrowser,
    /// The kernel does not show stalls.
    NoPsi,
    /// The kernel accepts no trigger for stalls.
    NoPsiTrigger,
    /// No cgroups of version 2 are mounted.
    NoCgroups,
    /// They have no memory controller.
    NoMemoryController,
    /// No cgroup can be made.
    CgroupsReadOnly,
}

/// What a machine and a run have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one answer")]
pub struct Machine {
    /// The version of Kubernetes that the suites run on.
    pub kubernetes: Version,
    /// Whether rare tests run, too.
    pub all: bool,
    /// Whether the runner is root.
    pub root: bool,
    /// Whether it can install packages of Debian.
    pub apt: bool,
    /// Whether the kernel shows stalls.
    pub psi: bool,
    /// Whether it accepts a trigger for them.
    pub psi_trigger: bool,
    /// Whether cgroups of version 2 are mounted.
    pub cgroups: bool,
    /// Whether those at the usual place have the memory controller.
    pub memory_controller: bool,
    /// Whether a cgroup can be made.
    pub makes_cgroups: bool,
}

/// That a test, or a part of it, did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRun {
    reason: Option<Reason>,
    words: String,
}

impl Reason {
    /// The list.
    pub const ALL: [Self; 14] = [
        Self::Rare,
        Self::HeldBefore,
        Self::NothingRecorded,
        Self::NotRoot,
        Self::Version(Feature::OwnControllerManager),
        Self::Version(Feature::MutatingPolicies),
        Self::Version(Feature::GangScheduling),
        Self::NoPromtool,
        Self::NoBrowser,
        Self::NoPsi,
        Self::NoPsiTrigger,
        Self::NoCgroups,
        Self::NoMemoryController,
        Self::CgroupsReadOnly,
    ];

    /// Its name in a test's line.
    pub fn code(self) -> &'static str {
        match self {
            Self::Rare => "rare",
            Self::HeldBefore => "held-before",
            Self::NothingRecorded => "nothing-recorded",
            Self::NotRoot => "not-root",
            Self::Version(Feature::OwnControllerManager) => "no-own-controller-manager",
            Self::Version(Feature::MutatingPolicies) => "no-mutating-policies",
            Self::Version(Feature::GangScheduling) => "no-gang-scheduling",
            Self::NoPromtool => "no-promtool",
            Self::NoBrowser => "no-browser",
            Self::NoPsi => "no-psi",
            Self::NoPsiTrigger => "no-psi-trigger",
            Self::NoCgroups => "no-cgroups",
            Self::NoMemoryController => "no-memory-controller",
            Self::CgroupsReadOnly => "cgroups-read-only",
        }
    }

    /// Whether a test may be not run for it on this machine.
    pub fn is_allowed_on(self, machine: &Machine) -> bool {
        match self {
            Self::Rare | Self::HeldBefore => !machine.all,
            Self::NothingRecorded => false,
            Self::NotRoot => !machine.root,
            Self::Version(feature) => !machine.kubernetes.has(feature),
            Self::NoPromtool | Self::NoBrowser => !machine.apt,
            Self::NoPsi => !machine.psi,
            Self::NoPsiTrigger => !machine.psi_trigger,
            Self::NoCgroups => !machine.cgroups,
            Self::NoMemoryController => !machine.memory_controller,
            Self::CgroupsReadOnly => !machine.makes_cgroups,
        }
    }

    /// Where it is allowed, and what to do here.
    fn rule(self) -> (&'static str, &'static str) {
        let found = "read why above, and correct the test or what it asks";
        match self {
            Self::Rare | Self::HeldBefore => ("without --all", "correct the runner"),
            Self::NothingRecorded => {
                ("nowhere", "run `cargo lab test node --all`, and commit tests/node/upstream.json")
            }
            Self::NotRoot => ("for other users than root", found),
            Self::Version(_) => ("on versions of Kubernetes that lack the feature", found),
            Self::NoPromtool => (
                "where apt-get cannot install it",
                "run `cargo lab prepare`, and read its error; the package is prometheus",
            ),
            Self::NoBrowser => (
                "where apt-get cannot install it",
                "run `apt-get install chromium-headless-shell`, and read its error",
            ),
            Self::NoPsi => ("where /proc/pressure/io cannot be read", found),
            Self::NoPsiTrigger => ("where /proc/pressure/memory takes no trigger", found),
            Self::NoCgroups => ("where no cgroups of version 2 are mounted", found),
            Self::NoMemoryController => {
                ("where /sys/fs/cgroup has no memory controller of version 2", found)
            }
            Self::CgroupsReadOnly => ("where no cgroup can be made", found),
        }
    }
}

impl Machine {
    /// Asks this machine.
    pub async fn probe(kubernetes: Version, all: bool) -> Self {
        let mut trees = CGROUP_TREES.map(Path::new).into_iter();
        let tree = trees.find(|tree| tree.join("cgroup.controllers").exists());
        let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
        Self {
            kubernetes,
            all,
            root: geteuid().is_root(),
            apt: tools::can_install().await,
            psi: std::fs::read_to_string("/proc/pressure/io").is_ok(),
            psi_trigger: takes_trigger(Path::new("/proc/pressure/memory")).is_ok(),
            cgroups: tree.is_some(),
            memory_controller: controllers.is_ok_and(|text| text.contains("memory")),
            makes_cgroups: tree.is_some_and(makes_cgroup),
        }
    }
}

/// Sets the agent's own trigger, which goes with the file.
fn takes_trigger(path: &Path) -> std::io::Result<()> {
    let mut file: File = OpenOptions::new().read(true).write(true).open(path)?;
    file.write_all(b"some 20000 500000\0")
}

fn makes_cgroup(tree: &Path) -> bool {
    let path = tree.join(format!("epilogue-lab-{}", std::process::id()));
    std::fs::create_dir(&path).and_then(|()| std::fs::remove_dir(&path)).is_ok()
}

impl NotRun {
    /// For a reason of the list.
    pub fn new(reason: Reason, words: impl Into<String>) -> Self {
        Self { reason: Some(reason), words: words.into() }
    }

    /// The line of a test that does not run; `None` for other lines.
    pub fn of_line(line: &str) -> Option<Self> {
        line.strip_prefix(NOT_RUN).map(Self::parse)
    }

    /// The line of a test of which a part does not run; `None` for other lines.
    pub fn in_part(line: &str) -> Option<Self> {
        line.strip_prefix(IN_PART).map(Self::parse)
    }

    fn parse(text: &str) -> Self {
        let text = text.trim();
        let coded = text.strip_prefix('[').and_then(|rest| rest.split_once("] "));
        let known = coded.and_then(|(code, words)| {
            let reason = Reason::ALL.into_iter().find(|reason| reason.code() == code)?;
            Some(Self::new(reason, words))
        });
        known.unwrap_or_else(|| Self { reason: None, words: text.to_owned() })
    }

    /// Why it fails the run on this machine, with the remedy; `None` if it is allowed.
    pub fn objection(&self, machine: &Machine) -> Option<String> {
        let Some(reason) = self.reason else {
            return Some(format!(
                "{}: the line names no reason of the list. Print `not run: [CODE] words` with a \
                 code of tests/src/not_run.rs, or make the test run",
                self.words
            ));
        };
        let (place, remedy) = reason.rule();
        let text = format!("{}: allowed {place}, and not here. Remedy: {remedy}", self.words);
        (!reason.is_allowed_on(machine)).then_some(text)
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as CI has it: nothing is missing.
    fn machine() -> Machine {
        Machine {
            kubernetes: Version::DEFAULT,
            all: false,
            root: true,
            apt: true,
            psi: true,
            psi_trigger: true,
            cgroups: true,
            memory_controller: true,
            makes_cgroups: true,
        }
    }

    fn oldest() -> Version {
        Version::KNOWN[0]
    }

    #[test]
    fn a_machine_that_has_everything_leaves_out_only_what_is_rare() {
        let allowed = |machine: Machine| {
            let allowed = Reason::ALL.into_iter().filter(|reason| reason.is_allowed_on(&machine));
            allowed.map(Reason::code).collect::<Vec<_>>()
        };
        assert_eq!(allowed(machine()), ["rare", "held-before"]);
        assert_eq!(allowed(Machine { all: true, ..machine() }), [""; 0]);
    }

    #[test]
    fn each_reason_is_allowed_where_the_machine_lacks_that_and_nowhere_else() {
        let all = || Machine { all: true, ..machine() };
        let table: [(Machine, &[&str]); 7] = [
            (Machine { root: false, apt: true, ..all() }, &["not-root"]),
            (Machine { apt: false, ..all() }, &["no-promtool", "no-browser"]),
            (
                Machine { kubernetes: oldest(), ..all() },
                &["no-own-controller-manager", "no-mutating-policies", "no-gang-scheduling"],
            ),
            (Machine { psi: false, psi_trigger: false, ..all() }, &["no-psi", "no-psi-trigger"]),
            (Machine { psi_trigger: false, ..all() }, &["no-psi-trigger"]),
            (
                Machine { cgroups: false, memory_controller: false, ..all() },
                &["no-cgroups", "no-memory-controller"],
            ),
            (Machine { makes_cgroups: false, ..all() }, &["cgroups-read-only"]),
        ];
        for (machine, expected) in table {
            let lines = Reason::ALL.map(|reason| format!("not run: [{}] words", reason.code()));
            let allowed = |line: &&String| {
                let not_run = NotRun::of_line(line).expect("a line");
                not_run.objection(&machine).is_none()
            };
            let allowed: Vec<_> = lines.iter().filter(allowed).collect();
            let expected: Vec<_> =
                expected.iter().map(|code| format!("not run: [{code}] words")).collect();
            assert_eq!(allowed, expected.iter().collect::<Vec<_>>(), "{machine:?}");
        }
    }

    #[test]
    fn an_objection_names_the_words_the_rule_and_the_remedy() {
        let not_run = NotRun::of_line("not run: [no-promtool] promtool is not installed\n");
        let not_run = not_run.expect("a line");
        assert_eq!(not_run.to_string(), "promtool is not installed");
        let expected = "promtool is not installed: allowed where apt-get cannot install it, and \
                        not here. Remedy: run `cargo lab prepare`, and read its error; the \
                        package is prometheus";
        assert_eq!(not_run.objection(&machine()).as_deref(), Some(expected));
    }

    #[test]
    fn a_reason_that_is_not_in_the_list_is_allowed_nowhere() {
        let nothing = Machine {
            root: false,
            apt: false,
            psi: false,
            psi_trigger: false,
            cgroups: false,
            memory_controller: false,
            makes_cgroups: false,
            kubernetes: oldest(),
            ..machine()
        };
        for text in ["no time", "[no-time] words", "[no-psi]", "[] words", "no-psi: words"] {
            let not_run = NotRun::of_line(&format!("not run: {text}")).expect("a line");
            let objection = not_run.objection(&nothing).expect(text);
            assert!(objection.contains("tests/src/not_run.rs"), "{objection}");
            assert!(objection.starts_with(text), "{objection}");
        }
        let recorded = NotRun::new(Reason::NothingRecorded, "no run is recorded");
        let objection = recorded.objection(&nothing).expect("not allowed");
        assert!(objection.contains("cargo lab test node --all"), "{objection}");
    }

    #[test]
    fn a_part_that_does_not_run_has_a_line_of_its_own() {
        let line = "in part: [no-psi-trigger] the kernel takes no trigger";
        assert_eq!(NotRun::of_line(line), None);
        let expected = NotRun::new(Reason::NoPsiTrigger, "the kernel takes no trigger");
        assert_eq!(NotRun::in_part(line), Some(expected));
        assert_eq!(NotRun::in_part("not run: [no-psi] words"), None);
    }
}
