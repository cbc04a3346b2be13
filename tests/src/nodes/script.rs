//! The language of the annotation `lab.epilogue.dev/run`, what a simulated pod does, and its
//! parser. Nothing here knows pods, clocks or the API.
//!
//! ```text
//! script := rule { ";" rule }
//! rule   := [ "index=" set ":" ] clause { clause }         set: 3 | 0-4 | 0-4,7
//! clause := verb { modifier }
//! ```
//!
//! | verb | modifiers | the pod |
//! |---|---|---|
//! | `succeed` | `after=` | runs so long, then every container exits 0 (the default) |
//! | `fail` | `exit=` (1), `after=`, `container=`, `reason=` (Error) | … exits so |
//! | `hang` | | runs until something stops it |
//! | `disrupt` | `after=`, `reason=` (Evicted) | is stopped by its node, with DisruptionTarget |
//! | `pending` | | never starts (ContainerCreating) |
//! | `waiting=R` | | never starts, its containers wait with reason R |
//! | `reject=R` | | is refused at the node's door: Failed, reason R, no DisruptionTarget |
//! | `start` | `after=` | starts only so long after it was bound |
//! | `init` | `exit=` (0), `after=` | its first init container runs so long and exits so |
//! | `ready` | `after=` | becomes Ready only so long after its start |
//! | `not-ready` | | never becomes Ready |
//! | `on-term=N` | `after=` | on SIGTERM exits with N so much later (143, at once) |
//! | `on-term=ignore` | | on SIGTERM goes on until its grace ends: 137 |
//! | `times=N` | | the rule holds for N attempts, the rules after it from then on |
//!
//! With `container=` only that container fails, the others exit 0. What outlives the grace is 137.
//! A rule without `succeed`, `fail`, `hang` and `disrupt` means `hang` if it has `on-term`, `ready`
//! or `not-ready`, else `succeed`. The attempt is the number of earlier pods of the same owner and
//! index plus the restarts of the pod itself, so `fail exit=1 times=2; succeed` fails twice under
//! either restart policy.
//! Durations: `100ms`, `2s`, `5m`, `1h`.

use std::time::Duration;

use thiserror::Error;

/// The annotation that carries the script of a pod.
pub const ANNOTATION: &str = "lab.epilogue.dev/run";

const DURATION_MAX: Duration = Duration::from_hours(24 * 30);

/// Why a script is unreadable.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ScriptError {
    #[error("unknown word {0:?}")]
    UnknownWord(String),
    #[error("{word:?} does not belong to {verb:?}")]
    Misplaced { word: String, verb: &'static str },
    #[error("{0:?} has no valid value")]
    BadValue(String),
    #[error("{0:?} is not a selector; only index=… is one")]
    BadSelector(String),
    #[error("a rule says nothing")]
    EmptyRule,
    #[error("the pod has no container {0:?}")]
    NoSuchContainer(String),
    #[error("the pod has no init container")]
    NoInitContainer,
}

/// How a pod starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    After(Duration),
    /// Never, with this reason in the waiting state of its containers.
    Waiting(String),
    /// The kubelet's admission refuses it with this reason.
    Rejected(String),
}

/// When a running pod is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    After(Duration),
    Never,
}

/// How a pod ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Exit { code: i32, after: Duration, container: Option<String>, reason: Option<String> },
    Disrupted { after: Duration, reason: String },
    Hang,
}

/// The reaction of a pod's processes to SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    Exit { code: i32, after: Duration },
    Ignore,
}

/// The run of the first init container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRun {
    pub code: i32,
    pub after: Duration,
}

/// Everything one attempt does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    pub start: Start,
    pub init: Option<InitRun>,
    pub readiness: Readiness,
    pub end: End,
    pub on_term: OnTerm,
}

impl Default for Act {
    fn default() -> Self {
        Self {
            start: Start::After(Duration::ZERO),
            init: None,
            readiness: Readiness::After(Duration::ZERO),
            end: End::Exit { code: 0, after: Duration::ZERO, container: None, reason: None },
            on_term: OnTerm::Exit { code: 143, after: Duration::ZERO },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// Inclusive ranges; `None` matches every pod, also one without an index.
    indexes: Option<Vec<(u32, u32)>>,
    times: Option<u32>,
    act: Act,
}

/// A parsed script. The default one succeeds at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script(Vec<Rule>);

impl Script {
    /// Parses the text of the annotation.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(';').map(parse_rule).collect::<Result<_, _>>().map(Self)
    }

    /// What the given attempt of a pod with this index does.
    pub fn choose(&self, index: Option<u32>, mut attempt: u32) -> Act {
        for rule in self.0.iter().filter(|rule| rule.selects(index)) {
            match rule.times {
                Some(times) if attempt >= times => attempt -= times,
                _ => return rule.act.clone(),
            }
        }
        Act::default()
    }

    /// Whether the pod has the containers that the script names.
    pub fn check(&self, containers: &[&str], has_init: bool) -> Result<(), ScriptError> {
        for rule in &self.0 {
            if let End::Exit { container: Some(name), .. } = &rule.act.end
                && !containers.contains(&name.as_str())
            {
                return Err(ScriptError::NoSuchContainer(name.clone()));
            }
            if rule.act.init.is_some() && !has_init {
                return Err(ScriptError::NoInitContainer);
            }
        }
        Ok(())
    }
}

impl Rule {
    fn selects(&self, index: Option<u32>) -> bool {
        let Some(ranges) = &self.indexes else { return true };
        index.is_some_and(|index| ranges.iter().any(|(from, to)| (*from..=*to).contains(&index)))
    }
}

fn parse_rule(text: &str) -> Result<Rule, ScriptError> {
    let (selector, body) = match text.split_once(':') {
        Some((selector, body)) => (Some(selector.trim()), body),
        None => (None, text),
    };
    let mut draft = Draft::default();
    for word in body.split_whitespace() {
        draft.word(word)?;
    }
    if draft.verb.is_none() && draft.times.is_none() {
        return Err(ScriptError::EmptyRule);
    }
    let indexes = selector.map(parse_selector).transpose()?;
    Ok(Rule { indexes, times: draft.times, act: draft.finish() })
}

fn parse_selector(text: &str) -> Result<Vec<(u32, u32)>, ScriptError> {
    let bad = || ScriptError::BadSelector(text.to_owned());
    let set = text.strip_prefix("index=").ok_or_else(bad)?;
    set.split(',')
        .map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let from = from.trim().parse().map_err(|_| bad())?;
            let to = to.trim().parse().map_err(|_| bad())?;
            if from <= to { Ok((from, to)) } else { Err(bad()) }
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Succeed,
    Fail,
    Hang,
    Disrupt,
    NotStarting,
    Start,
    Init,
    Ready,
    NotReady,
    OnTerm,
}

impl Verb {
    fn name(self) -> &'static str {
        match self {
            Self::Succeed => "succeed",
            Self::Fail => "fail",
            Self::Hang => "hang",
            Self::Disrupt => "disrupt",
            Self::NotStarting => "pending, waiting or reject",
            Self::Start => "start",
            Self::Init => "init",
            Self::Ready => "ready",
            Self::NotReady => "not-ready",
            Self::OnTerm => "on-term",
        }
    }
}

/// A rule during parsing: modifiers apply to the verb before them.
#[derive(Default)]
struct Draft {
    verb: Option<Verb>,
    times: Option<u32>,
    act: Act,
    ends: bool,
    lasts: bool,
}

impl Draft {
    fn word(&mut self, word: &str) -> Result<(), ScriptError> {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        };
        match (key, value) {
            ("times", Some(value)) => self.times = Some(number(word, value)?),
            ("after" | "exit" | "container" | "reason", Some(value)) => {
                self.modifier(word, key, value)?;
            }
            _ => self.verb(word, key, value)?,
        }
        Ok(())
    }

    fn verb(&mut self, word: &str, key: &str, value: Option<&str>) -> Result<(), ScriptError> {
        let exit = |code| End::Exit { code, after: Duration::ZERO, container: None, reason: None };
        let text = |value: &str| match value {
            "" => Err(ScriptError::BadValue(word.to_owned())),
            value => Ok(value.to_owned()),
        };
        let verb = match (key, value) {
            ("succeed", None) => self.ends(Verb::Succeed, exit(0)),
            ("fail", None) => self.ends(Verb::Fail, exit(1)),
            ("hang", None) => self.ends(Verb::Hang, End::Hang),
            ("disrupt", None) => {
                let reason = "Evicted".to_owned();
                self.ends(Verb::Disrupt, End::Disrupted { after: Duration::ZERO, reason })
            }
            ("pending", None) => self.starts(Start::Waiting("ContainerCreating".to_owned())),
            ("waiting", Some(reason)) => self.starts(Start::Waiting(text(reason)?)),
            ("reject", Some(reason)) => self.starts(Start::Rejected(text(reason)?)),
            ("start", None) => Verb::Start,
            ("init", None) => {
                self.act.init = Some(InitRun { code: 0, after: Duration::ZERO });
                Verb::Init
            }
            ("ready", None) => self.lasts(Verb::Ready),
            ("not-ready", None) => {
                self.act.readiness = Readiness::Never;
                self.lasts(Verb::NotReady)
            }
            ("on-term", Some(value)) => {
                self.act.on_term = match value {
                    "ignore" => OnTerm::Ignore,
                    code => OnTerm::Exit { code: number(word, code)?, after: Duration::ZERO },
                };
                self.lasts(Verb::OnTerm)
            }
            _ => return Err(ScriptError::UnknownWord(word.to_owned())),
        };
        self.verb = Some(verb);
        Ok(())
    }

    fn ends(&mut self, verb: Verb, end: End) -> Verb {
        self.ends = true;
        self.act.end = end;
        verb
    }

    fn starts(&mut self, start: Start) -> Verb {
        self.act.start = start;
        Verb::NotStarting
    }

    fn lasts(&mut self, verb: Verb) -> Verb {
        self.lasts = true;
        verb
    }

    fn modifier(&mut self, word: &str, key: &str, value: &str) -> Result<(), ScriptError> {
        let Some(verb) = self.verb else { return Err(ScriptError::UnknownWord(word.to_owned())) };
        let misplaced = || ScriptError::Misplaced { word: word.to_owned(), verb: verb.name() };
        if key == "after" {
            let span = duration(word, value)?;
            let slot = self.act.after_of(verb).ok_or_else(misplaced)?;
            *slot = span;
            return Ok(());
        }
        let text = value.to_owned();
        match (verb, key, &mut self.act.end, &mut self.act.init) {
            (Verb::Init, "exit", _, Some(init)) => init.code = number(word, value)?,
            (Verb::Fail, "exit", End::Exit { code, .. }, _) => *code = number(word, value)?,
            (Verb::Fail, "container", End::Exit { container, .. }, _) => *container = Some(text),
            (Verb::Fail, "reason", End::Exit { reason, .. }, _) => *reason = Some(text),
            (Verb::Disrupt, "reason", End::Disrupted { reason, .. }, _) => *reason = text,
            _ => return Err(misplaced()),
        }
        Ok(())
    }

    fn finish(mut self) -> Act {
        if self.lasts && !self.ends {
            self.act.end = End::Hang;
        }
        self.act
    }
}

impl Act {
    fn after_of(&mut self, verb: Verb) -> Option<&mut Duration> {
        match (verb, self) {
            (Verb::Start, Self { start: Start::After(after), .. })
            | (Verb::Init, Self { init: Some(InitRun { after, .. }), .. })
            | (Verb::Ready, Self { readiness: Readiness::After(after), .. })
            | (Verb::OnTerm, Self { on_term: OnTerm::Exit { after, .. }, .. })
            | (Verb::Succeed | Verb::Fail, Self { end: End::Exit { after, .. }, .. })
            | (Verb::Disrupt, Self { end: End::Disrupted { after, .. }, .. }) => Some(after),
            _ => None,
        }
    }
}

fn number<T: std::str::FromStr>(word: &str, value: &str) -> Result<T, ScriptError> {
    value.parse().map_err(|_| ScriptError::BadValue(word.to_owned()))
}

fn duration(word: &str, value: &str) -> Result<Duration, ScriptError> {
    let bad = || ScriptError::BadValue(word.to_owned());
    let digits = value.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let count: u64 = value[..digits].parse().map_err(|_| bad())?;
    let unit_ms: u64 = match &value[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let span = Duration::from_millis(count.checked_mul(unit_ms).ok_or_else(bad)?);
    if span <= DURATION_MAX { Ok(span) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(text: &str) -> Act {
        Script::parse(text).unwrap().choose(None, 0)
    }

    fn exit(code: i32, after_ms: u64) -> End {
        let after = Duration::from_millis(after_ms);
        End::Exit { code, after, container: None, reason: None }
    }

    #[test]
    fn empty_script_succeeds_at_once() {
        assert_eq!(act(""), Act::default());
        assert_eq!(act("succeed"), Act::default());
    }

    #[test]
    fn modifiers_belong_to_the_verb_before_them() {
        let act = act("start after=1s fail exit=3 after=100ms on-term=7 after=2s");
        assert_eq!(act.start, Start::After(Duration::from_secs(1)));
        assert_eq!(act.end, exit(3, 100));
        assert_eq!(act.on_term, OnTerm::Exit { code: 7, after: Duration::from_secs(2) });
    }

    #[test]
    fn a_rule_that_says_only_how_it_dies_hangs() {
        for text in ["on-term=143 after=1s", "on-term=ignore", "not-ready", "ready after=1s"] {
            assert_eq!(act(text).end, End::Hang, "{text}");
        }
        assert_eq!(act("start after=1s").end, exit(0, 0));
        assert_eq!(act("not-ready succeed after=1s").end, exit(0, 1000));
    }

    #[test]
    fn times_counts_attempts_and_then_the_next_rule_holds() {
        let script = Script::parse("fail exit=1 times=2; fail exit=2 times=1; hang").unwrap();
        let ends: Vec<End> = (0..4).map(|n| script.choose(None, n).end).collect();
        assert_eq!(ends, [exit(1, 0), exit(1, 0), exit(2, 0), End::Hang]);
    }

    #[test]
    fn selector_holds_only_for_its_indexes() {
        let script = Script::parse("index=3,7-8: fail ; hang").unwrap();
        let failing: Vec<u32> =
            (0..10).filter(|n| script.choose(Some(*n), 0).end != End::Hang).collect();
        assert_eq!(failing, [3, 7, 8]);
        assert_eq!(script.choose(None, 0).end, End::Hang);
    }

    #[test]
    fn used_up_rules_of_an_index_fall_through_to_success() {
        let script = Script::parse("index=0: fail times=1").unwrap();
        assert_eq!(script.choose(Some(0), 0).end, exit(1, 0));
        assert_eq!(script.choose(Some(0), 1).end, exit(0, 0));
    }

    #[test]
    fn errors_name_the_word() {
        let error = |text: &str| Script::parse(text).unwrap_err().to_string();
        assert_eq!(error("explode"), r#"unknown word "explode""#);
        assert_eq!(error("hang after=1s"), r#""after=1s" does not belong to "hang""#);
        assert_eq!(error("succeed exit=3"), r#""exit=3" does not belong to "succeed""#);
        assert_eq!(error("succeed after=3"), r#""after=3" has no valid value"#);
        assert_eq!(error("fail exit=x"), r#""exit=x" has no valid value"#);
        assert_eq!(error("node=1: fail"), r#""node=1" is not a selector; only index=… is one"#);
        assert_eq!(error("fail;;hang"), "a rule says nothing");
        assert_eq!(error("after=1s"), r#"unknown word "after=1s""#);
        assert_eq!(error("succeed after=99999999h"), r#""after=99999999h" has no valid value"#);
    }

    #[test]
    fn check_refuses_what_the_pod_does_not_have() {
        let script = Script::parse("fail container=main").unwrap();
        assert_eq!(script.check(&["main"], false), Ok(()));
        let missing = ScriptError::NoSuchContainer("main".to_owned());
        assert_eq!(script.check(&["other"], false), Err(missing));
        let script = Script::parse("init exit=1").unwrap();
        assert_eq!(script.check(&["main"], false), Err(ScriptError::NoInitContainer));
    }
}
