//! Tests the journal: the agent finds what it wrote, whatever happened to the file.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::ending::{ShutdownKind, Source};
use agent_core::protocol::journal::{Intent, Record};
use agent_core::shutdown::Mode;
use epilogue_agent::host::Host;
use epilogue_agent::sink::journal::{FILE_NAME, JournalSink, Opened};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::WITHIN;

fn records() -> Vec<Record> {
    let uid = PodUid("11111111-2222-3333-4444-555555555555".into());
    let begun = Record::Begun {
        boot_id: "one-boot".into(),
        at: Duration::from_millis(123_456),
        wall: Timestamp::UNIX_EPOCH,
        granted: Duration::from_secs(5),
        mode: Mode::Replace,
        kind: Some(ShutdownKind::Other("new-kind".into())),
        source: Source::Logind,
    };
    let intent = Record::Intent {
        uid: uid.clone(),
        namespace: "default".into(),
        name: "einträge".into(),
        intent: Intent::Mark,
        at: Timestamp::UNIX_EPOCH,
    };
    let acknowledged = Record::Acknowledged { uid: uid.clone(), intent: Intent::Mark };
    vec![begun, intent, acknowledged, Record::Released { unreported: vec![uid] }]
}

pub(crate) async fn write(sink: &JournalSink, records: &[Record]) {
    assert_eq!(sink.append(records.to_vec()).await, Ok(()));
}

/// Opens the journal once no other process has it. A child of this process that another test starts
/// has a copy of each descriptor until it executes its program.
pub(crate) async fn open(dir: &Path) -> Opened {
    let end = Instant::now() + WITHIN;
    loop {
        let opened = JournalSink::open(Host::new(dir.to_owned()), dir).await;
        let taken = opened.notes.iter().any(|note| note.starts_with("another agent"));
        if !taken || Instant::now() > end {
            return opened;
        }
        tokio::task::yield_now().await;
    }
}

pub(crate) fn bytes(dir: &Path) -> Vec<u8> {
    fs::read(dir.join(FILE_NAME)).expect("the journal must be there")
}

#[tokio::test]
async fn what_was_written_is_found_after_a_restart() {
    let root = tempfile::tempdir().expect("must be creatable");
    let dir = root.path().join("var/lib/epilogue-agent");
    let first = open(&dir).await;
    assert_eq!((first.records, first.notes), (vec![], vec![]));
    let records = records();
    write(&first.sink, &records[..1]).await;
    write(&first.sink, &records[1..3]).await;
    drop(first.sink);
    let second = open(&dir).await;
    assert_eq!((second.records, second.notes), (records[..3].to_vec(), vec![]));
    write(&second.sink, &records[3..]).await;
    drop(second.sink);
    assert_eq!(open(&dir).await.records, records);
}

#[tokio::test]
async fn a_closed_journal_is_empty() {
    let root = tempfile::tempdir().expect("must be creatable");
    let sink = open(root.path()).await.sink;
    write(&sink, &records()).await;
    assert_eq!(sink.clear().await, Ok(()));
    assert_eq!(bytes(root.path()), b"");
    write(&sink, &records()[..1]).await;
    drop(sink);
    assert_eq!(open(root.path()).await.records, records()[..1]);
}

#[tokio::test]
async fn a_torn_end_leaves_the_whole_beginning() {
    let root = tempfile::tempdir().expect("must be creatable");
    let records = records();
    let mut ends = vec![0];
    let sink = open(root.path()).await.sink;
    for record in &records {
        write(&sink, std::slice::from_ref(record)).await;
        ends.push(bytes(root.path()).len());
    }
    drop(sink);
    let whole = bytes(root.path());
    for length in 0..=whole.len() {
        fs::write(root.path().join(FILE_NAME), &whole[..length]).expect("must be writable");
        let opened = open(root.path()).await;
        let count = ends.iter().filter(|end| **end <= length).count() - 1;
        assert_eq!(opened.records, records[..count], "{length} bytes");
        let torn = !ends.contains(&length);
        assert_eq!(opened.notes.len(), usize::from(torn), "{length} bytes: {:?}", opened.notes);
        // The next record replaces what was torn.
        write(&opened.sink, &records[3..]).await;
        drop(opened.sink);
        let again = open(root.path()).await;
        assert_eq!(again.records, [&records[..count], &records[3..]].concat(), "{length} bytes");
        assert_eq!(again.notes, [""; 0], "{length} bytes");
    }
}

#[tokio::test]
async fn a_flipped_bit_ends_the_journal_before_its_record() {
    let root = tempfile::tempdir().expect("must be creatable");
    let sink = open(root.path()).await.sink;
    write(&sink, &records()[..1]).await;
    let first = bytes(root.path()).len();
    write(&sink, &records()[1..]).await;
    drop(sink);
    let whole = bytes(root.path());
    for position in (first..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[position] ^= 1 << (position % 8);
        fs::write(root.path().join(FILE_NAME), &bytes).expect("must be writable");
        let opened = open(root.path()).await;
        assert!(opened.records.len() < 4, "byte {position}");
        assert_eq!(opened.records[..1], records()[..1], "byte {position}");
        assert_eq!(opened.notes.len(), 1, "byte {position}");
        assert!(opened.notes[0].contains("breaks off"), "{:?}", opened.notes);
    }
}

#[tokio::test]
async fn no_bytes_are_a_reason_to_fail() {
    let root = tempfile::tempdir().expect("must be creatable");
    let path = root.path().join(FILE_NAME);
    let zeros = vec![0; 5000];
    let ones = vec![0xff; 5000];
    // The largest length that four bytes can hold, with a correct checksum of nothing.
    let long = [&u32::MAX.to_le_bytes()[..], &[0; 4], b"{}"].concat();
    let text = b"[Login]\nInhibitDelayMaxSec=5\n".to_vec();
    let mut state = 7_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    let noises: Vec<Vec<u8>> =
        (0..200).map(|length| (0..length).map(|_| noise()).collect()).collect();
    for bytes in [zeros, ones, long, text].into_iter().chain(noises) {
        fs::write(&path, &bytes).expect("must be writable");
        let opened = open(root.path()).await;
        assert_eq!(opened.records, []);
        assert_eq!(opened.notes.len(), usize::from(!bytes.is_empty()), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_record_of_a_newer_version_is_passed_over() {
    let root = tempfile::tempdir().expect("must be creatable");
    let sink = open(root.path()).await.sink;
    write(&sink, &records()[..1]).await;
    drop(sink);
    let json = br#"{"record":"from-the-future","uid":7}"#;
    let length = u32::try_from(json.len()).expect("must be short").to_le_bytes();
    let sum = crc32fast::hash(&[&length[..], json].concat()).to_le_bytes();
    let path = root.path().join(FILE_NAME);
    let mut file = OpenOptions::new().append(true).open(&path).expect("must be there");
    std::io::Write::write_all(&mut file, &[&length[..], &sum, json].concat())
        .expect("must be writable");
    drop(file);
    let opened = open(root.path()).await;
    assert_eq!(opened.records, records()[..1]);
    assert!(opened.notes[0].contains("1 records of a kind"), "{:?}", opened.notes);
    write(&opened.sink, &records()[1..2]).await;
    drop(opened.sink);
    assert_eq!(open(root.path()).await.records, records()[..2]);
}

#[tokio::test]
async fn a_directory_that_cannot_be_is_named_and_tried_again() {
    let root = tempfile::tempdir().expect("must be creatable");
    let dir = root.path().join("state");
    fs::write(&dir, "a file").expect("must be writable");
    let opened = open(&dir).await;
    assert_eq!(opened.records, []);
    let words = opened.notes.first().expect("it must be said");
    assert!(words.contains("cannot make the journal's directory"), "{words}");
    let failed = opened.sink.append(records()).await;
    assert!(failed.is_err(), "{failed:?}");
    fs::remove_file(&dir).expect("must be removable");
    write(&opened.sink, &records()).await;
    drop(opened.sink);
    assert_eq!(open(&dir).await.records, records());
}

#[tokio::test]
async fn two_agents_do_not_write_the_same_journal() {
    let root = tempfile::tempdir().expect("must be creatable");
    let first = open(root.path()).await;
    let second = JournalSink::open(Host::new(root.path().to_owned()), root.path()).await;
    assert!(second.notes[0].contains("another agent has the journal"), "{:?}", second.notes);
    let failed = second.sink.append(records()).await;
    assert!(failed.is_err(), "{failed:?}");
    // The first agent ends, and the second one finds its records.
    write(&first.sink, &records()[..1]).await;
    drop(first.sink);
    drop(open(root.path()).await);
    write(&second.sink, &records()[1..]).await;
    drop(second.sink);
    assert_eq!(open(root.path()).await.records, records());
}

#[tokio::test]
async fn a_journal_does_not_grow_without_end() {
    let root = tempfile::tempdir().expect("must be creatable");
    let sink = open(root.path()).await.sink;
    let uids: Vec<PodUid> = vec![PodUid("x".repeat(900)); 1000];
    let record = Record::Released { unreported: uids };
    let mut written = 0;
    let failure = loop {
        match sink.append(vec![record.clone()]).await {
            Ok(()) => written += 1,
            Err(failure) => break failure,
        }
        assert!(written < 100, "there must be a limit");
    };
    assert!(failure.message.contains("more than 16 MiB"), "{failure}");
    drop(sink);
    assert_eq!(open(root.path()).await.records.len(), written);
}
