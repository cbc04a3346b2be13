//! Tests of the kernel need what not every machine lets a process have. A machine that has not got
//! it is told of; one that must have it, as that of `tests/node/`, fails them.

/// Set where nothing may be missing.
pub(crate) const ALL_OF_IT: &str = "EPILOGUE_TEST_KERNEL";

/// To be called where a test ends early, with what is missing.
pub(crate) fn not_tested_here(why: &str) {
    println!("NOT TESTED HERE (`cargo lab test node` does it in a machine): {why}");
    assert!(
        std::env::var_os(ALL_OF_IT).is_none(),
        "{ALL_OF_IT} is set, so that this kernel must let itself be tested: {why}"
    );
}
