//! Tests the agent's shells for logind against a real one: elogind, which needs no systemd, in its
//! own namespaces. Checks what the crate `doubles` claims about logind, and what upstream's kubelet
//! does with logind.

mod machine;
mod pods;
#[path = "../host/standing.rs"]
mod standing;

use std::time::{Duration, Instant};

use agent_core::protocol::ending::{Ending, Source};
use agent_core::protocol::event::{ActionResult, Event};
use doubles::kubelet::{self, Kubelet};
use doubles::systemd1::{State, Systemd1};
use epilogue_common::outcome::FailureKind;
use jiff::Timestamp;
use machine::{Machine, POLL};
use serde_json::{Value, json};
use standing::{Session, WITHIN, words};
use tokio::time::{sleep, timeout};

/// Longer than any test waits.
const LONG: u64 = 600;

/// Announces a shutdown while the agent's lock is held; returns the session that has seen it.
async fn going_down(machine: &Machine, delay: u64) -> Session {
    let mut session = Session::start(machine.address(), 64);
    session.state("the lock in the list", |state| state.lock_listed == Some(true)).await;
    machine.call("PowerOff", &(false,)).await;
    let said = session.next("an announcement", announced).await;
    assert_eq!(said, Ending::certain(Some(Duration::from_secs(delay)), None));
    session
}

fn announced(event: &Event) -> Option<Ending> {
    match event {
        Event::EndingSeen(Source::Logind, ending) => ending.clone(),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_listed_with_our_words_and_our_process() {
    let machine = Machine::start(5).await;
    let sink = machine.sink();
    assert_eq!(sink.take_lock().await, ActionResult::Locked);
    let list = machine.inhibitors().await;
    let [lock] = list.as_slice() else { panic!("one lock must be held: {list:?}") };
    assert_eq!((lock.what.as_str(), lock.mode.as_str()), ("shutdown", "delay"));
    assert_eq!((lock.why.as_str(), lock.pid), (words().why(), std::process::id()));
    let mut session = Session::start(machine.address(), 64);
    let state =
        session.state("the lock in the list", |state| state.lock_listed == Some(true)).await;
    assert_eq!((state.delay, state.preparing), (Some(Duration::from_secs(5)), false));
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_announced_and_waits_for_the_release() {
    let machine = Machine::start(LONG).await;
    let sink = machine.sink();
    sink.take_lock().await;
    let mut session = going_down(&machine, LONG).await;
    let reported = session.changes.wait_for(|changes| changes.going_down);
    timeout(WITHIN, reported)
        .await
        .expect("other subscribers must be notified")
        .expect("the session must live");
    session.state("a machine that goes down", |state| state.preparing).await;
    // No new lock during a shutdown. ([LD5])
    let second = machine.sink().take_lock().await;
    assert_eq!(second, ActionResult::LockRefusedInProgress);
    assert_eq!(machine.actions(), "");
    sink.release_lock().await;
    machine.until_action().await;
    assert!(machine.actions().contains("poweroff"), "{}", machine.actions());
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_too_long_stops_nothing() {
    // The timer ends the delay. ([LD2], [LD3])
    let machine = Machine::start(3).await;
    let sink = machine.sink();
    sink.take_lock().await;
    let begun = Instant::now();
    let session = going_down(&machine, 3).await;
    machine.until_action().await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(machine.inhibitors().await.len(), 1, "the lock must still be held");
    sink.release_lock().await;
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_forgets_the_action_and_keeps_the_lock() {
    // The lock survives a restart, the delayed shutdown does not. ([LD7])
    let mut machine = Machine::start(LONG).await;
    let sink = machine.sink();
    sink.take_lock().await;
    let mut session = going_down(&machine, LONG).await;
    let before = session.state("a machine that goes down", |state| state.preparing).await;
    machine.order("kill").await;
    machine.order("start").await;
    let after = session.state("another logind", |state| state.owner != before.owner).await;
    assert_eq!((after.preparing, after.lock_listed), (false, Some(true)));
    sink.release_lock().await;
    session.state("a list without the lock", |state| state.lock_listed == Some(false)).await;
    assert_eq!(machine.actions(), "", "nothing must be done any more");
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_delay_is_raised_by_our_file() {
    // With the real parser and the real order of names. ([LD8])
    let machine = Machine::start(5).await;
    let systemd = {
        let orders = machine.orders();
        let hup = move || orders.send("hup");
        Systemd1::start(machine.address(), State::default(), hup).await
    };
    // An error after the signal was sent changes nothing.
    systemd.turn(|state| state.stumbles = true);
    let wanted = Duration::from_secs(40);
    let raised = machine.sink().raise_delay(wanted).await;
    assert_eq!(raised, Ok(wanted));
    assert_eq!(systemd.state().signals.len(), 1);
    let mut session = Session::start(machine.address(), 64);
    assert_eq!(session.state("a state", |_| true).await.delay, Some(wanted));
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_shutdown_is_seen_until_it_is_cancelled() {
    let machine = Machine::start(5).await;
    let at = Timestamp::from_second(4_000_000_000).expect("must be a time");
    machine.call("ScheduleShutdown", &("poweroff", 4_000_000_000_000_000_u64)).await;
    let mut session = Session::start(machine.address(), 64);
    let wanted = Some(("poweroff".to_owned(), at));
    session.state("the schedule", |state| state.scheduled == wanted).await;
    machine.call("CancelScheduledShutdown", &()).await;
    session.state("no schedule", |state| state.scheduled.is_none()).await;
    let words = session.words().await;
    assert!(words.is_empty(), "nothing was announced: {words:?}");
    session.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_limited_and_delay_a_shutdown_or_a_suspend_alone() {
    // ([LD6])
    let machine = Machine::with("[Login]\nInhibitorsMax=1\n").await;
    let (first, second) = (machine.sink(), machine.sink());
    assert_eq!(first.take_lock().await, ActionResult::Locked);
    let ActionResult::Done(Err(failure)) = second.take_lock().await else {
        panic!("the second must fail")
    };
    assert_eq!(failure.kind, FailureKind::TooManyRequests, "{failure}");
    first.release_lock().await;
    machine.until_locks("none is left", <[_]>::is_empty).await;
    for what in ["idle", "handle-power-key"] {
        let refused = machine.inhibit(what).await.expect_err("only two can be delayed");
        assert!(refused.contains("InvalidArgs"), "{what}: {refused}");
    }
    for what in ["sleep", "shutdown"] {
        drop(machine.inhibit(what).await.expect("this can be delayed"));
        machine.until_locks("none is left", <[_]>::is_empty).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_with_a_copy_of_the_lock_delays_the_shutdown() {
    // ([LD13])
    let machine = Machine::start(LONG).await;
    let lock = machine.inhibit("shutdown").await.expect("the lock is given");
    let mut child = tokio::process::Command::new("sleep")
        .arg(LONG.to_string())
        .stdin(lock)
        .kill_on_drop(true)
        .spawn()
        .expect("sleep must be installed");
    machine.call("PowerOff", &(false,)).await;
    assert_eq!((machine.inhibitors().await.len(), machine.actions()), (1, String::new()));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((machine.inhibitors().await.len(), machine.actions()), (1, String::new()));
    child.kill().await.expect("it must be ours");
    machine.until_action().await;
}

/// The kubelet's graceful shutdown of half a minute.
fn graceful() -> Value {
    json!({"shutdownGracePeriodByPodPriority": [
        {"priority": 0, "shutdownGracePeriodSeconds": 20},
        {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": 10}]})
}

/// A systemd that has logind read its files again.
async fn systemd(machine: &Machine) -> Systemd1 {
    let orders = machine.orders();
    Systemd1::start(machine.address(), State::default(), move || orders.send("hup")).await
}

async fn granted(machine: &Machine) -> Option<Duration> {
    let mut session = Session::start(machine.address(), 64);
    let granted = session.state("a state", |_| true).await.delay;
    session.end().await;
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_demands_periods_that_fit() {
    // ([SD1], [EV21])
    let by_priority = json!([{"priority": 0, "shutdownGracePeriodSeconds": 10}]);
    let (total, critical) = ("shutdownGracePeriod", "shutdownGracePeriodCriticalPods");
    let table = [
        (json!({total: "30s", critical: "40s"}), "{40s} must be <= shutdownGracePeriod {30s}"),
        (json!({total: "500ms"}), "{500ms} must be either zero or otherwise >= 1 sec"),
        (json!({total: "30s", critical: "1ms"}), "{1ms} must be either zero or otherwise >= 1 sec"),
        (
            json!({total: "30s", "shutdownGracePeriodByPodPriority": by_priority}),
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod",
        ),
    ];
    for (fields, words) in table {
        let refusal = kubelet::refusal(&fields).await;
        assert!(refusal.contains(words), "{fields}: {refusal}");
        // It shows the configuration with its defaults.
        let defaults = [
            "imagefs.available: 15%",
            "imagefs.inodesFree: 5%",
            "memory.available: 100Mi",
            "nodefs.available: 10%",
            "nodefs.inodesFree: 5%",
            "localStorageCapacityIsolation: true",
        ];
        let missing = defaults.iter().find(|default| !refusal.contains(**default));
        assert_eq!((missing, refusal.contains("pid.available")), (None, false), "{refusal}");
    }
    let own = json!({total: "1ms", "evictionHard": {"pid.available": "5%"}});
    let refusal = kubelet::refusal(&own).await;
    let is_whole = refusal.contains("pid.available: 5%") && !refusal.contains("memory.available:");
    assert!(is_whole, "a given map replaces all of the default: {refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_s_lock_and_what_takes_it() {
    // ([SD3], [SD4], [SD24], [SD25], [W9])
    let machine = Machine::start(5).await;
    let systemd = systemd(&machine).await;
    let kubelet = Kubelet::start(machine.dir(), machine.address(), &graceful());
    let locks = machine.until_locks("the kubelet's lock", |locks| !locks.is_empty()).await;
    let [lock] = locks.as_slice() else { panic!("one lock must be held: {locks:?}") };
    let is = (lock.who.as_str(), lock.what.as_str(), lock.mode.as_str(), lock.uid, lock.pid);
    assert_eq!(is, ("kubelet", "shutdown", "delay", 0, kubelet.pid()), "{}", kubelet.log());
    // The sum of its periods, by a file of its own.
    assert!(machine.conf("99-kubelet.conf").contains("InhibitDelayMaxSec=30"));
    assert_eq!(granted(&machine).await, Some(Duration::from_secs(30)));
    let hup = ("systemd-logind.service".to_owned(), "all".to_owned(), 1);
    assert_eq!(systemd.state().signals, [hup]);
    // It releases the lock at once, because it has no pods; the signal is not logind's.
    let begun = Instant::now();
    machine.forge(true).await;
    machine.until_locks("the lock goes", <[_]>::is_empty).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(machine.actions(), "");
    kubelet.says("Shutdown manager completed processing shutdown event", 1).await;
    kubelet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_cancelled_shutdown_the_kubelet_may_have_no_lock_and_acts_all_the_same() {
    // It closes the number of its old descriptor again, which the new lock may have. ([SD27])
    let machine = Machine::start(60).await;
    let kubelet = Kubelet::start(machine.dir(), machine.address(), &graceful());
    machine.until_locks("the kubelet's lock", |locks| locks.len() == 1).await;
    let mut shutdowns = 0;
    loop {
        shutdowns += 1;
        machine.forge(true).await;
        kubelet.says("Shutdown manager completed processing shutdown event", shutdowns).await;
        machine.forge(false).await;
        kubelet.says("event=\"cancelled\"", shutdowns).await;
        sleep(Duration::from_millis(500)).await;
        if machine.inhibitors().await.is_empty() {
            break;
        }
        // Another file had the number.
        assert!(shutdowns < 10, "{}", kubelet.log());
    }
    println!("without a lock after {shutdowns} cancelled shutdowns");
    machine.forge(true).await;
    kubelet.says("Shutdown manager completed processing shutdown event", shutdowns + 1).await;
    kubelet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_takes_a_new_lock_before_the_old_one_goes() {
    // ([SD7])
    let machine = Machine::start(60).await;
    let kubelet = Kubelet::start(machine.dir(), machine.address(), &graceful());
    machine.until_locks("the kubelet's lock", |locks| locks.len() == 1).await;
    let mut most = 0;
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        machine.forge(false).await;
        let held = machine.inhibitors().await.len();
        assert!(held > 0, "there must be a lock at all times");
        most = most.max(held);
    }
    println!("{most} locks at most");
    machine.until_locks("one is left", |locks| locks.len() == 1).await;
    kubelet.stop().await;
    machine.until_locks("it goes with its process", <[_]>::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_is_granted_too_little_gives_up_for_good() {
    // ([SD4], [SD5], [SD6], [SD23])
    let machine = Machine::start(5).await;
    let systemd = systemd(&machine).await;
    machine.write_conf("unattended-upgrades-logind-maxdelay.conf", 25);
    let begun = Instant::now();
    let kubelet = Kubelet::start(machine.dir(), machine.address(), &graceful());
    kubelet.says("timed out after 5 attempts", 1).await;
    println!("gave up {:?} after its start", begun.elapsed());
    assert!(machine.conf("99-kubelet.conf").contains("InhibitDelayMaxSec=30"));
    assert_eq!(granted(&machine).await, Some(Duration::from_secs(25)));
    // Enough is granted now, and the kubelet does not try again.
    machine.write_conf("unattended-upgrades-logind-maxdelay.conf", 60);
    machine.orders().send("hup");
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        assert!(machine.inhibitors().await.is_empty(), "{}", kubelet.log());
        sleep(POLL).await;
    }
    assert_eq!(granted(&machine).await, Some(Duration::from_mins(1)));
    assert_eq!(systemd.state().signals.len(), 1);
    // Nor does it hear of a shutdown.
    machine.forge(true).await;
    sleep(Duration::from_secs(1)).await;
    let log = kubelet.log();
    assert!(!log.contains("Shutdown manager detected new shutdown event"), "{log}");
    kubelet.stop().await;
}

/// What the log of a kubelet says of an eviction signal: the resource, what is available, and the
/// capacity.
fn observed(log: &str, signal: &str) -> (String, u64, u64) {
    let said = format!("log=\"observations\" signal=\"{signal}\"");
    let line = log.lines().rfind(|line| line.contains(&said));
    let line = line.unwrap_or_else(|| panic!("no {said} in {log}"));
    let field = |name: &str| {
        let (_, after) = line.split_once(&format!(" {name}=\"")).expect("the field");
        after.split('"').next().unwrap_or_default().to_owned()
    };
    let amount = |name: &str| {
        let text = field(name);
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" => 1,
            "k" => 1_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            other => panic!("{other} in {line}"),
        };
        digits.parse::<u64>().expect("a number") * unit
    };
    (field("resourceName"), amount("available"), amount("capacity"))
}

/// The quantity of a threshold that is crossed.
fn crossed(log: &str, signal: &str) -> String {
    let said = format!(" signal=\"{signal}\"");
    let observed = log.lines().filter(|line| line.contains("threshold observed resource"));
    let line = observed.into_iter().find(|line| line.contains(&said));
    let line = line.unwrap_or_else(|| panic!("no threshold{said} in {log}"));
    let (_, after) = line.split_once(" quantity=\"").expect("the quantity");
    after.split('"').next().unwrap_or_default().to_owned()
}

fn number_in(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).expect("must be readable");
    text.trim().parse().expect("must be a number")
}

fn capacity_of(directory: &std::path::Path) -> u64 {
    let found = nix::sys::statvfs::statvfs(directory).expect("must be there");
    found.blocks() * found.fragment_size()
}

/// No logind here: it is off by default.
#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_s_view_of_a_node_that_is_short() {
    // ([EV3], [EV4], [EV5], [EV6], [EV7], [EV19], [EV20], [EV22], [EV30])
    let dirs = [(); 3].map(|()| tempfile::tempdir().expect("must be creatable"));
    let all = json!({"memory.available": "99%", "nodefs.available": "99.9%",
                     "nodefs.inodesFree": "1000T", "imagefs.available": "999Ti",
                     "pid.available": "99999999"});
    let disk = json!({"nodefs.available": "99.9%", "memory.available": "100%",
                      "pid.available": "0%"});
    let shm = "/dev/shm";
    let start = |dir: &tempfile::TempDir, thresholds: &Value, images: Option<&str>| {
        let fields = json!({"evictionHard": thresholds});
        Kubelet::with_images(dir.path(), "unix:path=/none", &fields, images)
    };
    let short_of_all = start(&dirs[0], &all, Some(shm));
    let own = dirs[1].path().display().to_string();
    let short_of_disk = start(&dirs[1], &disk, Some(&own));
    let blind = start(&dirs[2], &all, None);
    let reclaims = |resource: &str| format!("attempting to reclaim\" resourceName=\"{resource}\"");
    short_of_all.says(&reclaims("memory"), 2).await;
    short_of_disk.says("must evict pod(s)", 1).await;
    blind.says("failed to synchronize", 2).await;
    assert!(!blind.log().contains("attempting to reclaim"), "without figures it does nothing");
    // A threshold of containerfs is a copy: of imagefs where that is dedicated, else of nodefs.
    for (kubelet, of) in [(&short_of_all, "imagefs"), (&short_of_disk, "nodefs")] {
        let (copy, from) = ("containerfs.available", format!("{of}.available"));
        assert_eq!(crossed(&kubelet.log(), copy), crossed(&kubelet.log(), &from));
    }

    let log = short_of_all.log();
    let resources = ["memory", "ephemeral-storage", "inodes", "pids"];
    for later in &resources[1..] {
        assert!(!log.contains(&reclaims(later)), "memory goes first: {later}");
    }
    let conditions = log.lines().find(|line| line.contains("node conditions - observed"));
    let conditions = conditions.expect("the conditions");
    for condition in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        assert!(conditions.contains(condition), "{conditions}");
    }
    let signals = ["memory.available", "nodefs.available", "nodefs.inodesFree", "pid.available"];
    for (signal, resource) in signals.into_iter().zip(resources) {
        assert_eq!(observed(&log, signal).0, resource, "{signal}");
    }
    let (_, available, capacity) = observed(&log, "pid.available");
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].map(number_in);
    assert_eq!(capacity, limits[0].min(limits[1]));
    let load = std::fs::read_to_string("/proc/loadavg").expect("must be readable");
    let tasks: u64 = load.split(['/', ' ']).nth(4).and_then(|it| it.parse().ok()).expect("tasks");
    assert!((capacity - available).abs_diff(tasks) < 200, "{capacity} {available} {tasks}");
    assert_eq!(observed(&log, "nodefs.available").2, capacity_of(dirs[0].path()));
    assert_eq!(observed(&log, "imagefs.available").2, capacity_of(shm.as_ref()));
    assert!(log.contains("DedicatedImageFs=true"));

    let log = short_of_disk.log();
    assert!(log.contains("DedicatedImageFs=false"));
    let conditions = log.lines().find(|line| line.contains("node conditions - observed"));
    let conditions = conditions.expect("the conditions");
    assert!(conditions.contains("DiskPressure"), "{conditions}");
    for none in ["MemoryPressure", "PIDPressure"] {
        assert!(!conditions.contains(none), "0 % and 100 % are no thresholds: {conditions}");
    }
    let begins = reclaims("ephemeral-storage");
    let order = [begins.as_str(), "reduce resource pressure", "must evict pod(s)"];
    let places = order.map(|words| log.find(words));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    short_of_all.stop().await;
    short_of_disk.stop().await;
    blind.stop().await;
}
