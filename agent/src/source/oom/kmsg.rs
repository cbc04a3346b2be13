//! Reads the kernel's log, from now on. If it cannot be read, says so once: the counters of the
//! cgroups show most of the same.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::{OomKill, OomWitness};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use nix::fcntl::OFlag;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::counters::limit;
use super::fate::lives_on;
use super::record::{Constraint, Record, kills};
use crate::cgroups::{Cgroups, Kubepods, Place};
use crate::clock::Clock;
use crate::host::Host;
use crate::source::tell;

/// The device with the kernel's log.
pub const LOG: &str = "/dev/kmsg";
/// Maximum size of a record; each read returns one.
const RECORD_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of kills that wait for their container's end at once; further ones are dropped.
const AT_ONCE_MAX: usize = 256;

/// Reports kills; ends when the log cannot be read.
pub(super) async fn run(host: &Host, clock: &Clock, events: &mpsc::Sender<Event>) {
    let log = match open(host) {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(
                path = LOG,
                %error,
                "the kernel's log can't be read: only the cgroups show OOM kills"
            );
            return;
        }
    };
    let mut ending = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(kill) = ending.next(), if !ending.is_empty() => {
                tell(events, Event::OomKilled(Box::new(kill))).await;
            }
            read = records(&log) => match read {
                Ok(text) => {
                    for record in kills(&text).filter(|record| is_pods(host, record)) {
                        if ending.len() < AT_ONCE_MAX {
                            ending.push(follow(host, clock, record));
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(path = LOG, %error, "the kernel's log can't be read any more");
                    break;
                }
            },
        }
    }
    while let Some(kill) = ending.next().await {
        tell(events, Event::OomKilled(Box::new(kill))).await;
    }
}

fn open(host: &Host) -> io::Result<AsyncFd<File>> {
    let mut file = open_log(host)?;
    // Earlier kills belong to an earlier process of the agent. A pipe has no end to seek.
    let _ = file.seek(SeekFrom::End(0));
    #[expect(deprecated, reason = "its successor is unsafe; a File keeps what that asks for")]
    AsyncFd::with_interest(file, Interest::READABLE)
}

/// Opens the kernel's log, which is what the kernel may forbid; reads nothing.
pub fn open_log(host: &Host) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK.bits();
    OpenOptions::new().read(true).custom_flags(flags).open(host.path(LOG))
}

/// The next records. Those overwritten before they were read are lost, and the log goes on.
async fn records(log: &AsyncFd<File>) -> io::Result<String> {
    let mut bytes = vec![0; RECORD_BYTES_MAX];
    loop {
        let mut ready = log.readable().await?;
        match ready.try_io(|log| log.get_ref().read(&mut bytes)) {
            Err(_would_block) => {}
            Ok(Ok(0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(Ok(length)) => {
                bytes.truncate(length);
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            Ok(Err(error)) if error.kind() == ErrorKind::BrokenPipe => {
                tracing::debug!(path = LOG, "records were lost");
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
        }
    }
}

/// Whether the kill is of a pod's process, and not of one that only has such a cgroup's name.
fn is_pods(host: &Host, record: &Record) -> bool {
    Cgroups::of(host).is_none_or(|cgroups| cgroups.may_be_pods(&record.path))
}

/// Waits for what happens to the container.
async fn follow(host: &Host, clock: &Clock, record: Record) -> OomKill {
    let at = clock.now().monotonic;
    let Record { victim, constraint, process, .. } = record;
    // Read it before the container is gone.
    let limit = match &constraint {
        Constraint::Limit(Some(place)) => match cgroup(host, place) {
            Cgroup::There(cgroup) => limit(&cgroup),
            Cgroup::Gone | Cgroup::Foreign => None,
        },
        _ => None,
    };
    let container_lives = match cgroup(host, &victim) {
        Cgroup::There(cgroup) => lives_on(host, &cgroup).await,
        Cgroup::Gone => Some(false),
        Cgroup::Foreign => None,
    };
    OomKill {
        pod: victim.pod,
        container_id: victim.container_id,
        constraint: constraint.of_pod(),
        limit,
        process,
        container_lives,
        witness: OomWitness::KernelLog,
        at,
    }
}

/// The state of a cgroup that the log names.
enum Cgroup {
    /// It exists, here.
    There(PathBuf),
    /// Its pod's cgroup exists, but this one does not.
    Gone,
    /// Its pod's cgroup is not visible from here.
    Foreign,
}

/// The cgroup of a pod or container. Does not use the log's path: it may begin at
/// another root than the files that the agent sees.
fn cgroup(host: &Host, place: &Place) -> Cgroup {
    let pods = Kubepods::of(host).and_then(|kubepods| kubepods.pods().ok());
    let pod = pods.into_iter().flatten().find(|pod| pod.uid == place.pod);
    let Some(pod) = pod else { return Cgroup::Foreign };
    let Some(wanted) = &place.container_id else { return Cgroup::There(pod.path) };
    let containers = pod.containers().unwrap_or_default();
    let found = containers.into_iter().find(|(id, _)| id == wanted);
    found.map_or(Cgroup::Gone, |(_, cgroup)| Cgroup::There(cgroup))
}
