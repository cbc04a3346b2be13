//! JSON that is kept as text: what others write may be large, and as a tree it is fifty times so.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The fields of an object, each as text.
pub(crate) type Fields = BTreeMap<String, Box<RawValue>>;

/// One JSON value, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(Arc<str>);

impl Json {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What of the value `T` reads; nothing where it is something else.
    pub(crate) fn read<'a, T: Deserialize<'a> + Default>(&'a self) -> T {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl Default for Json {
    fn default() -> Self {
        Self("null".into())
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(raw.get().into()))
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// Reads an object without its `managedFields`, which may be nested as deep as their owner likes.
pub(crate) fn without_managed_fields<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Json, D::Error> {
    let fields: Option<Fields> = Option::deserialize(deserializer)?;
    let Some(mut fields) = fields else { return Ok(Json::default()) };
    fields.remove("managedFields");
    let text = serde_json::to_string(&fields).map_err(serde::de::Error::custom)?;
    Ok(Json(text.into()))
}

/// The text of a value that is made here.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("keys are text, and nothing is refused")
}
