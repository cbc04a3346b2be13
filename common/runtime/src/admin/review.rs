//! Authenticates a bearer (TokenReview), and checks that it may `get` the path `/metrics`
//! (SubjectAccessReview).

use std::collections::VecDeque;
use std::time::Duration;

use http::{Method, Request, header};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How long a verdict is cached.
const ALLOWED_FOR: Duration = Duration::from_mins(1);
const DENIED_FOR: Duration = Duration::from_secs(10);
/// How long a verdict is cached while the API server gives no new one: metrics matter most then.
const ALLOWED_WITHOUT_API: Duration = Duration::from_mins(10);
/// Maximum of cached bearers; a cluster has one or two scrapers.
const BEARERS_MAX: usize = 16;
/// Longer tokens are rejected without a review.
const TOKEN_BYTES_MAX: usize = 6 * 1024;
/// Time limit of a review. Only one runs at a time, so that a flood costs the API server little.
const REVIEW_MAX: Duration = Duration::from_secs(3);

/// The verdict on a bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The API server does not know the bearer.
    Unauthenticated,
    /// RBAC does not let the bearer read `/metrics`.
    Forbidden,
    /// The API server did not answer.
    Unknown,
}

/// Reviews bearer tokens, and caches the verdicts.
pub(super) struct Reviewer {
    client: Client,
    one: Semaphore,
    answers: Mutex<VecDeque<Answer>>,
}

#[derive(Debug)]
struct Answer {
    token: String,
    verdict: Verdict,
    at: Instant,
}

impl Reviewer {
    pub(super) fn new(client: Client) -> Self {
        Self { client, one: Semaphore::new(1), answers: Mutex::default() }
    }

    /// Returns the verdict on the value of an `Authorization` header.
    pub(super) async fn review(&self, authorization: Option<&str>) -> Verdict {
        let token = authorization.and_then(|it| it.strip_prefix("Bearer ")).map(str::trim);
        let Some(token) = token.filter(|it| !it.is_empty() && it.len() <= TOKEN_BYTES_MAX) else {
            return Verdict::Unauthenticated;
        };
        if let Some(verdict) = self.remembered(token, false) {
            return verdict;
        }
        let asked = async {
            // The semaphore is never closed.
            let _one = self.one.acquire().await.ok();
            match self.remembered(token, false) {
                Some(verdict) => verdict,
                None => self.ask(token).await.unwrap_or(Verdict::Unknown),
            }
        };
        let verdict = timeout(REVIEW_MAX, asked).await.unwrap_or(Verdict::Unknown);
        if verdict == Verdict::Unknown {
            return self.remembered(token, true).unwrap_or(verdict);
        }
        self.remember(token, verdict);
        verdict
    }

    fn remembered(&self, token: &str, without_api: bool) -> Option<Verdict> {
        let answers = self.answers.lock();
        let answer = answers.iter().find(|answer| answer.token == token)?;
        let limit = match answer.verdict {
            Verdict::Allowed if without_api => ALLOWED_WITHOUT_API,
            Verdict::Allowed => ALLOWED_FOR,
            _ => DENIED_FOR,
        };
        (answer.at.elapsed() < limit).then_some(answer.verdict)
    }

    /// Evicts refusals first, so that a flood of them does not evict a scraper.
    fn remember(&self, token: &str, verdict: Verdict) {
        let mut answers = self.answers.lock();
        answers.retain(|answer| answer.token != token);
        if answers.len() >= BEARERS_MAX {
            let refused = answers.iter().position(|answer| answer.verdict != Verdict::Allowed);
            answers.remove(refused.unwrap_or(0));
        }
        answers.push_back(Answer { token: token.to_owned(), verdict, at: Instant::now() });
    }

    async fn ask(&self, token: &str) -> Option<Verdict> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token},
        });
        let answer = self.post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
        if answer["status"]["authenticated"] != true {
            return Some(Verdict::Unauthenticated);
        }
        let user = &answer["status"]["user"];
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user["username"], "uid": user["uid"], "groups": user["groups"],
                "extra": user["extra"],
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let allowed = self.post(path, &review).await?["status"]["allowed"] == true;
        Some(if allowed { Verdict::Allowed } else { Verdict::Forbidden })
    }

    async fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .ok()?;
        let answer = self.client.request::<Value>(request).await;
        answer.inspect_err(|error| tracing::warn!(%error, path, "cannot review a scraper")).ok()
    }
}
