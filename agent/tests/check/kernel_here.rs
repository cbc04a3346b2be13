//! Reports tests of the kernel that this machine cannot run. A test says what is missing and counts
//! as not run. A machine that must have everything, such as that of `tests/node/`, fails it.

#![allow(dead_code, reason = "no program of tests needs all of it")]

/// Set where nothing may be missing.
pub(crate) const ALL_OF_IT: &str = "EPILOGUE_TEST_KERNEL";

/// What this machine lacks: its code in `tests/src/not_run.rs`, and details.
pub(crate) struct Missing(pub(crate) &'static str, pub(crate) String);

pub(crate) const PSI: &str = "no-psi";
pub(crate) const PSI_TRIGGER: &str = "no-psi-trigger";
pub(crate) const CGROUPS: &str = "no-cgroups";
pub(crate) const MEMORY_CONTROLLER: &str = "no-memory-controller";
/// No cgroup can be made.
pub(crate) const NEW_CGROUPS: &str = "cgroups-read-only";

/// Called where a test ends early. `cargo lab test` counts a test that prints such a line as not
/// run, if the machine really lacks that.
pub(crate) fn not_tested_here(Missing(code, why): &Missing) {
    println!("not run: [{code}] {why} (`cargo lab test node --all` has a machine with it)");
    assert_nothing_may_be_missing(why);
}

/// Called where a test continues with the part that this machine has.
pub(crate) fn tested_in_part(Missing(code, why): &Missing) {
    println!("in part: [{code}] {why}");
    assert_nothing_may_be_missing(why);
}

fn assert_nothing_may_be_missing(why: &str) {
    assert!(
        std::env::var_os(ALL_OF_IT).is_none(),
        "{ALL_OF_IT} is set, so that this kernel must let itself be tested: {why}"
    );
}
