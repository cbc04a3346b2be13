//! Sends a request as it goes over the wire, and reads the API's answer.

use std::fmt;

use http::{Method, Request};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Value,
}

/// The outcome: the code, and the API's message.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) message: String,
}

impl Call {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, JSON, Value::Null)
    }

    pub(crate) fn create(path: impl Into<String>, body: Value) -> Self {
        Self::new(Method::POST, path, JSON, body)
    }

    pub(crate) fn update(path: impl Into<String>, body: Value) -> Self {
        Self::new(Method::PUT, path, JSON, body)
    }

    pub(crate) fn patch(path: impl Into<String>, body: Value) -> Self {
        Self::new(Method::PATCH, path, STRATEGIC, body)
    }

    /// A merge patch: null removes, and a list is replaced as a whole.
    pub(crate) fn merge(path: impl Into<String>, body: Value) -> Self {
        Self::new(Method::PATCH, path, MERGE, body)
    }

    pub(crate) fn delete(path: impl Into<String>, options: Value) -> Self {
        Self::new(Method::DELETE, path, JSON, options)
    }

    fn new(
        method: Method,
        path: impl Into<String>,
        content_type: &'static str,
        body: Value,
    ) -> Self {
        Self { method, path: path.into(), content_type, body }
    }

    /// The same as a dry run.
    pub(crate) fn dry(mut self) -> Self {
        if self.method == Method::DELETE {
            // If the request has a body, the API reads no options from the path.
            self.body["dryRun"] = json!(["All"]);
            return self;
        }
        self.path.push_str(if self.path.contains('?') { "&" } else { "?" });
        self.path.push_str("dryRun=All");
        self
    }

    /// Sends it.
    pub(crate) async fn send(&self, client: &kube::Client) -> Answer {
        let body = match &self.body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body).expect("a Value must be JSON"),
        };
        let request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header("Content-Type", self.content_type)
            .body(body)
            .expect("a table's path must be one");
        match client.request_text(request).await {
            Ok(text) => Answer { code: 200, message: text },
            Err(kube::Error::Api(status)) => {
                Answer { code: status.code, message: status.message.clone() }
            }
            Err(error) => panic!("{self}: {error}"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.method, self.path, self.body)
    }
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        self.code < 300
    }

    /// The object of the answer.
    pub(crate) fn object(&self) -> Value {
        serde_json::from_str(&self.message).expect("the API must answer with JSON")
    }
}
