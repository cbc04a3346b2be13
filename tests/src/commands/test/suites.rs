//! Decides which suite a test belongs to, and under which rules the suite runs. Pure.

use std::fmt;
use std::time::Duration;

use super::programs::Program;

/// The package that has the suites on a real API.
const LAB: &str = "lab";

/// The program whose top-level modules share one machine each.
const NODE: &str = "node";

/// A suite: the unit of the report and of selection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Suite {
    pub(super) package: String,
    /// The module in the program `suites`, the target of others, or `None` for unit tests.
    pub(super) name: Option<String>,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.package.as_str()) {
            (Some(name), LAB) => f.write_str(name),
            (Some(name), package) => write!(f, "{package} {name}"),
            (None, package) => write!(f, "{package} (unit tests)"),
        }
    }
}

impl Suite {
    /// The suite of a test.
    pub(super) fn of(program: &Program, test: &str) -> Self {
        let name = match (program.is_unit, program.target.as_str()) {
            (true, _) => None,
            (false, "suites") => test.split("::").next().map(str::to_owned),
            (false, target) => Some(target.to_owned()),
        };
        Self { package: program.package.clone(), name }
    }

    /// Whether it runs kube-scheduler.
    pub(super) fn needs_scheduler(&self) -> bool {
        let suites = ["control_plane", "disruptors", "neighbours"];
        self.package == LAB && self.name.as_deref().is_some_and(|name| suites.contains(&name))
    }

    /// Whether its tests use the API that `lab test` starts.
    pub(super) fn needs_control_plane(&self) -> bool {
        // A real node has a control plane of its own.
        let offline = [
            "agent_simulation",
            "docs",
            "house_rules",
            "platforms",
            "release",
            "simulation",
            "small_scopes",
            "worlds",
            NODE,
        ];
        self.package == LAB && self.name.as_deref().is_some_and(|name| !offline.contains(&name))
    }

    /// Whether its tests use a real logind.
    pub(super) fn needs_logind(&self) -> bool {
        self.name.as_deref() == Some("elogind")
    }

    /// Whether its tests use a real kubelet on this machine.
    pub(super) fn needs_kubelet(&self) -> bool {
        self.needs_logind() || self.package == LAB && self.name.as_deref() == Some("kubelet")
    }

    /// Whether its tests check the alerts by promtool.
    pub(super) fn needs_promtool(&self) -> bool {
        self.package == "epilogue-deploy" && self.name.as_deref() == Some("monitoring")
    }

    /// Whether its tests check pages in a browser; all of them are rare.
    pub(super) fn needs_browser(&self) -> bool {
        self.package == "kubectl-epilogue" && self.name.as_deref() == Some("report_page")
    }

    /// Whether its tests start real nodes.
    pub(super) fn needs_node(&self) -> bool {
        self.package == LAB && self.name.as_deref() == Some(NODE)
    }
}

/// How a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Its share of the machine: [`CORE`] is one core.
    pub(super) weight: Weight,
    /// After this time it is killed, and has failed.
    pub(super) limit: Duration,
}

/// A share of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// This many parts of a core; [`CORE_PARTS`] make one.
    Parts(u16),
    /// The whole machine: nothing else runs meanwhile.
    Machine,
    /// Both cores most of the time, without timing: tests that only wait may run alongside.
    Emulated,
    /// Half a core at most, and no short times: it waits for leases, silence and time-outs. If no
    /// machine is emulated, [`WAITS`].
    Alongside,
    /// It computes and has no short times: it takes what the others leave of the cores.
    Background,
}

/// Parts of a core.
pub(super) const CORE_PARTS: u16 = 4;

/// A test that computes.
const CORE: Weight = Weight::Parts(CORE_PARTS);
/// A test with a control plane of its own, which starts, ends or works much of the time.
const OWN_API: Weight = Weight::Parts(3);
/// A test that waits about as long as it computes.
pub(super) const WAITS: Weight = Weight::Parts(2);
/// A test on the API of all tests: of a core, its programs take a tenth, and the API server two.
const ON_API: Weight = Weight::Parts(2);

/// Others may leave a tenth of a core to a test that computes for two minutes.
const BACKGROUND_LIMIT: Duration = Duration::from_mins(30);
/// The same for one that computes for seconds.
const PURE_LIMIT: Duration = Duration::from_mins(10);

/// The rules: the first row applies whose package, suite and prefix of the test's name match.
/// Limits are at least five times the longest time seen on two busy cores.
const RULES: &[(&str, &str, &str, Weight, Duration)] = &[
    // Its machine is emulated, wants both cores, and takes up to 4 minutes for a step.
    (LAB, NODE, "", Weight::Emulated, Duration::from_mins(20)),
    // It asserts that a single load leaves the API to others, so no other load may run.
    (LAB, "podgc", "podgc::load", Weight::Machine, Duration::from_mins(5)),
    // It removes policies that the rest of its suite needs.
    (LAB, "permissions", "permissions::policies", Weight::Machine, Duration::from_mins(5)),
    // Its tenant keeps more than a core busy, while others must get their pods in time.
    (LAB, "hostile", "hostile::worked", Weight::Parts(6), Duration::from_mins(15)),
    (LAB, "jobs", "jobs::takeover", WAITS, Duration::from_mins(15)),
    (LAB, "jobs", "jobs::blind", Weight::Alongside, Duration::from_mins(10)),
    (LAB, "jobs", "jobs::a_job_of", CORE, Duration::from_mins(10)),
    // It waits until a client notices that a connection is silent.
    (LAB, "outages", "outages::network::silent", Weight::Alongside, Duration::from_mins(10)),
    // It compiles the programs of an earlier commit.
    (LAB, "outages", "outages::versions", CORE, Duration::from_mins(30)),
    (LAB, "podgc", "podgc::proofs", Weight::Alongside, Duration::from_mins(8)),
    // Silence of nodes takes time, but no CPU.
    (LAB, "podgc", "podgc::reference", Weight::Alongside, Duration::from_mins(8)),
    (LAB, "podgc", "podgc::jobs", Weight::Alongside, Duration::from_mins(6)),
    // Its quotas and webhooks hold a tenant up.
    (LAB, "hostile", "hostile::waiting", Weight::Alongside, Duration::from_mins(6)),
    // It waits for agents that leave their nodes.
    (LAB, "chart", "chart::release", Weight::Alongside, Duration::from_mins(15)),
    // It and the API server compute for as long as it may begin seeds.
    (LAB, "model_api", "", CORE, Duration::from_mins(8)),
    (LAB, "hostile", "hostile::tenant", CORE, Duration::from_mins(9)),
    (LAB, "agent_simulation", "", Weight::Background, BACKGROUND_LIMIT),
    (LAB, "simulation", "", Weight::Background, BACKGROUND_LIMIT),
    // Larger scopes compute for minutes.
    (LAB, "small_scopes", "small_scopes::rare_", Weight::Background, Duration::from_mins(90)),
    (LAB, "small_scopes", "", Weight::Background, BACKGROUND_LIMIT),
    (LAB, "worlds", "", Weight::Background, BACKGROUND_LIMIT),
    (LAB, "house_rules", "", Weight::Background, PURE_LIMIT),
    (LAB, "reference", "", OWN_API, Duration::from_mins(10)),
    // On a cold machine they compile Karpenter's drain, JobSet, Kueue, kustomize or Helm.
    (LAB, "recipes", "recipes::karpenter", CORE, Duration::from_mins(15)),
    (LAB, "neighbours", "", CORE, Duration::from_mins(30)),
    (LAB, "platforms", "", CORE, Duration::from_mins(6)),
    (LAB, "chart", "", CORE, Duration::from_mins(15)),
    // It builds the programs as they ship, and the tools of a release.
    (LAB, "release", "release::whole", CORE, Duration::from_mins(150)),
    (LAB, "release", "", CORE, Duration::from_mins(10)),
    // It starts fifty agents.
    (LAB, "agent", "agent::notices", Weight::Parts(6), Duration::from_mins(8)),
    (LAB, "agent", "", ON_API, Duration::from_mins(6)),
    // It compares times of two programs.
    (LAB, "features", "features::disruptions::the_mean", Weight::Machine, Duration::from_mins(3)),
    (LAB, "features", "", ON_API, Duration::from_mins(6)),
    (LAB, "permissions", "", ON_API, Duration::from_mins(6)),
    (LAB, "podgc", "", WAITS, Duration::from_mins(6)),
    (LAB, "disruptors", "", WAITS, Duration::from_mins(6)),
    (LAB, "kubelet", "", ON_API, Duration::from_mins(6)),
    (LAB, "leave", "", WAITS, Duration::from_mins(6)),
    (LAB, "", "", OWN_API, Duration::from_mins(6)),
    // The kernel's notification is timed, so nothing else may delay it.
    ("epilogue-agent", "pressure", "kernel::", Weight::Machine, Duration::from_mins(2)),
    ("epilogue-agent", "oom", "kernel::", Weight::Machine, Duration::from_mins(2)),
    ("epilogue-agent", "", "", WAITS, Duration::from_mins(2)),
    ("epilogue-runtime", "", "", WAITS, Duration::from_mins(2)),
    ("controller-core", "", "", Weight::Background, PURE_LIMIT),
    ("agent-core", "", "", Weight::Background, PURE_LIMIT),
    ("", "", "", CORE, Duration::from_mins(2)),
];

impl Rule {
    /// The rule of a test of this suite.
    pub(super) fn of(suite: &Suite, test: &str) -> Self {
        let name = suite.name.as_deref().unwrap_or_default();
        let fits = |pattern: &str, text: &str| pattern.is_empty() || pattern == text;
        let row = RULES.iter().find(|(package, suite_name, beginning, ..)| {
            fits(package, &suite.package) && fits(suite_name, name) && test.starts_with(beginning)
        });
        let (.., weight, limit) = *row.expect("the last row must fit all");
        Self { weight, limit }
    }
}

/// The tests that share a process, one after the other: those of a module of `node`, because its
/// machine takes longer to start than most of them. Every other test has a process of its own.
pub(super) fn group_of(suite: &Suite, test: &str) -> Option<String> {
    let module = || test.split("::").next().unwrap_or_default().to_owned();
    suite.needs_node().then(module)
}

/// Whether a test plays a rare way to end, or many moments of one: too long for each run.
pub(super) fn is_rare(suite: &Suite, test: &str) -> bool {
    let is_so_called = |name: &str| name.starts_with("rare_");
    suite.needs_node() && is_so_called(test) || test.rsplit("::").next().is_some_and(is_so_called)
}

/// Whether a test depends on upstream's programs alone, so that only their versions change its
/// result.
pub(super) fn is_of_upstream(suite: &Suite, test: &str) -> bool {
    suite.needs_node() && test.starts_with("upstream_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(package: &str, target: &str, is_unit: bool) -> Program {
        let (path, dir) = ("/t".into(), "/w".into());
        Program { package: package.into(), target: target.into(), is_unit, path, dir }
    }

    fn suite(package: &str, target: &str, test: &str) -> Suite {
        Suite::of(&program(package, target, false), test)
    }

    #[test]
    fn a_suite_of_the_laboratory_is_a_module() {
        let jobs = suite(LAB, "suites", "jobs::a_test");
        assert_eq!(jobs.to_string(), "jobs");
        assert!(jobs.needs_control_plane() && !jobs.needs_node());
        assert!(!suite(LAB, "suites", "simulation::a").needs_control_plane());
        assert_eq!(suite("epilogue-deploy", "agent", "a").to_string(), "epilogue-deploy agent");
        let unit = Suite::of(&program("agent-core", "agent-core", true), "a::b");
        assert_eq!(unit.to_string(), "agent-core (unit tests)");
        assert!(!unit.needs_control_plane());
    }

    #[test]
    fn the_first_fitting_row_is_a_test_s_rule() {
        let rule = |package, target, test| Rule::of(&suite(package, target, test), test);
        assert_eq!(rule(LAB, "node", "agent::a").weight, Weight::Emulated);
        assert_eq!(rule(LAB, "suites", "podgc::load::a").weight, Weight::Machine);
        assert_eq!(rule(LAB, "suites", "podgc::ended::a").weight, WAITS);
        assert_eq!(rule(LAB, "suites", "podgc::proofs::a").weight, Weight::Alongside);
        assert_eq!(rule(LAB, "suites", "features::a").weight, ON_API);
        assert_eq!(rule(LAB, "suites", "outages::a").weight, OWN_API);
        assert_eq!(rule("epilogue-agent", "oom", "kernel::a").weight, Weight::Machine);
        assert_eq!(rule("epilogue-agent", "oom", "log::a").weight, WAITS);
        assert_eq!(rule("epilogue-common", "x", "a").weight, CORE);
        assert_eq!(rule(LAB, "suites", "worlds::a").weight, Weight::Background);
    }

    #[test]
    fn tests_of_a_node_share_a_process_by_module() {
        let node = suite(LAB, "node", "upstream_levers::a");
        assert_eq!(group_of(&node, "upstream_levers::a").as_deref(), Some("upstream_levers"));
        assert!(is_of_upstream(&node, "upstream_levers::a"));
        assert!(!is_of_upstream(&node, "agent::upstream_a"));
        assert!(is_rare(&node, "rare_stuck::a") && !is_rare(&node, "upstream_levers::a"));
        let jobs = suite(LAB, "suites", "jobs::a");
        assert_eq!(group_of(&jobs, "jobs::a"), None);
    }
}
