//! `lab test`: builds what the tests need, and starts one control plane for the tests on a real
//! API. Runs each test in a process of its own, within a time limit. As many tests run concurrently
//! as keep the machine's cores busy: of those that wait, several for each core.

mod output;
mod process;
mod programs;
mod report;
mod schedule;
mod selection;
mod suites;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use lab::binary::{self, GoProgram};
use lab::cluster::{DIR_ENV, KUBECONFIG_ENV};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::kubernetes::{KUBERNETES_ENV, Version};
use lab::matrix;
use lab::not_run::{Machine, NotRun, Reason};
use lab::paths::{self, LabDir, PROGRAMS_ENV, workspace_root};
use lab::vm::error::VmError;
use lab::vm::{Kit, facts};
use lab::{ControlPlane, Options, debian, tools};
use tokio::signal::unix::{SignalKind, signal};

use output::Ending;
use programs::Program;
use report::Report;
use schedule::{Schedule, Unit};
use selection::{Names, Selection};
use suites::{Rule, Suite};

/// Programs of the workspace that suites start.
const OUR_PROGRAMS: [&str; 3] = ["epilogue-agent", "epilogue-controller", "kubectl-epilogue"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Suites, packages or parts of tests' names; `core` for the pure crates only
    #[arg(value_name = "core | SUITE | PACKAGE | TEST")]
    filters: Vec<String>,
    /// Also the tests of upstream's programs alone, which otherwise run when their versions change
    #[arg(long)]
    all: bool,
    /// The version of Kubernetes that the suites run on, such as 1.33; a real node keeps its own
    #[arg(long, value_name = "VERSION", default_value_t = Version::DEFAULT)]
    kubernetes: Version,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        outcome = Box::pin(test(&arguments)) => outcome,
        // Dropping what runs kills it.
        _ = terminate.recv() => bail!("ended by SIGTERM"),
        _ = interrupt.recv() => bail!("ended by SIGINT"),
    }
}

/// Runs these suites on a version, and returns their results for the compatibility matrix.
pub(crate) async fn report_on(version: Version, suites: &[&str]) -> anyhow::Result<matrix::Run> {
    let filters = suites.iter().map(ToString::to_string).collect();
    let report = run_selected(&Arguments { filters, all: false, kubernetes: version }).await?;
    print!("{report}");
    Ok(report.for_matrix())
}

async fn test(arguments: &Arguments) -> anyhow::Result<()> {
    let report = run_selected(arguments).await?;
    print!("{report}");
    ensure!(
        report.is_success(),
        "not all tests passed, or some that must run here did not run; which and why is above"
    );
    Ok(())
}

async fn run_selected(arguments: &Arguments) -> anyhow::Result<Report> {
    let metadata = programs::metadata().await?;
    let head = workspace_root().join("tests/suites/main.rs");
    let head = std::fs::read_to_string(&head).with_context(|| head.display().to_string())?;
    let names = Names::new(&metadata, &selection::modules(&head))?;
    let selection = names.select(&arguments.filters);
    let (programs, kit) = prepare(&names, &selection, &metadata, arguments).await?;
    let mut tests = Tests::list(programs, &selection).await?;
    let found: Vec<&str> = tests.names().collect();
    let unmatched = selection.unmatched(&found);
    ensure!(unmatched.is_empty(), "no test matches {unmatched:?}; {names}");

    let machine = Machine::probe(arguments.kubernetes, arguments.all).await;
    let mut report = Report::new(machine);
    if !arguments.all {
        let why = NotRun::new(Reason::Rare, "rare, or too long for each run; --all runs it");
        tests.leave_out(suites::is_rare, &why, &mut report);
    }
    tests.leave_out_nodes(kit.as_ref(), arguments.all, &mut report)?;
    let report = if tests.suites.iter().any(Suite::needs_control_plane) {
        with_control_plane(&tests, arguments.kubernetes, report).await?
    } else {
        let dir = tempfile::tempdir()?;
        let env = [(KUBERNETES_ENV, arguments.kubernetes.minor().into())];
        run_all(&tests, &env, dir.path(), report, None).await?
    };
    if arguments.all && arguments.kubernetes == Version::DEFAULT {
        tests.record_upstream(kit.as_ref(), &report)?;
    }
    Ok(report)
}

/// Installs and builds what the selected tests need, Go and Rust concurrently: each leaves a core
/// idle at its end. Returns the test programs, and what real nodes start from if they are wanted
/// and possible.
async fn prepare(
    names: &Names,
    selection: &Selection,
    metadata: &serde_json::Value,
    arguments: &Arguments,
) -> anyhow::Result<(Vec<Program>, Option<Kit>)> {
    let &Arguments { kubernetes: version, all, .. } = arguments;
    let (labs, suites) = (LabDir::of_workspace(), names.suites(selection));
    let needs_node = suites.iter().any(Suite::needs_node);
    let mut go_programs = Vec::new();
    if needs_node {
        go_programs.extend(GoProgram::ALL);
    } else if suites.iter().any(Suite::needs_control_plane) {
        go_programs.extend([GoProgram::ControlPlane, GoProgram::ControllerManager]);
        let needs_scheduler = suites.iter().any(Suite::needs_scheduler);
        go_programs.extend(needs_scheduler.then_some(GoProgram::Scheduler));
    }
    let needs_kubelet = !needs_node && suites.iter().any(Suite::needs_kubelet);
    go_programs.extend(needs_kubelet.then_some(GoProgram::Kubelet));
    let go = async {
        if !go_programs.is_empty() {
            binary::ensure(&labs, version, &go_programs).await?;
        }
        if !needs_node {
            return Ok(None);
        }
        match Kit::ensure(&labs).await {
            Err(VmError::NotRoot) => Ok(None),
            kit => Ok(Some(kit?)),
        }
    };
    let rust = async {
        tools::ensure().await?;
        if suites.iter().any(Suite::needs_logind) {
            debian::ensure(debian::ELOGIND, &labs.elogind()).await?;
        }
        if suites.iter().any(Suite::needs_promtool)
            && let Err(missing) = debian::ensure(debian::PROMTOOL, &labs.promtool()).await
        {
            // Its test counts as not run.
            eprintln!("{missing}");
        }
        if all
            && suites.iter().any(Suite::needs_browser)
            && let Err(missing) = tools::ensure_for_pages().await
        {
            eprintln!("{missing}");
        }
        let packages = programs::package_names(metadata);
        programs::build(&names.build_arguments(selection), &packages).await
    };
    tokio::try_join!(go, rust).map(|(kit, programs)| (programs, kit))
}

/// The selected tests, and their programs.
#[derive(Clone, Debug)]
struct Tests {
    programs: Vec<Program>,
    suites: Vec<Suite>,
    units: Vec<Unit>,
}

impl Tests {
    async fn list(programs: Vec<Program>, selection: &Selection) -> anyhow::Result<Self> {
        let mut tests = Self { programs: Vec::new(), suites: Vec::new(), units: Vec::new() };
        for program in programs {
            let listed = programs::list(&program).await?;
            tests.add(program, &listed, selection);
        }
        Ok(tests)
    }

    fn add(&mut self, program: Program, listed: &[String], selection: &Selection) {
        let mut groups: BTreeMap<String, Unit> = BTreeMap::new();
        for test in listed {
            let suite = Suite::of(&program, test);
            if !selection.has(&suite, test) {
                continue;
            }
            let known = self.suites.iter().position(|each| *each == suite);
            let index = known.unwrap_or(self.suites.len());
            let unit = |is_group: bool| {
                let (program, tests) = (self.programs.len(), vec![test.clone()]);
                let rule = Rule::of(&suite, test);
                Unit { program, suite: index, tests, rule, is_group }
            };
            match suites::group_of(&suite, test) {
                None => self.units.push(unit(false)),
                Some(group) => match groups.get_mut(&group) {
                    Some(found) => found.tests.push(test.clone()),
                    None => drop(groups.insert(group, unit(true))),
                },
            }
            if known.is_none() {
                self.suites.push(suite);
            }
        }
        self.units.extend(groups.into_values());
        self.programs.push(program);
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.units.iter().flat_map(|unit| unit.tests.iter().map(String::as_str))
    }

    /// Leaves out the tests on real nodes that cannot run. Unless `all` is set, also leaves out
    /// tests of upstream's programs alone while the record of their last run is valid.
    fn leave_out_nodes(
        &mut self,
        kit: Option<&Kit>,
        all: bool,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let Some(kit) = kit else {
            let why = NotRun::new(Reason::NotRoot, "a real node's image needs root");
            self.leave_out(|suite, _| suite.needs_node(), &why, report);
            return Ok(());
        };
        if all {
            return Ok(());
        }
        if !self.units.iter().any(|unit| self.is_of_upstream(unit)) {
            return Ok(());
        }
        let Some(record) = facts::read() else {
            let words = "no run is recorded in tests/node/upstream.json; --all runs them";
            let why = NotRun::new(Reason::NothingRecorded, words);
            self.leave_out(suites::is_of_upstream, &why, report);
            return Ok(());
        };
        let differences = facts::current(kit)?.differs_from(&record.facts);
        if differences.is_empty() {
            let words = format!("held on {} with the same versions; --all runs them", record.date);
            let why = NotRun::new(Reason::HeldBefore, words);
            self.leave_out(suites::is_of_upstream, &why, report);
        } else {
            println!("tests of upstream's programs run: {}", differences.join(", "));
        }
        Ok(())
    }

    fn is_of_upstream(&self, unit: &Unit) -> bool {
        suites::is_of_upstream(&self.suites[unit.suite], &unit.tests[0])
    }

    /// Leaves out units by their first test's name.
    fn leave_out(
        &mut self,
        which: impl Fn(&Suite, &str) -> bool,
        why: &NotRun,
        report: &mut Report,
    ) {
        let suites = &self.suites;
        self.units.retain(|unit| {
            let suite = &suites[unit.suite];
            let is_left_out = which(suite, &unit.tests[0]);
            if is_left_out {
                report.leave_out(suite, unit.tests.len(), why);
            }
            !is_left_out
        });
    }

    /// Writes the record of upstream's tests, if all of them ran and passed.
    fn record_upstream(&self, kit: Option<&Kit>, report: &Report) -> anyhow::Result<()> {
        let units = self.units.iter().filter(|unit| self.is_of_upstream(unit));
        let tests: Vec<String> = units.flat_map(|unit| unit.tests.iter().cloned()).collect();
        if let Some(kit) = kit
            && !tests.is_empty()
            && report.has_passed(&tests)
        {
            facts::record(&facts::current(kit)?, &tests)?;
            println!("recorded in tests/node/upstream.json: {} tests held", tests.len());
        }
        Ok(())
    }
}

/// Starts one control plane, runs the tests against it, and stops it, whatever their result.
async fn with_control_plane(
    tests: &Tests,
    version: Version,
    report: Report,
) -> anyhow::Result<Report> {
    let options = Options::unique("test").kubernetes(version);
    let options = options.controller_manager(QUIET_CONTROLLERS);
    let mut control_plane = ControlPlane::start(options).await?;
    eprintln!("control plane {} at {}", control_plane.dir().display(), control_plane.server());
    let env = [
        (KUBECONFIG_ENV, control_plane.kubeconfig_path().into()),
        (DIR_ENV, control_plane.dir().into()),
        (PROGRAMS_ENV, control_plane.dir().join("bin").into()),
        (KUBERNETES_ENV, version.minor().into()),
    ];
    let dir = control_plane.dir().to_owned();
    let kept = keep_programs(tests, &dir);
    let outcome = match kept {
        Ok(kept) => run_all(&kept, &env, &dir, report, Some(&mut control_plane)).await,
        Err(error) => Err(error),
    };
    let logs = dir.join("logs");
    control_plane.stop().await?;
    let report = outcome?;
    if !report.is_success() {
        eprintln!("the control plane's logs: {}", logs.display());
    }
    Ok(report)
}

/// Links the test programs and the programs that they start into the lab's own directory. So a
/// build by another command does not change what runs.
fn keep_programs(tests: &Tests, dir: &Path) -> anyhow::Result<Tests> {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| bin.display().to_string())?;
    let keep = |path: &Path| {
        let kept = bin.join(path.file_name().context("a program must have a name")?);
        std::fs::hard_link(path, &kept)
            .or_else(|_| std::fs::copy(path, &kept).map(drop))
            .with_context(|| format!("keep {}", path.display()))?;
        anyhow::Ok(kept)
    };
    for name in OUR_PROGRAMS {
        keep(&paths::program(name))?;
    }
    let programs = tests
        .programs
        .iter()
        .map(|program| anyhow::Ok(Program { path: keep(&program.path)?, ..program.clone() }));
    Ok(Tests { programs: programs.collect::<anyhow::Result<_>>()?, ..tests.clone() })
}

/// Runs the tests as the schedule lets them start, with their output below `dir`. The control plane
/// stops after the last test that needs it: it is busy with leftovers, and a node needs both cores.
async fn run_all(
    tests: &Tests,
    env: &[(&str, OsString)],
    dir: &Path,
    mut report: Report,
    mut control_plane: Option<&mut ControlPlane>,
) -> anyhow::Result<Report> {
    let env: Vec<(&str, &OsStr)> =
        env.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
    let logs = dir.join("tests");
    std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut schedule = Schedule::new(tests.units.clone(), cores);
    let mut running = FuturesUnordered::new();
    let mut number = 0;
    let needs = |unit: &Unit| tests.suites[unit.suite].needs_control_plane();
    let mut in_need = 0_usize;
    loop {
        while let Some(unit) = schedule.start() {
            number += 1;
            in_need += usize::from(needs(&unit));
            running.push(run_unit(tests, unit, &env, logs.join(format!("{number}.log"))));
        }
        let Some(done) = running.next().await else { break };
        let (unit, mut outcome) = done?;
        let suite = &tests.suites[unit.suite];
        show(suite, &outcome, &mut report);
        schedule.end(&unit);
        in_need -= usize::from(needs(&unit));
        let left = std::mem::take(&mut outcome.left);
        if left.is_empty() {
            if in_need == 0
                && !schedule.waits(needs)
                && let Some(control_plane) = control_plane.take()
            {
                control_plane.end_processes().await;
            }
            continue;
        }
        if outcome.ended.is_empty() {
            for test in left {
                let (ending, left_out) = (Ending::Died, Vec::new());
                let lost = output::Ended { test, ending, left_out, seconds: 0.0 };
                println!("{}", report.add(suite, &lost));
            }
        } else {
            // One test ended the process; the tests behind it get another process.
            schedule.put_back(Unit { tests: left, ..unit });
        }
    }
    Ok(report)
}

async fn run_unit(
    tests: &Tests,
    unit: Unit,
    env: &[(&str, &OsStr)],
    log: PathBuf,
) -> anyhow::Result<(Unit, process::Outcome)> {
    let outcome = process::run(&unit, &tests.programs[unit.program], env, &log).await?;
    Ok((unit, outcome))
}

/// Whether a passed test has printed a row of a table for human readers.
fn is_row(line: &str) -> bool {
    line.starts_with("| ") && line.ends_with(" |")
}

fn show(suite: &Suite, outcome: &process::Outcome, report: &mut Report) {
    let failed = outcome
        .ended
        .iter()
        .any(|ended| !matches!(ended.ending, Ending::Passed | Ending::NotRun(_)));
    // The results of real nodes are in a record of their own.
    if failed || outcome.ended.is_empty() || suite.needs_node() {
        println!("{}", outcome.output.trim_end());
    } else {
        outcome.output.lines().filter(|line| is_row(line)).for_each(|line| println!("{line}"));
    }
    report.add_cpu(suite, outcome.cpu);
    for ended in &outcome.ended {
        println!("{}", report.add(suite, ended));
    }
}
