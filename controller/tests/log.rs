//! Runs the program with a log that has no reader.

use std::fs::File;
use std::io::{Read as _, Write as _, pipe};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(30);

/// A pipe without room for one more byte, and its end for readers.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, mut writer) = pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("must not block");
    let mut size = 4096;
    while size > 0 {
        if writer.write(&vec![b'\n'; size]).is_err() {
            size /= 2;
        }
    }
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).expect("must block");
    (writer.into(), reader.into())
}

/// An API server that closes each connection; counts them.
fn server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (address, calls)
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < SOON, "{what}: not within {SOON:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Ends the process with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_without_a_reader_holds_up_neither_the_work_nor_the_end() {
    let (log, reader) = full_pipe();
    let (api, calls) = server();
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: a, contexts: [{{name: a, context: \
         {{cluster: a, user: a}}}}], users: [{{name: a, user: {{}}}}], clusters: [{{name: a, \
         cluster: {{server: 'http://{api}'}}}}]}}"
    );
    std::fs::write(&kubeconfig, text).expect("must be written");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let child = Command::new(env!("CARGO_BIN_EXE_epilogue-controller"))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--metrics-bind-address={port}"))
        .arg("--log-level=trace")
        .stderr(Stdio::from(log))
        .spawn();
    let mut program = Program(child.expect("must start"));

    assert_eq!(until("alive", || get(port, "/livez")), "ok");
    let before = calls.load(Ordering::Relaxed);
    let goes_on = || (calls.load(Ordering::Relaxed) > before + 5).then_some(());
    until("it goes on to call the API", goes_on);
    assert_eq!(get(port, "/livez").as_deref(), Some("ok"));
    let metrics = get(port, "/metrics").expect("must be served");
    assert!(metrics.contains("\nepilogue_log_lines_dropped_total "), "{metrics}");

    let pid = i32::try_from(program.0.id()).expect("must be a pid");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("must be sent");
    until("it ends", || program.0.try_wait().expect("a child of ours"));
    // What is read now was there before the program began.
    let mut read = Vec::new();
    File::from(reader).read_to_end(&mut read).expect("must be readable");
    assert!(read.iter().all(|byte| *byte == b'\n'), "{}", String::from_utf8_lossy(&read));
}
