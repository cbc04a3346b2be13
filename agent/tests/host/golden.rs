//! Holds the journal's format to files that former versions have written: a node that is upgraded
//! in a shutdown continues with them. A new format is a new file, and the former ones stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::ending::{ShutdownKind, Source};
use agent_core::protocol::journal::{Intent, Record};
use agent_core::shutdown::Mode;
use epilogue_agent::sink::journal::FILE_NAME;
use jiff::Timestamp;

use crate::journal::{bytes, open, write};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host/golden").join(name)
}

fn first() -> PodUid {
    PodUid("11111111-2222-3333-4444-555555555555".into())
}

fn second() -> PodUid {
    PodUid("66666666-7777-8888-9999-000000000000".into())
}

fn at() -> Timestamp {
    "2026-11-21T14:05:06Z".parse().expect("must be a time")
}

fn begun(kind: ShutdownKind) -> Record {
    Record::Begun {
        boot_id: "7d0c9ee0-3a1d".into(),
        at: Duration::from_millis(123_456),
        wall: at(),
        granted: Duration::from_secs(30),
        mode: Mode::Replace,
        kind: Some(kind),
        source: Source::Logind,
    }
}

fn intent(intent: Intent) -> Record {
    let (uid, name) = match intent {
        Intent::MarkBeforeStart | Intent::Clear => (second(), "worker-1".into()),
        _ => (first(), "worker-0".into()),
    };
    Record::Intent { uid, namespace: "default".into(), name, intent, at: at() }
}

fn acknowledged(intent: Intent) -> Record {
    Record::Acknowledged { uid: first(), intent }
}

/// The records of `journal-1`: there were no pods yet that had not started, or had ended before.
fn records_1() -> Vec<Record> {
    let later = [Intent::MarkBeforeStart, Intent::LeaveExited];
    let is_former = |record: &Record| match record {
        Record::Intent { intent, .. } => !later.contains(intent),
        _ => true,
    };
    let mut records: Vec<Record> = records_2().into_iter().filter(is_former).collect();
    records[0] = begun(ShutdownKind::Poweroff);
    records
}

/// The records of `journal-2`: every kind of record, and every intent.
fn records_2() -> Vec<Record> {
    vec![
        begun(ShutdownKind::SoftReboot),
        intent(Intent::Mark),
        acknowledged(Intent::Mark),
        intent(Intent::MarkBeforeStart),
        intent(Intent::LeaveExited),
        intent(Intent::End),
        acknowledged(Intent::End),
        intent(Intent::Fail),
        acknowledged(Intent::Fail),
        intent(Intent::Clear),
        Record::Released { unreported: vec![second()] },
    ]
}

#[tokio::test]
async fn the_journal_of_each_former_version_is_read() {
    for (name, records) in [("journal-1", records_1()), ("journal-2", records_2())] {
        let root = tempfile::tempdir().expect("must be there");
        fs::copy(golden(name), root.path().join(FILE_NAME)).expect("it must be copied");
        let opened = open(root.path()).await;
        assert_eq!(opened.notes, Vec::<String>::new(), "{name}");
        assert_eq!(opened.records, records, "{name}");
    }
}

#[tokio::test]
async fn the_journal_is_written_as_its_newest_golden_file() {
    let root = tempfile::tempdir().expect("must be there");
    let opened = open(root.path()).await;
    write(&opened.sink, &records_2()).await;
    let golden = fs::read(golden("journal-2")).expect("must be there");
    let (written, golden) = (bytes(root.path()), golden);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        text(&written),
        text(&golden),
        "the format has changed: keep the former file, and add a new one"
    );
    assert_eq!(written, golden);
}

/// A new kind of record needs a line in the newest golden file.
#[test]
fn the_newest_golden_file_has_every_kind_of_record() {
    let kind = |record: &Record| match record {
        Record::Begun { .. } => 0,
        Record::Intent { intent, .. } => match intent {
            Intent::Mark => 1,
            Intent::MarkBeforeStart => 2,
            Intent::LeaveExited => 3,
            Intent::End => 4,
            Intent::Fail => 5,
            Intent::Clear => 6,
        },
        Record::Acknowledged { .. } => 7,
        Record::Released { .. } => 8,
    };
    let mut kinds: Vec<i32> = records_2().iter().map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert!(kinds.iter().copied().eq(0..=8), "{kinds:?}");
}
