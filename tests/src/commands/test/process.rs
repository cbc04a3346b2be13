//! Runs one unit: a process, its output into a file and to the reader, its end by itself or by its
//! time limit. None of its processes outlives this program.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout, Command};

use super::output::{Ended, Reader};
use super::programs::Program;
use super::schedule::Unit;
use super::suites::Weight;

/// How often the time limit is checked.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// `USER_HZ`, which is 100 on each architecture that Linux has Rust for.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process printed and how its tests ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) ended: Vec<Ended>,
    /// Tests that it did not reach.
    pub(super) left: Vec<String>,
    /// Everything it printed.
    pub(super) output: String,
    /// Seconds of CPU that it and the processes it waited for took.
    pub(super) cpu: f64,
}

/// Runs the tests of a unit in a process of their own.
pub(super) async fn run(
    unit: &Unit,
    program: &Program,
    env: &[(&str, &OsStr)],
    log: &Path,
) -> anyhow::Result<Outcome> {
    let mut child = start(unit, program, env)?;
    let group = Group(Pid::from_raw(child.id().context("a child must have a pid")? as i32));
    let mut pipe = child.stdout.take().context("stdout was piped")?;
    let mut reader = Reader::new(&unit.tests, Instant::now());
    let mut file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let (mut line, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
    let (mut timed_out, mut has_exited) = (false, false);
    loop {
        let is_late = |since: Instant| since.elapsed() > unit.rule.limit;
        if !timed_out && reader.waits_since().is_some_and(is_late) {
            timed_out = true;
            group.kill();
        }
        let read = tokio::time::timeout(CHECK_EVERY, pipe.read(&mut chunk)).await;
        let Ok(read) = read else {
            // A grandchild may hold the pipe open; the end of the test process counts, once what it
            // wrote before it is read.
            if has_exited {
                break;
            }
            has_exited = child.try_wait()?.is_some();
            continue;
        };
        let count = read.context("read the test's output")?;
        if count == 0 {
            break;
        }
        file.write_all(&chunk[..count])?;
        feed(&mut reader, &mut line, &chunk[..count]);
    }
    reader.read(&String::from_utf8_lossy(&line), Instant::now());
    let cpu = cpu_of(group.0).await.unwrap_or_default();
    let status = child.wait().await?;
    drop(group);
    let (ended, left) = reader.end(timed_out, Instant::now());
    let mut output = read_lossy(log)?;
    if !status.success() {
        write!(output, "\n(the process ended with {status})\n").context("note the end")?;
    }
    Ok(Outcome { ended, left, output, cpu })
}

/// Waits for the end of a process, and leaves its status to be read. Returns the seconds of CPU
/// that it and the children it waited for took.
async fn cpu_of(pid: Pid) -> anyhow::Result<f64> {
    let wait = move || waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    tokio::task::spawn_blocking(wait).await??;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, behind_name) = stat.rsplit_once(')').context("a name in parentheses")?;
    // The times of user, system, and of both for its children: fields 14 to 17.
    let ticks = behind_name.split_whitespace().skip(11).take(4).map(str::parse::<u32>);
    let ticks: u32 = ticks.sum::<Result<_, _>>()?;
    Ok(f64::from(ticks) / TICKS_PER_SECOND)
}

/// Passes whole lines to the reader.
fn feed(reader: &mut Reader, line: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        if *byte == b'\n' {
            reader.read(&String::from_utf8_lossy(line), Instant::now());
            line.clear();
        } else {
            line.push(*byte);
        }
    }
    // A running test shows its name without the line's end.
    let text = String::from_utf8_lossy(line);
    if text.starts_with("test ") && text.ends_with(" ... ") {
        reader.read(&text, Instant::now());
        line.clear();
    }
}

fn start(unit: &Unit, program: &Program, env: &[(&str, &OsStr)]) -> anyhow::Result<Child> {
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    let is_background = unit.rule.weight == Weight::Background;
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        // With this policy it runs when a core has nothing else to do.
        .args(is_background.then_some(["chrt", "--idle", "0"]).into_iter().flatten())
        .arg(&program.path)
        // One after the other, so that the reader sees each begin and end.
        .args(["--exact", "--nocapture", "--test-threads=1", "--color=never"])
        .args(&unit.tests)
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("share the pipe")?)
        .stderr(writer)
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("start {}", program.path.display()))?;
    drop(command);
    let stdout = std::process::ChildStdout::from(OwnedFd::from(reader));
    child.stdout = Some(ChildStdout::from_std(stdout)?);
    Ok(child)
}

/// The processes of a unit. Dropping it kills them, including those that a test left behind.
struct Group(Pid);

impl Group {
    fn kill(&self) {
        // An error means that no process of it is left.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lossy(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
