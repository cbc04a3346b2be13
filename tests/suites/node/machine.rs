//! The laboratory itself: the machine is what the tests take it for, and leaves nothing behind.

use lab::vm::{Boot, KubeletConfig, Machine};

use crate::world::{World, kit, turn};

#[tokio::test]
async fn node_is_ready_and_runs_what_a_real_one_does() {
    let world = World::new("real", KubeletConfig::default()).await;
    let node = &world.node;
    let said = node
        .run(
            "systemctl is-system-running; stat -f -c %T /sys/fs/cgroup; test -e /proc/pressure/memory \
             && echo psi; busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
             org.freedesktop.login1.Manager PreparingForShutdown",
        )
        .await
        .expect("run");
    assert_eq!(said, "running\ncgroup2fs\npsi\nb false\n");
    world.run(&[world.pod("a", &["pause"]), world.pod("b", &["pause"]).host_network()]).await;
    world.end().await;
}
