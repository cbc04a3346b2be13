//! Remembers which writes were reported by a pod GC that only observes, so that each is reported
//! once.

use std::collections::HashMap;

use super::case::PodWrite;
use crate::view::Uid;

/// The last reported write of each pod, by its cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed(HashMap<Uid, &'static str>);

impl Observed {
    /// Whether the write was not reported yet; remembers it.
    pub(crate) fn is_new(&mut self, write: &PodWrite) -> bool {
        let cause = write.cause.label();
        self.0.insert(write.uid.clone(), cause) != Some(cause)
    }

    /// Keeps only what is remembered of these pods.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&Uid) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }

    /// Forgets a pod that is gone.
    pub(crate) fn forget(&mut self, uid: &Uid) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::podgc::{Cause, Evidence};

    #[test]
    fn each_write_to_a_pod_is_new_once() {
        let write = |cause| PodWrite {
            namespace: Arc::from("a"),
            name: "p".into(),
            uid: "u".into(),
            patch: None,
            delete: true,
            cause,
        };
        let gone = write(Cause::Ended(Evidence::NodeGone));
        let off = write(Cause::Ended(Evidence::OutOfService));
        let mut observed = Observed::default();
        let of = |observed: &mut Observed, write| observed.is_new(write);
        assert_eq!([&gone, &gone, &off].map(|it| of(&mut observed, it)), [true, false, true]);
        observed.retain(|_| true);
        assert!(!observed.is_new(&off));
        observed.retain(|_| false);
        assert!(observed.is_new(&off));
        observed.forget(&"u".into());
        assert!(observed.is_new(&off));
    }
}
