//! Requests a new list on demand: a new leader must see all writes of the previous one, and a watch
//! may lag behind.

use std::sync::Arc;

use tokio::sync::watch::{self, Receiver};

/// Requests lists from one watch. Clones refer to the same watch.
#[derive(Clone, Debug)]
pub struct Relist(Arc<Numbers>);

/// Relist requests are numbered; a list completes all requests up to its number.
#[derive(Debug)]
struct Numbers {
    asked: watch::Sender<u64>,
    done: watch::Sender<u64>,
}

impl Default for Relist {
    fn default() -> Self {
        Self(Arc::new(Numbers { asked: watch::Sender::new(0), done: watch::Sender::new(0) }))
    }
}

impl Relist {
    /// Requests a list now. The result completes when the watch has yielded all that the API had at
    /// this call; a list that has not begun yet answers it.
    pub fn fresh(&self) -> impl Future<Output = ()> + use<> {
        let mut wanted = 0;
        self.0.asked.send_modify(|asked| {
            *asked += 1;
            wanted = *asked;
        });
        let mut done = self.0.done.subscribe();
        let sender = Arc::clone(&self.0);
        async move {
            // Waiting cannot fail: we hold the sender.
            let _ = done.wait_for(|done| *done >= wanted).await;
            drop(sender);
        }
    }

    /// For the watch: the number of the latest request. A list that begins now answers requests up
    /// to `*borrow()`.
    pub(super) fn demands(&self) -> Receiver<u64> {
        self.0.asked.subscribe()
    }

    /// Records that a list is complete which began when `asked` was the latest request.
    pub(super) fn done(&self, asked: u64) {
        self.0.done.send_if_modified(|done| {
            let more = asked > *done;
            *done = asked.max(*done);
            more
        });
    }
}
