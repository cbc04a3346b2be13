//! Reports tests of the kernel that this machine cannot run. A test says what is missing and counts
//! as not run. A machine that must have everything, such as that of `tests/node/`, fails it.

/// Set where nothing may be missing.
pub(crate) const ALL_OF_IT: &str = "EPILOGUE_TEST_KERNEL";

/// Called where a test ends early, with what is missing. `cargo lab test` counts a test that prints
/// such a line as not run.
pub(crate) fn not_tested_here(why: &str) {
    println!("not run: {why} (`cargo lab test node --all` has a machine with it)");
    assert_nothing_may_be_missing(why);
}

/// Called where a test continues with the part that this machine has.
#[allow(dead_code, reason = "not every program of tests has such a test")]
pub(crate) fn tested_in_part(why: &str) {
    println!("in part: {why}");
    assert_nothing_may_be_missing(why);
}

fn assert_nothing_may_be_missing(why: &str) {
    assert!(
        std::env::var_os(ALL_OF_IT).is_none(),
        "{ALL_OF_IT} is set, so that this kernel must let itself be tested: {why}"
    );
}
