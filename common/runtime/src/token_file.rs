//! Shows the API the token of a file, which changes while the program runs: the kubelet renews that
//! of a pod. It is read once in a minute, and at once when the API refuses the one that was shown.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use kube::client::{AuthError, Body};
use kube::{Config, Error};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt as _};

use crate::rate_limit::copy;

/// client-go's period.
const READ_EVERY: Duration = Duration::from_mins(1);

/// A token in a file, as a layer of a client.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: Arc<PathBuf>,
    shown: Arc<Mutex<Shown>>,
}

#[derive(Debug)]
struct Shown {
    /// `Bearer` with the token.
    header: HeaderValue,
    read: Instant,
}

impl TokenFile {
    /// That of the configuration, if it has one, and no credentials that come first.
    pub fn of(config: &Config) -> Result<Option<Self>, Error> {
        let auth = &config.auth_info;
        let has_password = auth.username.is_some() && auth.password.is_some();
        let has_other = auth.auth_provider.is_some() || has_password || auth.token.is_some();
        let file = auth.token_file.as_ref().filter(|_| !has_other);
        file.map(|path| Self::open(path.into())).transpose()
    }

    fn open(path: PathBuf) -> Result<Self, Error> {
        let header = read(&path).map_err(Error::Auth)?;
        let shown = Shown { header, read: Instant::now() };
        Ok(Self { path: Arc::new(path), shown: Arc::new(Mutex::new(shown)) })
    }

    /// The value of `Authorization`.
    fn header(&self) -> HeaderValue {
        let mut shown = self.shown.lock();
        if shown.read.elapsed() >= READ_EVERY {
            self.renew(&mut shown);
        }
        shown.header.clone()
    }

    /// Another value than the one that the API has refused, if there is one.
    fn instead_of(&self, refused: &HeaderValue) -> Option<HeaderValue> {
        let mut shown = self.shown.lock();
        if shown.header == *refused {
            self.renew(&mut shown);
        }
        (shown.header != *refused).then(|| shown.header.clone())
    }

    /// Reads the file again. If that fails, the former token stays.
    fn renew(&self, shown: &mut Shown) {
        shown.read = Instant::now();
        match read(&self.path) {
            Ok(header) if header != shown.header => {
                tracing::info!(path = %self.path.display(), "the token was read again");
                shown.header = header;
            }
            Ok(_) => {}
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "no new token; the former one stays");
            }
        }
    }
}

fn read(path: &PathBuf) -> Result<HeaderValue, AuthError> {
    let token = std::fs::read_to_string(path)
        .map_err(|source| AuthError::ReadTokenFile(source, path.clone()))?;
    let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut value = value.map_err(AuthError::InvalidBearerToken)?;
    value.set_sensitive(true);
    Ok(value)
}

impl<S> Layer<S> for TokenFile {
    type Service = WithToken<S>;

    fn layer(&self, inner: S) -> WithToken<S> {
        WithToken { inner, token: self.clone() }
    }
}

/// A service whose requests show the token.
#[derive(Clone, Debug)]
pub struct WithToken<S> {
    inner: S,
    token: TokenFile,
}

impl<S, B> Service<Request<Body>> for WithToken<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    /// Always ready: each call clones the inner service and waits for the clone.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (inner, token) = (self.inner.clone(), self.token.clone());
        Box::pin(async move {
            let shown = token.header();
            request.headers_mut().insert(header::AUTHORIZATION, shown.clone());
            let again = copy(&request);
            let reply = inner.clone().oneshot(request).await?;
            if reply.status() != StatusCode::UNAUTHORIZED {
                return Ok(reply);
            }
            // What the API has refused so, it has not carried out.
            let (Some(mut again), Some(other)) = (again, token.instead_of(&shown)) else {
                return Ok(reply);
            };
            again.headers_mut().insert(header::AUTHORIZATION, other);
            inner.oneshot(again).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::path::Path;
    use tower::service_fn;

    /// Asks a server that accepts only this token; returns its code, and each token it was shown.
    async fn ask(token: &TokenFile, valid: &'static str) -> (u16, Vec<String>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let server = service_fn(move |request: Request<Body>| {
            let shown = request.headers()[header::AUTHORIZATION].to_str().expect("text").to_owned();
            let code = if shown == format!("Bearer {valid}") { 201 } else { 401 };
            log.lock().push(shown.replace("Bearer ", ""));
            let reply = Response::builder().status(code).body(()).expect("a reply");
            async move { Ok::<_, Infallible>(reply) }
        });
        let request = Request::post("/pods").body(Body::from(b"x".to_vec())).expect("a request");
        let reply = token.layer(server).oneshot(request).await.expect("a reply");
        let seen = seen.lock().clone();
        (reply.status().as_u16(), seen)
    }

    fn write(path: &Path, token: &str) {
        std::fs::write(path, token).expect("must be writable");
    }

    fn shown(code: u16, tokens: &[&str]) -> (u16, Vec<String>) {
        (code, tokens.iter().map(|token| (*token).to_owned()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_read_again_at_once_and_any_other_within_a_minute() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        write(&path, "one\n");
        let token = TokenFile::open(path.clone()).expect("a token");
        assert_eq!(ask(&token, "one").await, shown(201, &["one"]));

        write(&path, "two");
        assert_eq!(ask(&token, "one").await, shown(201, &["one"]), "it is still valid");
        assert_eq!(ask(&token, "two").await, shown(201, &["one", "two"]));
        assert_eq!(ask(&token, "three").await, shown(401, &["two"]), "there is no other");

        write(&path, "three");
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(ask(&token, "three").await, shown(201, &["three"]));
        std::fs::remove_file(&path).expect("it goes");
        tokio::time::advance(READ_EVERY).await;
        assert_eq!(ask(&token, "three").await, shown(201, &["three"]), "the file is gone");
        assert_eq!(ask(&token, "four").await, shown(401, &["three"]));
    }

    #[tokio::test]
    async fn a_token_file_counts_where_no_other_credentials_come_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let mut config = Config::new("https://api".parse().expect("an address"));
        config.auth_info.token_file = Some(path.display().to_string());
        let missing = TokenFile::of(&config).expect_err("must fail");
        assert!(matches!(missing, Error::Auth(AuthError::ReadTokenFile(..))), "{missing:?}");
        write(&path, "one");
        assert!(TokenFile::of(&config).expect("a token").is_some());
        config.auth_info.token = Some("inline".to_owned().into());
        assert!(TokenFile::of(&config).expect("another").is_none());
        assert!(TokenFile::of(&Config::new(config.cluster_url)).expect("none").is_none());
    }
}
