//! Tests the agent's shells for the host, against doubles of logind and systemd on a private bus,
//! and a directory for the host's files.

mod configz;
mod delay;
mod golden;
mod journal;
mod kubelet;
mod lock;
mod session;
mod standing;
mod stop;

use std::path::Path;

use doubles::bus::PrivateBus;
use doubles::login1::Login1;
use epilogue_agent::host::Host;
use epilogue_agent::sink::logind::LogindSink;
use standing::{Session, WITHIN, words};
use tempfile::TempDir;

/// A host: its files, its bus and its logind.
struct Node {
    login1: Login1,
    bus: PrivateBus,
    root: TempDir,
}

impl Node {
    /// A host whose logind grants this many seconds.
    async fn start(delay_seconds: u64) -> Self {
        let root = tempfile::tempdir().expect("must be creatable");
        let bus = PrivateBus::start(root.path());
        let login1 = Login1::start(&bus.address, root.path(), delay_seconds).await;
        Self { login1, bus, root }
    }

    fn host(&self) -> Host {
        Host::new(self.root.path().to_owned())
    }

    fn sink(&self) -> LogindSink {
        LogindSink::new(self.bus.address.clone(), self.host(), words())
    }

    fn session(&self) -> Session {
        Session::start(&self.bus.address, 64)
    }

    fn write(&self, path: &str, text: &str) {
        write(self.root.path(), path, text);
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    let dir = path.parent().expect("must lie in a directory");
    std::fs::create_dir_all(dir).expect("the root must be writable");
    std::fs::write(path, text).expect("the root must be writable");
}
