//! Which way QEMU runs the machine: the hardware's where it is real, else emulation.

use std::path::Path;

/// How the machine's instructions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the hardware.
    Kvm,
    /// By emulation: works everywhere, several times slower.
    Tcg,
}

impl Accelerator {
    /// That of this machine.
    pub fn of_this_machine() -> Self {
        let writable = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
        let cpu_flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self::of(writable, &cpu_flags, Path::new("/sys/module/kvm_pvm").exists())
    }

    /// A device that exists proves nothing: the software one of `kvm-pvm` cannot boot an
    /// unmodified kernel.
    fn of(device_is_writable: bool, cpuinfo: &str, is_software: bool) -> Self {
        let hardware = cpuinfo.split_ascii_whitespace().any(|word| word == "vmx" || word == "svm");
        if device_is_writable && hardware && !is_software { Self::Kvm } else { Self::Tcg }
    }

    /// QEMU's arguments.
    pub(super) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // Megabytes of translated code: a kubelet and its pods fill half of it in a minute, and
            // when it is full all of it is translated anew.
            Self::Tcg => ["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_used_only_where_hardware_does_it() {
        assert_eq!(Accelerator::of(true, "flags : fpu vmx sse", false), Accelerator::Kvm);
        assert_eq!(Accelerator::of(true, "flags : fpu svm", true), Accelerator::Tcg);
        assert_eq!(Accelerator::of(true, "flags : fpu sse", false), Accelerator::Tcg);
        assert_eq!(Accelerator::of(false, "flags : vmx", false), Accelerator::Tcg);
    }
}
