//! Finds the taint `epilogue.dev/shutting-down` of an agent that is gone.
//!
//! An agent removes its taint when its node is back. If it was uninstalled while the node was down,
//! nothing else would remove it, and no pod would be scheduled there again.

use epilogue_common::announcement::Announcement;
use epilogue_common::names::node::SHUTTING_DOWN_TAINT;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::node::{NodeView, WireNode};

/// How long a node must be ready in a later boot. An agent that runs needs seconds.
const READY_FOR: SignedDuration = SignedDuration::from_mins(10);

/// From when on the taint is stale. By then the kubelet has been ready for ten minutes, in another
/// boot than the one whose end the annotation announces. `None` if nothing shows that.
pub(crate) fn stale_from(node: &NodeView) -> Option<Timestamp> {
    let of = match node.announcement.as_ref()? {
        Announcement::ShuttingDown { boot_id, .. } | Announcement::Drained { boot_id, .. } => {
            boot_id
        }
        Announcement::Idle => return None,
    };
    let later_boot = node.boot_id.as_deref().is_some_and(|boot_id| boot_id != of);
    let is_tainted = node.shutting_down && node.is_ready() && later_boot;
    is_tainted.then(|| node.ready_since?.checked_add(READY_FOR).ok()).flatten()
}

/// The patch that removes only the taint from a Node as it was just read: a merge patch, on that
/// version alone. `None` if the Node shows no stale taint. An agent may be there again, and may
/// have announced another shutdown.
pub(super) fn untaint_patch(node: &Value, now: Timestamp) -> Option<Value> {
    let view = NodeView::read(&WireNode::deserialize(node).ok()?);
    stale_from(&view).filter(|from| *from <= now)?;
    let taints = node["spec"]["taints"].as_array()?;
    let others: Vec<&Value> = taints.iter().filter(|taint| !is_ours(taint)).collect();
    (others.len() < taints.len()).then(|| {
        json!({
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": others},
        })
    })
}

fn is_ours(taint: &Value) -> bool {
    taint["key"] == SHUTTING_DOWN_TAINT
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::super::tests::{Fixture, announces, at, boot, node, ready, start};
    use super::*;

    const BEFORE: &str = "shutting-down;boot=boot-1;since=2026-11-20T00:00:00Z";
    const DRAINED: &str = "drained;boot=boot-1;at=2026-11-20T00:00:00Z";

    /// A node that is ready since second 0, in the boot after the one whose end was announced.
    fn left_behind(announcement: &str) -> Value {
        let mut left = boot(ready(node("n"), "True", "", 0), "boot-2");
        left["spec"] = json!({"taints": [
            {"key": "theirs", "effect": "NoSchedule"},
            {"key": SHUTTING_DOWN_TAINT, "effect": "NoSchedule"},
        ]});
        left = announces(left, announcement);
        left
    }

    /// When the taint of this node is removed, within the next hour.
    fn goes_after(left: &Value) -> Option<i64> {
        let mut fixture = Fixture::new(Settings::default(), &[]);
        fixture.node(left);
        (0..3600 / 60).find(|_| !fixture.pass(60).is_empty()).map(|minutes| minutes + 1)
    }

    #[test]
    fn a_taint_of_an_agent_that_is_gone_goes_after_ten_minutes() {
        for announcement in [BEFORE, DRAINED] {
            assert_eq!(goes_after(&left_behind(announcement)), Some(10), "{announcement}");
        }
    }

    #[test]
    fn without_evidence_the_taint_stays() {
        let left = || left_behind(BEFORE);
        let mut unready = ready(left(), "False", "", 0);
        assert_eq!(goes_after(&unready), None);
        unready = ready(left(), "Unknown", "", 0);
        assert_eq!(goes_after(&unready), None);
        assert_eq!(goes_after(&boot(left(), "boot-1")), None, "the boot that ends");
        assert_eq!(goes_after(&announces(left(), "idle")), None);
        let mut silent = left();
        silent["metadata"]["annotations"] = json!({});
        assert_eq!(goes_after(&silent), None);
        let mut clean = left();
        clean["spec"]["taints"] = json!([{"key": "theirs", "effect": "NoSchedule"}]);
        assert_eq!(goes_after(&clean), None);
    }

    #[test]
    fn a_new_leader_finds_a_taint_that_was_stale_before() {
        let mut fixture = Fixture::new(Settings::default(), &[]);
        let mut left = left_behind(BEFORE);
        left["status"]["conditions"][0]["lastTransitionTime"] = at(-3600).into();
        fixture.forgets_alarms_after(|fixture| fixture.node(&left));
        fixture.check_everything();
        assert_eq!(fixture.pass(1), ["n: untainted"]);
    }

    #[test]
    fn only_our_taint_is_taken_away_and_only_from_what_was_read() {
        let mut left = left_behind(BEFORE);
        left["metadata"]["resourceVersion"] = "7".into();
        let expected = json!({
            "metadata": {"resourceVersion": "7"},
            "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"}]},
        });
        let now = start() + READY_FOR;
        assert_eq!(untaint_patch(&left, now), Some(expected));
        assert_eq!(untaint_patch(&left, start()), None, "too early");
        let again = announces(left.clone(), &BEFORE.replace("boot-1", "boot-2"));
        assert_eq!(untaint_patch(&again, now), None, "another shutdown was announced since");
        left["spec"]["taints"] = json!([{"key": "theirs"}]);
        assert_eq!(untaint_patch(&left, now), None);
        assert_eq!(untaint_patch(&json!({"spec": 1}), now), None);
    }
}
