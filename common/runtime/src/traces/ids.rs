//! Derives ids from what agent and controller both see, and decides which traces are exported.

use jiff::Timestamp;
use ring::digest::{SHA256, digest};

use super::ROOT;

/// Low bits of a trace id that W3C Trace Context expects to be random. In a pod's UID they are;
/// higher ones hold the version and the variant of the UID.
const RANDOM_BITS: u32 = 56;

/// The id of a pod's trace: its UID, which has as many bits. Another text is hashed.
pub fn trace_id(pod_uid: &str) -> [u8; 16] {
    let digits: String = pod_uid.chars().filter(|each| *each != '-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|each| each.is_ascii_hexdigit());
    match u128::from_str_radix(&digits, 16) {
        Ok(id) if is_uuid && id != 0 => id.to_be_bytes(),
        _ => hash(pod_uid),
    }
}

/// The id of a span. That of the root depends on the pod only: both programs name it. A step may
/// repeat after a cancelled shutdown, so its time distinguishes it.
pub fn span_id(pod_uid: &str, name: &str, begun: Timestamp) -> [u8; 8] {
    let time = if name == ROOT { String::new() } else { begun.as_nanosecond().to_string() };
    hash(&format!("{pod_uid}/{name}/{time}"))
}

/// Whether the trace is in the sample. Both programs give the same answer for the same ratio.
pub fn is_sampled(trace_id: [u8; 16], ratio: f64) -> bool {
    let random = u128::from_be_bytes(trace_id) & ((1 << RANDOM_BITS) - 1);
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
    let part = random as f64 / (1_u64 << RANDOM_BITS) as f64;
    part < ratio
}

fn hash<const N: usize>(text: &str) -> [u8; N] {
    let digest = digest(&SHA256, text.as_bytes());
    std::array::from_fn(|at| digest.as_ref()[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b7c3f5e-1f52-4a39-9a3e-6f1f5b1d0c7a";

    #[test]
    fn the_trace_of_a_pod_has_its_uid_as_id() {
        let id = format!("{:032x}", u128::from_be_bytes(trace_id(UID)));
        assert_eq!(id, UID.replace('-', ""));
    }

    #[test]
    fn a_uid_that_is_no_uuid_gets_an_id_of_its_own() {
        let odd = ["", "pod-1", "00000000-0000-0000-0000-000000000000", "+b7c3f5e1f524a399a3e6f1f"];
        for uid in odd {
            assert_ne!(trace_id(uid), [0; 16], "{uid}");
            assert_ne!(trace_id(uid), trace_id(UID), "{uid}");
            assert_eq!(trace_id(uid), trace_id(uid), "{uid}");
        }
    }

    #[test]
    fn the_root_s_id_needs_no_time_and_a_step_s_does() {
        let times = [Timestamp::UNIX_EPOCH, Timestamp::MAX];
        let [first, second] = times.map(|time| span_id(UID, ROOT, time));
        assert_eq!(first, second);
        let [first, second] = times.map(|time| span_id(UID, "report", time));
        assert_ne!(first, second);
        assert_ne!(span_id(UID, "report", times[0]), span_id(UID, "terminate", times[0]));
    }

    #[test]
    fn a_ratio_samples_that_part_of_all_pods() {
        let uid = |number: u32| {
            let random: [u8; 8] = hash(&number.to_string());
            let random = u64::from_be_bytes(random);
            format!("0b7c3f5e-1f52-4a39-9{:03x}-{:012x}", random >> 52, random & 0xffff_ffff_ffff)
        };
        let sampled = |ratio| {
            let is = |number: &u32| is_sampled(trace_id(&uid(*number)), ratio);
            (0..4_000).filter(is).count()
        };
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 4_000));
        let quarter = sampled(0.25);
        assert!((900..1_100).contains(&quarter), "{quarter}");
    }
}
