//! Makes small changes to well-formed inputs: of bytes, and of values if they are JSON.

use proptest::prelude::*;
use serde_json::Value;

/// Bytes that parsers often fail on.
const ODD_BYTES: [&[u8]; 14] = [
    b"null",
    b"-1",
    b"1e400",
    b"9223372036854775808",
    b"99999999999999999999",
    b"\\ud800",
    b"\0",
    b"\xff\xfe",
    b"{",
    b"[[[[[[[[",
    b"\"",
    b",",
    b"-",
    b"\xe2\x80\xae",
];

/// One change.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// This byte at this place.
    Byte(usize, u8),
    /// Removes this many bytes from this place on.
    Cut(usize, usize),
    /// Something odd at this place.
    Insert(usize, usize),
    /// Repeats the bytes at this place this many times.
    Repeat(usize, usize, usize),
    /// Replaces the value with this number by an odd one.
    Value(usize, usize),
    /// Replaces the value with this number by another.
    Copy(usize, usize),
}

/// Some changes of any input.
pub(crate) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = any::<prop::sample::Index>().prop_map(|index| index.index(1 << 16));
    let edit = prop_oneof![
        1 => (at.clone(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        1 => (at.clone(), 1_usize..40).prop_map(|(at, length)| Edit::Cut(at, length)),
        1 => (at.clone(), 0..ODD_BYTES.len()).prop_map(|(at, which)| Edit::Insert(at, which)),
        1 => (at.clone(), 1_usize..40, 1_usize..300)
            .prop_map(|(at, length, times)| Edit::Repeat(at, length, times)),
        8 => (at.clone(), 0_usize..40).prop_map(|(at, which)| Edit::Value(at, which)),
        2 => (at.clone(), at).prop_map(|(at, from)| Edit::Copy(at, from)),
    ];
    prop::collection::vec(edit, 0..6)
}

/// The input after these changes.
pub(crate) fn edited(input: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for edit in edits {
        apply(&mut bytes, edit);
    }
    bytes
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    let place = |at: usize| at % (bytes.len() + 1);
    match *edit {
        Edit::Byte(at, byte) => {
            let at = place(at);
            if let Some(old) = bytes.get_mut(at) {
                *old = byte;
            }
        }
        Edit::Cut(at, length) => {
            let at = place(at);
            bytes.drain(at..(at + length).min(bytes.len()));
        }
        Edit::Insert(at, which) => {
            let at = place(at);
            bytes.splice(at..at, ODD_BYTES[which].iter().copied());
        }
        Edit::Repeat(at, length, times) => {
            let at = place(at);
            let part = bytes[at..(at + length).min(bytes.len())].repeat(times);
            bytes.splice(at..at, part);
        }
        Edit::Value(at, which) => change_value(bytes, at, |_| odd_value(which)),
        Edit::Copy(at, from) => change_value(bytes, at, |whole| {
            let count = count(whole);
            nth(whole, &mut (from % count)).cloned().unwrap_or_default()
        }),
    }
}

fn change_value(bytes: &mut Vec<u8>, at: usize, with: impl FnOnce(&mut Value) -> Value) {
    let Ok(mut whole) = serde_json::from_slice::<Value>(bytes) else { return };
    let new = with(&mut whole);
    let mut left = at % count(&whole);
    if let Some(value) = nth(&mut whole, &mut left) {
        *value = new;
    }
    *bytes = whole.to_string().into_bytes();
}

/// Counts a value and all values in it.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|each| nth(each, left)),
        Value::Object(fields) => fields.values_mut().find_map(|each| nth(each, left)),
        _ => None,
    }
}

fn odd_value(which: usize) -> Value {
    let texts = [
        "",
        "0",
        "-1",
        "0-",
        "1-0",
        "0,0",
        "4294967296",
        "2147483647",
        "9999-12-31T23:59:59Z",
        "10000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "1e400",
        "9223372036854775807Ei",
        "-0n",
        "2540400h",
        "-1ns",
        "1.5h1ns",
        "\u{0}",
        "\u{202e}",
        "drained;boot=;at=",
        "Failed",
        "Running",
        "True",
    ];
    let numbers = [i64::MIN, -1, 0, 1, 2_147_483_647, 2_147_483_648, i64::MAX];
    match which {
        0 => Value::Null,
        1 => Value::Bool(true),
        2 => serde_json::json!({}),
        3 => serde_json::json!([]),
        4 => serde_json::json!([null]),
        5 => serde_json::json!(1e300),
        6 => serde_json::json!(u64::MAX),
        7 => Value::from("x".repeat(70_000)),
        8..15 => numbers[which - 8].into(),
        _ => texts[(which - 15) % texts.len()].into(),
    }
}
