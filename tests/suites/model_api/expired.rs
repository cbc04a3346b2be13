//! Compares lists whose version is forgotten: the API's own compaction runs every few seconds here.

use std::time::Duration;

use jiff::Timestamp;
use lab::control_plane::{ControlPlane, Options};
use lab::eventually;
use model_api::{Kind, ModelApi};
use serde_json::{Value, json};

use super::comparison::Comparison;
use super::generator::{MERGE, patch, step};
use super::side::{Answer, Side, Step};

const NAMESPACE: &str = "default";
/// The server's compaction deletes what is older than this when it begins.
const COMPACTION: &str = "--etcd-compaction-interval=2s";
/// Two compactions, on a busy machine.
const FORGOTTEN_WITHIN: Duration = Duration::from_mins(2);

/// A list of all pods, or of those after a page.
fn pages(query: &str) -> Step {
    let query = query.to_owned();
    Step { query, ..step("GET", Kind::Pod.path(NAMESPACE), Value::Null) }
}

/// What a client reads of a refusal.
fn refusal((code, answer): &Answer) -> Value {
    let has_token = answer["metadata"]["continue"].as_str().is_some_and(|it| !it.is_empty());
    json!({"code": code, "reason": answer["reason"], "message": answer["message"],
           "token": has_token})
}

#[tokio::test]
async fn a_list_that_expires_between_two_pages_goes_on_as_in_the_model() {
    let options = Options::unique("expired").api_server_flag(COMPACTION);
    let control_plane = ControlPlane::start(options).await.expect("a control plane");
    let handle = ModelApi::new(Timestamp::now());
    let mut model = Side::new(handle.client("test/1"));
    let mut api = Side::new(control_plane.admin_client().await.expect("a client"));
    let body = json!({"metadata": {"name": NAMESPACE}});
    model.send(&step("POST", Kind::Namespace.path(""), body)).await;
    let mut comparison = Comparison::default();
    let mut same = |model: &Answer, api: &Answer| {
        assert_eq!(model.0, api.0, "model: {}\nAPI: {}", model.1, api.1);
        comparison.compare(&model.1, &api.1).expect("no difference");
    };

    let path = |name: &str| format!("{}/{name}", Kind::Pod.path(NAMESPACE));
    let spec = json!({"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]});
    let created = |name: &str| {
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        step("POST", Kind::Pod.path(NAMESPACE), pod)
    };
    let label = json!({"metadata": {"labels": {"a": "1"}}});
    let mut steps: Vec<Step> = ["a", "b", "c", "d", "e"].map(created).into();
    steps.push(pages("limit=2"));
    // The rest of the list is another one now.
    let delete_now = json!({"gracePeriodSeconds": 0});
    steps.extend([
        patch(path("c"), MERGE, label.clone()),
        step("DELETE", path("d"), delete_now),
        created("f"),
        patch(path("a"), MERGE, label),
    ]);
    for step in &steps {
        same(&model.send(step).await, &api.send(step).await);
    }

    // As long as the page's version is known, both sides show the pods as they were then.
    let rest = pages("continue=@token");
    let old = pages("resourceVersion=@page&resourceVersionMatch=Exact");
    let of_model = model.send(&rest).await;
    assert_eq!(names(&of_model), ["c", "d", "e"]);
    let of_api = eventually(
        "the token of the API is too old",
        FORGOTTEN_WITHIN,
        async || {
            let answer = api.send(&rest).await;
            if answer.0 == 200 {
                same(&of_model, &answer);
            }
            answer
        },
        |answer| answer.0 != 200,
    )
    .await;
    handle.forget_history();
    assert_eq!(refusal(&model.send(&rest).await), refusal(&of_api));
    assert_eq!(refusal(&of_api)["code"], 410);
    assert_eq!(refusal(&model.send(&old).await), refusal(&api.send(&old).await));

    // The refusal's own token goes on with the pods as they are now.
    let (of_model, of_api) = (model.send(&rest).await, api.send(&rest).await);
    same(&of_model, &of_api);
    assert_eq!(names(&of_api), ["c", "e", "f"]);
    control_plane.stop().await.expect("it stops");
}

fn names((_, list): &Answer) -> Vec<&str> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect()
}
