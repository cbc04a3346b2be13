//! Prints completion scripts for shells, and answers kubectl, which asks a plugin for completions.

use std::fmt::Write as _;

use clap::{Arg, Command, ValueHint};
use clap_complete::{Generator, Shell, generate};

/// kubectl runs this program, as `kubectl_complete-epilogue`, to complete `kubectl epilogue`.
const FOR_KUBECTL: &str = "#!/bin/sh\nexec kubectl-epilogue __complete -- \"$@\"\n";

/// What a shell does with the words, as kubectl reads it: complete files where there are none, or
/// nothing else. These are numbers of the library cobra.
const FILES_TOO: &str = ":0";
const NO_FILES: &str = ":4";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Shell that reads the script; kubectl: the program kubectl_complete-epilogue, by which
    /// kubectl itself completes the plugin
    #[arg(value_enum, value_name = "SHELL")]
    reader: Reader,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Words {
    /// Words after `kubectl epilogue`; the last one is to be completed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Reader {
    Bash,
    Zsh,
    Fish,
    Powershell,
    Kubectl,
}

/// The script for a shell, or for kubectl.
pub(crate) fn script(arguments: &Arguments, command: Command) -> String {
    let shell = match arguments.reader {
        Reader::Bash => Shell::Bash,
        Reader::Zsh => Shell::Zsh,
        Reader::Fish => Shell::Fish,
        Reader::Powershell => Shell::PowerShell,
        Reader::Kubectl => return FOR_KUBECTL.to_owned(),
    };
    of_shell(shell, command)
}

fn of_shell(shell: impl Generator, mut command: Command) -> String {
    let mut script = Vec::new();
    generate(shell, &mut command, "kubectl-epilogue", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The words that can stand in the place of the last one, then what a shell does with them.
pub(crate) fn complete(Words { words }: &Words, mut command: Command) -> String {
    command.build();
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, all)| (last, all));
    let (command, open) = position(&command, before);
    if let Some(option) = open {
        return answer(&values(option, "", last), files(option));
    }
    if let Some((name, value)) = last.split_once('=')
        && let Some(option) = option_of(command, name)
    {
        return answer(&values(option, &format!("{name}="), value), files(option));
    }
    if last.starts_with('-') {
        return answer(&flags(command, last), NO_FILES);
    }
    let mut found = sub_commands(command, last);
    let mut directive = NO_FILES;
    for positional in command.get_positionals() {
        found.extend(values(positional, "", last));
        if files(positional) == FILES_TOO {
            directive = FILES_TOO;
        }
    }
    answer(&found, directive)
}

/// The command that these words select, and the option that waits for its value.
fn position<'a>(root: &'a Command, words: &[String]) -> (&'a Command, Option<&'a Arg>) {
    let (mut command, mut open) = (root, None);
    for word in words {
        if open.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            open = option_of(command, word);
        } else if let Some(found) = command.find_subcommand(word) {
            command = found;
        }
    }
    (command, open)
}

/// The option of this name, if it takes a value.
fn option_of<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_named = |arg: &&Arg| {
        let long = arg.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
        let is_short =
            |short: char| name.strip_prefix('-').is_some_and(|it| it == short.to_string());
        long || arg.get_short().is_some_and(is_short)
    };
    command.get_arguments().filter(|arg| arg.get_action().takes_values()).find(is_named)
}

/// The value of an option may be a file.
fn files(option: &Arg) -> &'static str {
    let is_path = matches!(
        option.get_value_hint(),
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
    );
    if is_path { FILES_TOO } else { NO_FILES }
}

fn values(arg: &Arg, before: &str, begin: &str) -> Vec<String> {
    let values = arg.get_possible_values();
    let visible = values.iter().filter(|value| !value.is_hide_set());
    let names = visible.map(clap::builder::PossibleValue::get_name);
    names.filter(|name| name.starts_with(begin)).map(|name| format!("{before}{name}")).collect()
}

fn flags(command: &Command, begin: &str) -> Vec<String> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let named = visible.filter_map(|arg| Some((format!("--{}", arg.get_long()?), arg.get_help())));
    let named = named.filter(|(name, _)| name.starts_with(begin));
    named.map(|(name, help)| described(&name, help)).collect()
}

fn sub_commands(command: &Command, begin: &str) -> Vec<String> {
    let visible = command.get_subcommands().filter(|each| !each.is_hide_set());
    let found = visible.filter(|each| each.get_name().starts_with(begin));
    found.map(|each| described(each.get_name(), each.get_about())).collect()
}

/// A word with the first line of its help behind a tab.
fn described(word: &str, help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    format!("{word}\t{}", help.lines().next().unwrap_or_default())
}

fn answer(found: &[String], directive: &str) -> String {
    let mut text = String::new();
    for word in found {
        writeln!(text, "{word}").expect("a String takes text");
    }
    text + directive
}
