//! Stops the agent while admission policies do not bound its token, as tested by dry runs. If the
//! API accepts any write of the agent, a stolen token may do the same on every node.

use super::facts::Facts;
use super::notices::UNBOUNDED;
use super::out::Out;

/// How the policies are heeded.
#[derive(Clone, Debug)]
pub(super) struct Policies {
    /// Whether the operator lets the agent act.
    enforce: bool,
    /// The policy that was reported as missing or too loose.
    reported: Option<String>,
}

impl Policies {
    pub(super) fn new(enforce: bool) -> Self {
        Self { enforce, reported: None }
    }

    /// Applies the state of the policies, except in a shutdown: it must finish, for its pods matter
    /// more.
    pub(super) fn heed(&mut self, facts: &mut Facts, out: &mut Out) {
        let missing = &facts.policy_missing;
        if *missing != self.reported {
            report(missing.as_deref(), out);
            self.reported.clone_from(missing);
        }
        if !facts.situation.runs {
            facts.settings.enforce = self.enforce && missing.is_none();
            out.status.unbounded.clone_from(missing);
        }
    }
}

fn report(missing: Option<&str>, out: &mut Out) {
    let Some(policy) = missing else {
        return out.calls.log(false, None, "the admission policies hold: the agent acts again");
    };
    let text = format!(
        "the API would let this agent write what the admission policy {policy} must refuse: it \
         does not act until deploy/policy is applied (Kubernetes 1.30 or newer)"
    );
    out.announce(true, UNBOUNDED, text);
}
