//! Asks the metadata service of a cloud, which serves plain HTTP on a link-local address.
//!
//! Whoever answers is not trusted: the time, the size and the text of an answer are bounded.
//! Neither a redirect nor a proxy is followed, because the service needs none.

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum time of an answer, if the request does not wait for a change. A live service answers in
/// milliseconds.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum size of an answer, and of its head. What is asked for has less than 1 KB.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The address and port of the service in all three clouds.
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);

/// Why nothing is known of the end of the machine. The state before it stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoticeError {
    #[error("no connection to {address}: {source}")]
    NoConnection { address: SocketAddr, source: io::Error },
    #[error("no answer to {path} within {}ms", within.as_millis())]
    NoAnswer { path: String, within: Duration },
    #[error("the answer to {path} is {status}")]
    Status { path: String, status: StatusCode },
    #[error("the answer to {path} cannot be read: {what}")]
    Unreadable { path: String, what: String },
}

impl NoticeError {
    pub(super) fn status(path: &str, status: StatusCode) -> Self {
        Self::Status { path: path.to_owned(), status }
    }

    pub(super) fn unreadable(path: &str, what: impl Into<String>) -> Self {
        Self::Unreadable { path: path.to_owned(), what: what.into() }
    }

    /// With the causes: an error of hyper says little without them.
    fn broken(path: &str, error: &(dyn Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| (*error).source());
        let causes: Vec<_> = causes.map(ToString::to_string).collect();
        Self::unreadable(path, causes.join(": "))
    }
}

/// What the service answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: String,
    headers: HeaderMap,
}

impl Answer {
    /// The value of a header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The metadata service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metadata {
    address: SocketAddr,
}

impl Default for Metadata {
    fn default() -> Self {
        Self::new(ADDRESS)
    }
}

impl Metadata {
    /// A service on this address.
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// One request over a connection of its own, which takes the longer of `within` and
    /// [`ANSWER_TIME_MAX`].
    pub(super) async fn ask(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &[(&str, &str)],
        within: Duration,
    ) -> Result<Answer, NoticeError> {
        let within = within.max(ANSWER_TIME_MAX);
        let asking = self.ask_at_leisure(method, path_and_query, headers);
        let silent = |_| NoticeError::NoAnswer { path: path_and_query.to_owned(), within };
        timeout(within, asking).await.map_err(silent)?
    }

    async fn ask_at_leisure(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Answer, NoticeError> {
        let unreadable = |error: hyper::Error| NoticeError::broken(path, &error);
        let request = self.request(method, path, headers)?;
        let address = self.address;
        let stream = TcpStream::connect(address)
            .await
            .map_err(|source| NoticeError::NoConnection { address, source })?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(ANSWER_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(unreadable)?;
        let asking = async {
            let answer = sender.send_request(request).await.map_err(unreadable)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    let what = format!("it has more than {ANSWER_BYTES_MAX} bytes");
                    return NoticeError::unreadable(path, what);
                }
                NoticeError::broken(path, error.as_ref())
            })?;
            let body = String::from_utf8(body.to_bytes().to_vec())
                .map_err(|error| NoticeError::broken(path, &error))?;
            Ok(Answer { status: head.status, body, headers: head.headers })
        };
        driven(connection, asking).await
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Request<Empty<Bytes>>, NoticeError> {
        let host = match self.address.port() {
            80 => self.address.ip().to_string(),
            _ => self.address.to_string(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::USER_AGENT, "epilogue-agent")
            .header(header::CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Empty::new()).map_err(|error| NoticeError::broken(path, &error))
    }
}

/// Drives the connection until the answer is here. No task outlives the request, so that a service
/// that hangs holds nothing after the time limit.
async fn driven<T>(connection: impl Future, asking: impl Future<Output = T>) -> T {
    let (mut connection, mut asking) = (pin!(connection), pin!(asking));
    tokio::select! {
        biased;
        answer = &mut asking => answer,
        // What came before the end of the connection can still be read.
        _ = &mut connection => asking.await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::double::{Double, Reply};
    use super::*;

    async fn get(double: &Double) -> Result<Answer, NoticeError> {
        let metadata = Metadata::new(double.address());
        metadata.ask(Method::GET, "/a?b=c", &[("x-d", "e")], Duration::ZERO).await
    }

    #[test]
    fn it_is_the_link_local_address() {
        assert_eq!(Metadata::default().address.to_string(), "169.254.169.254:80");
    }

    #[tokio::test]
    async fn the_status_the_body_and_the_headers_are_given() {
        let double = Double::serve(|asked| {
            assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", "/a?b=c"));
            assert_eq!(asked.header("x-d"), Some("e"));
            assert!(asked.header("host").is_some_and(|host| host.starts_with("127.0.0.1:")));
            Reply::with(302, &[("Location", "http://127.0.0.1:1/")], "héllo")
        });
        let answer = get(&double).await.unwrap();
        // Whoever redirects is not followed.
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (302, "héllo"));
        assert_eq!(answer.header("location"), Some("http://127.0.0.1:1/"));
        assert_eq!(answer.header("etag"), None);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_an_error() {
        let table = [
            (Reply::Close, "connection"),
            (Reply::raw("HTTP/1.1 200 OK\r\nContent-Len"), "connection"),
            (Reply::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), "end of file"),
            (Reply::raw("SSH-2.0-OpenSSH_9.2\r\n"), "invalid HTTP"),
            (Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe".to_vec()), "utf-8"),
            (Reply::text("x".repeat(1 << 20)), "more than 65536 bytes"),
            (Reply::raw(format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(1 << 20))), "large"),
        ];
        for (reply, expected) in table {
            let said = format!("{reply:.60?}");
            let double = Double::serve(move |_| reply.clone());
            let error = get(&double).await.unwrap_err();
            assert!(matches!(error, NoticeError::Unreadable { .. }), "{said} {error}");
            let text = error.to_string();
            assert!(text.contains("/a?b=c") && text.contains(expected), "{text}");
        }
    }

    #[tokio::test]
    async fn an_answer_of_64_kib_is_read() {
        let double = Double::serve(|_| Reply::text("x".repeat(64 << 10)));
        assert_eq!(get(&double).await.unwrap().body.len(), 64 << 10);
    }

    #[tokio::test]
    async fn no_listener_is_no_connection() {
        let double = Double::serve(|_| Reply::Close);
        let address = double.address();
        double.end().await;
        let asked = Metadata::new(address).ask(Method::GET, "/", &[], Duration::ZERO).await;
        assert!(matches!(asked, Err(NoticeError::NoConnection { .. })), "{asked:?}");
    }

    #[tokio::test]
    async fn a_header_that_is_none_is_an_error() {
        let metadata = Metadata::new("127.0.0.1:1".parse().unwrap());
        let asked = metadata.ask(Method::GET, "/", &[("a", "b\nc")], Duration::ZERO).await;
        assert!(matches!(asked, Err(NoticeError::Unreadable { .. })), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_hangs_takes_the_time_limit() {
        for reply in [Reply::Hang, Reply::Half("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")] {
            let double = Double::serve(move |_| reply.clone());
            let began = tokio::time::Instant::now();
            let error = get(&double).await.unwrap_err();
            assert_eq!(error.to_string(), "no answer to /a?b=c within 2000ms");
            assert_eq!(began.elapsed().as_secs(), 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_a_change_takes_longer() {
        let double = Double::serve(|_| Reply::Hang);
        let (metadata, within) = (Metadata::new(double.address()), Duration::from_secs(30));
        let error = metadata.ask(Method::GET, "/", &[], within).await.unwrap_err();
        assert_eq!(error.to_string(), "no answer to / within 30000ms");
    }
}
