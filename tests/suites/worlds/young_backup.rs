//! A backup of etcd that is older than an answer to the agent, and younger than all that its watches
//! have shown. From the watches alone the agent could not notice that it was restored.

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::action::{Action, PodRef, Purpose};
use agent_core::protocol::event::Event;
use epilogue_agent::metrics::Metrics;
use epilogue_agent::sink::api::{ApiSink, NewestVersions};
use epilogue_agent::source::watch::Watch;
use epilogue_agent::source::{node, pods};
use epilogue_runtime::watch::Watches;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use model_api::{Kind, ModelApi};
use prometheus::Registry;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::host::AGENT;
use super::world::NAMESPACE;

const NODE: &str = "sim-0";
/// No watch shows anything for so long.
const LAG: Duration = Duration::from_hours(1);
/// Within this time the agent hears of the restore.
const NOTICED_WITHIN: Duration = Duration::from_mins(10);

/// An agent's sink and its watches, on a model with a node and a pod.
struct Stage {
    api: ModelApi,
    pod: PodRef,
    sink: ApiSink,
    events: mpsc::Receiver<Event>,
    registry: Registry,
}

impl Stage {
    /// The watches have shown all, and show nothing more.
    async fn begin(kind: Kind) -> Self {
        let api = ModelApi::new("2026-11-20T00:00:00Z".parse().expect("must be a time"));
        let (user, agent) = (api.client("user/1"), api.client(&format!("{AGENT}{NODE}")));
        let object = json!({"metadata": {"name": NODE}});
        let object: Node = serde_json::from_value(object).expect("must be a Node");
        let nodes: Api<Node> = Api::all(user.clone());
        nodes.create(&PostParams::default(), &object).await.expect("must be created");
        let object = json!({"metadata": {"name": "a"}, "spec": {
            "nodeName": NODE, "containers": [{"name": "main", "image": "none"}],
        }});
        let object: Pod = serde_json::from_value(object).expect("must be a Pod");
        let all: Api<Pod> = Api::namespaced(user, NAMESPACE);
        let created = all.create(&PostParams::default(), &object).await.expect("must be created");
        let uid = PodUid(created.metadata.uid.expect("must have one"));
        let pod = PodRef { namespace: NAMESPACE.to_owned(), name: "a".to_owned(), uid };
        let (registry, newest) = (Registry::new(), NewestVersions::default());
        let metrics = Metrics::new(&registry).expect("must register");
        let sink = ApiSink::new(agent.clone(), NODE.to_owned(), metrics, newest.clone());
        let watches = Watches::new(&registry).expect("must register");
        let (sender, events) = mpsc::channel(16);
        let of = |resource, newest| Watch {
            node: NODE.to_owned(),
            signs: watches.of(resource),
            hurry: watch::channel(false).1,
            newest,
        };
        if kind == Kind::Pod {
            tokio::spawn(pods::run(agent, of("pods", newest.pods), sender));
        } else {
            tokio::spawn(node::run(agent, of("nodes", newest.nodes), sender));
        }
        let mut stage = Self { api, pod, sink, events, registry };
        let first = stage.heard().await.expect("must be listed");
        assert!(matches!(first, Event::PodsListed(_) | Event::NodeObserved(_)), "{first:?}");
        stage.api.set_watch_lag(kind, LAG);
        stage
    }

    async fn heard(&mut self) -> Option<Event> {
        timeout(NOTICED_WITHIN, self.events.recv()).await.ok().flatten()
    }

    /// What the agent hears after a restore that undoes what this action wrote.
    async fn after(&mut self, action: Action) -> Option<Event> {
        let backup = self.api.snapshot();
        let result = self.sink.carry_out(action).await;
        assert!(!format!("{result:?}").contains("Err("), "{result:?}");
        self.api.restore(&backup);
        self.heard().await
    }

    /// How often a watch has noticed a restore.
    fn restores(&self) -> String {
        let all = self.registry.gather();
        let failures = all.iter().find(|it| it.name() == "epilogue_watch_failures_total");
        let restored = |it: &&prometheus::proto::Metric| {
            it.get_label().iter().any(|label| label.value() == "restored")
        };
        let counted = failures.iter().flat_map(|it| it.get_metric()).find(restored);
        counted.map_or(0.0, |it| it.get_counter().get_value()).to_string()
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_hears_of_a_restore_that_undoes_a_mark() {
    let mut stage = Stage::begin(Kind::Pod).await;
    let mark = json!({"type": "DisruptionTarget", "status": "True"});
    let body = json!({"metadata": {"uid": stage.pod.uid}, "status": {"conditions": [mark]}});
    let mark = Action::PatchStatus { pod: stage.pod.clone(), purpose: Purpose::Mark, body };
    let heard = stage.after(mark).await;
    let Some(Event::PodsRestored(pods)) = heard else { panic!("it heard {heard:?}") };
    assert!(pods[0].disruption.is_none(), "{pods:?}");
    assert_eq!(stage.restores(), "1");
}

#[tokio::test(start_paused = true)]
async fn an_agent_hears_of_a_restore_that_undoes_what_it_wrote_on_its_node() {
    let mut stage = Stage::begin(Kind::Node).await;
    let heard = stage.after(Action::Taint { present: true }).await;
    let Some(Event::NodeObserved(view)) = heard else { panic!("it heard {heard:?}") };
    assert!(!view.tainted, "{view:?}");
    assert_eq!(stage.restores(), "1");
}
