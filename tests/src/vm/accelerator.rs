//! Chooses how QEMU runs the machine: by hardware if it is real, otherwise by emulation.

use std::path::Path;

/// How the machine's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the hardware.
    Kvm,
    /// By emulation: works everywhere, several times slower.
    Tcg,
}

impl Accelerator {
    /// The accelerator of this machine.
    pub fn of_this_machine() -> Self {
        let writable = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        let cpu_flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self::of(writable, &cpu_flags, Path::new("/sys/module/kvm_pvm").exists())
    }

    /// An existing device proves nothing: the software one of `kvm-pvm` cannot boot an unmodified
    /// kernel.
    fn of(device_is_writable: bool, cpuinfo: &str, is_software: bool) -> Self {
        let hardware = cpuinfo.split_ascii_whitespace().any(|word| word == "vmx" || word == "svm");
        if device_is_writable && hardware && !is_software { Self::Kvm } else { Self::Tcg }
    }

    /// The part of this machine's processor that a snapshot depends on. Emulation offers the same
    /// features on each processor, except for the speed of the counter behind its clock.
    pub(super) fn processor(self) -> String {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        match self {
            Self::Kvm => processor_in(&cpuinfo, &["flags"]),
            Self::Tcg => processor_in(&cpuinfo, &[]),
        }
    }

    /// QEMU's arguments.
    pub(super) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // A fifth level of page tables would cost a quarter more for each walk. If the
            // processor advertises fast byte copies, all programs copy by bytes, and emulation
            // handles each byte by itself: a program's start takes 1.6 times as long. `tb-size` is
            // megabytes of translated code. A kubelet and its pods fill half of it in a minute, and
            // when it is full, all of it is translated again.
            Self::Tcg => ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,-la57,-erms"],
        }
    }
}

/// Model of the first processor, with these additional lines, but without values that change by the
/// second.
fn processor_in(cpuinfo: &str, more: &[&str]) -> String {
    let model = ["vendor_id", "cpu family", "model", "model name", "stepping"];
    let is_of_it = |line: &&str| {
        let key = line.split(':').next().unwrap_or_default().trim();
        model.contains(&key) || more.contains(&key)
    };
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    first.lines().filter(is_of_it).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_is_its_model_and_no_momentary_figure() {
        let one = "vendor_id\t: A\nmodel\t\t: 7\ncpu MHz\t\t: 2500.1\nflags\t\t: fpu vmx";
        let two = one.replace("2500.1", "1200.7") + "\n\nprocessor : 1";
        assert_eq!(processor_in(one, &["flags"]), processor_in(&two, &["flags"]));
        let other = one.replace("vmx", "svm");
        assert_ne!(processor_in(one, &["flags"]), processor_in(&other, &["flags"]));
        assert_eq!(processor_in(one, &[]), processor_in(&other, &[]));
        assert_ne!(processor_in(one, &[]), processor_in(&one.replace('7', "8"), &[]));
    }

    #[test]
    fn kvm_is_used_only_where_hardware_does_it() {
        assert_eq!(Accelerator::of(true, "flags : fpu vmx sse", false), Accelerator::Kvm);
        assert_eq!(Accelerator::of(true, "flags : fpu svm", true), Accelerator::Tcg);
        assert_eq!(Accelerator::of(true, "flags : fpu sse", false), Accelerator::Tcg);
        assert_eq!(Accelerator::of(false, "flags : vmx", false), Accelerator::Tcg);
    }
}
