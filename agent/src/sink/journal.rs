//! Stores the journal on disk: one frame per record, with length and checksum, synced before the
//! action counts as done. Does not know what the records mean.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::protocol::journal::Record;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use thiserror::Error;
use tokio::sync::Mutex;

use crate::host::{Host, HostError};

/// The file's name in its directory.
pub const FILE_NAME: &str = "journal";
/// Maximum size. A shutdown of a node with 500 pods writes about 1 MB.
const BYTES_MAX: u64 = 16 << 20;
/// Maximum size of a record. The longest one names all pods of a node.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// Length and checksum, four bytes each, little endian.
const HEAD: usize = 8;

/// Why the journal could not be read or written.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The file system refuses it.
    #[error(transparent)]
    File(#[from] HostError),
    /// Another process has it open.
    #[error("another agent has the journal {path} open")]
    Taken { path: PathBuf },
    /// It is too large.
    #[error("the journal {path} would have more than {} MiB", BYTES_MAX >> 20)]
    Full { path: PathBuf },
    /// A record cannot be encoded, or is too long.
    #[error("a record is not fit for the journal: {0}")]
    Record(String),
}

/// Writes the journal. The driver passes one action after the other, so the records have the order
/// of the actions.
#[derive(Clone, Debug)]
pub struct JournalSink {
    host: Host,
    journal: Arc<Mutex<Journal>>,
}

/// What the agent finds at its start.
#[derive(Debug)]
pub struct Opened {
    /// The sink for new records.
    pub sink: JournalSink,
    /// The records of the shutdown in progress, oldest first.
    pub records: Vec<Record>,
    /// What people should know: what was cut off, or why there is no journal.
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    /// `None` if it could not be opened; each action tries again.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Where the last whole frame ends. After a failed write the file may be longer.
    end: u64,
}

/// The content of a journal's bytes.
#[derive(Debug, Default, PartialEq)]
struct Content {
    records: Vec<Record>,
    /// Where the last whole frame ends.
    end: usize,
    /// Whole frames whose record this version does not know.
    unknown: usize,
}

impl JournalSink {
    /// Opens the journal of `dir` on this host, creates it if it is missing, and reads it. Never
    /// fails: without a journal the agent works, but keeps nothing across a crash.
    pub async fn open(host: Host, dir: &Path) -> Opened {
        let path = dir.join(FILE_NAME);
        let mut journal = Journal { path, open: None };
        let work = move || {
            let read = journal.open();
            (journal, read)
        };
        let (journal, read) = host.blocking(work).await;
        let sink = Self { host, journal: Arc::new(Mutex::new(journal)) };
        match read {
            Ok((records, notes)) => Opened { sink, records, notes },
            Err(error) => {
                Opened { sink, records: Vec::new(), notes: vec![failure(&error).message] }
            }
        }
    }

    /// Appends records, all or none.
    pub async fn append(&self, records: Vec<Record>) -> Outcome<()> {
        self.with(move |journal| journal.append(&records)).await
    }

    /// Removes all records.
    pub async fn clear(&self) -> Outcome<()> {
        self.with(Journal::clear).await
    }

    async fn with(
        &self,
        write: impl FnOnce(&mut Journal) -> Result<(), JournalError> + Send + 'static,
    ) -> Outcome<()> {
        let mut journal = Arc::clone(&self.journal).lock_owned().await;
        let written = self.host.blocking(move || write(&mut journal)).await;
        written.map_err(|error| failure(&error))
    }
}

impl Journal {
    fn open(&mut self) -> Result<(Vec<Record>, Vec<String>), JournalError> {
        let path = &self.path;
        let dir = path.parent().expect("the path must have been joined to a directory");
        if !dir.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.map_err(HostError::of("make the journal's directory", dir))?;
        }
        let mut options = OpenOptions::new();
        let opened =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let unopened = HostError::of("open the journal", path);
        let mut file = opened.map_err(&unopened)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Taken { path: path.clone() });
            }
            Err(TryLockError::Error(source)) => return Err(unopened(source).into()),
        }
        // The file's name has to survive too.
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(unopened)?;
        let unread = HostError::of("read the journal", path);
        let mut bytes = Vec::new();
        (&mut file).take(BYTES_MAX).read_to_end(&mut bytes).map_err(&unread)?;
        let length = file.metadata().map_err(unread)?.len();
        let content = read(&bytes);
        let notes = self.notes(&content, length);
        let end = content.end as u64;
        self.open = Some(Open { file, end });
        Ok((content.records, notes))
    }

    fn notes(&self, content: &Content, length: u64) -> Vec<String> {
        let path = self.path.display();
        let mut notes = Vec::new();
        let cut = length - content.end as u64;
        if cut > 0 {
            notes.push(format!(
                "the journal {path} breaks off: its last {cut} of {length} bytes are left out, \
                 {} records before them count",
                content.records.len()
            ));
        }
        if content.unknown > 0 {
            notes.push(format!(
                "the journal {path} has {} records of a kind that this version does not know",
                content.unknown
            ));
        }
        notes
    }

    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        for record in records {
            frame(record, &mut bytes)?;
        }
        let path = self.path.clone();
        let open = self.opened()?;
        let end = open.end + bytes.len() as u64;
        if end > BYTES_MAX {
            return Err(JournalError::Full { path });
        }
        open.write(&bytes).map_err(HostError::of("write the journal", &path))?;
        open.end = end;
        Ok(())
    }

    fn clear(&mut self) -> Result<(), JournalError> {
        let unwritten = HostError::of("write the journal", &self.path);
        let open = self.opened()?;
        open.file.set_len(0).and_then(|()| open.file.sync_all()).map_err(unwritten)?;
        open.end = 0;
        Ok(())
    }

    /// The open file. A file that is opened late may have records that were not read at the start:
    /// they stay, and new ones follow.
    fn opened(&mut self) -> Result<&mut Open, JournalError> {
        if self.open.is_none() {
            self.open()?;
        }
        Ok(self.open.as_mut().expect("the journal must be open now"))
    }
}

impl Open {
    /// Writes behind the last whole frame. First cuts off what a failed write has left, so that
    /// nothing torn lies between two frames.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.set_len(self.end)?;
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(bytes)?;
        self.file.sync_all()
    }
}

fn frame(record: &Record, bytes: &mut Vec<u8>) -> Result<(), JournalError> {
    let json =
        serde_json::to_vec(record).map_err(|error| JournalError::Record(error.to_string()))?;
    let length = u32::try_from(json.len()).ok().filter(|_| json.len() <= RECORD_BYTES_MAX);
    let length = length.ok_or_else(|| JournalError::Record(format!("{} bytes", json.len())))?;
    bytes.extend(length.to_le_bytes());
    bytes.extend(checksum(length, &json).to_le_bytes());
    bytes.extend(json);
    Ok(())
}

/// The checksum also covers the length: so zeros are not a frame.
fn checksum(length: u32, json: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(json);
    hasher.finalize()
}

/// Reads the longest prefix of whole frames.
fn read(bytes: &[u8]) -> Content {
    let mut content = Content::default();
    while let Some(json) = first_frame(&bytes[content.end..]) {
        match serde_json::from_slice(json) {
            Ok(record) => content.records.push(record),
            Err(_) => content.unknown += 1,
        }
        content.end += HEAD + json.len();
    }
    content
}

fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length);
    let json = rest.get(..usize::try_from(length).ok()?)?;
    let whole =
        json.len() <= RECORD_BYTES_MAX && checksum(length, json) == u32::from_le_bytes(*sum);
    whole.then_some(json)
}

fn failure(error: &JournalError) -> Failure {
    let cause =
        std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    let remedy = match cause.map(io::Error::kind) {
        Some(ErrorKind::ReadOnlyFilesystem) => {
            "; the file system is read-only: give the agent a directory that it may write \
             (--state-dir), late in a shutdown it is to be expected"
        }
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            "; free space on this file system, or choose another with --state-dir"
        }
        Some(ErrorKind::PermissionDenied) => {
            "; give the agent a directory that it may write (--state-dir)"
        }
        _ => "",
    };
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    Failure::new(FailureKind::Other, format!("{error}{cause}{remedy}"))
}
