//! Reports drop-ins of logind that other programs write. A kubelet whose graceful shutdown needs
//! more than logind grants writes one and waits 1.5 s; ours sorts behind it and would hide it.
//! ([SD4], [SD23])

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::shutdown::logind_conf::{DROP_IN_DIRS, OUR_DROP_IN};
use nix::sys::inotify::{AddWatchFlags, InotifyEvent};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::tell;
use crate::host::Host;
use crate::inotify::Notices;

/// How long until a directory that does not exist, or went away, is watched again.
const RETRY: Duration = Duration::from_secs(10);

/// Reports changes.
pub async fn run(host: Host, events: mpsc::Sender<Event>) {
    let directory = host.path(DROP_IN_DIRS[0]);
    loop {
        if let Err(error) = watch(&directory, &events).await {
            let directory = directory.display();
            tracing::debug!(%directory, %error, "drop-ins of logind are not watched now");
        }
        sleep(RETRY).await;
    }
}

/// Ends when the directory is gone.
async fn watch(directory: &Path, events: &mpsc::Sender<Event>) -> std::io::Result<()> {
    let notices = Notices::new()?;
    let of = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    notices.add(directory, of)?;
    loop {
        let changes = notices.next().await?;
        if changes.iter().any(is_of_others) {
            tell(events, Event::LogindConfChanged).await;
        }
        if changes.iter().any(|change| change.mask.contains(AddWatchFlags::IN_IGNORED)) {
            return Ok(());
        }
    }
}

/// Whether the notice is of a drop-in that is not ours. Lost notices may have been.
fn is_of_others(change: &InotifyEvent) -> bool {
    let is_conf = |name: &OsStr| Path::new(name).extension() == Some(OsStr::new("conf"));
    let ours = Path::new(OUR_DROP_IN).file_name();
    let named = change.name.as_deref();
    change.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)
        || named.is_some_and(|name| is_conf(name) && Some(name) != ours)
}
