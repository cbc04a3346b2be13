//! Orders actions: those on the same thing of the host run one by one, in the order in which the
//! core issued them.

use tokio::sync::oneshot::{self, Receiver, Sender};

/// The thing that an action works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Runs in parallel with all others; the core limits how many.
    Free,
    /// The delay lock.
    Logind,
    /// The release of the delay lock: it waits for nothing, and what follows waits for it.
    Release,
    /// The journal.
    Journal,
}

/// All lanes, by the end of their last action.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    logind: Option<Receiver<()>>,
    journal: Option<Receiver<()>>,
}

/// An action's place in its lane. Dropped, it makes way for the next one.
#[derive(Debug, Default)]
pub(super) struct Place {
    before: Option<Receiver<()>>,
    _end: Option<Sender<()>>,
}

impl Lanes {
    /// Enters a lane behind the actions that are in it.
    pub(super) fn enter(&mut self, lane: Lane) -> Place {
        let last = match lane {
            Lane::Free => return Place::default(),
            Lane::Logind | Lane::Release => &mut self.logind,
            Lane::Journal => &mut self.journal,
        };
        let (end, ended) = oneshot::channel();
        let before = last.replace(ended).filter(|_| lane != Lane::Release);
        Place { before, _end: Some(end) }
    }
}

impl Place {
    /// Waits until the action before has ended.
    pub(super) async fn turn(&mut self) {
        if let Some(before) = self.before.take() {
            // Nothing is ever sent: it ends by the drop of the place before.
            let _ = before.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_release_waits_for_nothing_and_what_follows_waits_for_it() {
        let mut lanes = Lanes::default();
        let _hangs = lanes.enter(Lane::Logind);
        let mut release = lanes.enter(Lane::Release);
        assert_eq!(release.turn().now_or_never(), Some(()));
        let mut next = lanes.enter(Lane::Logind);
        assert!(!may_start(&mut next));
        drop(release);
        assert!(may_start(&mut next));
    }

    fn may_start(place: &mut Place) -> bool {
        let Some(before) = &mut place.before else { return true };
        before.now_or_never().is_some()
    }

    #[tokio::test]
    async fn actions_of_one_lane_go_one_by_one_in_their_order() {
        let mut lanes = Lanes::default();
        let [first, mut second, mut third] = [(); 3].map(|()| lanes.enter(Lane::Journal));
        for lane in [Lane::Logind, Lane::Free, Lane::Free] {
            assert_eq!(lanes.enter(lane).turn().now_or_never(), Some(()), "{lane:?}");
        }
        assert!(!may_start(&mut second));
        drop(first);
        assert!(!may_start(&mut third));
        second.turn().await;
        assert!(!may_start(&mut third));
        drop(second);
        third.turn().await;
        drop(third);
        assert_eq!(lanes.enter(Lane::Journal).turn().now_or_never(), Some(()));
    }
}
