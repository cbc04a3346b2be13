//! Tests signals on a process of its own: this test's binary, started again.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use epilogue_runtime::signals::Signals;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_util::sync::CancellationToken;

const ROLE: &str = "EPILOGUE_TEST_ROLE";

/// Plays the role of the started process: the test itself, with a role in the environment.
fn play(role: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let signals = Signals::install().expect("must install");
        let token = CancellationToken::new();
        println!("\nup");
        let work = async {
            token.cancelled().await;
            println!("\nending");
            if role == "stubborn" {
                std::future::pending::<()>().await;
            }
        };
        signals.guard(&token, work).await;
        println!("\nended");
    });
}

/// Starts this test again in another process, with a role.
fn start(test: &str, role: &str) -> (Child, impl Iterator<Item = String>) {
    let program = std::env::current_exe().expect("must know itself");
    let mut child = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .expect("must start");
    let output = child.stdout.take().expect("must be piped");
    (child, BufReader::new(output).lines().map_while(Result::ok))
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("must be a pid");
    kill(Pid::from_raw(pid), signal).expect("must be sent");
}

#[test]
fn the_first_signal_asks_for_an_orderly_end() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (mut child, mut lines) = start("the_first_signal_asks_for_an_orderly_end", "orderly");
        assert!(lines.any(|line| line == "up"));
        send(&child, signal);
        assert!(lines.any(|line| line == "ended"));
        assert!(child.wait().expect("must end").success());
    }
}

#[test]
fn the_second_signal_ends_the_process_at_once() {
    if let Ok(role) = std::env::var(ROLE) {
        return play(&role);
    }
    let (mut child, mut lines) = start("the_second_signal_ends_the_process_at_once", "stubborn");
    assert!(lines.any(|line| line == "up"));
    send(&child, Signal::SIGTERM);
    assert!(lines.any(|line| line == "ending"));
    send(&child, Signal::SIGTERM);
    let status = child.wait().expect("must end");
    assert_eq!((status.code(), status.signal()), (Some(143), None));
}
