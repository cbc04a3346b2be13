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
    /// Mutating admission changes its object, before the API fills it in, checks and stores it.
    Mutate(Webhook),
    /// Validating admission sees its object as it would be stored, or what is there for a deletion.
    /// What it changes is lost.
    Validate(Webhook),
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

/// What admission does to the object of a write: it may change it; an error refuses the write. The
/// second argument is the object before, `None` if it is new.
#[derive(Clone)]
pub struct Webhook(Arc<Admit>);

type Admit = dyn Fn(&mut Value, Option<&Value>) -> Result<(), Refusal> + Send + Sync;

/// When admission is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Mutating,
    Validating,
}

impl Webhook {
    /// One that does this.
    pub fn new(
        admit: impl Fn(&mut Value, Option<&Value>) -> Result<(), Refusal> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(admit))
    }

    /// One that refuses none.
    pub fn changing(change: impl Fn(&mut Value, Option<&Value>) + Send + Sync + 'static) -> Self {
        Self::new(move |object, old| {
            change(object, old);
            Ok(())
        })
    }

    /// One that refuses all.
    pub fn refusing(refusal: Refusal) -> Self {
        Self::new(move |_, _| Err(refusal.clone()))
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Webhook").finish_non_exhaustive()
    }
}

/// All faults that are on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    on: BTreeMap<FaultId, Fault>,
    next: u64,
    /// Maximum number of objects, by kind and namespace.
    pub(crate) quotas: BTreeMap<(Kind, String), usize>,
    pub(crate) flaw: Option<Flaw>,
    /// How much later watches show a change, by kind.
    pub(crate) lags: BTreeMap<Kind, Duration>,
    /// Maximum number of objects in a page; a client's limit may be larger.
    pub(crate) page_max: Option<usize>,
    /// Whether a watch that asks for initial events is invalid.
    pub(crate) denies_streamed_lists: bool,
    /// Whether all replies are JSON.
    pub(crate) denies_protobuf: bool,
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

    /// Whether it is for all calls of this user agent, those too that concern no kind.
    fn fits_all(&self, agent: &str) -> bool {
        let Self { verbs, kind, namespace, name, subresource, agent: of } = self;
        let names_none = [namespace, name, subresource].into_iter().all(Option::is_none);
        verbs.is_empty()
            && kind.is_none()
            && names_none
            && of.as_ref().is_none_or(|of| agent.starts_with(of))
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
        self.meet(|matcher| matcher.fits(call), list::expired(call).as_ref())
    }

    /// What happens to a call of this user agent that concerns no kind; counts it.
    pub(crate) fn fate_of_document(&mut self, agent: &str) -> Fate {
        self.meet(|matcher| matcher.fits_all(agent), None)
    }

    /// The same for the faults that fit. A list that can be too old is refused like this.
    fn meet(&mut self, fits: impl Fn(&Matcher) -> bool, expired: Option<&Refusal>) -> Fate {
        let mut fate = Fate::default();
        self.on.retain(|_, fault| {
            let expires = matches!(fault.effect, Effect::ExpireToken);
            let is_admission = fault.effect.admits().is_some();
            if is_admission || !fits(&fault.matcher) || expires && expired.is_none() {
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
                Effect::ExpireToken => {
                    fate.refuse = fate.refuse.take().or_else(|| expired.cloned());
                }
                Effect::Mutate(_) | Effect::Validate(_) => {}
            }
            fault.times = fault.times.map(|times| times - 1);
            fault.times != Some(0)
        });
        fate
    }

    /// Calls the admission of this phase, in the order in which it was switched on; counts it.
    pub(crate) fn admit(
        &mut self,
        phase: Phase,
        call: &Call,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Refusal> {
        for fault in self.on.values_mut().filter(|fault| fault.matcher.fits(call)) {
            let Some((of, webhook)) = fault.effect.admits() else { continue };
            if of != phase || fault.times == Some(0) {
                continue;
            }
            let result = (webhook.0)(object, old);
            fault.times = fault.times.map(|times| times - 1);
            result?;
        }
        Ok(())
    }
}

impl Effect {
    fn admits(&self) -> Option<(Phase, &Webhook)> {
        match self {
            Self::Mutate(webhook) => Some((Phase::Mutating, webhook)),
            Self::Validate(webhook) => Some((Phase::Validating, webhook)),
            _ => None,
        }
    }
}
