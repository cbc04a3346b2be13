//! Tests the verdict on each table of facts.

use std::time::Duration;

use super::api::{ApiAnswers, ApiFacts, MarkTrial};
use super::facts::*;
use super::runtime::{RuntimeAnswers, RuntimeFacts};
use super::*;
use crate::protocol::node::{Healthz, KubeletFacts, Unit};
use crate::shutdown::logind_conf::ConfFile;
use crate::shutdown::priority_groups::{PriorityGroup, PriorityGroupFlags};

fn now() -> Timestamp {
    "2026-11-21T14:00:00Z".parse().expect("must be a time")
}

fn error() -> String {
    "said so".into()
}

fn lock(what: &str, who: &str, mode: &str, uid: u32) -> Inhibitor {
    let (what, who, mode) = (what.into(), who.into(), mode.into());
    Inhibitor { what, who, why: "why".into(), mode, uid, pid: 7 }
}

fn logind() -> LogindFacts {
    LogindFacts {
        owner: ":1.3".into(),
        delay: Ok(TimeSpan::from_secs(40)),
        preparing: Ok(false),
        scheduled: Ok(None),
        inhibitors: Ok(Vec::new()),
        kubelet_process: None,
        trial: Trial::Taken { listed: Ok(true), released: Ok(true) },
    }
}

fn with(bus: Bus) -> Facts {
    let priority_groups =
        PriorityGroupFlags::default().priority_groups().expect("must be priority groups");
    Facts {
        bus_address: "unix:path=/bus".into(),
        bus,
        runtime: RuntimeFacts::Answers(Box::new(answers())),
        kubelet: None,
        api: None,
        conf_files: Vec::new(),
        priority_groups,
        observes: false,
        pressure: None,
    }
}

fn answers() -> RuntimeAnswers {
    RuntimeAnswers {
        socket: "/run/containerd/containerd.sock".into(),
        version: "containerd v2.1.4".into(),
        pods: 12,
        latest: "2026-11-21T13:59:59Z".parse().ok(),
        ..RuntimeAnswers::default()
    }
}

fn of(change: impl FnOnce(&mut LogindFacts)) -> Facts {
    let mut facts = logind();
    change(&mut facts);
    with(Bus::WithLogind(Box::new(facts)))
}

fn check(facts: &Facts, name: &str) -> Check {
    let report = judge(facts, now());
    let worst = report.checks.iter().map(|check| check.verdict).max();
    assert_eq!(Some(report.verdict), worst);
    let found = report.checks.into_iter().find(|check| check.name == name);
    let found = found.unwrap_or_else(|| panic!("{name} must be checked"));
    assert_eq!(found.remedy.is_none(), found.verdict == Verdict::Ok, "{found:?}");
    assert_eq!(found.code.is_none(), found.verdict == Verdict::Ok, "{found:?}");
    found
}

fn assert_found(facts: &Facts, name: &str, verdict: Verdict, words: &[&str]) {
    let check = check(facts, name);
    assert_eq!(check.verdict, verdict, "{check:?}");
    let text = format!("{} {}", check.found, check.remedy.unwrap_or_default());
    for word in words {
        assert!(text.contains(word), "{word:?} must be in {text:?}");
    }
}

#[test]
fn a_node_as_it_should_be_is_ok_throughout() {
    let report = judge(&of(|_| {}), now());
    let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
    let all =
        ["runtime", "bus", "logind", "shutdown", "schedule", "delay", "kubelet", "holders", "lock"];
    assert_eq!(names, all);
    assert_eq!((report.verdict, report.mode), (Verdict::Ok, Some(Mode::Replace)));
    let time = report.time.expect("must be reported");
    assert_eq!((time.granted_ms, time.wanted_ms, time.kill_ms), (40_000, 40_000, 30_850));
}

#[test]
fn what_stands_in_the_way_is_the_last_check() {
    let table = [
        (Bus::Unreachable(error()), "bus", "mount /run/dbus/system_bus_socket"),
        (Bus::Mute(error()), "logind", "said so"),
        (Bus::WithoutLogind, "logind", "systemctl start systemd-logind"),
    ];
    for (bus, name, words) in table {
        let facts = with(bus);
        assert_found(&facts, name, Verdict::Fail, &[words]);
        let report = judge(&facts, now());
        assert_eq!(report.checks.last().map(|check| check.name), Some(name));
        assert_eq!((report.mode, report.time), (None, None));
    }
}

/// The facts where an agent that enforces runs: it holds a lock.
fn with_agent(change: impl FnOnce(&mut LogindFacts)) -> Facts {
    of(|logind| {
        logind.inhibitors = Ok(vec![lock("shutdown", OUR_HOLDER, "delay", 0)]);
        change(logind);
    })
}

#[test]
fn the_delay_is_weighed_against_the_priority_groups() {
    let granted = |seconds| with_agent(|logind| logind.delay = Ok(TimeSpan::from_secs(seconds)));
    let fail = Verdict::Fail;
    let drop_in = "InhibitDelayMaxSec=40` below `[Login]` into /etc/systemd/logind.conf.d/zz-";
    let scarce =
        ["grants 5s", "0=20,2000000000=10", "a shutdown needs 40s", "get 2.2s of 30s", drop_in];
    assert_found(&granted(5), "delay", fail, &scarce);
    assert_found(&granted(0), "delay", fail, &["grants 0s", "get 0s of 30s", drop_in]);
    assert_found(&granted(39), "delay", fail, &["grants 39s"]);
    assert_found(&granted(600), "delay", Verdict::Ok, &["grants 600s"]);
    let endless = of(|logind| logind.delay = Ok(TimeSpan::INFINITY));
    assert_found(&endless, "delay", Verdict::Ok, &["grants infinity"]);
    let silent = of(|logind| logind.delay = Err(error()));
    assert_found(&silent, "delay", fail, &["said so"]);
    assert_eq!(judge(&silent, now()).time, None);
    let off = Facts { priority_groups: None, ..granted(0) };
    assert_found(&off, "delay", Verdict::Ok, &["none is wanted"]);
    let long =
        PriorityGroupFlags { by_priority: Some("0=900".into()), ..PriorityGroupFlags::default() };
    let long = Facts {
        priority_groups: long.priority_groups().expect("must be priority groups"),
        ..of(|logind| logind.delay = Ok(TimeSpan::from_secs(600)))
    };
    assert_found(&long, "delay", fail, &["give shorter priority groups", "600s"]);
}

#[test]
fn a_delay_that_an_agent_would_raise_is_a_warning_that_says_so() {
    let (granted, wanted) = (Duration::from_secs(5), Duration::from_secs(40));
    let sentence = Finding::DelayTooShort { granted, wanted }.to_string();
    let short = |change: fn(&mut LogindFacts)| {
        of(|logind| {
            logind.delay = Ok(TimeSpan::from_secs(5));
            change(logind);
        })
    };
    let words = [
        sentence.as_str(),
        "get 2.2s of 30s; no agent holds a lock here: it observes, or does not run",
        "an agent with --shutdown=enforce raises it at its start",
        "with --raise-delay=false, write `InhibitDelayMaxSec=40`",
    ];
    assert_found(&short(|_| {}), "delay", Verdict::Warn, &words);
    // A lock of that name that delays no shutdown.
    let blocked = short(|it| it.inhibitors = Ok(vec![lock("sleep", OUR_HOLDER, "delay", 0)]));
    assert_found(&blocked, "delay", Verdict::Warn, &words);
    let unknown = short(|it| it.inhibitors = Err(error()));
    assert_found(&unknown, "delay", Verdict::Fail, &["write `InhibitDelayMaxSec=40`"]);
}

#[test]
fn the_remedy_for_a_small_delay_knows_the_files() {
    let granted = |seconds, files: &[(&str, &str)]| {
        let file = |(name, value): &(&str, &str)| ConfFile {
            path: format!("/etc/systemd/logind.conf.d/{name}"),
            text: format!("[Login]\nInhibitDelayMaxSec={value}\n"),
        };
        let facts = of(|logind| logind.delay = Ok(TimeSpan::from_secs(seconds)));
        Facts { conf_files: files.iter().map(file).collect(), ..facts }
    };
    let (warn, fail) = (Verdict::Warn, Verdict::Fail);
    let table = [
        (granted(5, &[("a.conf", "40")]), warn, "a.conf asks for 40s already: run `systemctl"),
        // The agent's file sorts before it.
        (granted(5, &[("zzz.conf", "5")]), fail, "into /etc/systemd/logind.conf.d/zzz.conf"),
        (granted(30, &[("99-kubelet.conf", "60"), ("u.conf", "30")]), warn, "MaxSec=60`"),
        // A later file hides the kubelet's value, though logind grants ours. ([SD23])
        (granted(45, &[("99-kubelet.conf", "60"), ("u.conf", "45")]), warn, "MaxSec=60`"),
    ];
    for (facts, verdict, words) in table {
        assert_found(&facts, "delay", verdict, &[words]);
    }
}

#[test]
fn a_shutdown_that_comes_or_runs_is_reported() {
    let running = of(|logind| logind.preparing = Ok(true));
    assert_found(&running, "shutdown", Verdict::Warn, &["shutting down now"]);
    let at_micros = u64::try_from(now().as_microsecond()).expect("after 1970") + 90_000_000;
    let scheduled = of(|logind| {
        logind.scheduled = Ok(Some(ScheduledShutdown { kind: "reboot".into(), at_micros }));
    });
    assert_found(&scheduled, "schedule", Verdict::Warn, &["reboot is scheduled in 90s"]);
    let overdue = of(|logind| {
        logind.scheduled = Ok(Some(ScheduledShutdown { kind: "poweroff".into(), at_micros: 1 }));
    });
    assert_found(&overdue, "schedule", Verdict::Warn, &["in 0s"]);
    let silent = of(|logind| logind.scheduled = Err(error()));
    assert_found(&silent, "schedule", Verdict::Fail, &["said so"]);
}

#[test]
fn the_kubelets_lock_is_distinguished_from_locks_of_its_name() {
    let table = [
        // Name, kind, mode and uid identify the kubelet's lock. ([SD24])
        (vec![lock("shutdown", "kubelet", "delay", 0)], Some("kubelet"), Mode::Assist, "kubelet"),
        (vec![lock("sleep:shutdown", "kubelet", "delay", 0)], Some("k3s"), Mode::Assist, "by k3s"),
        (vec![lock("shutdown", "kubelet", "delay", 0)], None, Mode::Assist, "is not running"),
        (vec![lock("shutdown", "kubelet", "delay", 1000)], None, Mode::Replace, "not root's"),
        (vec![lock("sleep", "kubelet", "delay", 0)], None, Mode::Replace, "not armed"),
        (vec![lock("shutdown", "kubelet", "block", 0)], None, Mode::Replace, "not armed"),
        (vec![lock("shutdown", "other", "delay", 0)], None, Mode::Replace, "not armed"),
        (
            vec![lock("shutdown", "kubelet", "delay", 9), lock("shutdown", "kubelet", "delay", 0)],
            Some("kubelet"),
            Mode::Assist,
            "uid 0",
        ),
    ];
    for (list, process, mode, words) in table {
        let facts = of(|logind| {
            logind.inhibitors = Ok(list);
            logind.kubelet_process = process.map(Into::into);
        });
        let check = check(&facts, "kubelet");
        assert!(check.found.contains(words), "{words:?} must be in {check:?}");
        assert_eq!(judge(&facts, now()).mode, Some(mode), "{check:?}");
    }
}

#[test]
fn other_holders_are_named() {
    let holding =
        |mode| of(|logind| logind.inhibitors = Ok(vec![lock("shutdown", "apt", mode, 0)]));
    assert_found(&holding("delay"), "holders", Verdict::Ok, &["waits for apt (pid 7: why)"]);
    assert_found(&holding("block"), "holders", Verdict::Warn, &["blocked by apt"]);
}

#[test]
fn a_lock_that_cannot_be_had_comes_with_its_remedy() {
    let table = [
        (Refusal::ShuttingDown, "in progress"),
        (Refusal::NotPermitted, "uid 0"),
        (Refusal::NotPermitted, "polkit"),
        (Refusal::TooManyLocks, "InhibitorsMax"),
        (Refusal::Other, "journalctl"),
    ];
    for (why, words) in table {
        let facts = of(|logind| logind.trial = Trial::Refused { why, message: error() });
        assert_found(&facts, "lock", Verdict::Fail, &["refused", "said so", words]);
    }
    let taken = |listed, released| of(|logind| logind.trial = Trial::Taken { listed, released });
    let fail = Verdict::Fail;
    assert_found(&taken(Ok(false), Ok(true)), "lock", fail, &["does not list it"]);
    assert_found(&taken(Ok(true), Ok(false)), "lock", fail, &["still listed"]);
    assert_found(&taken(Err(error()), Ok(true)), "lock", fail, &["said so"]);
}

#[test]
fn the_runtime_answers_is_ready_and_its_times_are_past() {
    let seen = |answers: RuntimeAnswers| Facts {
        runtime: RuntimeFacts::Answers(Box::new(answers)),
        ..of(|_| {})
    };
    let ok = ["containerd v2.1.4 at /run/containerd/containerd.sock knows 12 pods"];
    assert_found(&seen(answers()), "runtime", Verdict::Ok, &ok);
    let at = |time: &str| RuntimeAnswers { latest: time.parse().ok(), ..answers() };
    assert_found(&seen(at("2026-11-21T14:00:02Z")), "runtime", Verdict::Ok, &ok);
    let words = ["its times are 900s ahead of the clock", "timedatectl"];
    assert_found(&seen(at("2026-11-21T14:15:00Z")), "runtime", Verdict::Warn, &words);
    let none = RuntimeAnswers { pods: 0, latest: None, ..answers() };
    let words = ["knows 0 pods", "by --runtime-endpoint"];
    assert_found(&seen(none), "runtime", Verdict::Warn, &words);

    let failing = |not_ready| RuntimeAnswers {
        failing: vec!["NetworkReady (NotYet: no plugin)".into()],
        not_ready,
        ..answers()
    };
    let words = ["not ready: NetworkReady (NotYet: no plugin)", "crictl info"];
    assert_found(&seen(failing(false)), "runtime", Verdict::Warn, &words);
    assert_found(&seen(failing(true)), "runtime", Verdict::Fail, &words);
}

#[test]
fn a_runtime_that_is_not_there_is_a_warning_and_a_mute_one_a_failure() {
    let with = |runtime| Facts { runtime, ..of(|_| {}) };
    let absent = RuntimeFacts::Absent { found: "no socket".into(), remedy: "name it".into() };
    assert_found(&with(absent), "runtime", Verdict::Warn, &["no socket name it"]);
    let mute = RuntimeFacts::Mute { socket: "/a.sock".into(), error: "no answer".into() };
    let words = ["no answer (at /a.sock)", "systemctl status containerd crio"];
    assert_found(&with(mute), "runtime", Verdict::Fail, &words);
}

#[test]
fn the_api_would_take_the_reports() {
    let asked = |change: fn(&mut ApiAnswers)| {
        let mut answers = ApiAnswers {
            server: "https://api".into(),
            node: "n".into(),
            node_exists: true,
            denied: Vec::new(),
            trial: MarkTrial::Taken { pod: "a/p".into() },
            on_the_way: Vec::new(),
            latency: Duration::from_millis(12),
        };
        change(&mut answers);
        Facts { api: Some(ApiFacts::Answers(Box::new(answers))), ..of(|_| {}) }
    };
    let (warn, fail) = (Verdict::Warn, Verdict::Fail);
    let words = ["https://api answers in 12 ms; DisruptionTarget on a/p would be accepted"];
    assert_found(&asked(|_| {}), "api", Verdict::Ok, &words);
    let slow = asked(|answers| answers.latency = Duration::from_millis(300));
    assert_found(&slow, "api", warn, &["in 300 ms", "groups less time"]);
    let lost = asked(|answers| answers.latency = Duration::from_secs(1));
    assert_found(&lost, "api", fail, &["a call ends after 1 s"]);
    let denied = asked(|answers| answers.denied = vec!["patch pods/status".into()]);
    assert_found(&denied, "api", fail, &["the API forbids patch pods/status", "apply -k"]);
    let other = asked(|answers| answers.node_exists = false);
    assert_found(&other, "api", fail, &["node n not found", "--node-name"]);
    let refused = asked(|answers| {
        answers.trial = MarkTrial::Refused { pod: "a/p".into(), error: "policy".into() };
    });
    assert_found(&refused, "api", fail, &["would be refused: policy", "their token names"]);
    let none = asked(|answers| answers.trial = MarkTrial::NoPod);
    assert_found(&none, "api", Verdict::Ok, &["no pod here to try"]);
    let silent = ApiFacts::Silent { server: "https://api".into(), error: "refused".into() };
    let silent = Facts { api: Some(silent), ..of(|_| {}) };
    assert_found(&silent, "api", fail, &["https://api gives no answer: refused", "the route"]);
}

#[test]
fn the_mode_is_the_one_that_the_agent_would_detect() {
    let lives = || KubeletFacts {
        lock_armed: Some(false),
        shutdown_groups: Some(Vec::new()),
        healthy: Some(Healthz::Ok),
        ..KubeletFacts::default()
    };
    let with = |change: fn(&mut KubeletFacts)| {
        let mut kubelet = lives();
        change(&mut kubelet);
        Facts { kubelet: Some(kubelet), ..of(|_| {}) }
    };
    let (ok, warn, fail) = (Verdict::Ok, Verdict::Warn, Verdict::Fail);
    let table = [
        (with(|_| {}), ok, Mode::Replace, "no graceful shutdown of its own; its configuration"),
        (with(|kubelet| kubelet.lock_armed = Some(true)), ok, Mode::Assist, "is armed"),
        (
            with(|kubelet| {
                let period = Duration::from_secs(30);
                kubelet.shutdown_groups = Some(PriorityGroup::of_all(period));
            }),
            warn,
            Mode::Replace,
            "holds no lock; its configuration wants 30s",
        ),
        (
            with(|kubelet| {
                kubelet.healthy = Some(Healthz::Refused);
                kubelet.unit = Some(Unit::Inactive);
            }),
            fail,
            Mode::Substitute,
            "the kubelet is dead",
        ),
    ];
    for (facts, verdict, mode, words) in table {
        assert_found(&facts, "mode", verdict, &[words]);
        assert_eq!(judge(&facts, now()).mode, Some(mode));
    }
}

#[test]
fn a_pod_that_sees_no_process_of_the_host_believes_systemd() {
    let armed = |unit, lock_armed| Facts {
        kubelet: Some(KubeletFacts { lock_armed, unit, ..KubeletFacts::default() }),
        ..of(|logind| logind.inhibitors = Ok(vec![lock("shutdown", "kubelet", "delay", 0)]))
    };
    let (ok, warn) = (Verdict::Ok, Verdict::Warn);
    let words = ["held by its unit, uid 0, pid 7"];
    assert_found(&armed(Some(Unit::Active), Some(true)), "kubelet", ok, &words);
    let words = ["uid 0, pid 7) is not in its unit", "--kubelet-unit"];
    assert_found(&armed(Some(Unit::Active), Some(false)), "kubelet", warn, &words);
    assert_found(&armed(None, Some(true)), "kubelet", warn, &["is not running"]);
    assert_found(&armed(None, None), "kubelet", warn, &["is not running"]);
}

/// It has neither rights to write nor a runtime, and that is right.
#[test]
fn of_an_agent_that_observes_neither_rights_nor_a_runtime_are_asked() {
    let api = ApiFacts::Answers(Box::new(ApiAnswers {
        server: "https://api".into(),
        node: "n1".into(),
        node_exists: true,
        denied: vec!["patch pods/status".into()],
        trial: MarkTrial::NoPod,
        on_the_way: Vec::new(),
        latency: Duration::from_millis(1),
    }));
    let runtime = RuntimeFacts::Mute { socket: "/s".into(), error: "no such file".into() };
    let acts = Facts { api: Some(api), runtime, ..of(|_| {}) };
    let verdicts = |facts: &Facts| {
        let report = judge(facts, now());
        ["api", "runtime"].map(|name| {
            let check = report.checks.iter().find(|check| check.name == name);
            check.expect(name).verdict
        })
    };
    assert_eq!(verdicts(&acts), [Verdict::Fail, Verdict::Fail]);
    let observes = Facts { observes: true, ..acts };
    assert_eq!(verdicts(&observes), [Verdict::Warn, Verdict::Ok]);
}
