//! Plays the requests of a seed on both sides.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use lab::{Cluster, Namespace};
use model_api::{Flaw, Kind, ModelApi};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::comparison::Comparison;
use super::generator::{Generator, LAST, step};
use super::side::{Side, Step};

/// How long the events of a watch may take on a busy machine.
const EVENTS_WITHIN: Duration = Duration::from_mins(2);

/// A watch on both sides.
struct Watch {
    query: String,
    model: JoinHandle<Vec<Value>>,
    api: JoinHandle<Vec<Value>>,
}

struct Run {
    seed: u64,
    model: Side,
    api: Side,
    comparison: Comparison,
    watches: Vec<Watch>,
    /// The newest versions of both sides when the run began.
    begin: (String, String),
}

/// Plays a seed. An error is the first difference.
pub(crate) async fn play(
    cluster: &Cluster,
    seed: u64,
    requests: usize,
    flaw: Option<Flaw>,
) -> Result<(), String> {
    let namespace = Namespace::create(cluster).await.expect("a namespace");
    let model = ModelApi::new(Timestamp::now());
    model.set_flaw(flaw);
    let api = cluster.admin_client().await.expect("a client");
    let outcome = Run::begin(seed, namespace.name(), &model, api).await;
    let mut run = outcome?;
    let mut generator = Generator::new(namespace.name(), StdRng::seed_from_u64(seed));
    let result = run.all(&mut generator, requests).await;
    for step in generator.clean_up() {
        run.api.send(&step).await;
    }
    namespace.finish().await.expect("the namespace goes");
    result
}

impl Run {
    async fn begin(seed: u64, name: &str, model: &ModelApi, api: Client) -> Result<Self, String> {
        let (model, api) = (Side::new(model.client("test/1")), Side::new(api));
        let (comparison, begin) = (Comparison::default(), (String::new(), String::new()));
        let mut run = Self { seed, model, api, comparison, watches: Vec::new(), begin };
        let body = json!({"metadata": {"name": name}});
        let path = Kind::Namespace.path("");
        let create = step("POST", path, body);
        run.model.send(&create).await;
        // No watch sees what was before.
        let mut list = Step { method: "GET", body: Value::Null, ..create };
        list.path = Kind::Pod.path(name);
        let version = |answer: Value| {
            let version = answer["metadata"]["resourceVersion"].as_str();
            version.unwrap_or_default().to_owned()
        };
        run.begin = (version(run.model.send(&list).await.1), version(run.api.send(&list).await.1));
        for (path, query) in super::generator::watches(name) {
            run.watch(&path, &query).await;
        }
        Ok(run)
    }

    async fn watch(&mut self, path: &str, query: &str) {
        let uri = |version: &str| {
            let from = query.replace("@begin", version);
            format!("{path}?watch=true&allowWatchBookmarks=true&{from}")
        };
        self.watches.push(Watch {
            query: format!("{path}?{query}"),
            model: self.model.watch(uri(&self.begin.0), is_last).await,
            api: self.api.watch(uri(&self.begin.1), is_last).await,
        });
    }

    async fn all(&mut self, generator: &mut Generator, requests: usize) -> Result<(), String> {
        for step in generator.set_up() {
            self.step(&step).await?;
        }
        for number in 0..requests {
            // Of the past, too.
            if number == requests / 2 {
                for (path, query) in super::generator::watches(generator.namespace()) {
                    self.watch(&path, &query).await;
                }
            }
            let step = generator.next();
            self.step(&step).await?;
        }
        for step in generator.last() {
            self.step(&step).await?;
        }
        for watch in std::mem::take(&mut self.watches) {
            self.compare_events(watch).await?;
        }
        for step in generator.after() {
            self.step(&step).await?;
        }
        Ok(())
    }

    /// Sends a request to both sides, and compares their answers.
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let (model, api) = tokio::join!(self.model.send(step), self.api.send(step));
        let compared =
            if model.0 != api.0 || model.1["reason"] != api.1["reason"] && is_refusal(api.0) {
                let say = |(code, body): &(u16, Value)| {
                    format!("{code} {} {}", body["reason"], body["message"])
                };
                Err(format!("the model answers {}, the API {}", say(&model), say(&api)))
            } else if is_refusal(api.0) {
                Ok(())
            } else {
                self.comparison.compare(&model.1, &api.1)
            };
        compared.map_err(|difference| {
            format!(
                "seed {}: {} {}?{}: {difference}\nrequest: {}\nmodel: {}\nAPI: {}",
                self.seed, step.method, step.path, step.query, step.body, model.1, api.1
            )
        })
    }

    async fn compare_events(&mut self, watch: Watch) -> Result<(), String> {
        let Watch { query, model, api } = watch;
        let both = async { (model.await, api.await) };
        let both = tokio::time::timeout(EVENTS_WITHIN, both).await;
        let Ok((model, api)) = both else {
            return Err(format!("seed {}: {query}: not all events came", self.seed));
        };
        let (model, api) = (model.expect("events"), api.expect("events"));
        let show = |events: &[Value]| -> Vec<String> {
            let line = |event: &Value| {
                let metadata = &event["object"]["metadata"];
                format!("{} {}", event["type"], metadata["name"])
            };
            events.iter().map(line).collect()
        };
        let failed = |difference: String, at: usize| {
            format!(
                "seed {}: {query}: event {at}: {difference}\nmodel: {:?}\nAPI: {:?}",
                self.seed,
                show(&model),
                show(&api)
            )
        };
        for (at, (ours, theirs)) in model.iter().zip(&api).enumerate() {
            if ours["type"] != theirs["type"] {
                let types = format!("{} and {}", ours["type"], theirs["type"]);
                return Err(failed(types, at));
            }
            if ours["type"] != "ERROR" && ours["type"] != "BOOKMARK" {
                let compared = self.comparison.compare(&ours["object"], &theirs["object"]);
                compared.map_err(|difference| failed(difference, at))?;
            } else if ours["object"]["code"] != theirs["object"]["code"] {
                return Err(failed("other codes".to_owned(), at));
            }
        }
        if model.len() == api.len() { Ok(()) } else { Err(failed("other counts".into(), 0)) }
    }
}

/// Whether a code is one of refusals.
fn is_refusal(code: u16) -> bool {
    code >= 400
}

/// Whether an event shows an object that ends a run, in the state that every selector selects.
fn is_last(event: &Value) -> bool {
    let object = &event["object"];
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let is_ready = object["kind"] != "Pod" || object["status"]["phase"] == "Running";
    name.ends_with(LAST) && is_ready
}
