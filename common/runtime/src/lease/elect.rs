//! Carries out the steps of the election: reads, waits, renews and releases. `decide.rs` decides.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::decide::{Now, Observed, Record, Step, decide, released};
use super::fence::Fence;
use super::{JITTER, LeaseError, LeaseOptions, Loss};
use crate::api_error::classify;
use crate::clock::Clock;

/// The lease is ours until it is lost or released. Dropping this stops the renewals, and the lease
/// expires.
#[derive(Debug)]
pub struct Leadership {
    lost: CancellationToken,
    loss: Arc<OnceLock<Loss>>,
    stop: CancellationToken,
    fence: Fence,
    renewing: AbortOnDropHandle<Candidate>,
}

/// Who takes part in an election, and its clock.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The holder that the lease names. It differs from that of any other process.
    pub name: String,
    /// The clock of the times in the lease.
    pub clock: Clock,
}

#[derive(Debug)]
struct Candidate {
    api: Api<Lease>,
    options: LeaseOptions,
    me: String,
    clock: Clock,
    /// Seeded by the identity, so that candidates that start together try at different times.
    jitter: StdRng,
    lease: Option<Lease>,
    observed: Option<Observed>,
    /// Whether `lease` is the reply to our last write, and need not be read again.
    current: bool,
    fence: Fence,
}

#[derive(Debug)]
enum Attempt {
    Held,
    Refused { holder: String },
}

/// Waits until the lease is ours. Fails only if `cancel` is cancelled or the options are invalid;
/// an API that does not answer is retried.
pub async fn acquire(
    client: Client,
    options: &LeaseOptions,
    me: Identity,
    cancel: &CancellationToken,
) -> Result<Leadership, LeaseError> {
    let mut candidate = Candidate::new(client, options, me)?;
    let held = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(LeaseError::Cancelled),
        held = candidate.wait() => held,
    };
    Ok(Leadership::begin(candidate, held))
}

/// Tries once. `None` if another candidate holds the lease, or the API does not answer.
pub async fn try_acquire(
    client: Client,
    options: &LeaseOptions,
    me: Identity,
) -> Result<Option<Leadership>, LeaseError> {
    let mut candidate = Candidate::new(client, options, me)?;
    let started = Instant::now();
    Ok(match candidate.attempt_in_time(started + options.attempt_max()).await {
        Ok(Attempt::Held) => Some(Leadership::begin(candidate, started)),
        Ok(Attempt::Refused { .. }) => None,
        Err(failure) => {
            candidate.warn(&failure);
            None
        }
    })
}

impl Leadership {
    /// Starts to renew a lease that is certainly ours since `held`.
    fn begin(candidate: Candidate, held: Instant) -> Self {
        tracing::info!(lease = candidate.options.name, identity = candidate.me, "leading");
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let (loss, fence) = (Arc::new(OnceLock::new()), candidate.fence.clone());
        fence.open_until(held + candidate.options.renew_deadline);
        let task = renew(candidate, held, stop.clone(), lost.clone(), loss.clone());
        let renewing = AbortOnDropHandle::new(tokio::spawn(task));
        Self { lost, loss, stop, fence, renewing }
    }

    /// Completes when the lease is no longer ours; all work must end then.
    pub async fn lost(&self) -> Loss {
        self.lost.cancelled().await;
        self.loss.get().cloned().unwrap_or(Loss::Unattended)
    }

    /// Cancelled when the lease is no longer ours.
    pub fn token(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Open while the lease is certainly ours. The holder checks it before each write.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Releases the lease, so that another candidate need not wait until it expires. All work must
    /// have ended before. Does nothing if the lease is already lost.
    pub async fn release(self) -> Result<(), LeaseError> {
        self.stop.cancel();
        self.fence.close();
        let Ok(mut candidate) = self.renewing.await else { return Ok(()) };
        if self.loss.get().is_some() {
            return Ok(());
        }
        let limit = candidate.options.attempt_max();
        let unknown = |_| Err(Failure::new(FailureKind::Unknown, "no reply in time"));
        timeout(limit, candidate.release())
            .await
            .unwrap_or_else(unknown)
            .map_err(LeaseError::Release)
    }
}

/// Renews until `stop` is cancelled or the lease is lost, and returns the candidate with its state.
async fn renew(
    mut candidate: Candidate,
    held: Instant,
    stop: CancellationToken,
    lost: CancellationToken,
    reason: Arc<OnceLock<Loss>>,
) -> Candidate {
    // A panic must end the work, too.
    let guard = lost.drop_guard();
    let loss = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        loss = candidate.hold(held) => Some(loss),
    };
    if let Some(loss) = loss {
        candidate.fence.close();
        tracing::error!(lease = candidate.options.name, reason = %loss, "no longer leading");
        // The cell is only set here.
        let _ = reason.set(loss);
    } else {
        guard.disarm();
    }
    candidate
}

impl Candidate {
    fn new(client: Client, options: &LeaseOptions, me: Identity) -> Result<Self, LeaseError> {
        options.validate()?;
        let api = Api::namespaced(client, &options.namespace);
        let options = options.clone();
        let Identity { name: me, clock } = me;
        let jitter = StdRng::seed_from_u64(seed(&me));
        let (lease, observed, current, fence) = (None, None, false, Fence::closed());
        Ok(Self { api, options, me, clock, jitter, lease, observed, current, fence })
    }

    /// Tries until the lease is ours; returns the moment from which it certainly is.
    async fn wait(&mut self) -> Instant {
        let mut seen = None;
        loop {
            let started = Instant::now();
            match self.attempt_in_time(started + self.options.attempt_max()).await {
                Ok(Attempt::Held) => return started,
                Ok(Attempt::Refused { holder }) => {
                    if seen.as_ref() != Some(&holder) {
                        tracing::info!(lease = self.options.name, holder, "waiting for the lease");
                        seen = Some(holder);
                    }
                }
                Err(failure) => self.warn(&failure),
            }
            let period = self.options.retry_period;
            let more = period.mul_f64(JITTER * self.jitter.random::<f64>());
            sleep_until(started + period + more).await;
        }
    }

    /// Renews until the lease is lost. The deadline counts from the start of the last successful
    /// request, because others may have seen its effect since then.
    async fn hold(&mut self, mut held: Instant) -> Loss {
        let after = self.options.renew_deadline;
        let mut next = held + self.options.retry_period;
        loop {
            let deadline = held + after;
            sleep_until(next.min(deadline)).await;
            let started = Instant::now();
            if started >= deadline {
                return Loss::NotRenewed { after };
            }
            let limit = deadline.min(started + self.options.attempt_max());
            match self.attempt_in_time(limit).await {
                Ok(Attempt::Held) => {
                    held = started;
                    self.fence.open_until(held + after);
                }
                Ok(Attempt::Refused { holder }) => return Loss::Taken { holder },
                Err(failure) => self.warn(&failure),
            }
            next = Instant::now().max(started + self.options.retry_period);
        }
    }

    async fn attempt_in_time(&mut self, limit: Instant) -> Outcome<Attempt> {
        let holding = self.current;
        let attempt = timeout_at(limit, self.attempt(holding)).await;
        attempt.unwrap_or_else(|_| Err(Failure::new(FailureKind::Unknown, "no reply in time")))
    }

    /// Makes one attempt: reads the lease, and writes it if it is or can be ours.
    async fn attempt(&mut self, holding: bool) -> Outcome<Attempt> {
        let leading = self.observed.as_ref().is_some_and(|seen| seen.record.holder == self.me);
        // Until the write's reply arrives, our copy of the lease may be outdated.
        self.current = false;
        if !holding {
            self.read().await?;
        }
        let now = Now { instant: Instant::now().into_std(), wall: self.clock.now() };
        let step = decide(&self.me, self.options.duration, self.observed.as_ref(), now);
        let record = match step {
            Step::Wait { holder, .. } => return Ok(Attempt::Refused { holder }),
            // Another candidate took the lease from us, and released it or let it expire. It may
            // have worked meanwhile, so our term is over.
            Step::TakeOver(_) if leading => {
                let holder = self.observed.as_ref().map(|seen| seen.record.holder.clone());
                return Ok(Attempt::Refused { holder: holder.unwrap_or_default() });
            }
            Step::Create(record) | Step::TakeOver(record) | Step::Renew(record) => record,
        };
        self.write(&record).await?;
        self.current = true;
        Ok(Attempt::Held)
    }

    async fn read(&mut self) -> Outcome<()> {
        let lease = self.api.get_opt(&self.options.name).await.map_err(classify)?;
        if let Some(lease) = lease {
            self.learn(lease);
        } else {
            (self.lease, self.observed) = (None, None);
        }
        Ok(())
    }

    async fn write(&mut self, record: &Record) -> Outcome<()> {
        let params = PostParams::default();
        let written = match self.lease.clone() {
            None => {
                let metadata =
                    ObjectMeta { name: Some(self.options.name.clone()), ..ObjectMeta::default() };
                let spec = Some(to_spec(LeaseSpec::default(), record));
                let mut lease = Lease { metadata, spec };
                self.annotate(&mut lease.metadata);
                self.api.create(&params, &lease).await
            }
            Some(mut lease) => {
                lease.spec = Some(to_spec(lease.spec.unwrap_or_default(), record));
                self.annotate(&mut lease.metadata);
                self.api.replace(&self.options.name, &params, &lease).await
            }
        };
        self.learn(written.map_err(classify)?);
        Ok(())
    }

    /// Sets our annotations, and keeps those of others.
    fn annotate(&self, metadata: &mut ObjectMeta) {
        let mut annotations = metadata.annotations.take().unwrap_or_default();
        for (name, value) in self.options.annotations.all() {
            match value {
                Some(value) => annotations.insert(name.to_owned(), value),
                None => annotations.remove(name),
            };
        }
        metadata.annotations = Some(annotations).filter(|all| !all.is_empty());
    }

    fn learn(&mut self, lease: Lease) {
        let record = from_spec(lease.spec.as_ref());
        let now = Instant::now().into_std();
        self.observed = Some(Observed::update(self.observed.take(), record, now));
        self.lease = Some(lease);
    }

    async fn release(&mut self) -> Outcome<()> {
        for last in [false, true] {
            if !self.current {
                self.read().await?;
            }
            self.current = false;
            let Some(Observed { record, .. }) = &self.observed else { return Ok(()) };
            if record.holder != self.me {
                return Ok(());
            }
            let record = released(record, self.clock.now());
            match self.write(&record).await {
                Err(failure) if failure.kind == FailureKind::Conflict && !last => {}
                written => return written,
            }
        }
        Ok(())
    }

    fn warn(&self, failure: &Failure) {
        let lease = &self.options.name;
        tracing::warn!(lease, error = %failure, "cannot take or renew the lease");
    }
}

fn seed(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn from_spec(spec: Option<&LeaseSpec>) -> Record {
    let Some(spec) = spec else { return Record::default() };
    let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
    Record {
        holder: spec.holder_identity.clone().unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        acquired: spec.acquire_time.as_ref().map(|time| time.0),
        renewed: spec.renew_time.as_ref().map(|time| time.0),
        transitions: spec.lease_transitions.unwrap_or(0),
    }
}

/// Sets our fields, and keeps the rest of the spec.
fn to_spec(spec: LeaseSpec, record: &Record) -> LeaseSpec {
    // Rounded up, so that others do not take over early.
    let seconds = record.duration.as_secs() + u64::from(record.duration.subsec_nanos() > 0);
    LeaseSpec {
        holder_identity: Some(record.holder.clone()),
        lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
        acquire_time: record.acquired.map(MicroTime),
        renew_time: record.renewed.map(MicroTime),
        lease_transitions: Some(record.transitions),
        ..spec
    }
}
