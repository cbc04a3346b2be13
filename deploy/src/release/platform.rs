//! The platforms of a release, and what each needs on the machine that builds.

use super::error::ReleaseError;

/// A platform of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The target of rustc.
    pub target: &'static str,
    /// The architecture in names of images and archives.
    pub arch: &'static str,
    /// The C compiler, which is also the linker, where cargo does not find it by itself.
    pub compiler: Option<&'static str>,
    /// Where the target and the compiler come from.
    pub needs: &'static str,
}

/// All platforms. Programs are static, linked with musl.
pub const ALL: [Platform; 2] = [
    Platform {
        target: "x86_64-unknown-linux-musl",
        arch: "amd64",
        compiler: None,
        needs: "Debian's package musl-tools, and `rustup target add x86_64-unknown-linux-musl`",
    },
    Platform {
        target: "aarch64-unknown-linux-musl",
        arch: "arm64",
        compiler: Some("aarch64-linux-gnu-gcc"),
        needs: "Debian's package gcc-aarch64-linux-gnu, and `rustup target add \
                aarch64-unknown-linux-musl`",
    },
];

/// The platform with this target of rustc.
pub fn of_target(target: &str) -> Result<Platform, ReleaseError> {
    let found = ALL.into_iter().find(|platform| platform.target == target);
    let names = ALL.map(|platform| platform.target).join(" or ");
    found.ok_or_else(|| ReleaseError::Platform(target.to_owned(), names))
}

impl Platform {
    /// The variables by which cargo, and build scripts with C code, find the compiler.
    pub(super) fn environment(self) -> Vec<(String, &'static str)> {
        let name = self.target.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
        let variables = |compiler| [(format!("CC_{name}"), compiler), (linker, compiler)];
        self.compiler.map_or_else(Vec::new, |compiler| variables(compiler).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_platform_names_its_compiler_for_cargo_and_for_c() {
        assert_eq!(ALL[0].environment(), []);
        let compiler = "aarch64-linux-gnu-gcc";
        let expected = [
            ("CC_aarch64_unknown_linux_musl".to_owned(), compiler),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER".to_owned(), compiler),
        ];
        assert_eq!(ALL[1].environment(), expected);
    }

    #[test]
    fn an_unknown_target_is_refused_with_those_that_are_known() {
        assert_eq!(of_target(ALL[1].target).expect("known"), ALL[1]);
        let error = of_target("riscv64").expect_err("unknown").to_string();
        assert!(error.contains("riscv64: expected x86_64-unknown-linux-musl or"), "{error}");
    }
}
