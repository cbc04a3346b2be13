//! Provides an API with scripted answers, without a network.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response, StatusCode, header};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// One answer.
pub(crate) enum Answer {
    /// This status and body.
    Is(u16, Value),
    /// No answer.
    Never,
}

/// A request that came in.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Method and path.
    pub(crate) line: String,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

/// The requests that came in so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server(Arc<Mutex<Vec<Asked>>>);

impl Answer {
    pub(crate) fn ok(body: Value) -> Self {
        Self::Is(200, body)
    }

    pub(crate) fn refusal(code: u16, reason: &str) -> Self {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": "the words"});
        Self::Is(code, status)
    }
}

impl Server {
    /// A client of an API that gives these answers one after the other, and then none.
    pub(crate) fn client(answers: Vec<Answer>) -> (Client, Self) {
        let server = Self::default();
        let asked = server.clone();
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let service = tower::service_fn(move |request: Request<Body>| {
            let asked = asked.clone();
            let answer = answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            async move {
                asked.note(request).await;
                let Some(Answer::Is(code, body)) = answer else {
                    return std::future::pending().await;
                };
                let mut reply = Response::new(Body::from(body.to_string().into_bytes()));
                *reply.status_mut() = StatusCode::from_u16(code).expect("must be a status");
                Ok::<_, Infallible>(reply)
            }
        });
        (Client::new(service, "default"), server)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn note(&self, request: Request<Body>) {
        let line = format!("{} {}", request.method(), request.uri());
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|it| it.to_str().ok()).unwrap_or_default();
        let content_type = content_type.to_owned();
        let bytes = request.into_body().collect_bytes().await.expect("must have a body");
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let asked = Asked { line, content_type, body };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    }
}
