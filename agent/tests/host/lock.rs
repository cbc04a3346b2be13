//! Tests the lock: taken, renewed, released, and gone with its holder.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_core::protocol::event::ActionResult;
use doubles::login1::Down;
use epilogue_common::outcome::FailureKind;
use tokio::time::Instant;

use crate::{Node, WITHIN, words};

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_says_whose_it_is_and_what_it_waits_for() {
    let node = Node::start(60).await;
    let sink = node.sink();
    assert_eq!(sink.take_lock().await, ActionResult::Locked);
    let locks = node.login1.state().locks;
    let [(_, (what, who, why, mode, _, pid))] = locks.as_slice() else {
        panic!("one lock must be held: {locks:?}")
    };
    assert_eq!(
        (what.as_str(), who.as_str(), mode.as_str()),
        ("shutdown", "epilogue-agent", "delay")
    );
    assert_eq!((why.as_str(), *pid), (words().why(), std::process::id()));
    assert!(why.starts_with("Waits until"), "{why}");
}

/// The flags of each descriptor of this process that is an end of the pipe.
fn flags(pipe: &str) -> Vec<u32> {
    let flags = |number: &OsStr| {
        let target = fs::read_link(Path::new("/proc/self/fd").join(number)).ok()?;
        let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(number)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        (target.as_os_str() == pipe).then_some(flags)
    };
    let numbers = fs::read_dir("/proc/self/fd").expect("must be there").flatten();
    numbers.filter_map(|entry| flags(&entry.file_name())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_child_would_get_a_copy_of_the_lock() {
    // A child with a copy of the descriptor would hold the lock. ([LD13])
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    let node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    let pipe = node.login1.state().pipes.remove(0);
    // The message with the descriptor holds a copy for a moment more; two ends remain.
    let end = Instant::now() + WITHIN;
    while flags(&pipe).len() > 2 && Instant::now() < end {
        tokio::task::yield_now().await;
    }
    let flags = flags(&pipe);
    assert_eq!(flags.len(), 2, "{flags:?}");
    assert!(flags.iter().all(|flags| flags & CLOSE_ON_EXEC != 0), "{flags:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_new_lock_is_taken_before_the_old_one_goes() {
    // The agent takes the new lock, then drops the old one. ([SD7])
    let node = Node::start(60).await;
    let sink = node.sink();
    for _ in 0..3 {
        assert_eq!(sink.take_lock().await, ActionResult::Locked);
    }
    let one_left = |state: &doubles::login1::State| state.history.iter().sum::<i64>() == 1;
    let state = node.login1.until("one left", one_left).await;
    let mut held = 0;
    for change in &state.history[1..] {
        held += change;
        assert!(held >= 0, "there must be a lock at all times: {:?}", state.history);
    }
    assert_eq!(state.locks.first().map(|(id, _)| *id), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_lets_the_machine_go_at_once() {
    // The shutdown target starts when the last lock goes. ([LD3])
    let node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    node.login1.shut_down("poweroff").await;
    assert_eq!(node.login1.state().down, None);
    sink.release_lock().await;
    let state = node.login1.until("down", |state| state.down.is_some()).await;
    assert_eq!(state.down, Some(Down::Released));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_given_back_holds_until_the_time_is_over() {
    // The timer ends the delay although a lock is held. ([LD2], [LD3])
    let node = Node::start(1).await;
    let sink = node.sink();
    sink.take_lock().await;
    node.login1.shut_down("poweroff").await;
    let state = node.login1.until("down", |state| state.down.is_some()).await;
    assert_eq!(state.down, Some(Down::TimedOut));
    assert_eq!(state.locks.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_delay_is_no_time() {
    let node = Node::start(0).await;
    let sink = node.sink();
    assert_eq!(sink.take_lock().await, ActionResult::Locked);
    node.login1.shut_down("poweroff").await;
    assert_eq!(node.login1.state().down, Some(Down::AtOnce));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_goes_with_its_holder() {
    let node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    drop(sink);
    node.login1.until("released", |state| state.locks.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_lock_once_the_machine_goes_down() {
    // No new lock during a shutdown. ([LD5])
    let node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    node.login1.shut_down("poweroff").await;
    let second = node.sink();
    for sink in [&sink, &second] {
        let result = sink.take_lock().await;
        assert_eq!(result, ActionResult::LockRefusedInProgress);
    }
    let state = node.login1.state();
    assert_eq!((state.locks.len(), state.down), (1, None), "the first must be held on");
    node.login1.cancel().await;
    assert_eq!(second.take_lock().await, ActionResult::Locked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_does_not_wait_for_a_bus_that_hangs() {
    let node = Node::start(60).await;
    let sink = Arc::new(node.sink());
    sink.take_lock().await;
    node.login1.turn(|state| state.hangs = true);
    let taking = tokio::spawn({
        let sink = Arc::clone(&sink);
        async move { sink.take_lock().await }
    });
    node.login1.until("asked for another", |state| state.hung == 1).await;
    node.login1.shut_down("poweroff").await;
    let released = tokio::time::timeout(Duration::from_secs(2), sink.release_lock()).await;
    released.expect("must not wait");
    node.login1.until("down", |state| state.down == Some(Down::Released)).await;
    taking.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_locks_are_a_failure_of_their_own() {
    // logind holds at most InhibitorsMax locks. ([LD6])
    let node = Node::start(60).await;
    node.login1.turn(|state| state.inhibitors_max = 1);
    let (first, second) = (node.sink(), node.sink());
    assert_eq!(first.take_lock().await, ActionResult::Locked);
    let ActionResult::Done(Err(failure)) = second.take_lock().await else {
        panic!("the second must fail")
    };
    assert_eq!(failure.kind, FailureKind::TooManyRequests);
    assert!(failure.message.contains("(1) reached"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_logind_the_lock_fails_with_the_reason() {
    let mut node = Node::start(60).await;
    node.login1.go().await;
    let ActionResult::Done(Err(failure)) = node.sink().take_lock().await else {
        panic!("there must be no lock")
    };
    assert_eq!(failure.kind, FailureKind::NotFound, "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_a_restart_of_logind() {
    // Locks survive a restart of logind. ([LD7])
    let mut node = Node::start(60).await;
    let sink = node.sink();
    sink.take_lock().await;
    node.login1.go().await;
    node.login1.come().await;
    node.login1.shut_down("poweroff").await;
    assert_eq!(node.login1.state().down, None);
    sink.release_lock().await;
    node.login1.until("down", |state| state.down == Some(Down::Released)).await;
}
