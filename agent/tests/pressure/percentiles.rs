//! Holds measured times to a limit at two percentiles.

use std::time::Duration;

/// Holds the median below `p50`, and the 99th percentile below `p99`: the slowest one, if there are
/// fewer than a hundred. On a busy machine a single time says little of the code.
pub(crate) fn hold(what: &str, mut times: Vec<Duration>, p50: Duration, p99: Duration) {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1];
    println!("{what}: p50 {:?}, p99 {:?} of {}", at(50), at(99), times.len());
    assert!(at(50) < p50 && at(99) < p99, "{what}: {times:?}");
}
