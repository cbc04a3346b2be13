//! Asks the runtime for the sizes of containers' writable layers, and caches them. On a busy node
//! the runtime takes longer than a shortage allows. So the last answer holds for a while, and a
//! late answer serves the next question.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::pod::PodUid;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::cri::stats::ContainerStats;
use crate::cri::wire::{CONTAINER_NAME_LABEL, POD_UID_LABEL};
use crate::cri::{CriError, Runtime};
use crate::source::pressure::ContainerLayer;

/// How long a question waits for the answer.
const WAIT: Duration = Duration::from_secs(1);
/// How long the last answer holds: the kubelet's own figures of volumes are as old.
const HOLDS: Duration = Duration::from_mins(1);

/// The layers of the containers of each pod. A pod that is missing did not exist when the agent
/// asked the runtime.
pub(super) type Layers = BTreeMap<PodUid, Vec<ContainerLayer>>;

/// Asks for the layers, and remembers them.
#[derive(Debug, Default)]
pub(super) struct LayerBook {
    last: Option<(Instant, Layers)>,
    /// One question at a time. It carries the answer's time, because the answer may be fetched long
    /// after. Dropped with the book.
    asked: JoinSet<(Instant, Result<Layers, CriError>)>,
}

impl LayerBook {
    /// The layers of these pods, from an answer now or a recent one; `None` without any.
    pub(super) async fn ask(&mut self, runtime: &Runtime, pods: &[PodUid]) -> Option<Layers> {
        if self.asked.is_empty() {
            let (runtime, pods) = (runtime.clone(), pods.to_vec());
            self.asked.spawn(async move {
                let answer = async { runtime.client().await?.container_stats().await }.await;
                (Instant::now(), answer.map(|stats| by_pod(pods, stats)))
            });
        }
        if let Ok(Some(answer)) = timeout(WAIT, self.asked.join_next()).await {
            match answer {
                Ok((at, Ok(layers))) => self.last = Some((at, layers)),
                Ok((_, Err(error))) => {
                    tracing::debug!(%error, "the runtime does not say what layers take");
                }
                Err(error) => tracing::error!(%error, "asking for layers ended early"),
            }
        }
        let (_, layers) = self.last.as_ref().filter(|(at, _)| at.elapsed() < HOLDS)?;
        Some(layers.clone())
    }
}

/// Groups layers by pod; leaves out containers that the kubelet did not make. If a pod was asked
/// about and is not in the answer, nothing of it runs.
fn by_pod(asked: Vec<PodUid>, stats: Vec<ContainerStats>) -> Layers {
    let mut pods: Layers = asked.into_iter().map(|uid| (uid, Vec::new())).collect();
    for stat in stats {
        let mut labels = stat.attributes.unwrap_or_default().labels;
        let label = (labels.remove(POD_UID_LABEL), labels.remove(CONTAINER_NAME_LABEL));
        let (Some(uid), Some(name)) = label else { continue };
        let usage = stat.writable_layer.unwrap_or_default();
        let layer = ContainerLayer {
            name,
            bytes: usage.used_bytes.map(|bytes| bytes.value),
            inodes: usage.inodes_used.map(|inodes| inodes.value),
        };
        pods.entry(PodUid(uid)).or_default().push(layer);
    }
    pods
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cri::Sockets;

    #[test]
    fn a_pod_that_was_asked_for_and_is_not_named_has_no_layers() {
        let layers = by_pod(vec![PodUid("asked".into())], Vec::new());
        assert_eq!(layers, Layers::from([(PodUid("asked".into()), Vec::new())]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_figures_hold_for_a_minute_while_the_runtime_is_silent() {
        let silent = Runtime::new(Sockets::new(None, Path::new("/nonexistent")));
        let mut book = LayerBook::default();
        assert!(book.ask(&silent, &[]).await.is_none(), "it has said nothing yet");
        let layers = Layers::from([(PodUid("a".into()), Vec::new())]);
        book.last = Some((Instant::now(), layers));
        tokio::time::advance(HOLDS / 2).await;
        assert!(book.ask(&silent, &[]).await.is_some_and(|layers| layers.len() == 1));
        tokio::time::advance(HOLDS / 2).await;
        assert!(book.ask(&silent, &[]).await.is_none(), "too old by now");
    }
}
