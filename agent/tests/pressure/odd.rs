//! Tests malformed files: whatever they contain, a sample ends, names what it could not read, and
//! has the rest.

use std::os::unix::fs::symlink;

use agent_core::pressure::signal::Signal;
use agent_core::protocol::pressure::Sample;

use super::sampler::{Both, sampler, take_sample};
use super::tree::{Driver, MIB, Tree, psi, write};

const FILES: [&str; 11] = [
    "proc/meminfo",
    "proc/loadavg",
    "proc/sys/kernel/pid_max",
    "proc/sys/kernel/threads-max",
    "proc/pressure/io",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/kubepods/memory.max",
    "sys/fs/cgroup/kubepods/memory.current",
    "sys/fs/cgroup/kubepods/memory.stat",
    "sys/fs/cgroup/kubepods/memory.pressure",
    "sys/fs/cgroup/kubepods/burstable/poda/memory.pressure",
];

fn tree() -> Tree {
    let tree = Tree::new(Driver::Cgroupfs);
    tree.pod("a", 10 * MIB);
    tree
}

/// Whatever was read, no figure exceeds the capacity.
fn check(sample: &Sample, what: &str) {
    for (signal, measured) in &sample.signals {
        let found = measured.observation;
        assert!(found.available <= found.capacity, "{what}: {signal:?} {found:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_costs_its_own_figures_only() {
    use Signal::{AllocatableMemoryAvailable, MemoryAvailable, PidAvailable};
    let lost = |file: &str| match file {
        "proc/meminfo" | "sys/fs/cgroup/memory.stat" => Some(MemoryAvailable),
        "proc/loadavg" | "proc/sys/kernel/pid_max" | "proc/sys/kernel/threads-max" => {
            Some(PidAvailable)
        }
        file if file.contains("pressure") => None,
        _ => Some(AllocatableMemoryAvailable),
    };
    let all = take_sample(&mut sampler(&tree())).signals.len();
    for file in FILES {
        let tree = tree();
        tree.spoil(file);
        let sample = take_sample(&mut sampler(&tree));
        check(&sample, file);
        let lost = lost(file);
        assert_eq!(sample.signals.len(), all - usize::from(lost.is_some()), "{file}");
        assert!(lost.is_none_or(|signal| !sample.signals.contains_key(&signal)), "{file}");
        if file.ends_with("poda/memory.pressure") {
            // As if the pod had just ended.
            assert!(sample.stall.is_some_and(|stall| stall.pods.is_empty()), "{file}");
        } else {
            let answered = sample.unreadable.iter().any(|phrase| phrase.contains(file));
            assert!(answered, "{file}: {:?}", sample.unreadable);
        }
    }
}

#[test]
fn no_text_of_any_file_breaks_a_check() {
    let long = vec![b'9'; 1 << 20];
    let texts: [&[u8]; 21] = [
        b"",
        b"\n",
        b"0\n",
        b"18446744073709551615\n",
        b"18446744073709551616\n",
        b"-1\n",
        b"max\n",
        b"garbage",
        b"\xff\xfe\x00",
        b"MemTotal: 0 kB\nSwapTotal: 0 kB\nSwapFree: 9 kB\n",
        b"MemTotal: 18446744073709551615 kB\nSwapTotal: 1 kB\nSwapFree: 1 kB\n",
        b"MemTotal: 409",
        b"MemTotal: 4096 kB",
        b"anon 18446744073709551615\nfile 18446744073709551615\ninactive_file 1\n",
        b"anon 0\nfile 0\ninactive_file 18446744073709551615\n",
        b"anon 1\nfile",
        b"0.1 0.2 0.3 1/18446744073709551615 1\n",
        b"0.1 0.2 0.3 /",
        b"some avg10=0.00 avg60=0.00 avg300=0.00 total=18446744073709551615\nfull avg10=0",
        b"some avg10=inf avg60=nan avg300=0 total=1\nfull avg10=1 avg60=1 avg300=1 total=1\n",
        &long,
    ];
    let tree = tree();
    for (file, text) in FILES.iter().flat_map(|file| texts.map(|text| (file, text))) {
        let path = tree.path(file);
        let sound = std::fs::read(&path).expect("must be readable");
        write(&path, text);
        let start = String::from_utf8_lossy(&text[..text.len().min(40)]);
        let what = format!("{file} {start:?}");
        let mut sampler = sampler(&tree);
        check(&take_sample(&mut sampler), &what);
        // Once more, with what the sampler remembers of the first sample.
        check(&take_sample(&mut sampler), &what);
        write(&path, &sound);
    }
}

#[test]
fn a_kernel_without_psi_and_a_host_without_anything_are_said_to_be_so() {
    let tree = tree();
    for file in ["proc/pressure/io", "sys/fs/cgroup/kubepods/memory.pressure"] {
        std::fs::remove_file(tree.path(file)).expect("must be removable");
    }
    let sample = take_sample(&mut sampler(&tree));
    assert!(sample.stall.is_none() && sample.io.is_none());
    assert_eq!(sample.unreadable.len(), 2, "{:?}", sample.unreadable);
    assert!(sample.unreadable.iter().all(|phrase| phrase.contains("pressure")));

    let empty = tempfile::tempdir().expect("must be creatable");
    let host = epilogue_agent::host::Host::new(empty.path().to_owned());
    let mut sampler = Both::of(&host);
    let sample = take_sample(&mut sampler);
    assert!(sample.signals.is_empty() && sample.layout.is_none() && sample.swap.is_none());
    assert!(sample.unreadable.len() >= 5, "{:?}", sample.unreadable);
}

#[test]
fn links_in_the_tree_of_cgroups_lead_nowhere() {
    let tree = tree();
    let kubepods = tree.path("sys/fs/cgroup/kubepods");
    symlink(&kubepods, kubepods.join("besteffort")).expect("must be creatable");
    symlink("/", kubepods.join("podlink")).expect("must be creatable");
    let stall = take_sample(&mut sampler(&tree)).stall.expect("must be known");
    assert_eq!(stall.pods.len(), 1);
}

#[test]
fn pods_that_come_and_go_while_they_are_read_do_no_harm() {
    let tree = tree();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                let name = format!("p{}", round % 7);
                tree.pod(&name, MIB);
                tree.write_in("", "memory.pressure", &psi(round, round));
                tree.remove_pod(&name);
                if over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut sampler = sampler(&tree);
        for round in 0..300 {
            let sample = take_sample(&mut sampler);
            check(&sample, "churn");
            let seen =
                sample.stall.is_none_or(|stall| stall.pods.iter().any(|pod| pod.uid.0 == "a"));
            assert!(seen, "round {round}: the pod that stays is always there");
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
