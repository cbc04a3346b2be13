//! Reads a YAML value as kubectl does: keys may be numbers, and tags are passed over. Pure.

use std::fmt;

use serde::de::{Deserialize, Deserializer, EnumAccess, Error, MapAccess, SeqAccess};
use serde::de::{VariantAccess as _, Visitor};
use serde_json::{Map, Number, Value};

/// A value that JSON can hold.
pub(super) struct Plain(pub(super) Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfValue).map(Self)
    }
}

/// A key as JSON has it.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfKey).map(Self)
    }
}

struct OfValue;

impl<'de> Visitor<'de> for OfValue {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value that JSON can hold")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    /// An empty document.
    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Value, D::Error> {
        inner.deserialize_any(OfValue)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    /// Of numbers beyond 64 bits, JSON's readers keep the magnitude.
    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        large(&value.to_string())
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        large(&value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("JSON has no such number"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Plain(item)) = items.next_element()? {
            values.push(item);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((Key(name), Plain(field))) = entries.next_entry()? {
            fields.insert(name, field);
        }
        Ok(Value::Object(fields))
    }

    /// A tag, such as `!!binary` or one of another program.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Value, A::Error> {
        let (_, inner) = tagged.variant::<String>()?;
        inner.newtype_variant::<Plain>().map(|Plain(value)| value)
    }
}

fn large<E: Error>(text: &str) -> Result<Value, E> {
    let number = text.parse().ok().and_then(Number::from_f64).map(Value::Number);
    number.ok_or_else(|| E::custom("JSON has no such number"))
}

struct OfKey;

impl Visitor<'_> for OfKey {
    type Value = String;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a string key")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}
