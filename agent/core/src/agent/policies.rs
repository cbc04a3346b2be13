//! Stops the agent while admission policies do not bound its token, as tested by dry runs. If the
//! API accepts any write of the agent, a stolen token may do the same on every node.

use super::Agent;
use super::notices::UNBOUNDED;

/// What is known of the policies.
#[derive(Debug)]
pub(super) struct Policies {
    /// Whether the operator lets the agent act.
    enforce: bool,
    /// The policy that is missing or too loose.
    missing: Option<String>,
}

impl Policies {
    pub(super) fn new(enforce: bool) -> Self {
        Self { enforce, missing: None }
    }
}

impl Agent {
    pub(super) fn see_policies(&mut self, missing: Option<String>) {
        if missing == self.policies.missing {
            return;
        }
        if let Some(policy) = &missing {
            let text = format!(
                "the API would let this agent write what the admission policy {policy} must \
                 refuse: it does not act until deploy/policy is applied (Kubernetes 1.30 or newer)"
            );
            self.calls.log(true, None, text.clone());
            self.emit_event(true, UNBOUNDED, text);
        } else {
            self.calls.log(false, None, "the admission policies hold: the agent acts again");
        }
        self.policies.missing = missing;
    }

    /// Applies the state of the policies, except in a shutdown: it must finish, for its pods matter
    /// more.
    pub(super) fn heed_policies(&mut self) {
        if self.shutdown.is_some() {
            return;
        }
        let enforce = self.policies.enforce && self.policies.missing.is_none();
        // This includes a lock that was being taken when the agent found the policy missing.
        if self.policies.missing.is_some() {
            self.release_lock();
        }
        self.settings.enforce = enforce;
        self.status.unbounded.clone_from(&self.policies.missing);
    }
}
