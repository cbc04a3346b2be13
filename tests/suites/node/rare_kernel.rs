//! Runs the agent's own tests of the kernel (`agent/tests/pressure`, `agent/tests/oom`) in a
//! machine whose kernel has all that they need. These are cgroups of version 2, PSI triggers of
//! half a second, and the kernel's log. Elsewhere they test as much as they can.

use lab::paths::LabDir;
use lab::vm::programs::Libc;
use lab::vm::{Boot, Machine, programs};

use crate::stage;
use crate::world::kit;

/// Test programs, and which of their tests need the kernel.
const PROGRAMS: [(&str, &str); 2] = [("pressure", "kernel::"), ("oom", "kernel::")];

#[test]
fn kernel_s_triggers_and_kills_reach_the_agent() {
    let said = stage::play(module_path!(), async |_: &mut Option<()>| in_the_machine().await);
    println!("{said}");
}

async fn in_the_machine() -> String {
    let kit = kit().await;
    let runs = LabDir::of_workspace().runs();
    std::fs::create_dir_all(&runs).expect("must be creatable");
    let dir = tempfile::tempdir_in(runs).expect("must be creatable");
    let payload = dir.path().join("payload");
    std::fs::create_dir_all(&payload).expect("must be creatable");
    let names = PROGRAMS.map(|(name, _)| name);
    let built = programs::agent_tests(Libc::of(&kit).expect("must be known"), &names).await;
    let built = built.expect("the tests must be buildable");
    for (name, program) in names.iter().zip(built) {
        std::fs::copy(program, payload.join(name)).expect("must be copyable");
    }
    let machine = Machine::start(&kit, &dir.path().join("machine"), Boot::Snapshot, &payload).await;
    let machine = machine.unwrap_or_else(|error| panic!("{error}: {error:?}"));
    let mount =
        "blockdev --flushbufs /dev/vdc && mkdir -p /opt/run && mount -o ro /dev/vdc /opt/run";
    machine.shell().run(mount).await.expect("the programs must be mountable");
    let mut all = String::new();
    for (name, filter) in PROGRAMS {
        // One after the other: they share one kernel, and are timed.
        let run = format!(
            "EPILOGUE_TEST_KERNEL=1 /opt/run/{name} {filter} --nocapture --test-threads=1 2>&1"
        );
        let output = machine.shell().try_run(&run, &[]).await.expect("must run");
        let said = String::from_utf8_lossy(&output.stdout);
        all.push_str(&said);
        assert!(output.status.success(), "{said}");
        let ran = said
            .lines()
            .any(|line| line.starts_with("test result: ok. ") && !line.contains(" 0 passed"));
        assert!(ran, "no test ran: {said}");
    }
    all
}
