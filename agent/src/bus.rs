//! Connects to the system's message bus, asks who owns a name, and describes failures.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use agent_core::check::facts::Refusal;
use epilogue_common::outcome::{Failure, FailureKind};
use tokio::time::timeout;
use zbus::connection::Builder;
use zbus::fdo::DBusProxy;
use zbus::names::BusName;
use zbus::{Connection, DBusError as _};

/// Maximum time that a call waits for its reply.
pub const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The D-Bus name of the error; empty if no reply came.
    pub name: String,
    /// Message for people.
    pub message: String,
}

/// Result of a call.
pub type Answer<T> = Result<T, CallError>;

/// Where the bus is.
#[derive(Clone)]
pub struct BusAddress(Arc<dyn Fn() -> Builder<'static> + Send + Sync>);

impl BusAddress {
    /// The bus to which each connection that this begins leads.
    pub fn new(begin: impl Fn() -> Builder<'static> + Send + Sync + 'static) -> Self {
        Self(Arc::new(begin))
    }
}

impl From<String> for BusAddress {
    fn from(address: String) -> Self {
        Self::new(move || Builder::address(address.as_str()))
    }
}

impl fmt::Debug for BusAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BusAddress").finish_non_exhaustive()
    }
}

/// A connection to the bus. Clones share it.
#[derive(Clone, Debug)]
pub struct Bus {
    connection: Connection,
}

impl Bus {
    /// Connects. No call on the connection waits for its reply forever.
    pub async fn connect(address: &BusAddress) -> Answer<Self> {
        let connecting = (address.0)().method_timeout(CALL_TIME_MAX).build();
        match timeout(CALL_TIME_MAX, connecting).await {
            Ok(connected) => answer(connected).map(|connection| Self { connection }),
            Err(_) => Err(no_reply()),
        }
    }

    /// The unique name of the connection that owns a name, if there is one. Asks the bus: a call to
    /// the owner itself could make the bus start a service.
    pub async fn owner_of(&self, name: &'static str) -> Answer<Option<String>> {
        let name = BusName::try_from(name).expect("a literal name must be valid");
        let bus = answer(DBusProxy::new(&self.connection).await)?;
        match bus.get_name_owner(name).await {
            Ok(owner) => Ok(Some(owner.to_string())),
            Err(zbus::fdo::Error::NameHasNoOwner(_)) => Ok(None),
            Err(error) => Err(failure(&error.into())),
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Closes the connection under all clones.
    pub async fn close(self) {
        // An error here means that the connection is already closed.
        let _ = self.connection.close().await;
    }
}

pub(crate) fn answer<T>(result: zbus::Result<T>) -> Answer<T> {
    result.map_err(|error| failure(&error))
}

fn failure(error: &zbus::Error) -> CallError {
    let text = |words: Option<&str>, name: &str| words.unwrap_or(name).to_owned();
    match error {
        zbus::Error::MethodError(name, words, _) => {
            CallError { name: name.to_string(), message: text(words.as_deref(), name) }
        }
        zbus::Error::FDO(inner) => {
            let name = inner.name().to_string();
            CallError { message: text(inner.description(), &name), name }
        }
        zbus::Error::InputOutput(inner) if inner.kind() == io::ErrorKind::TimedOut => no_reply(),
        // The error's own message repeats the address.
        zbus::Error::Connection(inner, _) => {
            CallError { name: String::new(), message: inner.to_string() }
        }
        _ => CallError { name: String::new(), message: error.to_string() },
    }
}

pub(crate) fn no_reply() -> CallError {
    let message = format!("no reply within {}s", CALL_TIME_MAX.as_secs());
    CallError { name: "org.freedesktop.DBus.Error.NoReply".to_owned(), message }
}

/// Why logind refused a lock.
pub(crate) fn refusal(error: &CallError) -> Refusal {
    match error.name.as_str() {
        "org.freedesktop.login1.OperationInProgress" => Refusal::ShuttingDown,
        "org.freedesktop.DBus.Error.AccessDenied"
        | "org.freedesktop.DBus.Error.AuthFailed"
        | "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired" => Refusal::NotPermitted,
        "org.freedesktop.DBus.Error.LimitsExceeded" => Refusal::TooManyLocks,
        _ => Refusal::Other,
    }
}

/// Converts an error of the bus into a failure of an action. `what` names the attempt.
pub(crate) fn as_failure(what: &str, error: &CallError) -> Failure {
    let kind = match error.name.as_str() {
        // No reply came: the call may have been carried out.
        "" | "org.freedesktop.DBus.Error.NoReply" | "org.freedesktop.DBus.Error.Timeout" => {
            FailureKind::Unknown
        }
        "org.freedesktop.DBus.Error.AccessDenied"
        | "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired" => FailureKind::Forbidden,
        "org.freedesktop.DBus.Error.LimitsExceeded" => FailureKind::TooManyRequests,
        "org.freedesktop.DBus.Error.ServiceUnknown"
        | "org.freedesktop.DBus.Error.NameHasNoOwner" => FailureKind::NotFound,
        _ => FailureKind::Other,
    };
    Failure::new(kind, format!("{what}: {}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_lock_is_refused_is_known_by_the_name_of_the_error() {
        let why = |name: &str| refusal(&CallError { name: name.into(), message: String::new() });
        let table = [
            ("org.freedesktop.login1.OperationInProgress", Refusal::ShuttingDown),
            ("org.freedesktop.DBus.Error.AccessDenied", Refusal::NotPermitted),
            ("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", Refusal::NotPermitted),
            ("org.freedesktop.DBus.Error.LimitsExceeded", Refusal::TooManyLocks),
            ("", Refusal::Other),
        ];
        for (name, expected) in table {
            assert_eq!(why(name), expected, "{name}");
        }
    }

    #[test]
    fn an_error_of_the_bus_falls_into_the_class_of_its_name() {
        let kind = |name: &str| {
            let error = CallError { name: name.to_owned(), message: "words".to_owned() };
            as_failure("cannot ask", &error).kind
        };
        assert_eq!(kind(""), FailureKind::Unknown);
        assert_eq!(kind("org.freedesktop.DBus.Error.AccessDenied"), FailureKind::Forbidden);
        assert_eq!(kind("org.freedesktop.DBus.Error.LimitsExceeded"), FailureKind::TooManyRequests);
        assert_eq!(kind("org.freedesktop.systemd1.NoSuchUnit"), FailureKind::Other);
        let words = as_failure("cannot ask", &no_reply());
        assert_eq!(words.to_string(), "cannot ask: no reply within 5s");
    }
}
