//! Notices that the API has gone back to an earlier version, as when etcd is restored from a
//! snapshot. The API server accepts a watch from a version that it has not reached, and sends
//! nothing until it has.

use std::fmt;
use std::pin::{Pin, pin};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::time::{sleep, timeout};

use super::wire::{self, Format, Read};
use super::{Newest, Pauses, WATCH_SECONDS, WatchError, accepted, failed};

/// The query for the version of a collection. The name need not exist. With it the server reads one
/// key, whereas a list with another selector may search all objects of a large cluster.
pub(super) const LOOKUP: &str = "fieldSelector=metadata.name%3Depilogue&limit=1";
/// How long an answer may take before the question is repeated.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A watch that lasted this much less than was asked for was ended by something else than its time.
const EARLY: Duration = Duration::from_secs(5);

/// How far the server must have come.
#[derive(Debug)]
pub(super) struct Reached {
    newest: Newest,
    /// What was known when the last list began.
    listed_from: u64,
    /// Whether the server may have gone back since: the connection broke, or ended early.
    in_doubt: bool,
}

/// A question for the server's version. By default nothing is asked.
#[derive(Default)]
pub(super) struct Check {
    /// The version that the server must have reached.
    from: u64,
    /// Its version; `None` if that is not a number.
    answer: Option<Pin<Box<dyn Future<Output = Option<u64>> + Send>>>,
}

impl Reached {
    pub(super) fn new(newest: Newest) -> Self {
        Self { newest, listed_from: 0, in_doubt: false }
    }

    /// The server has gone back, or may have: it is known no longer how far it must have come.
    pub(super) fn forget(&mut self) {
        self.newest.forget();
        *self = Self::new(self.newest.clone());
    }

    /// All changes up to this version were yielded.
    pub(super) fn moved(&mut self, version: &str) {
        self.newest.reached(version.parse().unwrap_or(0));
    }

    /// The watch failed.
    pub(super) fn broke(&mut self) {
        self.in_doubt = true;
    }

    /// The server has ended a watch that lasted so long.
    pub(super) fn ended(&mut self, check: &Check, lasted: Duration) {
        let whole = Duration::from_secs(WATCH_SECONDS.into());
        self.in_doubt = check.answer.is_some() || lasted + EARLY < whole;
    }

    /// A list begins.
    pub(super) fn list_begins(&mut self) {
        self.listed_from = self.newest.get();
    }

    /// A list of this version is complete. An error if it is older than what was known when it
    /// began: lists are consistent reads.
    pub(super) fn list_ends(&mut self, version: &str) -> Result<(), WatchError> {
        self.in_doubt = false;
        compare(self.listed_from, version.parse().ok())
    }

    /// The version to check, if the server may have gone back; takes the doubt away.
    ///
    /// The watch itself may lag behind what the program wrote. A server that has gone back to a
    /// version in between has all that the watch has shown.
    pub(super) fn take_doubt(&mut self) -> Option<u64> {
        let newest = Some(self.newest.get()).filter(|newest| *newest > 0);
        newest.filter(|_| std::mem::take(&mut self.in_doubt))
    }
}

impl Check {
    /// Asks whether the server has reached the version, until it answers. The request is a lookup.
    pub(super) fn new<T: 'static>(
        from: u64,
        client: Client,
        request: Request<Vec<u8>>,
        read: Read<T>,
        pauses: &Pauses,
    ) -> Self {
        let (mut pause, max) = (pauses.first, pauses.max);
        let answer = async move {
            loop {
                let asked = ask(&client, request.clone(), &read);
                match timeout(ANSWER_MAX, asked).await {
                    Ok(Ok(version)) => return version.parse().ok(),
                    Ok(Err(error)) => tracing::debug!(%error, "the version is unknown"),
                    Err(_) => tracing::debug!("the version is unknown: no answer in time"),
                }
                sleep(pause).await;
                pause = pause.saturating_mul(2).min(max);
            }
        };
        Self { from, answer: Some(Box::pin(answer)) }
    }

    /// Waits for `work`, and meanwhile for the answer. An error if the server has gone back.
    pub(super) async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, WatchError> {
        let mut work = pin!(work);
        if let Some(answer) = &mut self.answer {
            let now = tokio::select! {
                biased;
                now = answer => now,
                done = &mut work => return Ok(done),
            };
            self.answer = None;
            compare(self.from, now)?;
        }
        Ok(work.await)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Check").field("from", &self.from).finish_non_exhaustive()
    }
}

/// The version of the collection.
pub(super) async fn ask<T>(
    client: &Client,
    request: Request<Vec<u8>>,
    read: &Read<T>,
) -> Result<String, WatchError> {
    let response = client.send(request.map(Body::from)).await.map_err(failed)?;
    let response = accepted(response).await.map_err(failed)?;
    let format = Format::of(response.headers());
    let body = response.into_body().collect_bytes().await.map_err(failed)?;
    wire::page(format, &body, read).map(|page| page.version).map_err(WatchError::Garbled)
}

fn compare(from: u64, now: Option<u64>) -> Result<(), WatchError> {
    match now {
        Some(now) if now < from => Err(WatchError::Restored { from, now }),
        _ => Ok(()),
    }
}
