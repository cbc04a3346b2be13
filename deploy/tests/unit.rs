//! Checks that the unit of the host's service lets the agent do its work, outlive the kubelet, and
//! do nothing more.

use std::fs;
use std::path::{Path, PathBuf};

use agent_core::shutdown::logind_conf::OUR_DROP_IN;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

/// All settings in order: section, key and value.
fn settings() -> Vec<(String, String, String)> {
    let path = directory().join("epilogue-agent.service");
    let text = fs::read_to_string(path).expect("must be readable");
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else {
            let (key, value) = line.split_once('=').expect("must be KEY=VALUE");
            settings.push((section.clone(), key.to_owned(), value.to_owned()));
        }
    }
    settings
}

fn values(section: &str, key: &str) -> Vec<String> {
    let of_key = |(in_section, name, value): (String, String, String)| {
        (in_section == section && name == key).then_some(value)
    };
    settings().into_iter().filter_map(of_key).collect()
}

fn words(section: &str, key: &str) -> Vec<String> {
    let values = values(section, key);
    values.iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
}

fn one(section: &str, key: &str) -> String {
    let mut values = values(section, key);
    assert_eq!(values.len(), 1, "one {key}");
    values.remove(0)
}

#[test]
fn the_service_starts_before_the_kubelet_stops_after_it_and_requires_no_unit() {
    for kubelet in ["kubelet.service", "k3s-agent.service", "rke2-agent.service"] {
        assert!(words("Unit", "Before").contains(&kubelet.to_owned()), "{kubelet}");
    }
    // After= also means that the agent stops before these units.
    for before in ["dbus.service", "systemd-logind.service", "network.target"] {
        assert!(words("Unit", "After").contains(&before.to_owned()), "{before}");
    }
    // This would delay the kubelet's start.
    assert!(!words("Unit", "After").contains(&"network-online.target".to_owned()));
    for bond in ["Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts"] {
        assert!(values("Unit", bond).is_empty(), "{bond}");
    }
    assert_eq!(one("Install", "WantedBy"), "multi-user.target");
}

#[test]
fn the_service_restarts_for_ever_and_stops_in_time() {
    assert_eq!(one("Service", "Restart"), "always");
    assert_eq!(one("Unit", "StartLimitIntervalSec"), "0");
    assert_eq!(one("Service", "TimeoutStopSec"), "30");
    // The defaults are SIGTERM, then SIGKILL.
    for key in ["KillMode", "KillSignal", "SendSIGKILL", "ExecStop"] {
        assert!(values("Service", key).is_empty(), "{key}");
    }
}

#[test]
fn the_service_may_write_its_journal_and_its_drop_in_and_no_other_file() {
    let drop_ins = OUR_DROP_IN.rsplit_once('/').expect("must be in a directory").0;
    assert_eq!(one("Service", "ProtectSystem"), "strict");
    assert_eq!(values("Service", "ReadWritePaths"), [drop_ins]);
    assert_eq!(format!("/etc/{}", one("Service", "ConfigurationDirectory")), drop_ins);
    assert_eq!(one("Service", "StateDirectory"), "epilogue-agent");
}

#[test]
fn the_service_is_bounded_and_reads_no_key_of_the_cluster() {
    assert_eq!(
        (one("Service", "MemoryMax"), one("Service", "TasksMax")),
        ("128M".into(), "64".into())
    );
    let hidden = words("Service", "InaccessiblePaths");
    let pki = "-/var/lib/kubelet/pki";
    let of_kubelet = [format!("{pki}/kubelet.key"), format!("{pki}/kubelet-client-current.pem")];
    let others = ["-/etc/kubernetes", "-/etc/ssh"].map(ToOwned::to_owned);
    for path in of_kubelet.into_iter().chain(others) {
        assert!(hidden.contains(&path), "{path}");
    }
    // The kubelet's certificate, by which the agent knows it.
    let certificate = format!("{pki}/kubelet.crt");
    assert!(!hidden.iter().any(|hidden| certificate.starts_with(hidden.as_str())), "{hidden:?}");
}

#[test]
fn the_service_is_root_and_may_read_what_it_watches() {
    assert!(values("Service", "User").is_empty() && values("Service", "DynamicUser").is_empty());
    // No capability overrides write permissions.
    let capabilities = words("Service", "CapabilityBoundingSet");
    let expected = ["CAP_SYSLOG", "CAP_DAC_READ_SEARCH", "CAP_SYS_RESOURCE", "CAP_IPC_LOCK"];
    assert_eq!(capabilities, expected);
    assert_eq!(one("Service", "DevicePolicy"), "closed");
    assert_eq!(one("Service", "DeviceAllow"), "/dev/kmsg r");
    // Either one would deny access to the kernel's log.
    for key in ["PrivateDevices", "ProtectKernelLogs"] {
        assert!(values("Service", key).is_empty(), "{key}");
    }
    assert_eq!(one("Service", "ProtectControlGroups"), "no");
    assert!(values("Service", "AmbientCapabilities").is_empty());
    assert_eq!(one("Service", "NoNewPrivileges"), "yes");
    assert_eq!(one("Service", "SystemCallFilter"), "@system-service");
    // For the bus, the runtime and the API.
    let families = words("Service", "RestrictAddressFamilies");
    assert!(["AF_UNIX", "AF_INET", "AF_INET6"].iter().all(|it| families.contains(&(*it).into())));
    // The agent reads from /proc which process holds a lock.
    for key in ["ProtectProc", "ProcSubset", "PrivateNetwork", "PrivateUsers"] {
        assert!(values("Service", key).is_empty(), "{key}");
    }
}

#[test]
fn the_services_settings_come_from_the_files_that_the_readme_names() {
    let readme = fs::read_to_string(directory().join("README.md")).expect("must be readable");
    assert_eq!(one("Service", "EnvironmentFile"), "-/etc/epilogue/agent.env");
    assert_eq!(one("Service", "Environment"), "NODE_NAME=%H");
    let start = one("Service", "ExecStart");
    let words: Vec<&str> = start.split(' ').collect();
    let expected = [
        "/usr/local/bin/epilogue-agent",
        "run",
        "--kubeconfig=/etc/epilogue/agent.kubeconfig",
        "$EPILOGUE_AGENT_FLAGS",
    ];
    assert_eq!(words, expected);
    let paths = ["/usr/local/bin", "/etc/epilogue/agent.kubeconfig", "/etc/epilogue/agent.env"];
    for path in paths {
        assert!(readme.contains(path), "{path}");
    }
}

#[test]
fn the_token_is_renewed_four_times_before_it_ends() {
    let read = |name: &str| fs::read_to_string(directory().join(name)).expect("must be readable");
    let timer = read("epilogue-agent-token@.timer");
    assert!(timer.contains("\nOnCalendar=weekly\n") && timer.contains("\nPersistent=yes\n"));
    let service = read("epilogue-agent-token@.service");
    assert!(
        service.contains("\nExecStart=/usr/local/lib/epilogue/credentials %i ${STATE_DIRECTORY}\n")
    );
    assert!(read("credentials").contains("duration=${3:-720h}"), "30 days");
}

#[test]
fn the_service_observes_until_one_line_of_its_file_lets_it_act() {
    let read = |name: &str| fs::read_to_string(directory().join(name)).expect("must be readable");
    let file = read("agent.env");
    assert!(file.lines().all(|line| line.is_empty() || line.starts_with('#')), "{file}");
    assert!(file.contains("\n#EPILOGUE_MODE=enforce\n"));
    assert!(!settings().iter().any(|(_, _, value)| value.contains("EPILOGUE_MODE")));
    let credentials = read("credentials");
    let accounts =
        ["enforce) account=epilogue-agent ;;", "observe) account=epilogue-agent-observer"];
    for account in accounts {
        assert!(credentials.contains(account), "{account}");
    }
    assert!(credentials.contains("case ${EPILOGUE_MODE:-observe} in\n"), "the default observes");
}
