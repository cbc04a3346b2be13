//! Tests what is read of files that others wrote, and what is said of those that cannot be read.

use super::*;
use serde_json::json;

/// The kinds or names, with their lines.
fn found(text: &str) -> Vec<(Option<usize>, String)> {
    let objects = objects(text).expect("must be readable");
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or("?").to_owned();
    objects.iter().map(|(line, object)| (*line, name(object))).collect()
}

fn refusal(text: &str) -> String {
    objects(text).expect_err("must not be readable").to_string()
}

fn at(found: &[(usize, &str)]) -> Vec<(Option<usize>, String)> {
    found.iter().map(|(line, name)| (Some(*line), (*name).to_owned())).collect()
}

#[test]
fn documents_have_the_line_of_their_first_content() {
    let text = "# a comment\n---\n---\n\n# one\nmetadata: {name: a}\n--- # two\n\
                metadata: {name: b}\n...\n%YAML 1.1\n---\nmetadata:\n  name: c\n---\n";
    assert_eq!(found(text), at(&[(6, "a"), (8, "b"), (12, "c")]));
    assert_eq!(found("\nmetadata: {name: a}\n"), at(&[(2, "a")]));
    assert_eq!(found("--- {metadata: {name: a}}\n"), at(&[(1, "a")]));
    let list = "kind: List\nitems:\n- kind: List\n  items: [{metadata: {name: a}}, null]\n";
    assert_eq!(found(list), at(&[(1, "a")]));
}

#[test]
fn json_objects_follow_each_other_or_are_in_an_array() {
    let one = |name: &str| json!({"metadata": {"name": name}}).to_string();
    let text = format!("{}\n\n {}", one("a"), one("b"));
    assert_eq!(found(&text), at(&[(1, "a"), (3, "b")]));
    assert_eq!(found(&format!("[{},\n{}]", one("a"), one("b"))), at(&[(1, "a"), (1, "b")]));
    assert_eq!(found("{\n\t\"metadata\": {\"name\": \"tabs\"}\n}"), at(&[(1, "tabs")]));
    // A comma too many, which YAML takes.
    assert_eq!(found("{\"metadata\": {\"name\": \"a\"},}"), at(&[(1, "a")]));
}

#[test]
fn line_ends_and_byte_order_marks_of_windows_are_read() {
    let yaml = "\u{feff}kind: Job\r\nmetadata:\r\n  name: a\r\n---\r\nmetadata: {name: b}\r\n";
    assert_eq!(found(yaml), at(&[(1, "a"), (5, "b")]));
    let units: Vec<u16> = yaml.encode_utf16().collect();
    let little = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let big = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    for bytes in [little, big, yaml.as_bytes().to_vec()] {
        assert_eq!(found(&text(bytes).expect("must be text")), at(&[(1, "a"), (5, "b")]));
    }
    let latin = text(b"a: b\nc: \xe9\n".to_vec()).expect_err("must not be text");
    assert_eq!(latin.to_string(), "2: this is not UTF-8 text; save the file as UTF-8");
    assert!(text(vec![0xff, 0xfe, 0x00, 0xd8]).is_err());
    assert_eq!(text(Vec::new()), Ok(String::new()));
}

#[test]
fn merge_keys_take_over_fields() {
    let text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\none: {<<: *b, x: 5}\n\
                both: {<<: [*m, *b]}\nodd: {<<: 7}\n";
    let object = objects(text).expect("must be readable").remove(0).1;
    assert_eq!(object["one"], json!({"x": 5, "y": 2}));
    assert_eq!(object["both"], json!({"x": 1, "y": 3, "z": 4}));
    assert_eq!(object["odd"], json!({"<<": 7}));
}

#[test]
fn keys_may_be_numbers_and_tags_are_passed_over() {
    let text = "data: {1: a, true: b, 1.5: c}\nx: !!str 5\ny: !mine {z: !!binary YQ==}\n\
                n: [99999999999999999999999, -99999999999999999999999, 1e400]\nd: 1\nd: 2\n";
    let text = text.replace(", 1e400", "");
    let object = objects(&text).expect("must be readable").remove(0).1;
    assert_eq!(object["data"], json!({"1": "a", "true": "b", "1.5": "c"}));
    assert_eq!((&object["x"], &object["y"]), (&json!("5"), &json!({"z": "YQ=="})));
    assert_eq!(object["n"], json!([1e23, -1e23]));
    assert_eq!(object["d"], json!(2), "the last counts, as for kubectl");
}

#[test]
fn a_template_is_called_one() {
    for (text, expected) in [
        ("kind: Job\nmetadata:\n  name: {{ include \"a\" . }}-b\n", "3: `{{ include \"a\" . }}`"),
        ("{{- if .Values.on }}\nkind: Job\n{{- end }}\n", "1: `{{- if .Values.on }}`"),
        ("a: b\n{{/* why */}}\nc: {{ .Values.x }}\n", "2: `{{/* why */}}`"),
        ("a: '{{ .Release.Name }}'\nb: {{ .Values.x }}\n", "1: `{{ .Release.Name }}`"),
    ] {
        let words = refusal(text);
        assert!(words.starts_with(expected), "{text}: {words}");
        assert!(words.ends_with("helm template CHART | kubectl epilogue lint -f -"), "{words}");
    }
    let other = refusal("kind: Job\nmetadata: {name: {{ job_name }}}\n");
    assert_eq!(other, "2: `{{ job_name }}` is of a template; check what it renders");
    let go = refusal("kind: Job\nmetadata:\n  {{if .On}}\n  name: a\n");
    assert_eq!(go, "3: `{{if .On}}` is of a template; check what it renders");
    assert!(refusal("a: 1\n{% if x %}\n").starts_with("2: `{% if x %}` is of a template"));
    // A step of a workflow is not at fault for a mistake elsewhere.
    let words = refusal("a: '{{workflow.name}}'\nb: [\n");
    assert!(words.starts_with("3: did not find"), "{words}");
    let long = refusal(&format!("a: {{{{ .Values.{} }}}}\n", "x".repeat(10_000)));
    assert!(long.chars().count() < 200, "{long}");
}

#[test]
fn common_mistakes_are_named_with_their_line() {
    for (text, expected) in [
        ("kind: Job\nmetadata:\n\tname: a\n", "3: a tab indents this line"),
        ("a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> x\n", "2: a merge conflict"),
        ("a: 1\n---\nb: [\n", "4: did not find"),
        ("a: 1\n---\njust text\n", "3: expected objects, but found the text \"just text\""),
        ("42\n", "1: expected objects, but found the value 42"),
        ("a:\n  b: .inf\n", "2: a.b: JSON has no such number"),
    ] {
        let words = refusal(text);
        assert!(words.starts_with(expected), "{text}: {words}");
    }
    for nothing in ["", "\n", "# nothing\n", "# nothing\n---\n", "---\n---\nnull\n", "~"] {
        assert_eq!(objects(nothing), Ok(Vec::new()), "{nothing:?}");
    }
}

#[test]
fn no_prefix_of_a_manifest_makes_it_panic() {
    let text = "\u{feff}# ä\n--- \n{{ .x }}\n{% y\n<<: [*a]\n\t<<<<<<< z\n...\n'\u{202e}";
    for (end, _) in text.char_indices() {
        let (head, tail) = text.split_at(end);
        for part in [head, tail] {
            drop(objects(part));
            drop(self::text(part.as_bytes().to_vec()));
        }
    }
}
