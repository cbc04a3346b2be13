//! Faults that a test switches on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::call::{Call, Verb};
use crate::kind::Kind;
use crate::list;
use crate::refusal::Refusal;

/// Which calls a fault concerns: all that every given part fits.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    /// What the call does; empty for any.
    pub verbs: Vec<Verb>,
    /// The kind of its object.
    pub kind: Option<Kind>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// The name of its object.
    pub name: Option<String>,
    /// Its subresource, such as `status`; empty for the object itself.
    pub subresource: Option<String>,
    /// How the caller's user agent begins.
    pub agent: Option<String>,
}

/// What happens to a call.
#[derive(Clone, Debug)]
pub enum Effect {
    /// It is refused, and does nothing.
    Refuse(Refusal),
    /// It does nothing, and its connection breaks.
    LoseRequest,
    /// It does its work, and its connection breaks before the reply.
    LoseReply,
    /// It begins this much later.
    Delay(Duration),
    /// Its reply comes this much later than its work.
    DelayReply(Duration),
    /// The token with which it goes on with a list is too old. Concerns only such calls.
    ExpireToken,
}

/// A fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which calls it concerns.
    pub matcher: Matcher,
    /// What happens to them.
    pub effect: Effect,
    /// How many calls it concerns; `None` for all until it is lifted.
    pub times: Option<u32>,
}

/// Names a fault, to lift it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

/// A rule that the model breaks on purpose, to show that a comparison or a verdict notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A write at an old version is taken.
    IgnoresConflicts,
    /// A write that changes nothing has a version and an event.
    ShowsNoChange,
    /// An object that is being deleted goes in spite of its finalizers.
    IgnoresFinalizers,
    /// A status write changes the spec, too.
    StatusWritesSpec,
    /// A patch for another UID is taken.
    IgnoresUid,
    /// A watch does not show that an object is no longer selected.
    HidesDeselection,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::IgnoresConflicts,
        Self::ShowsNoChange,
        Self::IgnoresFinalizers,
        Self::StatusWritesSpec,
        Self::IgnoresUid,
        Self::HidesDeselection,
    ];
}

/// A write that admission judges.
#[derive(Debug)]
pub struct Review<'a> {
    /// What the call does.
    pub verb: Verb,
    /// The kind of the object.
    pub kind: Kind,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// The user agent of the caller.
    pub agent: &'a str,
    /// The object as it would be stored; what is there, for a deletion.
    pub object: &'a Value,
    /// The object before; `None` if it is new.
    pub old: Option<&'a Value>,
}

/// Judges a write; an error refuses it.
pub type Admission = Arc<dyn Fn(&Review<'_>) -> Result<(), Refusal> + Send + Sync>;

/// All faults that are on.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    on: BTreeMap<FaultId, Fault>,
    next: u64,
    /// Maximum number of objects, by kind and namespace.
    pub(crate) quotas: BTreeMap<(Kind, String), usize>,
    pub(crate) admission: Option<Admission>,
    pub(crate) flaw: Option<Flaw>,
    /// How much later watches show a change, by kind.
    pub(crate) lags: BTreeMap<Kind, Duration>,
    /// Maximum number of objects in a page; a client's limit may be larger.
    pub(crate) page_max: Option<usize>,
    /// Whether a watch that asks for initial events is invalid.
    pub(crate) denies_streamed_lists: bool,
}

/// What the faults do to one call.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    pub(crate) refuse: Option<Refusal>,
    pub(crate) lose_request: bool,
    pub(crate) lose_reply: bool,
    pub(crate) delay: Duration,
    pub(crate) delay_reply: Duration,
}

impl Fault {
    /// A fault of all calls that fit, until it is lifted.
    pub fn of(matcher: Matcher, effect: Effect) -> Self {
        Self { matcher, effect, times: None }
    }

    /// The same for so many calls.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }
}

impl Matcher {
    /// All calls of this verb on this kind.
    pub fn on(verb: Verb, kind: Kind) -> Self {
        Self { verbs: vec![verb], kind: Some(kind), ..Self::default() }
    }

    fn fits(&self, call: &Call) -> bool {
        let is =
            |asked: &Option<String>, found: &str| asked.as_deref().is_none_or(|it| it == found);
        (self.verbs.is_empty() || self.verbs.contains(&call.verb))
            && self.kind.is_none_or(|kind| kind == call.kind)
            && is(&self.namespace, &call.namespace)
            && is(&self.name, &call.name)
            && is(&self.subresource, &call.subresource)
            && self.agent.as_ref().is_none_or(|agent| call.agent.starts_with(agent))
    }
}

impl Faults {
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub(crate) fn add(&mut self, fault: Fault) -> FaultId {
        let id = FaultId(self.next);
        self.next += 1;
        self.on.insert(id, fault);
        id
    }

    pub(crate) fn lift(&mut self, id: FaultId) {
        self.on.remove(&id);
    }

    /// What happens to this call; counts it.
    pub(crate) fn fate(&mut self, call: &Call) -> Fate {
        let mut fate = Fate::default();
        self.on.retain(|_, fault| {
            let expires = matches!(fault.effect, Effect::ExpireToken);
            let expired = expires.then(|| list::expired(call)).flatten();
            if !fault.matcher.fits(call) || expires && expired.is_none() {
                return true;
            }
            if fault.times == Some(0) {
                return false;
            }
            match &fault.effect {
                Effect::Refuse(refusal) => {
                    fate.refuse.get_or_insert_with(|| refusal.clone());
                }
                Effect::LoseRequest => fate.lose_request = true,
                Effect::LoseReply => fate.lose_reply = true,
                Effect::Delay(delay) => fate.delay += *delay,
                Effect::DelayReply(delay) => fate.delay_reply += *delay,
                Effect::ExpireToken => fate.refuse = fate.refuse.take().or(expired),
            }
            fault.times = fault.times.map(|times| times - 1);
            fault.times != Some(0)
        });
        fate
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Faults").field("on", &self.on).finish_non_exhaustive()
    }
}
