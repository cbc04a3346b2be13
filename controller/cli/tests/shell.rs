//! Tests what a shell and a terminal see of the program: completions, man pages and colours.

use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-epilogue");
const DUMP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doctor/dump.yaml");
const SUBCOMMANDS: [&str; 8] =
    ["completion", "doctor", "dump", "explain", "leave", "lint", "man", "report"];

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .expect("the program must be startable")
}

fn text(arguments: &[&str]) -> String {
    let output = run(arguments, &[]);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The answer to kubectl: the words, and the directive.
fn completed(words: &[&str]) -> (Vec<String>, String) {
    let answer = text(&[&["__complete", "--"], words].concat());
    let mut lines: Vec<String> =
        answer.lines().map(|line| line.split('\t').next().unwrap_or_default().into()).collect();
    let directive = lines.pop().expect("must have a directive");
    (lines, directive)
}

#[test]
fn each_shell_gets_a_script_with_all_subcommands() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = text(&["completion", shell]);
        for word in SUBCOMMANDS.into_iter().chain(["manage-all-jobs", "color"]) {
            assert!(script.contains(word), "{shell} must know {word}");
        }
        assert!(script.contains("kubectl-epilogue"), "{shell}");
    }
    assert_eq!(run(&["completion", "ksh"], &[]).status.code(), Some(2));
}

#[test]
fn the_script_for_bash_is_one() {
    let script = text(&["completion", "bash"]);
    let check = Command::new("bash").args(["-n", "-c", &script]).output();
    let check = check.expect("bash must be installed");
    assert!(check.status.success(), "{check:?}");
}

#[test]
fn kubectl_gets_its_program() {
    let script = text(&["completion", "kubectl"]);
    assert_eq!(script, "#!/bin/sh\nexec kubectl-epilogue __complete -- \"$@\"\n");
    // As kubectl runs it.
    let directory = tempfile::tempdir().expect("must be creatable");
    let path = directory.path().join("kubectl_complete-epilogue");
    std::fs::write(&path, script).expect("must be writable");
    let programs = std::path::Path::new(PROGRAM).parent().expect("must have a directory");
    let output = Command::new("/bin/sh")
        .arg(path)
        .args(["doctor", "--name"])
        .env("PATH", programs)
        .output()
        .expect("it must be there");
    assert!(text_of(&output).starts_with("--namespace\tNamespace; default: "), "{output:?}");
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn words_are_completed_where_they_stand() {
    let table: [(&[&str], &[&str], &str); 12] = [
        (&["d"], &["doctor", "dump"], ":4"),
        (&["__"], &[], ":4"),
        (&["explain", "--o"], &["--output"], ":4"),
        (&["explain", "--output", ""], &["text", "json", "yaml"], ":4"),
        (&["explain", "-o", "j"], &["json"], ":4"),
        (&["explain", "--output=y"], &["--output=yaml"], ":4"),
        (&["doctor", "--filename", ""], &[], ":0"),
        (&["dump", "-f"], &[], ":4"),
        (&["doctor", "-A", "--col"], &["--color"], ":4"),
        (&["--color", "a"], &["auto", "always"], ":4"),
        (&["completion", ""], &["bash", "zsh", "fish", "powershell", "kubectl"], ":4"),
        (&["doctor", ""], &[], ":4"),
    ];
    for (words, expected, directive) in table {
        let (found, ends) = completed(words);
        assert_eq!(
            (found, ends.as_str()),
            (expected.iter().map(|it| (*it).into()).collect(), directive),
            "{words:?}"
        );
    }
    assert_eq!(completed(&[]).1, ":4");
}

#[test]
fn each_subcommand_has_a_man_page() {
    let directory = tempfile::tempdir().expect("must be creatable");
    let pages = directory.path().join("man1");
    text(&["man", "--directory", pages.to_str().expect("must be UTF-8")]);
    let found = std::fs::read_dir(&pages).expect("must be there");
    let mut found: Vec<String> = found
        .map(|entry| entry.expect("must be readable").file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut expected: Vec<String> =
        SUBCOMMANDS.iter().map(|name| format!("kubectl-epilogue-{name}.1")).collect();
    expected.push("kubectl-epilogue.1".to_owned());
    assert_eq!(found, expected);
    for name in found {
        let page = std::fs::read_to_string(pages.join(&name)).expect("must be readable");
        for section in [".TH ", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH OPTIONS\n"] {
            assert!(page.contains(section), "{name} must have {section}");
        }
    }
    // The help of the program names the same subcommands.
    let help = text(&["--help"]);
    let listed = help.split_once("\nCommands:\n").and_then(|(_, rest)| rest.split_once("\n\n"));
    let listed = listed.expect("must list them").0.lines();
    let mut listed: Vec<&str> = listed
        .filter_map(|line| line.split_whitespace().next())
        .filter(|it| *it != "help")
        .collect();
    listed.sort_unstable();
    assert_eq!(listed, SUBCOMMANDS);
}

#[test]
fn colours_are_used_where_they_are_asked_for() {
    let doctor = |color: &[&str], environment: &[(&str, &str)]| {
        let node = ["doctor", "silent", "--at=2026-11-21T12:00:00Z", "-f", DUMP];
        text_of(&run(&[&node, color].concat(), environment))
    };
    let plain = doctor(&["--color=never"], &[]);
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    // Here standard output is a pipe.
    assert_eq!(doctor(&[], &[("TERM", "xterm")]), plain);
    assert_eq!(doctor(&["--color=auto"], &[("TERM", "xterm")]), plain);
    // What the user asks for outweighs the environment.
    let painted = doctor(&["--color=always"], &[("NO_COLOR", "1"), ("TERM", "dumb")]);
    for words in [
        "\u{1b}[1mCHECK      VERDICT FOUND\u{1b}[0m\n",
        "\nready      \u{1b}[31mfail   \u{1b}[0m Ready=Unknown",
        "\nboot       \u{1b}[32mok     \u{1b}[0m boot-1",
        "\nkubelet    \u{1b}[33mwarn   \u{1b}[0m ",
        "\u{1b}[1mverdict:\u{1b}[0m \u{1b}[31mfail\u{1b}[0m\n",
    ] {
        assert!(painted.contains(words), "{words:?} must be in {painted:?}");
    }
    assert_eq!(anstream::adapter::strip_str(&painted).to_string(), plain);
}

/// `script` of util-linux gives the program a terminal.
#[test]
fn a_terminal_gets_colours_unless_the_environment_forbids_them() {
    let doctor = format!("{PROGRAM} doctor silent --at=2026-11-21T12:00:00Z -f {DUMP}");
    let on_terminal = |environment: &[(&str, &str)]| {
        let output = Command::new("script")
            .args(["--quiet", "--return", "--command", &doctor, "/dev/null"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(environment.iter().copied())
            .output()
            .expect("util-linux must be installed");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text_of(&output)
    };
    assert!(on_terminal(&[("TERM", "xterm")]).contains("\u{1b}[31mfail"));
    assert!(!on_terminal(&[("TERM", "xterm"), ("NO_COLOR", "1")]).contains('\u{1b}'));
    assert!(!on_terminal(&[("TERM", "dumb")]).contains('\u{1b}'));
}
