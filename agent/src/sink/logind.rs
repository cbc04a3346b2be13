//! Holds the agent's delay lock, and raises logind's delay. Each action uses its own connection: a
//! lock depends on its descriptor alone, and the session's state does not interfere. ([LD13])

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Duration;

use agent_core::check::facts::Refusal;
use agent_core::protocol::event::ActionResult;
use agent_core::shutdown::logind_conf::{DropIn, OUR_DELAY_MAX, OUR_DROP_IN, drop_in};
use agent_core::time_span::TimeSpan;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::bus::{Answer, Bus, BusAddress, CallError, as_failure, refusal};
use crate::host::{Host, HostError};
use crate::source::logind::{Logind, OurLock, UNIT, granted};
use crate::source::systemd::Systemd;

/// How long logind may take to read its files again after the signal.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(5);
/// The same after an answer that the signal was not sent.
const FOLLOW_TIME_REFUSED_MAX: Duration = Duration::from_secs(1);
const FOLLOW_POLL_MIN: Duration = Duration::from_millis(50);
const FOLLOW_POLL_MAX: Duration = Duration::from_millis(500);

/// Carries out the actions on logind.
#[derive(Debug)]
pub struct LogindSink {
    address: BusAddress,
    host: Host,
    words: OurLock,
    /// The one copy of the descriptor: dropping it releases the lock.
    ///
    /// DIVERGES(upstream): the descriptor has an owner, so that it is closed once. Upstream keeps
    /// the number after the release, and closes whatever has it by then.
    lock: Mutex<Option<OwnedFd>>,
}

impl LogindSink {
    /// A sink over the bus at `address`, without a lock. The session recognises the lock by
    /// `words`.
    pub fn new(address: impl Into<BusAddress>, host: Host, words: OurLock) -> Self {
        Self { address: address.into(), host, words, lock: Mutex::default() }
    }

    /// Takes a new lock, and only then drops the previous one. ([SD7])
    pub async fn take_lock(&self) -> ActionResult {
        // The place stays free while logind is asked: a release must not wait for a bus that hangs.
        match self.inhibit().await {
            Ok(descriptor) => match close_on_exec(&descriptor) {
                Ok(()) => {
                    *self.lock.lock().await = Some(descriptor);
                    ActionResult::Locked
                }
                Err(failure) => ActionResult::Done(Err(failure)),
            },
            Err(error) if refusal(&error) == Refusal::ShuttingDown => {
                ActionResult::LockRefusedInProgress
            }
            Err(error) => ActionResult::Done(Err(as_failure("cannot take a delay lock", &error))),
        }
    }

    /// Drops the lock.
    pub async fn release_lock(&self) {
        drop(self.lock.lock().await.take());
    }

    async fn inhibit(&self) -> Answer<OwnedFd> {
        let bus = Bus::connect(&self.address).await?;
        let asked = async { Logind::on(&bus).await?.inhibit(self.words.why()).await };
        let taken = asked.await;
        bus.close().await;
        taken
    }

    /// Raises the delay that logind grants, if it is less than wanted; returns what it grants then.
    pub async fn raise_delay(&self, wanted: Duration) -> Outcome<Duration> {
        let unreachable = |error| as_failure("cannot reach logind", &error);
        let bus = Bus::connect(&self.address).await.map_err(unreachable)?;
        let raised = self.raise_over(&bus, wanted).await;
        bus.close().await;
        raised
    }

    async fn raise_over(&self, bus: &Bus, wanted: Duration) -> Outcome<Duration> {
        let unread = |error: CallError| as_failure("cannot read InhibitDelayMaxUSec", &error);
        let logind = Logind::on(bus).await.map_err(unread)?;
        let now = logind.delay().await.map_err(unread)?;
        let Some(expected) = self.write(now, wanted).await? else { return Ok(granted(now)) };
        // The property shows whether it helped: systemd can fail after it has sent the signal.
        let refused = Systemd::on(bus).hang_up(UNIT).await.err();
        let within = if refused.is_none() { FOLLOW_TIME_MAX } else { FOLLOW_TIME_REFUSED_MAX };
        let end = Instant::now() + within;
        let mut pause = FOLLOW_POLL_MIN;
        loop {
            let now = logind.delay().await.map_err(unread)?;
            if now >= expected {
                return Ok(granted(now));
            }
            if Instant::now() >= end {
                return refused.map_or(Ok(granted(now)), |error| Err(unheard(&error)));
            }
            sleep(pause.min(end.saturating_duration_since(Instant::now()))).await;
            pause = (pause * 2).min(FOLLOW_POLL_MAX);
        }
    }

    /// Writes the drop-in if it is needed. Returns the delay that logind must grant after it has
    /// read its files again; `None` if nothing is needed.
    async fn write(&self, now: TimeSpan, wanted: Duration) -> Outcome<Option<TimeSpan>> {
        let host = self.host.clone();
        let write = move || {
            let files = host.logind_conf_files().map_err(|error| unwritten(&error))?;
            match drop_in(&files, now, wanted, OUR_DELAY_MAX) {
                DropIn::NotNeeded => Ok(None),
                DropIn::Reload { by } => Ok(Some(by.delay)),
                DropIn::Write { delay, text } => {
                    host.write_conf_file(OUR_DROP_IN, &text).map_err(|error| unwritten(&error))?;
                    Ok(Some(delay))
                }
                DropIn::Shadowed { by, delay } => {
                    let words = format!(
                        "{} sets {} and sorts after {OUR_DROP_IN}: set {delay} there, or mask it \
                         by a link to /dev/null of that name in /etc/systemd/logind.conf.d",
                        by.path, by.delay
                    );
                    Err(Failure::new(FailureKind::Invalid, words))
                }
            }
        };
        self.host.blocking(write).await
    }
}

fn unheard(error: &CallError) -> Failure {
    let what =
        format!("cannot have {UNIT} read its files again (run `systemctl kill -s HUP {UNIT}`)");
    as_failure(&what, error)
}

fn unwritten(error: &HostError) -> Failure {
    let kind = match error.cause().kind() {
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => FailureKind::Forbidden,
        _ => FailureKind::Other,
    };
    let words = format!(
        "{error}: {}; make /etc/systemd/logind.conf.d writable for the agent, or write \
         InhibitDelayMaxSec yourself (epilogue-agent check names file and value)",
        error.cause()
    );
    Failure::new(kind, words)
}

/// A child process with a copy would hold the node up. ([LD13])
fn close_on_exec(descriptor: &OwnedFd) -> Result<(), Failure> {
    let set = fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    set.map(drop).map_err(|errno| {
        Failure::new(FailureKind::Other, format!("cannot keep the lock from children: {errno}"))
    })
}
