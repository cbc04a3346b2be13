//! Tests pods that take all of a node's disk or processes, with the agent and our controller; needs
//! `--all`.

use lab::node_pressure::{Install, Kind, Pressure, Run, Setting};

use crate::stage;
use crate::world::kit;

fn play(kind: Kind, signal: &'static str) {
    let (run, took) = stage::play(module_path!(), async move |_: &mut Option<Pressure>| {
        let setting = Setting::of(kind, Some(Install::Host), 1);
        let pressure = Pressure::set(&kit().await, &setting, None).await;
        let mut pressure = pressure.unwrap_or_else(|error| panic!("{error:#}"));
        let dir = pressure.dir().display().to_string();
        let played = pressure.play(&setting).await;
        let played = played.unwrap_or_else(|error| panic!("{error:#}; files: {dir}"));
        pressure.strike().await.unwrap_or_else(|error| panic!("{error:#}"));
        played
    });
    println!("{run:#?}\ntook {took}");
    is_evicted(&run, signal);
}

/// The pod that took it is evicted, its Job replaces it and counts no failure, and no other pod
/// ends.
fn is_evicted(run: &Run, signal: &str) {
    assert!(run.end.phase.starts_with("Failed"), "{run:?}");
    assert_eq!(run.end.disruption.as_deref(), Some("TerminationByKubelet"), "{run:?}");
    // The kubelet may report the end before the agent; then the reason is in the condition alone.
    if run.end.phase == "Failed/Evicted" {
        assert!(run.end.message.contains(signal), "{run:?}");
    }
    assert!(run.job.failed == 0 && run.job.replaced, "{run:?}");
    assert!(run.wrong.is_empty(), "{run:?}");
}

#[test]
fn pod_that_fills_the_disk_by_a_volume_is_evicted() {
    play(Kind::Disk, "ephemeral-storage");
}

#[test]
fn pod_that_fills_the_disk_by_its_writable_layer_is_evicted() {
    play(Kind::DiskLayer, "ephemeral-storage");
}

#[test]
fn pod_that_takes_all_processes_is_evicted() {
    play(Kind::Pids, "pids");
}
