//! Tests a pod that is deleted during its image pull, and whose kubelet then stops; needs `--all`.

use lab::node_pressure::{Hung, Install, Kind, Pressure, Setting, Stuck};

use crate::stage;
use crate::world::kit;

#[test]
fn pod_deleted_in_a_pull_fails_though_the_kubelet_is_stopped() {
    let (hung, took) = stage::play(module_path!(), async |_: &mut Option<Pressure>| {
        let agent = Some(Install::Host);
        let setting = Setting::of(Kind::OwnLimit, agent, 1);
        let stuck = Stuck { agent, pods: 1, kubelet_stops: true, after_seconds: Some(15) };
        let pressure = Pressure::set(&kit().await, &setting, Some(stuck)).await;
        let mut pressure = pressure.unwrap_or_else(|error| panic!("{error:#}"));
        let hung = pressure.play_stuck(stuck).await.unwrap_or_else(|error| panic!("{error:#}"));
        pressure.strike().await.unwrap_or_else(|error| panic!("{error:#}"));
        hung
    });
    println!("{hung:#?}\ntook {took}");
    judge(&hung);
}

fn judge(hung: &[Hung]) {
    assert!(!hung.is_empty(), "no pod was deleted");
    assert!(hung.iter().all(|hung| hung.failed.is_some() && hung.stays), "{hung:#?}");
    // Its deleter knows why; the API does not. ([PT1])
    assert!(hung.iter().all(|hung| hung.disruption.is_none()), "{hung:#?}");
}
