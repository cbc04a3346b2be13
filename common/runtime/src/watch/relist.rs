//! A list made anew on demand: who has just become the leader wants to see all that the one before
//! did, and a watch may lag behind by any time.

use std::sync::Arc;

use tokio::sync::watch::{self, Receiver};

/// Asks one watch for a list. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct Relist(Arc<Numbers>);

/// Lists are numbered by the demand that they answer.
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
    /// Waits until the watch has yielded all that the API showed after this call.
    pub async fn fresh(&self) {
        let mut wanted = 0;
        self.0.asked.send_modify(|asked| {
            *asked += 1;
            wanted = *asked;
        });
        // We hold the sender, so that waiting cannot fail.
        let _ = self.0.done.subscribe().wait_for(|done| *done >= wanted).await;
    }

    /// For the watch: the demands. A list that begins now answers those up to `*borrow()`.
    pub(super) fn demands(&self) -> Receiver<u64> {
        self.0.asked.subscribe()
    }

    /// A list that began when this was the last demand was yielded to its end.
    pub(super) fn done(&self, asked: u64) {
        self.0.done.send_if_modified(|done| {
            let more = asked > *done;
            *done = asked.max(*done);
            more
        });
    }
}
