//! Limits the calls that are on the way to the API. A call that hangs, such as in a webhook of its
//! namespace, keeps its permit; namespaces share the permits, so those of others go on.

use std::collections::HashMap;
use std::sync::Arc;

use controller_core::turns::{Key, Turns};
use parking_lot::Mutex;
use tokio::sync::oneshot::{self, Sender};

/// Permits for calls, shared by namespaces.
#[derive(Debug)]
pub(crate) struct Permits {
    state: Mutex<State>,
}

/// A call may be on the way, or waits for that, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    permits: &'a Permits,
    waiter: Waiter,
}

#[derive(Debug)]
struct State {
    turns: Turns<Waiter>,
    waiting: HashMap<u64, Sender<()>>,
    last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    namespace: Arc<str>,
    number: u64,
}

impl Key for Waiter {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Permits {
    /// This many permits. One namespace of several holds at most so many, one alone two thirds.
    pub(crate) fn new(max: usize, of_one: usize) -> Self {
        let turns = Turns::new(max).each_at_most(of_one);
        Self { state: Mutex::new(State { turns, waiting: HashMap::new(), last: 0 }) }
    }

    /// Waits for a permit. Namespaces take turns; all calls outside of them count as one.
    pub(crate) async fn acquire(&self, namespace: &str) -> Permit<'_> {
        let (sender, granted) = oneshot::channel();
        let waiter = {
            let mut state = self.state.lock();
            state.last += 1;
            let waiter = Waiter { namespace: namespace.into(), number: state.last };
            state.waiting.insert(waiter.number, sender);
            state.turns.push(waiter.clone());
            state.grant();
            waiter
        };
        let permit = Permit { permits: self, waiter };
        // The sender is kept until the permit is granted.
        let _ = granted.await;
        permit
    }
}

impl State {
    /// Grants what may be granted. A waiter that has left takes nothing.
    fn grant(&mut self) {
        while let Some(waiter) = self.turns.pop() {
            match self.waiting.remove(&waiter.number) {
                // If its call was dropped, so is its permit.
                Some(sender) => drop(sender.send(())),
                None => self.turns.give_back(&waiter.namespace),
            }
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.permits.state.lock();
        if state.waiting.remove(&self.waiter.number).is_none() {
            state.turns.give_back(&self.waiter.namespace);
        }
        state.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn a_namespace_whose_calls_hang_leaves_permits_to_others() {
        let permits = Permits::new(9, 9);
        let mut hanging = Vec::new();
        while let Some(permit) = permits.acquire("slow").now_or_never() {
            hanging.push(permit);
        }
        assert_eq!(hanging.len(), 6);
        let mut later = Box::pin(permits.acquire("slow"));
        assert!(later.as_mut().now_or_never().is_none());
        let quick = permits.acquire("quick").now_or_never().expect("must find one");
        drop(quick);
        assert!(later.as_mut().now_or_never().is_none());
        hanging.truncate(4);
        assert!(later.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn calls_that_are_dropped_leave_no_permit_behind() {
        let permits = Permits::new(2, 2);
        let one = permits.acquire("a").await;
        let two = permits.acquire("b").await;
        let mut granted = Box::pin(permits.acquire("c"));
        let mut waiting = Box::pin(permits.acquire("d"));
        assert!(granted.as_mut().now_or_never().is_none());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(one);
        // One was granted and not yet taken; the other one still waits.
        drop((granted, waiting, two));
        let all = [permits.acquire("e").now_or_never(), permits.acquire("f").now_or_never()];
        assert!(all.iter().all(Option::is_some), "{all:?}");
        let state = permits.state.lock();
        assert!(state.waiting.is_empty() && state.turns.is_empty());
    }
}
