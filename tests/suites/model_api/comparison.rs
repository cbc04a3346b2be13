//! Compares the answers of both sides, and the order of their versions.

use std::collections::BTreeMap;

use serde_json::Value;

use super::normal::{Symbols, difference, normal};

/// What is known of both sides so far.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    model: Symbols,
    api: Symbols,
    /// Versions of the model, and those of the API for the same write.
    versions: BTreeMap<u64, u64>,
}

impl Comparison {
    /// Compares two objects, lists or events. The versions of lists are left out: other tests of
    /// the cluster move them.
    pub(crate) fn compare(&mut self, model: &Value, api: &Value) -> Result<(), String> {
        self.learn(model, api);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let model_normal = normal(model, &self.model, &mut ours);
        let api_normal = normal(api, &self.api, &mut theirs);
        if let Some(difference) = difference(&model_normal, &api_normal, "") {
            return Err(difference);
        }
        // A normal object shows no empty values, and a list of metadata has none in place of [].
        if model.get("items").map(Value::is_null) != api.get("items").map(Value::is_null) {
            let items = |list: &Value| list["items"].to_string();
            return Err(format!("/items: the model has {}, the API {}", items(model), items(api)));
        }
        if model.get("items").is_some() {
            // The list's own version, which cannot be before those of its items.
            let (own, of_api) = (version(model), version(api));
            ours.retain(|version| *version != own || *version < own);
            theirs.retain(|version| *version <= of_api);
            for list in [model, api] {
                let newest = list["items"].as_array().into_iter().flatten().map(version).max();
                if newest > Some(version(list)) {
                    return Err("a list is older than one of its items".to_owned());
                }
            }
            let items = |list: &Value| -> Vec<u64> {
                list["items"].as_array().into_iter().flatten().map(version).collect()
            };
            (ours, theirs) = (items(model), items(api));
        }
        ours.into_iter().zip(theirs).try_for_each(|(ours, theirs)| self.pair(ours, theirs))
    }

    /// Learns which UIDs and generated names mean the same.
    fn learn(&mut self, model: &Value, api: &Value) {
        let items = |value: &Value| -> Vec<Value> {
            match value["items"].as_array() {
                Some(items) => items.clone(),
                None => vec![value.clone()],
            }
        };
        for (ours, theirs) in items(model).iter().zip(&items(api)) {
            let (ours, theirs) = (&ours["metadata"], &theirs["metadata"]);
            if let (Some(our_uid), Some(uid)) = (ours["uid"].as_str(), theirs["uid"].as_str())
                && !self.model.contains_key(our_uid)
                && !self.api.contains_key(uid)
            {
                let symbol = format!("uid {}", self.model.len());
                self.model.insert(our_uid.to_owned(), symbol.clone());
                self.api.insert(uid.to_owned(), symbol);
            }
            if let Some(prefix) = ours["generateName"].as_str()
                && ours["generateName"] == theirs["generateName"]
            {
                for (symbols, side) in [(&mut self.model, ours), (&mut self.api, theirs)] {
                    let name = side["name"].as_str().unwrap_or_default();
                    if name.len() == prefix.len() + 5 {
                        symbols.insert(name.to_owned(), format!("{prefix}?????"));
                    }
                }
            }
        }
    }

    /// Takes two versions as those of one write: the same pair, or one in the same order.
    fn pair(&mut self, ours: u64, theirs: u64) -> Result<(), String> {
        if let Some(known) = self.versions.get(&ours) {
            return if *known == theirs {
                Ok(())
            } else {
                Err(format!("/version: the model's {ours} is {known} of the API, and {theirs}"))
            };
        }
        let before = self.versions.range(..ours).next_back().is_none_or(|(_, it)| *it < theirs);
        let after = self.versions.range(ours..).next().is_none_or(|(_, it)| *it > theirs);
        if !before || !after {
            return Err(format!("/version: {ours} of the model, {theirs} of the API: the order"));
        }
        self.versions.insert(ours, theirs);
        Ok(())
    }
}

fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse().unwrap_or_default()
}
