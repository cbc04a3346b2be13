//! Scripts the double's faults, and records the calls that came.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tonic::Status;

/// The calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Any of the others.
    Any,
    Version,
    Status,
    ListPodSandbox,
    StopPodSandbox,
    ListContainers,
    ContainerStatus,
    StopContainer,
    RemoveContainer,
    ListContainerStats,
    ImageFsInfo,
}

/// A fault.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Never answers; does nothing.
    Hang,
    /// Answers late.
    Late(Duration),
    /// Answers after this notification.
    Until(Arc<Notify>),
    /// Returns an error, each time.
    Refuse(tonic::Code),
    /// Returns an error, the first time.
    RefuseOnce(tonic::Code),
    /// Carries the call out, and then returns an error.
    RefuseAfter(tonic::Code),
    /// Ignores the filter.
    IgnoreFilter,
}

/// A call that came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub call: Call,
    /// A container's name; for a sandbox or a list, the pod's UID.
    pub target: String,
    /// The pod's UID.
    pub uid: String,
    /// The grace of a `StopContainer`.
    pub timeout: Option<i64>,
    pub at: Instant,
}

/// The faults, and the record of calls.
#[derive(Debug, Default)]
pub(super) struct Faults {
    scripted: Mutex<Vec<(Call, String, Fault)>>,
    seen: Mutex<Vec<Seen>>,
}

/// The faults to apply after the call is carried out.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) refuse: Option<Status>,
    pub(super) ignore_filter: bool,
}

impl Faults {
    pub(super) fn add(&self, call: Call, target: &str, fault: Fault) {
        self.scripted.lock().expect("no holder panics").push((call, target.to_owned(), fault));
    }

    pub(super) fn clear(&self) {
        self.scripted.lock().expect("no holder panics").clear();
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no holder panics").clone()
    }

    /// Records a call and applies the faults that come before it is carried out.
    pub(super) async fn meet(&self, seen: Seen) -> Result<Rest, Status> {
        let fault = self.fault(&seen);
        self.seen.lock().expect("no holder panics").push(seen);
        let refusal = |code| Status::new(code, "the double injects it");
        match fault {
            None => Ok(Rest::default()),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Late(time)) => {
                tokio::time::sleep(time).await;
                Ok(Rest::default())
            }
            Some(Fault::Until(notify)) => {
                notify.notified().await;
                Ok(Rest::default())
            }
            Some(Fault::Refuse(code) | Fault::RefuseOnce(code)) => Err(refusal(code)),
            Some(Fault::RefuseAfter(code)) => {
                Ok(Rest { refuse: Some(refusal(code)), ..Rest::default() })
            }
            Some(Fault::IgnoreFilter) => Ok(Rest { ignore_filter: true, ..Rest::default() }),
        }
    }

    fn fault(&self, seen: &Seen) -> Option<Fault> {
        let mut scripted = self.scripted.lock().expect("no holder panics");
        let at = scripted.iter().position(|(call, target, _)| {
            (*call == Call::Any || *call == seen.call)
                && (target.is_empty() || *target == seen.target || *target == seen.uid)
        })?;
        let fault = scripted[at].2.clone();
        if matches!(fault, Fault::RefuseOnce(_)) {
            scripted.remove(at);
        }
        Some(fault)
    }
}
