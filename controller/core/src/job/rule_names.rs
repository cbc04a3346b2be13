//! Names the rules of a podFailurePolicy: the reason of a Job that one of them fails says which.
//! (KEP-4443)

use epilogue_common::names::job_option::POD_FAILURE_POLICY_NAMES;
use epilogue_common::names::job_reason::POD_FAILURE_POLICY;

use crate::view::FailurePolicy;

/// The API's limit of `podFailurePolicy.rules`.
const RULES_MAX: usize = 20;
/// The API's limit of a condition's reason.
const REASON_MAX: usize = 128;
/// The most bytes of a name, which follows `PodFailurePolicy_`.
const NAME_MAX: usize = REASON_MAX - POD_FAILURE_POLICY.len() - 1;
/// The most characters of a name in a message about it.
const SHOWN_MAX: usize = 64;

/// `epilogue.dev/pod-failure-policy-names`: a name for each rule, in their order. An empty one
/// leaves its rule without a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleNames(Vec<Box<str>>);

impl RuleNames {
    /// Reads the annotation; the error is for people.
    ///
    /// The rules are those that KEP-4443 has for the field `name`. A number is refused also where
    /// the policy has no rule at that index.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = text.split(',').collect();
        if names.len() > RULES_MAX {
            let remedy = "give a name for each rule of spec.podFailurePolicy";
            let count = names.len();
            return Err(left_out(&format!("{count} names are more than {RULES_MAX}"), remedy));
        }
        for (index, name) in names.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let shown: String = name.chars().take(SHOWN_MAX).collect();
            if !is_name(name) {
                let remedy = "give names in the order of the rules, such as \
                              ExitCode2,,OutOfMemory: of letters, digits, _ and :, no : at the \
                              end, and at most 111 characters each";
                return Err(left_out(&format!("{shown:?} is not a name"), remedy));
            }
            if names[..index].contains(name) {
                let remedy = "give each rule a name of its own";
                return Err(left_out(&format!("{shown:?} names two rules"), remedy));
            }
            let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
            if is_number && *name != index.to_string() {
                let remedy = "give a number only to the rule at that index";
                let problem = format!("{shown:?} names the rule at index {index}");
                return Err(left_out(&problem, remedy));
            }
        }
        Ok(Self(names.into_iter().map(Into::into).collect()))
    }

    /// The problem, for people, if the policy has fewer rules than this.
    pub fn exceed(&self, rules: usize) -> Option<String> {
        let names = self.0.len();
        let problem = || format!("there are more names than rules, {names} and {rules}");
        let remedy = "give at most one name for each rule of spec.podFailurePolicy";
        (names > rules).then(|| left_out(&problem(), remedy))
    }
}

fn left_out(problem: &str, remedy: &str) -> String {
    format!("{POD_FAILURE_POLICY_NAMES}: {problem}, and all names are left out; {remedy}")
}

/// Whether `PodFailurePolicy_NAME` is a reason that the API takes.
fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.len() <= NAME_MAX
        && name.bytes().all(|byte| is_word(byte) || byte == b':' || byte == b',')
        && name.bytes().last().is_some_and(is_word)
}

/// Reason and message of a Job that the rule at this index fails, from the message without a name.
///
/// The field `name` comes first: where a rule has it, the annotation has no effect.
///
/// DIVERGES(upstream): a Job that names no rule has the reason `PodFailurePolicy`, whatever the API
/// server has enabled. With the gate `PodFailurePolicyName` upstream writes `PodFailurePolicy_0`.
/// The message names the rule, too: some controllers match the message only.
pub(super) fn decided(
    policy: &FailurePolicy,
    given: Option<&RuleNames>,
    index: usize,
    message: String,
) -> (String, String) {
    let field = |index: usize| {
        let name = policy.rules.get(index).and_then(|rule| rule.name.as_deref());
        name.filter(|name| !name.is_empty())
    };
    let has_field = (0..policy.rules.len()).any(|index| field(index).is_some());
    let annotated = || given.and_then(|names| names.0.get(index)).map(AsRef::as_ref);
    let name = if has_field { field(index) } else { annotated() };
    match name.filter(|name| is_name(name)) {
        Some(name) => (format!("{POD_FAILURE_POLICY}_{name}"), format!("{message} ({name})")),
        None if has_field || given.is_some() => (format!("{POD_FAILURE_POLICY}_{index}"), message),
        None => (POD_FAILURE_POLICY.to_owned(), message),
    }
}
