//! Tests how a live kubelet reacts to what others write about its pods, one story after the other
//! on one machine.

mod external_failed;
mod levers;

use lab::vm::KubeletConfig;
use serde_json::json;

use crate::stage;
use crate::world::World;

/// Whether a story leaves the machine as the next one needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// Only pods, which can be removed.
    Pods,
    /// More than that.
    Traces,
}

fn play(leaves: Leaves, story: impl AsyncFnOnce(&World) + Send + 'static) {
    stage::play(module_path!(), async move |stage: &mut Option<World>| {
        let world = match stage.take() {
            Some(world) => {
                world.clear().await;
                world
            }
            None => World::new("live", kubelet()).await,
        };
        story(&world).await;
        match leaves {
            Leaves::Pods => *stage = Some(world),
            Leaves::Traces => world.end().await,
        }
    });
}

/// A kubelet that pulls many images at once. The default is one, so a second pull would not begin.
fn kubelet() -> KubeletConfig {
    KubeletConfig::default().set("serializeImagePulls", json!(false))
}

/// A kubelet whose worker syncs its pod every 3 seconds (default: every 60 to 90), and logs it.
fn watchful() -> KubeletConfig {
    levers::watchful(kubelet())
}

#[test]
fn node_is_ready_and_runs_what_a_real_one_does() {
    play(Leaves::Pods, async |world| {
        let said = world
            .scene
            .node
            .run(
                "systemctl is-system-running; stat -f -c %T /sys/fs/cgroup; \
                 test -e /proc/pressure/memory && echo psi; \
                 busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
                 org.freedesktop.login1.Manager PreparingForShutdown",
            )
            .await
            .expect("run");
        assert_eq!(said, "running\ncgroup2fs\npsi\nb false\n");
        world.run(&[world.pod("a", &["pause"]), world.pod("b", &["pause"]).host_network()]).await;
    });
}
