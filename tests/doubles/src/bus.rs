//! Provides a private message bus: a `dbus-daemon` that belongs to the test and stops with it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Starts a program without any descriptor of this process. If another test has just received a
/// lock's descriptor, a copy would keep its lock held while the program lives. The program ends
/// with this process, however that ends.
pub const WITHOUT_DESCRIPTORS: &str = r#"
for path in /proc/$$/fd/*; do
    number=${path##*/}
    if [ "$number" -gt 2 ]; then eval "exec $number>&-"; fi
done
exec setpriv --pdeathsig KILL "$@""#;

/// A running bus.
#[derive(Debug)]
pub struct PrivateBus {
    daemon: Child,
    pub address: String,
}

impl PrivateBus {
    /// Starts a bus at the path of the system bus on a host whose files lie under `root`.
    pub fn start(root: &Path) -> Self {
        let dir = root.join("run/dbus");
        fs::create_dir_all(&dir).expect("the root must be writable");
        let conf = configure(&dir);
        let log = dir.join("dbus-daemon.log");
        let stderr = fs::File::create(&log).expect("the root must be writable");
        let started = Command::new("bash")
            .args(["-c", WITHOUT_DESCRIPTORS, "bash", "dbus-daemon"])
            .arg(format!("--config-file={}", conf.display()))
            .args(["--print-address", "--nofork", "--nopidfile", "--nosyslog"])
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn();
        let mut daemon = started.unwrap_or_else(|error| {
            panic!("bash: {error}; install it with `apt-get install bash`")
        });
        let stdout = daemon.stdout.take().expect("its output must be piped");
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address).expect("it must print its address");
        let listens = address.starts_with("unix:");
        assert!(
            listens,
            "dbus-daemon must listen (`apt-get install dbus` installs it): {}",
            fs::read_to_string(log).unwrap_or_default()
        );
        Self { daemon, address: address.trim_end().to_owned() }
    }
}

impl Drop for PrivateBus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn configure(dir: &Path) -> PathBuf {
    let text = format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>custom</type>
  <listen>unix:path={}/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"#,
        dir.display()
    );
    let path = dir.join("bus.conf");
    fs::write(&path, text).expect("the root must be writable");
    path
}
