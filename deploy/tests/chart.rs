//! Checks that the Helm chart agrees with itself: version, values, schema and README. The suite
//! `chart` of the laboratory runs it with Helm.

use std::collections::BTreeSet;
use std::fs;

use epilogue_deploy::chart::{Row, directory, rendered, rows};
use serde_json::{Value, json};

fn text(file: &str) -> String {
    let path = directory().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(file: &str) -> Value {
    serde_yaml_ng::from_str(&text(file)).expect(file)
}

fn schema() -> Value {
    serde_json::from_str(&text("values.schema.json")).expect("JSON")
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let chart = yaml("Chart.yaml");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

/// A page of the book by its address.
fn page_of(address: &str) -> std::path::PathBuf {
    let page = address.strip_prefix("https://epilogue.dev/docs/").expect("a page of the book");
    let page = if page.is_empty() { "introduction.md".to_owned() } else { page.to_owned() };
    directory().join("../../docs").join(page.replace(".html", ".md"))
}

#[test]
fn the_chart_says_what_a_catalogue_asks_and_its_addresses_are_the_book_s() {
    let chart = yaml("Chart.yaml");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    for field in ["home", "icon", "kubeVersion", "description"] {
        assert!(!text(&chart[field]).is_empty(), "{field}");
    }
    assert!(chart["sources"][0].is_string() && chart["maintainers"][0]["name"].is_string());
    assert!(page_of(&text(&chart["icon"])).is_file(), "the icon");
    let annotations = &chart["annotations"];
    let list = |name: &str| -> Vec<Value> {
        serde_yaml_ng::from_str(&text(&annotations[name])).expect("a list")
    };
    for link in list("artifacthub.io/links") {
        assert!(page_of(&text(&link["url"])).is_file(), "{link}");
    }
    let repository = text(&yaml("values.yaml")["image"]["repository"]);
    let image = json!({"name": "epilogue",
                       "image": format!("{repository}:{}", env!("CARGO_PKG_VERSION"))});
    assert_eq!(list("artifacthub.io/images"), [image]);
    assert_eq!(annotations["artifacthub.io/license"], env!("CARGO_PKG_LICENSE"));
}

#[test]
fn the_table_of_the_readme_is_made_of_the_values() {
    let readme = text("README.md");
    let current = rendered(&readme, &text("values.yaml")).expect("two marks");
    let different = readme.lines().zip(current.lines()).find(|(is, ought)| is != ought);
    assert_eq!(different, None, "run `cargo lab docs`");
    assert_eq!(readme.len(), current.len(), "run `cargo lab docs`");
}

/// Paths of all values. A value with a row of its own has no inner ones: its content is the user's.
fn paths(value: &Value, path: &str, commented: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match value.as_object() {
        Some(inner) if !commented.contains(path) => {
            for (key, value) in inner {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                paths(value, &path, commented, found);
            }
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn each_value_has_a_comment_and_a_place_in_the_schema() {
    let values = yaml("values.yaml");
    let rows = rows(&text("values.yaml"));
    let commented: BTreeSet<String> = rows.iter().map(|row| row.path.clone()).collect();
    let mut all = BTreeSet::new();
    paths(&values, "", &commented, &mut all);
    assert_eq!(all, commented, "a value without a comment, or a comment without a value");
    let schema = schema();
    for Row { path, .. } in &rows {
        let place = path.split('.').fold(&schema, |at, key| &at["properties"][key]);
        assert!(place.is_object(), "the schema lacks {path}");
    }
}

#[test]
fn the_schema_knows_no_other_value_and_refuses_unknown_ones() {
    let (values, schema) = (yaml("values.yaml"), schema());
    let keys = |object: &Value| -> BTreeSet<String> {
        object.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    let mut known = keys(&schema["properties"]);
    // Helm itself adds it where another chart includes this one.
    assert!(known.remove("global"));
    assert_eq!(known, keys(&values));
    assert_eq!(schema["additionalProperties"], json!(false));
    let rows = rows(&text("values.yaml"));
    for (section, value) in values.as_object().expect("an object") {
        let place = &schema["properties"][section];
        // The content of a value with a row of its own is the user's.
        if value.is_object() && !rows.iter().any(|row| row.path == *section) {
            assert_eq!(keys(&place["properties"]), keys(value), "{section}");
            assert_eq!(place["additionalProperties"], json!(false), "{section}");
        }
    }
}

#[test]
fn a_row_has_the_whole_comment_and_the_path() {
    let values = "# About.\na:\n  # -- One\n  # line.\n  b: 1\n  c:\n    # -- Two.\n    d: {}\n";
    let row = |path: &str, comment: &str| Row { path: path.into(), comment: comment.into() };
    assert_eq!(rows(values), [row("a.b", "One line."), row("a.c.d", "Two.")]);
    let readme = "x\n<!-- generated: values -->\nold\n<!-- end: values -->\ny\n";
    let current = rendered(readme, values).expect("two marks");
    assert!(current.contains("| `a.b` | `1` | One line. |\n| `a.c.d` | `{}` | Two. |\n"));
    assert!(current.ends_with("<!-- end: values -->\ny\n") && !current.contains("old"));
    assert_eq!(rendered("x", values), None);
}
