//! Tests pods that take too much on a real node, with the agent installed from the files of
//! `deploy/`. The right pod ends, the API shows why, and a Job sees it. tests/node/README.md has
//! the times, and the rates without the agent; `cargo lab node pressure` measures them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lab::node_pressure::{Install, Kind, Pressure, Run, Setting};

use crate::stage::{self, message};
use crate::world::kit;

/// Both stories use the same memory threshold of the node: they share the machine.
fn setting(kind: Kind) -> Setting {
    // Taken slowly: the test is not about which component is faster.
    let hog = Setting { rate: 30, ..Setting::of(Kind::Memory, Some(Install::Host), 1) };
    Setting { kind, rate: Setting::of(kind, None, 1).rate.max(hog.rate), ..hog }
}

fn play(kind: Kind, judge: fn(&Run)) {
    let (text, verdict) = stage::play(module_path!(), async move |stage: &mut Option<Pressure>| {
        let pressure = match stage.take() {
            Some(pressure) => Ok(pressure),
            None => Pressure::set(&kit().await, &setting(Kind::Memory), None).await,
        };
        let mut pressure = pressure.unwrap_or_else(|error| panic!("{error:#}"));
        let dir = pressure.dir().display().to_string();
        let played = pressure.play(&setting(kind)).await;
        let (run, took) = played.unwrap_or_else(|error| panic!("{error:#}; files: {dir}"));
        let verdict = catch_unwind(AssertUnwindSafe(|| judge(&run)));
        if verdict.is_ok() {
            *stage = Some(pressure);
        } else {
            pressure.strike().await.unwrap_or_else(|error| panic!("{error:#}"));
        }
        let text = format!("{run:#?}\ntook {took}\nfiles: {dir}");
        (text, verdict.map_err(|panic| message(&*panic)))
    });
    println!("{text}");
    verdict.unwrap_or_else(|message| panic!("{message}"));
}

#[test]
fn container_over_its_limit_has_a_cause_and_is_no_disruption() {
    play(Kind::OwnLimit, |run| {
        assert!(run.end.phase.starts_with("Failed"), "{run:?}");
        assert!(run.end.disruption.is_none(), "{run:?}");
        assert!(run.end.cause.as_deref() == Some("ContainerLimit"), "{run:?}");
        assert!(run.job.failed == 1 && run.wrong.is_empty(), "{run:?}");
    });
}

#[test]
fn hog_is_evicted_as_a_disruption_and_no_other_pod_is() {
    play(Kind::Memory, |run| {
        assert!(run.end.disruption.as_deref() == Some("TerminationByKubelet"), "{run:?}");
        // The kubelet checks containers once a second, and may report the end before the agent.
        // Then the reason is in the condition alone. ([API12])
        let short = "The node was low on resource: memory. ";
        match run.end.phase.as_str() {
            "Failed/Evicted" => assert!(run.end.message.starts_with(short), "{run:?}"),
            other => assert_eq!(other, "Failed", "{run:?}"),
        }
        assert!(run.job.failed == 0 && run.job.replaced, "{run:?}");
        assert!(run.wrong.is_empty(), "{run:?}");
    });
}
