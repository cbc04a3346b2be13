//! Keeps JSON as text: a user's JSON may be large, and as a tree it takes fifty times the space.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
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

    /// The fields of the value that `T` reads; the default if the value has another form.
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

/// Reads an object without its `managedFields`, which may be nested to any depth.
pub(crate) fn without_managed_fields<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Json, D::Error> {
    let fields: Option<Fields> = Option::deserialize(deserializer)?;
    let Some(mut fields) = fields else { return Ok(Json::default()) };
    fields.remove("managedFields");
    let text = serde_json::to_string(&fields).map_err(serde::de::Error::custom)?;
    Ok(Json(text.into()))
}

/// Reads a user's JSON; the error names the field.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(text).map_err(|plain| {
        let mut again = serde_json::Deserializer::from_str(text);
        let located = serde_path_to_error::deserialize::<_, T>(&mut again);
        located.err().map_or(plain, |error| named("", &error))
    })
}

/// Reads a value from a field of this name; the error names the field.
pub(crate) fn read_field<T: DeserializeOwned>(
    name: &str,
    value: &Value,
) -> Result<T, serde_json::Error> {
    serde_path_to_error::deserialize(value).map_err(|error| named(name, &error))
}

fn named(field: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> serde_json::Error {
    let path = error.path().to_string();
    let path = match (field, path.as_str()) {
        ("", ".") => return serde_json::Error::custom(error.inner()),
        (field, ".") => field.to_owned(),
        ("", path) => path.to_owned(),
        (field, path) => format!("{field}.{path}"),
    };
    serde_json::Error::custom(format!("{path}: {}", error.inner()))
}

/// The text of a value that is made here.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("keys are text, and nothing is refused")
}
