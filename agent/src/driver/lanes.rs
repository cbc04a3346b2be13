//! Orders actions: those on the same thing of the host run one by one, in the order in which the
//! core issued them.

use std::collections::VecDeque;

use agent_core::protocol::action::{Action, ActionId};

/// The thing that an action works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Runs in parallel with all others; the core limits how many.
    Free,
    /// The delay lock.
    Logind,
    /// The journal.
    Journal,
}

/// A lane with a running action, and the actions that wait behind it.
#[derive(Debug, Default)]
struct Line {
    busy: bool,
    waiting: VecDeque<(ActionId, Action)>,
}

/// All lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    logind: Line,
    journal: Line,
}

impl Lanes {
    /// Queues an action; returns it if it can start now.
    pub(super) fn enter(
        &mut self,
        lane: Lane,
        id: ActionId,
        action: Action,
    ) -> Option<(ActionId, Action)> {
        let Some(line) = self.line(lane) else { return Some((id, action)) };
        if line.busy {
            line.waiting.push_back((id, action));
            return None;
        }
        line.busy = true;
        Some((id, action))
    }

    /// Frees the lane of an action that has ended; returns the next action that starts.
    pub(super) fn free(&mut self, lane: Lane) -> Option<(ActionId, Action)> {
        let line = self.line(lane)?;
        let next = line.waiting.pop_front();
        line.busy = next.is_some();
        next
    }

    fn line(&mut self, lane: Lane) -> Option<&mut Line> {
        match lane {
            Lane::Free => None,
            Lane::Logind => Some(&mut self.logind),
            Lane::Journal => Some(&mut self.journal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_of_one_lane_go_one_by_one_in_their_order() {
        let mut lanes = Lanes::default();
        let action = || Action::CloseJournal;
        assert!(lanes.enter(Lane::Journal, ActionId(1), action()).is_some());
        assert!(lanes.enter(Lane::Journal, ActionId(2), action()).is_none());
        assert!(lanes.enter(Lane::Journal, ActionId(3), action()).is_none());
        assert!(lanes.enter(Lane::Logind, ActionId(4), Action::TakeLock).is_some());
        assert!(lanes.enter(Lane::Free, ActionId(5), action()).is_some());
        let next = |lanes: &mut Lanes| lanes.free(Lane::Journal).map(|(id, _)| id.0);
        assert_eq!(next(&mut lanes), Some(2));
        assert_eq!(next(&mut lanes), Some(3));
        assert_eq!(next(&mut lanes), None);
        assert!(lanes.enter(Lane::Journal, ActionId(6), action()).is_some());
    }
}
