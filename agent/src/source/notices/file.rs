//! Reads a notice from a file of the host, which an administrator or another program writes: for
//! everything that no source of its own announces.
//!
//! Each line is `FIELD=VALUE`; an empty file is a certain end without a time. The file and its
//! directory must be root's, and writable for no one else: whoever writes it ends the node's pods.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use agent_core::protocol::ending::{Ending, ShutdownKind, Source};
use agent_core::time_span::TimeSpan;
use jiff::Timestamp;
use nix::libc::O_NOFOLLOW;

use super::Asked;
use crate::clock::Clock;
use crate::host::Host;

/// The file, on the host.
pub(super) const FILE: &str = "/run/epilogue/notice";
/// How often the file is looked for.
const PERIOD: Duration = Duration::from_millis(500);
/// A file in memory is read at once.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum size: a notice has three short lines.
const BYTES_MAX: u64 = 4096;

/// The file's notice.
#[derive(Debug)]
pub(super) struct FileNotice {
    host: Host,
    clock: Clock,
    /// The only user that may write the file and its directory.
    owner: u32,
}

impl FileNotice {
    /// The notice in this host's file, whose times are of this machine's wall clock.
    pub(super) fn new(host: Host, clock: Clock) -> Self {
        Self { host, clock, owner: 0 }
    }

    /// The same, with this user in place of root, for tests.
    #[cfg(test)]
    fn owned_by(self, owner: u32) -> Self {
        Self { owner, ..self }
    }

    fn read(&self) -> Result<Option<Ending>, String> {
        let path = self.host.path(FILE);
        let said = |error: io::Error| error.to_string();
        let mut file =
            match std::fs::OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(said(error)),
            };
        let metadata = file.metadata().map_err(said)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        self.is_trusted("it", &metadata)?;
        self.is_trusted("its directory", &directory.metadata().map_err(said)?)?;
        let text = text(&mut file, &metadata)?;
        let written = metadata.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
        let now = self.clock.system();
        ending(&text, written.unwrap_or(now), now).map(Some)
    }

    fn is_trusted(&self, what: &str, metadata: &Metadata) -> Result<(), String> {
        if metadata.uid() != self.owner {
            return Err(format!("{what} belongs to uid {}, expected root", metadata.uid()));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(format!("{what} can be written by others than its owner: chmod go-w"));
        }
        Ok(())
    }
}

impl Asked for FileNotice {
    type Error = String;

    fn source(&self) -> Source {
        Source::File
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn answer_max(&self) -> Duration {
        ANSWER_MAX
    }

    /// Its times are of this machine's clock, not of the API's.
    async fn ask(&mut self, _: Timestamp) -> Result<Option<Ending>, String> {
        self.read().map_err(|why| format!("{FILE}: {why}"))
    }
}

fn text(file: &mut File, metadata: &Metadata) -> Result<String, String> {
    if !metadata.is_file() {
        return Err("it is a directory or a device: expected a regular file".to_owned());
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|it| it.to_string())?;
    if read as u64 > BYTES_MAX {
        return Err(format!("it is longer than {BYTES_MAX} bytes"));
    }
    Ok(text)
}

/// The end that a text announces, which was written then.
fn ending(text: &str, written: Timestamp, now: Timestamp) -> Result<Ending, String> {
    let mut ending = Ending::certain(None, None);
    let mut at = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (field, value) = line.split_once('=').ok_or_else(|| {
            format!("invalid line {line:?}: expected FIELD=VALUE, such as in=90s")
        })?;
        let (field, value) = (field.trim(), value.trim());
        match field {
            "at" => {
                let time = value.parse::<Timestamp>().map_err(|_| {
                    format!("invalid at={value:?}: expected a time such as 2026-12-01T08:00:00Z")
                })?;
                at = Some(time);
            }
            "in" => {
                let span = value.parse::<TimeSpan>().map_err(|error| {
                    format!("invalid in={value:?}: {error}; expected a time such as 90s")
                })?;
                at = Some(written.checked_add(span.duration()).map_err(|_| {
                    format!("invalid in={value:?}: expected a time within the calendar")
                })?);
            }
            "kind" => ending.kind = Some(ShutdownKind::named(value)),
            "certain" => {
                ending.certain = value
                    .parse()
                    .map_err(|_| format!("invalid certain={value:?}: expected true or false"))?;
            }
            _ => {
                return Err(format!("unknown field {field:?}: expected at, in, kind or certain"));
            }
        }
    }
    let left = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
    ending.within = at.map(left);
    Ok(ending)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::Arc;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("must be a time")
    }

    #[test]
    fn fields_say_when_what_and_whether_it_is_certain() {
        let within = |seconds| Some(Duration::from_secs(seconds));
        let reboot = Some(ShutdownKind::Reboot);
        let table = [
            ("", Ending::certain(None, None)),
            ("in=90s\n", Ending::certain(within(80), None)),
            ("at=2027-01-15T08:01:00Z\nkind=reboot", Ending::certain(within(50), reboot)),
            (" in = 2min \n\n", Ending::certain(within(110), None)),
            // What is past is now.
            ("in=5s", Ending::certain(within(0), None)),
            ("certain=false", Ending { within: None, kind: None, certain: false }),
        ];
        for (text, expected) in table {
            assert_eq!(ending(text, at(0), at(10)), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_field() {
        for (text, why) in [
            ("90s", "FIELD=VALUE"),
            ("at=tomorrow", "at="),
            ("in=soon", "in="),
            ("in=99999999999999999999y", "in="),
            ("certain=perhaps", "certain="),
            ("when=now", "unknown field \"when\""),
        ] {
            let error = ending(text, at(0), at(10)).expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn file_counts_if_no_one_but_its_owner_may_write_it() {
        let root = tempfile::tempdir().expect("must be creatable");
        let owner = fs::metadata(root.path()).expect("must be there").uid();
        let host = Host::new(root.path().to_owned());
        let (path, directory) = (host.path(FILE), host.path("/run/epilogue"));
        let notice = FileNotice::new(host.clone(), Clock::new(Arc::default())).owned_by(owner);
        assert_eq!(notice.read(), Ok(None), "there is no directory");
        fs::create_dir_all(&directory).expect("must be creatable");
        assert_eq!(notice.read(), Ok(None), "there is no file");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("must be settable");
        };
        mode(&directory, 0o755);
        fs::write(&path, "certain=false").expect("must be writable");
        mode(&path, 0o644);
        let expected = Ending { within: None, kind: None, certain: false };
        assert_eq!(notice.read(), Ok(Some(expected)));
        let refused = |why: &str| {
            let error = notice.read().expect_err(why);
            assert!(error.contains(why), "{error}");
        };
        mode(&path, 0o666);
        refused("it can be written by others");
        mode(&path, 0o644);
        mode(&directory, 0o777);
        refused("its directory can be written by others");
        mode(&directory, 0o755);
        fs::write(&path, "x".repeat(5_000)).expect("must be writable");
        refused("longer than 4096 bytes");
        fs::write(&path, [0xff, 0xfe]).expect("must be writable");
        refused("UTF-8");
        fs::rename(&path, directory.join("other")).expect("must be movable");
        symlink(directory.join("other"), &path).expect("must be creatable");
        assert!(notice.read().is_err(), "a link may lead anywhere");
        let of_root = FileNotice::new(host, Clock::new(Arc::default()));
        fs::remove_file(&path).expect("must be removable");
        fs::write(&path, "").expect("must be writable");
        if owner != 0 {
            let error = of_root.read().expect_err("must be refused");
            assert!(error.contains("expected root"), "{error}");
        }
    }
}
