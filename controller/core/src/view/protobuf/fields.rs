//! Splits a message into its fields without decoding them, so that unknown ones can be copied.

/// A varint has at most so many bytes.
const VARINT_BYTES_MAX: usize = 10;

/// The fields whose tags `keep` accepts, as they are.
///
/// The end of a malformed message is kept: the API then refuses the copy, and nothing is lost
/// unseen.
pub(crate) fn retain(message: &[u8], keep: impl Fn(u32) -> bool) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut rest = message;
    while let Some((tag, size)) = first(rest) {
        let (field, after) = rest.split_at(size);
        if keep(tag) {
            kept.extend_from_slice(field);
        }
        rest = after;
    }
    kept.extend_from_slice(rest);
    kept
}

/// Tag and size of the first field; `None` if there is none, or if it is malformed.
fn first(message: &[u8]) -> Option<(u32, usize)> {
    let mut rest = message;
    let key = varint(&mut rest)?;
    let tag = u32::try_from(key >> 3).ok()?;
    let payload = match key & 7 {
        0 => varint(&mut rest).map(|_| 0)?,
        1 => 8,
        2 => usize::try_from(varint(&mut rest)?).ok()?,
        5 => 4,
        // The API has no groups.
        _ => return None,
    };
    let size = (message.len() - rest.len()).checked_add(payload)?;
    (size <= message.len()).then_some((tag, size))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let last = bytes.iter().take(VARINT_BYTES_MAX).position(|byte| *byte < 0x80)?;
    let (varint, rest) = bytes.split_at(last + 1);
    *bytes = rest;
    Some(varint.iter().rev().fold(0, |sum, byte| (sum << 7) | u64::from(byte & 0x7f)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// A field of each wire type.
    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(int64, tag = "1")]
        varint: i64,
        #[prost(fixed64, tag = "2")]
        fixed64: u64,
        #[prost(bytes = "vec", tag = "3")]
        bytes: Vec<u8>,
        #[prost(fixed32, tag = "4")]
        fixed32: u32,
        #[prost(int32, repeated, packed = "false", tag = "2000")]
        many: Vec<i32>,
    }

    fn sample() -> Sample {
        Sample {
            varint: -1,
            fixed64: u64::MAX,
            bytes: vec![0xff; 300],
            fixed32: 7,
            many: vec![1, 2],
        }
    }

    #[test]
    fn fields_of_every_type_are_kept_or_dropped_whole() {
        let message = sample().encode_to_vec();
        assert_eq!(retain(&message, |_| true), message);
        assert_eq!(retain(&message, |_| false), b"");
        let kept = retain(&message, |tag| tag != 3 && tag != 1);
        let expected = Sample { varint: 0, bytes: Vec::new(), ..sample() };
        assert_eq!(Sample::decode(&*kept), Ok(expected));
        let kept = retain(&message, |tag| tag == 2000);
        assert_eq!(Sample::decode(&*kept), Ok(Sample { many: vec![1, 2], ..Sample::default() }));
    }

    #[test]
    fn the_end_of_a_malformed_message_is_kept() {
        let message = sample().encode_to_vec();
        for end in 0..message.len() {
            let kept = retain(&message[..end], |_| false);
            assert!(message[..end].ends_with(&kept), "{end}");
        }
        let huge = [0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for odd in [&[0x0b][..], &[0xff; 12], &huge] {
            assert_eq!(retain(odd, |_| false), odd);
        }
    }
}
