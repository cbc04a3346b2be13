//! Leads once the lease is ours and the caches show all that the leader before wrote. ([Q7])

use std::pin::Pin;
use std::time::Duration;

use epilogue_runtime::lease::{self, Identity, Leadership, LeaseError, LeaseOptions};
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatch;
use crate::environment::Environment;
use crate::readiness::Readiness;

/// How long the lease is held without work, while the first lists are on their way. Another replica
/// whose caches are filled can do better.
const LISTS_MAX: Duration = Duration::from_secs(30);

/// A candidate for the lease.
pub(crate) struct Election<'a> {
    client: Client,
    options: &'a LeaseOptions,
    identity: Identity,
    early: Option<Early>,
}

/// The lease was free before the first lists began: they show all that the leader before wrote.
struct Early {
    leadership: Leadership,
    listed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<'a> Election<'a> {
    /// Takes the lease if it is free. Call it before the watches start, so that no second list is
    /// needed.
    pub(crate) async fn begin(
        environment: Environment,
        options: &'a LeaseOptions,
        readiness: &Readiness,
    ) -> anyhow::Result<Self> {
        let Environment { clients, identity, .. } = environment;
        let client = clients.lease;
        let leadership = lease::try_acquire(client.clone(), options, identity.clone()).await?;
        let early = leadership
            .map(|leadership| Early { leadership, listed: Box::pin(readiness.first_lists()) });
        Ok(Self { client, options, identity, early })
    }

    /// Waits until work may begin; `None` if `token` is cancelled before.
    pub(crate) async fn lead(
        self,
        readiness: &Readiness,
        dispatch: &Dispatch,
        token: &CancellationToken,
    ) -> anyhow::Result<Option<Leadership>> {
        if let Some(early) = self.early
            && let Some(leadership) = early.wait(token).await
        {
            return Ok(Some(leadership));
        }
        tokio::select! {
            biased;
            () = token.cancelled() => return Ok(None),
            () = readiness.filled() => {}
        }
        let leadership = match lease::acquire(self.client, self.options, self.identity, token).await
        {
            Err(LeaseError::Cancelled) => return Ok(None),
            acquired => acquired?,
        };
        let begun = Instant::now();
        tokio::select! {
            biased;
            () = token.cancelled() => {}
            loss = leadership.lost() => {
                return Err(anyhow::Error::new(loss).context("no longer leading"));
            }
            () = readiness.refill(dispatch) => {
                let took_s = begun.elapsed().as_secs_f64();
                tracing::info!(took_s, "caches show what the leader before did");
            }
        }
        Ok(Some(leadership))
    }
}

impl Early {
    /// Waits for the lists. `None` if the lease is no longer ours.
    async fn wait(self, token: &CancellationToken) -> Option<Leadership> {
        tokio::select! {
            biased;
            () = token.cancelled() => {}
            _ = self.leadership.lost() => return None,
            () = self.listed => {
                tracing::info!("caches are filled");
                return Some(self.leadership);
            }
            () = tokio::time::sleep(LISTS_MAX) => {
                let waited_s = LISTS_MAX.as_secs();
                tracing::warn!(waited_s, "the lists are late; the lease is free for others");
            }
        }
        release(self.leadership).await;
        None
    }
}

/// Gives the lease back.
pub(crate) async fn release(leadership: Leadership) {
    if let Err(error) = leadership.release().await {
        tracing::warn!(%error, "the lease stays until it expires");
    }
}
